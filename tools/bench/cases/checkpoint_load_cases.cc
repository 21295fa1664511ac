#include "sherd/tools/bench/cases/checkpoint_load_cases.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/tools/bench/cases/checkpoint_reference.h"
#include "sherd/tools/bench/cases/direct_io.h"
#include "sherd/tools/bench/cases/settle_disk.h"
#include "sherd/tools/bench/peers/box_layout.h"
#include "sherd/tools/bench/peers/sharded_words.h"

namespace sherd {
namespace {

using Bytes = absl::Span<std::byte>;

FileSystem& Files() { return FileSystem::Posix(); }

// Whether the page cache has the files when a load begins.
enum class Cache { kWarm, kCold };

absl::Status PrepareCache(Cache cache, const CheckpointReference& reference) {
  return cache == Cache::kCold ? EvictFiles(reference.path())
                               : absl::OkStatus();
}

class SherdLoad final : public RankWork {
 public:
  SherdLoad(CheckpointReferencePtr reference, ShardedTensor destination,
            Cache cache)
      : reference_(std::move(reference)),
        destination_(std::move(destination)),
        cache_(cache) {}

  absl::Status Prepare() override {
    Spoil(reference_->matrix(), StoredShards(destination_));
    return PrepareCache(cache_, *reference_);
  }
  absl::Status Run() override {
    return LoadCheckpointInto(
        reference_->path(), {{CheckpointReference::kTensorName, &destination_}},
        destination_.group());
  }
  absl::Status Check() override {
    return sherd::Check(reference_->matrix(), StoredShards(destination_));
  }

 private:
  const CheckpointReferencePtr reference_;
  ShardedTensor destination_;
  const Cache cache_;
};

// What a rank needs of one file: runs of equal length of its tensor.
struct Runs {
  std::string path;
  // Of the tensor, and its first byte in the file.
  std::string key;
  int64_t tensor_offset = 0;
  int64_t count = 1;
  int64_t bytes = 0;
  // The first run in the tensor, and from one to the next.
  int64_t from = 0;
  int64_t from_step = 0;
  std::byte* to = nullptr;
  int64_t to_step = 0;

  Bytes Destination(int64_t run) const {
    return Bytes(to + run * to_step, static_cast<size_t>(bytes));
  }
};

using ReadRuns = std::function<absl::Status(const Runs&)>;

absl::Status ReadPlainly(const Runs& runs) {
  SHERD_ASSIGN_OR_RETURN(const auto file, Files().OpenForRead(runs.path));
  for (int64_t i = 0; i < runs.count; ++i) {
    SHERD_RETURN_IF_ERROR(
        ReadBlocks(*file, runs.tensor_offset + runs.from + i * runs.from_step,
                   runs.Destination(i)));
  }
  return absl::OkStatus();
}

// The same with the CRC of each chunk, while it is in the cache.
absl::Status ReadWithCrcs(const Runs& runs) {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  constexpr size_t kChunk = size_t{kChunkBytes};
  SHERD_ASSIGN_OR_RETURN(const auto file, Files().OpenForRead(runs.path));
  for (int64_t i = 0; i < runs.count; ++i) {
    int64_t at = runs.tensor_offset + runs.from + i * runs.from_step;
    for (Bytes rest = runs.Destination(i); !rest.empty();) {
      const Bytes block = rest.subspan(0, kBlockBytes);
      SHERD_RETURN_IF_ERROR(file->ReadAt(at, block));
      for (size_t done = 0; done < block.size(); done += kChunk) {
        // Only its time matters.
        Crc32c(block.subspan(done, kChunk));
      }
      at += static_cast<int64_t>(block.size());
      rest.remove_prefix(block.size());
    }
  }
  return absl::OkStatus();
}

// As safe_open and get_slice of the package safetensors, with which the reader
// of Hugging Face's files in torch.distributed.checkpoint loads.
absl::Status CopyFromMapping(const Runs& runs) {
  SHERD_ASSIGN_OR_RETURN(const auto file,
                         SafetensorsFile::Open(Files(), runs.path));
  SHERD_ASSIGN_OR_RETURN(const Tensor tensor, file.MapTensor(runs.key));
  const auto* data = static_cast<const std::byte*>(tensor.data());
  for (int64_t i = 0; i < runs.count; ++i) {
    std::memcpy(runs.Destination(i).data(),
                data + runs.from + i * runs.from_step,
                static_cast<size_t>(runs.bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReadRuns> DirectReads() {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<DirectIo> io, DirectIo::Create());
  return [io](const Runs& runs) -> absl::Status {
    for (int64_t i = 0; i < runs.count; ++i) {
      SHERD_RETURN_IF_ERROR(io->Read(
          runs.path, runs.tensor_offset + runs.from + i * runs.from_step,
          runs.Destination(i)));
    }
    return absl::OkStatus();
  };
}

// Each rank reads the manifest, then the bytes that it needs of each file,
// straight to where they belong.
class PlainLoad final : public RankWork {
 public:
  PlainLoad(CheckpointReferencePtr reference, const WordBox& box,
            std::shared_ptr<Storage> destination, ReadRuns read, Cache cache)
      : reference_(std::move(reference)),
        box_(box),
        destination_(std::move(destination)),
        read_(std::move(read)),
        cache_(cache) {}

  absl::Status Prepare() override {
    Spoil(reference_->matrix(), {stored()});
    return PrepareCache(cache_, *reference_);
  }

  absl::Status Run() override {
    SHERD_RETURN_IF_ERROR(
        ReadFile(Files(), JoinPath(reference_->path(), kManifestFileName),
                 kMaxManifestBytes)
            .status());
    for (int rank = 0; rank < reference_->world(); ++rank) {
      const std::optional<Runs> runs = RunsFrom(rank);
      if (runs.has_value()) SHERD_RETURN_IF_ERROR(read_(*runs));
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    return sherd::Check(reference_->matrix(), {stored()});
  }

 private:
  static constexpr int64_t kWord = sizeof(uint32_t);

  StoredBox stored() const {
    return DenseBox(box_, static_cast<uint32_t*>(destination_->data()));
  }

  // What this rank needs of the file that `rank` wrote.
  std::optional<Runs> RunsFrom(int rank) const {
    const StoredBox saved = DenseBox(reference_->RowsOf(rank), nullptr);
    const WordBox piece = Intersect(saved.box, box_);
    if (IsEmpty(piece)) return std::nullopt;
    const SavedRows rows = reference_->SavedRowsOf(rank);
    const bool run = saved.IsRun(piece) && stored().IsRun(piece);
    const int64_t count = run ? 1 : piece.sizes[1];
    return Runs{.path = JoinPath(reference_->path(), rows.file->name),
                .key = absl::StrCat(CheckpointReference::kTensorName, "@",
                                    saved.box.offsets[1], ",0"),
                .tensor_offset = rows.offset,
                .count = count,
                .bytes = piece.bytes() / count,
                .from = saved.OffsetOf(piece) * kWord,
                .from_step = saved.row_stride * kWord,
                .to = reinterpret_cast<std::byte*>(stored().At(piece)),
                .to_step = stored().row_stride * kWord};
  }

  const CheckpointReferencePtr reference_;
  const WordBox box_;
  const std::shared_ptr<Storage> destination_;
  const ReadRuns read_;
  const Cache cache_;
};

// Of a rank that has no part in a load.
class NoLoad final : public RankWork {
 public:
  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::Status Run() override { return absl::OkStatus(); }
  absl::Status Check() override { return absl::OkStatus(); }
};

// What is loaded, and where it comes from.
struct LoadKind {
  CyclicLayout (*layout_of)(const WordTensor& matrix, int ranks);
  // The dim that it cuts, for PyTorch.
  int dim = 0;
  Cache cache = Cache::kWarm;
  // The last ranks that have a part in saving alone.
  int idle = 0;

  int LoadersOf(int world) const { return world - idle; }
  BoxLayout LayOut(const WordTensor& matrix, int world) const {
    return BoxesOf(matrix, layout_of(matrix, LoadersOf(world)));
  }
};

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdLoad(
    RankContext& context, const LoadKind& kind, const std::string& backend) {
  SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
  SHERD_ASSIGN_OR_RETURN(auto group, context.Group(backend));
  if (kind.idle > 0) {
    std::vector<int> loaders(kind.LoadersOf(context.world()));
    std::iota(loaders.begin(), loaders.end(), 0);
    SHERD_ASSIGN_OR_RETURN(group, group->NewGroup(loaders));
    if (!group->is_member()) return std::make_unique<NoLoad>();
  }
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensor destination,
      MakeShardedWords(reference->matrix(),
                       kind.LayOut(reference->matrix(), context.world()),
                       group));
  return std::make_unique<SherdLoad>(std::move(reference),
                                     std::move(destination), kind.cache);
}

// Ranks pass on what several of them need, over this backend.
BenchPeer SherdPeer(const LoadKind& kind, const char* name = "sherd",
                    const char* backend = "gloo") {
  return {.name = name,
          .help = absl::StrCat("LoadCheckpointInto a tensor, over ", backend),
          .make = [=](RankContext& context) {
            return MakeSherdLoad(context, kind, backend);
          }};
}

absl::StatusOr<std::unique_ptr<RankWork>> MakePlainLoad(RankContext& context,
                                                        const LoadKind& kind,
                                                        ReadRuns read) {
  SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
  if (context.rank() >= kind.LoadersOf(context.world())) {
    return std::make_unique<NoLoad>();
  }
  const RankBoxes boxes =
      kind.LayOut(reference->matrix(), context.world())[context.rank()];
  const WordBox box = boxes.empty() ? WordBox() : boxes.front();
  SHERD_ASSIGN_OR_RETURN(auto destination, Storage::Allocate(box.bytes()));
  return std::make_unique<PlainLoad>(std::move(reference), box,
                                     std::move(destination), std::move(read),
                                     kind.cache);
}

BenchPeer LimitPeer(const LoadKind& kind) {
  return {.name = "limit",
          .help = "plain reads of the same bytes",
          .make = [=](RankContext& context) {
            return MakePlainLoad(context, kind, ReadPlainly);
          }};
}

BenchPeer CheckedPeer(const LoadKind& kind) {
  return {.name = "limit-crc",
          .help = "the same, and the CRC of each chunk",
          .make = [=](RankContext& context) {
            return MakePlainLoad(context, kind, ReadWithCrcs);
          }};
}

BenchPeer DirectPeer(const LoadKind& kind) {
  return {.name = "limit-direct",
          .help = "the same past the page cache, 16 MiB in flight",
          .make = [=](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(ReadRuns read, DirectReads());
            return MakePlainLoad(context, kind, std::move(read));
          },
          .check =
              [](int, int64_t, const std::string& directory) {
                return DirectIo::Check(directory);
              }};
}

BenchPeer MappedPeer(const LoadKind& kind) {
  return {.name = "hf-reader",
          .help =
              "copies of slices of the mapped safetensors files, as "
              "torch.distributed.checkpoint's reader of Hugging Face's",
          .make = [=](RankContext& context) {
            return MakePlainLoad(context, kind, CopyFromMapping);
          }};
}

BenchPeer DcpPeer(const LoadKind& kind) {
  return TorchCheckpointPeer(
      "torch-dcp", "torch.distributed.checkpoint.load into a DTensor",
      [=](int world) {
        return absl::StrCat("dcp:load:", kind.dim, ":", kind.LoadersOf(world));
      });
}

absl::Status CheckCold(int world, int64_t bytes, const std::string& directory) {
  SHERD_RETURN_IF_ERROR(CheckCheckpointSpace(world, bytes, directory));
  return CheckEviction(directory);
}

absl::Status CheckFewer(int world, int64_t bytes,
                        const std::string& directory) {
  if (world < 2) {
    return absl::InvalidArgumentError(
        "needs two ranks: the last one does not load");
  }
  return CheckCheckpointSpace(world, bytes, directory);
}

std::vector<BenchPeer> ReshardedPeers(const LoadKind& kind) {
  return {SherdPeer(kind), SherdPeer(kind, "sherd-shm", "shm"), DcpPeer(kind),
          LimitPeer(kind), MappedPeer(kind)};
}

}  // namespace

std::vector<BenchCase> CheckpointLoadCases() {
  const LoadKind rows = {.layout_of = RowsOver};
  const LoadKind cold = {.layout_of = RowsOver, .cache = Cache::kCold};
  const LoadKind columns = {.layout_of = ColumnsOver, .dim = 1};
  const LoadKind fewer = {.layout_of = ColumnsOver, .dim = 1, .idle = 1};
  return {{.name = "checkpoint_load_same",
           .help = "rows to rows, from cached files",
           .peers = {SherdPeer(rows), SherdPeer(rows, "sherd-shm", "shm"),
                     DcpPeer(rows), LimitPeer(rows), CheckedPeer(rows)},
           .check = CheckCheckpointSpace},
          {.name = "checkpoint_load_cold",
           .help = "rows to rows, from files that are not cached",
           .peers = {SherdPeer(cold), LimitPeer(cold), DirectPeer(cold)},
           .check = CheckCold},
          {.name = "checkpoint_load_resharded",
           .help = "rows to columns, from cached files",
           .peers = ReshardedPeers(columns),
           .check = CheckCheckpointSpace},
          {.name = "checkpoint_load_fewer",
           .help = "rows to columns over one rank less, from cached files",
           .peers = ReshardedPeers(fewer),
           .check = CheckFewer}};
}

}  // namespace sherd
