#include "sherd/tools/bench/cases/gpu_move_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/tools/bench/peers/torch_program.h"

namespace sherd {
namespace {

constexpr Device kGpu = {DeviceType::kCuda, 0};
// Peers that a rank sends to, and shards of the tensor that is moved.
constexpr int64_t kParts = 4;
// Of one sample, so that it takes far longer than the host needs to begin and
// to end it.
constexpr int64_t kBytesPerSample = int64_t{4} << 30;
constexpr int kMostRepeats = 20;

using Word = uint32_t;

int RepeatsFor(int64_t bytes) {
  return static_cast<int>(
      std::clamp<int64_t>(kBytesPerSample / bytes, 1, kMostRepeats));
}

// One box between two layouts, in words from the start of each buffer.
struct StridedBox {
  Dims sizes;
  int64_t to = 0;
  Dims to_strides;
  int64_t from = 0;
  Dims from_strides;
};

// Words that differ from their neighbours, by their place.
Word WordAt(int64_t index) { return static_cast<Word>(index) * 2654435761u; }

int64_t FloorPowerOfTwo(int64_t n) {
  int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

// The tensor `sizes` cut into kParts along `dim`, and each part packed.
std::vector<StridedBox> Packed(const Dims& sizes, size_t dim) {
  const Dims strides = ContiguousStrides(sizes);
  Dims part = sizes;
  part[dim] /= kParts;
  const int64_t words = std::accumulate(part.begin(), part.end(), int64_t{1},
                                        std::multiplies<>());
  std::vector<StridedBox> boxes;
  for (int64_t i = 0; i < kParts; ++i) {
    boxes.push_back({.sizes = part,
                     .to = i * words,
                     .to_strides = ContiguousStrides(part),
                     .from = i * part[dim] * strides[dim],
                     .from_strides = strides});
  }
  return boxes;
}

std::vector<StridedBox> Unpacked(const Dims& sizes, size_t dim) {
  std::vector<StridedBox> boxes = Packed(sizes, dim);
  for (StridedBox& box : boxes) {
    std::swap(box.to, box.from);
    std::swap(box.to_strides, box.from_strides);
  }
  return boxes;
}

std::vector<StridedBox> Transposed(const Dims& sizes) {
  return {{.sizes = sizes,
           .to_strides = {1, sizes[0]},
           .from_strides = {sizes[1], 1}}};
}

// About square.
Dims Matrix(int64_t words) {
  int64_t cols = kParts;
  while (cols * cols * 4 <= words) cols *= 2;
  return {words / cols, cols};
}

Dims Cube(int64_t words) {
  constexpr int64_t kInnermost = 64;
  int64_t middle = kParts;
  while (middle * middle * 4 * kInnermost <= words) middle *= 2;
  return {words / (middle * kInnermost), middle, kInnermost};
}

// A shape that is `cols` words wide.
Dims Rows(int64_t words, int64_t cols) { return {words / cols, cols}; }

// Two buffers of a GPU; the first holds words by their place.
class GpuWork : public RankWork {
 public:
  absl::Status MakeBuffers(int64_t words) {
    SHERD_ASSIGN_OR_RETURN(runtime_, DeviceRuntime::For(DeviceType::kCuda));
    SHERD_RETURN_IF_ERROR(runtime_->SetCurrentDevice(kGpu.index));
    host_.resize(static_cast<size_t>(words));
    for (int64_t i = 0; i < words; ++i) {
      host_[static_cast<size_t>(i)] = WordAt(i);
    }
    SHERD_ASSIGN_OR_RETURN(Allocator* const memory,
                           runtime_->MemoryOf(kGpu.index));
    for (std::shared_ptr<Storage>& buffer : buffers_) {
      SHERD_ASSIGN_OR_RETURN(buffer, Storage::Allocate(bytes(), *memory));
    }
    SHERD_RETURN_IF_ERROR(
        runtime_->CopyBytes(stream(), from(), host_.data(), bytes()));
    return runtime_->Synchronize(stream());
  }

  absl::Status Prepare() override {
    const Dims size = {static_cast<int64_t>(host_.size())};
    const Dims stride = {1};
    const Word wrong = 0xffffffff;
    SHERD_RETURN_IF_ERROR(
        runtime_->Fill(stream(), {.data = to(),
                                  .strides = stride,
                                  .sizes = size,
                                  .element_size = sizeof(Word),
                                  .value = &wrong}));
    return runtime_->Synchronize(stream());
  }

  absl::Status Run() override {
    for (int i = 0; i < RepeatsFor(static_cast<int64_t>(bytes())); ++i) {
      SHERD_RETURN_IF_ERROR(Move());
    }
    return runtime_->Synchronize(stream());
  }

 protected:
  virtual absl::Status Move() = 0;

  // Compares the second buffer with `expected`.
  absl::Status Compare(absl::Span<const Word> expected) {
    std::vector<Word> found(host_.size());
    SHERD_RETURN_IF_ERROR(
        runtime_->CopyBytes(stream(), found.data(), to(), bytes()));
    SHERD_RETURN_IF_ERROR(runtime_->Synchronize(stream()));
    const auto [wrong, right] =
        std::mismatch(found.begin(), found.end(), expected.begin());
    if (wrong == found.end()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "word ", wrong - found.begin(), " is ", *wrong, ", expected ", *right));
  }

  DeviceRuntime& runtime() { return *runtime_; }
  DeviceStream stream() const { return CurrentStream(kGpu); }
  void* from() const { return buffers_[0]->data(); }
  void* to() const { return buffers_[1]->data(); }
  absl::Span<const Word> host() const { return host_; }
  size_t bytes() const { return host_.size() * sizeof(Word); }

 private:
  DeviceRuntime* runtime_ = nullptr;
  std::vector<Word> host_;
  std::shared_ptr<Storage> buffers_[2];
};

// The vendor's copy.
class PlainCopy final : public GpuWork {
 public:
  absl::Status Check() override { return Compare(host()); }

 private:
  absl::Status Move() override {
    return runtime().CopyBytes(stream(), to(), from(), bytes());
  }
};

// All boxes in one launch.
class DeviceBoxCopy final : public GpuWork {
 public:
  explicit DeviceBoxCopy(std::vector<StridedBox> boxes)
      : boxes_(std::move(boxes)) {}

  absl::Status Check() override {
    std::vector<Word> expected(host().size());
    for (const StridedBox& box : boxes_) {
      StridedCopy(expected.data() + box.to, box.to_strides,
                  host().data() + box.from, box.from_strides, box.sizes,
                  sizeof(Word));
    }
    return Compare(expected);
  }

 private:
  absl::Status Move() override {
    copies_.clear();
    for (const StridedBox& box : boxes_) {
      copies_.push_back({.dst = static_cast<Word*>(to()) + box.to,
                         .dst_strides = box.to_strides,
                         .src = static_cast<const Word*>(from()) + box.from,
                         .src_strides = box.from_strides,
                         .sizes = box.sizes,
                         .element_size = sizeof(Word)});
    }
    return runtime().Copy(stream(), copies_);
  }

  const std::vector<StridedBox> boxes_;
  std::vector<DeviceCopy> copies_;
};

// A matrix in shards of rows to one in shards of columns, all on one GPU.
class ShardedMove final : public RankWork {
 public:
  absl::Status Make(RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(runtime_, DeviceRuntime::For(DeviceType::kCuda));
    SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                           context.Group("nccl"));
    const int64_t words = context.bytes() / int64_t{sizeof(Word)};
    size_ = Matrix(words);
    repeats_ = RepeatsFor(context.bytes());
    const std::vector<std::string> placements(kParts, "rank:0/cuda:0");
    SHERD_ASSIGN_OR_RETURN(const auto rows,
                           ChunkShardingSpec::Create(0, placements));
    SHERD_ASSIGN_OR_RETURN(const auto cols,
                           ChunkShardingSpec::Create(1, placements));
    const ShardedTensorOptions options = {.dtype = kInt32, .group = group};
    SHERD_ASSIGN_OR_RETURN(whole_, Tensor::Empty(size_, {.dtype = kInt32}));
    for (int64_t i = 0; i < words; ++i) {
      whole_.mutable_data_as<int32_t>()[i] = static_cast<int32_t>(WordAt(i));
    }
    SHERD_ASSIGN_OR_RETURN(from_, ShardTensor(whole_, rows, 0, group));
    SHERD_ASSIGN_OR_RETURN(to_, ShardedTensor::Empty(cols, size_, options));
    return absl::OkStatus();
  }

  absl::Status Prepare() override {
    SHERD_RETURN_IF_ERROR(to_.Fill(-1));
    return runtime_->Synchronize(CurrentStream(kGpu));
  }

  absl::Status Run() override {
    for (int i = 0; i < repeats_; ++i) {
      SHERD_RETURN_IF_ERROR(from_.ReshardInto(to_));
    }
    return runtime_->Synchronize(CurrentStream(kGpu));
  }

  absl::Status Check() override {
    SHERD_ASSIGN_OR_RETURN(Tensor found,
                           Tensor::Empty(size_, {.dtype = kInt32}));
    SHERD_ASSIGN_OR_RETURN(found, to_.Gather(0, found));
    if (found.BitwiseEqual(whole_)) return absl::OkStatus();
    return absl::DataLossError("the result differs from the source");
  }

 private:
  DeviceRuntime* runtime_ = nullptr;
  Dims size_;
  int repeats_ = 1;
  Tensor whole_;
  ShardedTensor from_;
  ShardedTensor to_;
};

using MakeBoxes = std::vector<StridedBox> (*)(int64_t words);

BenchPeer LimitPeer() {
  return {.name = "limit",
          .help = "the vendor's copy of as many bytes, one run",
          .make = [](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            auto work = std::make_unique<PlainCopy>();
            SHERD_RETURN_IF_ERROR(
                work->MakeBuffers(context.bytes() / int64_t{sizeof(Word)}));
            return work;
          }};
}

BenchPeer TorchPeer(const std::string& work) {
  return {
      .name = "torch",
      .help = "PyTorch on the same GPU, into a result that is there",
      .measuring_program =
          [work](const BenchTask& task, const std::string& report) {
            return TorchGpuProgram(work, task, RepeatsFor(task.bytes), report);
          },
      .check = [](int, int64_t, const std::string&) { return FindTorch(); }};
}

BenchCase CaseOf(const std::string& name, const std::string& help,
                 std::vector<BenchPeer> peers) {
  return {.name = name,
          .help = help,
          .peers = std::move(peers),
          .check = [](int world, int64_t bytes,
                      const std::string&) -> absl::Status {
            if (bytes < 4096 || FloorPowerOfTwo(bytes) != bytes) {
              return absl::InvalidArgumentError(
                  "measured for powers of two from 4 KiB");
            }
            return CheckOneGpu(world);
          },
          .repeats = RepeatsFor};
}

BenchCase BoxCase(const std::string& name, const std::string& help,
                  const std::string& torch_work, MakeBoxes boxes) {
  return CaseOf(name, help,
                {{.name = "sherd",
                  .help = "DeviceRuntime::Copy",
                  .make = [boxes](RankContext& context)
                      -> absl::StatusOr<std::unique_ptr<RankWork>> {
                    const int64_t words =
                        context.bytes() / int64_t{sizeof(Word)};
                    auto work = std::make_unique<DeviceBoxCopy>(boxes(words));
                    SHERD_RETURN_IF_ERROR(work->MakeBuffers(words));
                    return work;
                  }},
                 TorchPeer(torch_work),
                 LimitPeer()});
}

}  // namespace

absl::Status CheckOneGpu(int world) {
  if (world != 1) {
    return absl::InvalidArgumentError("measured for one rank: --world=1");
  }
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(DeviceType::kCuda));
  return runtime->Probe();
}

std::vector<BenchCase> GpuMoveCases() {
  return {
      BoxCase("gpu_pack_columns", "columns of a matrix for 4 ranks, packed",
              "pack:2:1", [](int64_t n) { return Packed(Matrix(n), 1); }),
      BoxCase("gpu_unpack_columns", "and unpacked", "unpack:2:1",
              [](int64_t n) { return Unpacked(Matrix(n), 1); }),
      BoxCase("gpu_pack_3d_0_to_1", "the second of three dims, 64 long, packed",
              "pack:3:1", [](int64_t n) { return Packed(Cube(n), 1); }),
      BoxCase("gpu_pack_3d_0_to_2", "the third of three dims: rows of 64 bytes",
              "pack:3:2", [](int64_t n) { return Packed(Cube(n), 2); }),
      BoxCase("gpu_pack_short_rows", "rows of 16 bytes, packed", "pack:16:1",
              [](int64_t n) { return Packed(Rows(n, 16), 1); }),
      BoxCase("gpu_pack_words", "rows of 4 bytes, packed", "pack:4:1",
              [](int64_t n) { return Packed(Rows(n, 4), 1); }),
      BoxCase("gpu_transpose", "a matrix of 32-bit words, transposed",
              "transpose:2:0", [](int64_t n) { return Transposed(Matrix(n)); }),
      CaseOf("gpu_reshard_0_to_1", "a ShardedTensor, rows to columns",
             {{.name = "sherd",
               .help = "ShardedTensor::ReshardInto, 4 shards on the GPU",
               .make = [](RankContext& context)
                   -> absl::StatusOr<std::unique_ptr<RankWork>> {
                 auto work = std::make_unique<ShardedMove>();
                 SHERD_RETURN_IF_ERROR(work->Make(context));
                 return work;
               }},
              TorchPeer("reshard:2:1"),
              LimitPeer()}),
  };
}

}  // namespace sherd
