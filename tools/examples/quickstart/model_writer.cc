#include "sherd/tools/examples/quickstart/model_writer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors.h"

namespace sherd {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Tensors draw from different keys, so that none depends on the sizes of those
// before it. The factor spreads neighbouring seeds (Steele et al., SplitMix64).
uint64_t KeyOf(uint64_t seed, int64_t index) {
  return seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(index);
}

absl::Status FillUniformPiece(const ModelTensor& tensor, uint64_t key,
                              int64_t first, Tensor& piece) {
  SHERD_ASSIGN_OR_RETURN(const int64_t total, NumElements(tensor.info.shape));
  Generator generator(key);
  const std::array<int64_t, 1> sizes = {total};
  const std::array<int64_t, 1> offsets = {first};
  const RandomRegion region = {.global_sizes = sizes, .offsets = offsets};
  return FillUniform(piece, tensor.low, tensor.high, generator, &region);
}

void FillBits(uint64_t key, int64_t first_byte, bool is_bool,
              absl::Span<std::byte> bytes) {
  std::array<uint32_t, 4> block = {};
  int64_t block_number = -1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int64_t position = first_byte + static_cast<int64_t>(i);
    if (position / 16 != block_number) {
      block_number = position / 16;
      block = Philox4x32(
          {static_cast<uint32_t>(block_number),
           static_cast<uint32_t>(block_number >> 32), 0, 0},
          {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
    }
    const uint32_t word = block[position % 16 / 4];
    const auto byte = static_cast<std::byte>(word >> (position % 4 * 8));
    bytes[i] = is_bool ? byte & std::byte{1} : byte;
  }
}

void FillCausalMask(const ModelTensor& tensor, int64_t first,
                    absl::Span<float> values) {
  const int64_t width = tensor.info.shape.back();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t position = first + static_cast<int64_t>(i);
    values[i] = position % width <= position / width % width ? 1 : 0;
  }
}

struct Piece {
  int64_t tensor;
  int64_t first;
  int64_t count;
};

std::vector<Piece> CutIntoPieces(const std::vector<ModelTensor>& model) {
  std::vector<Piece> pieces;
  for (size_t t = 0; t < model.size(); ++t) {
    const SafetensorsTensorInfo& info = model[t].info;
    const int64_t total = NumElements(info.shape).value_or(0);
    const int64_t step = kPieceBytes / static_cast<int64_t>(SizeOf(info.dtype));
    for (int64_t first = 0; first < total; first += step) {
      pieces.push_back(
          {static_cast<int64_t>(t), first, std::min(step, total - first)});
    }
  }
  return pieces;
}

// Threads take pieces in order until all are written or one failed.
class ParallelWrite {
 public:
  ParallelWrite(const std::vector<ModelTensor>& model,
                const ModelWriterOptions& options, SafetensorsWriter& writer)
      : model_(model),
        options_(options),
        writer_(writer),
        pieces_(CutIntoPieces(model)) {}

  absl::Status Run() {
    std::vector<std::thread> threads;
    for (int i = 1; i < options_.threads; ++i) {
      threads.emplace_back([this] { Work(); });
    }
    Work();
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  void Work() {
    // A piece's memory belongs to its thread, so that it stays in the cache.
    const auto buffer = std::make_unique<std::byte[]>(kPieceBytes);
    while (true) {
      const size_t next = next_.fetch_add(1);
      if (next >= pieces_.size()) return;
      absl::Status status = WritePiece(pieces_[next], buffer.get());
      absl::MutexLock lock(&mutex_);
      status_.Update(status);
      if (!status_.ok()) return;
      if (options_.on_progress) {
        const ModelTensor& tensor = model_[pieces_[next].tensor];
        options_.on_progress(pieces_[next].count * static_cast<int64_t>(SizeOf(
                                                       tensor.info.dtype)),
                             tensor.info.name);
      }
    }
  }

  absl::Status WritePiece(const Piece& piece, std::byte* buffer) {
    const ModelTensor& tensor = model_[piece.tensor];
    const auto size = static_cast<int64_t>(SizeOf(tensor.info.dtype));
    const absl::Span<std::byte> bytes(buffer, piece.count * size);
    SHERD_RETURN_IF_ERROR(FillModelPiece(tensor, piece.tensor, options_.seed,
                                         piece.first, piece.count, bytes));
    return writer_.WriteAt(tensor.info.name, piece.first * size, bytes);
  }

  const std::vector<ModelTensor>& model_;
  const ModelWriterOptions& options_;
  SafetensorsWriter& writer_;
  const std::vector<Piece> pieces_;
  std::atomic<size_t> next_ = 0;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status FillModelPiece(const ModelTensor& tensor, int64_t index,
                            uint64_t seed, int64_t first, int64_t count,
                            absl::Span<std::byte> bytes) {
  const DType dtype = tensor.info.dtype;
  const uint64_t key = KeyOf(seed, index);
  if (tensor.fill == ModelFill::kBits) {
    FillBits(key, first * static_cast<int64_t>(SizeOf(dtype)), dtype == kBool,
             bytes);
    return absl::OkStatus();
  }
  SHERD_ASSIGN_OR_RETURN(Tensor piece,
                         Tensor::FromBorrowed(bytes.data(), {count}, dtype));
  if (tensor.fill == ModelFill::kUniform) {
    return FillUniformPiece(tensor, key, first, piece);
  }
  FillCausalMask(tensor, first,
                 {piece.mutable_data_as<float>(), static_cast<size_t>(count)});
  return absl::OkStatus();
}

absl::Status WriteModel(FileSystem& files, const std::string& path,
                        const std::vector<ModelTensor>& model,
                        const ModelWriterOptions& options) {
  std::vector<SafetensorsTensorInfo> infos;
  for (const ModelTensor& tensor : model) infos.push_back(tensor.info);
  SHERD_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(files, path, std::move(infos),
                                {{"format", "pt"}}));
  SHERD_RETURN_IF_ERROR(ParallelWrite(model, options, *writer).Run());
  // A lost file costs a second run of this program, not data.
  return writer->Finish(/*sync=*/false);
}

}  // namespace sherd
