#include "sherd/serialization/checkpoint/save/shard_writer.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint/save/chunk_sums.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {
namespace {

// Small enough to stay in the second-level cache between CRC and write.
constexpr int64_t kBlockBytes = 256 << 10;
// Below this, a copy into the buffer is cheaper than a system call.
constexpr size_t kLongBytes = 32 << 10;

using VisitRun = absl::FunctionRef<absl::Status(
    int64_t offset, absl::Span<const std::byte> data)>;

// Calls `visit` with the bytes of a box in host memory, by ascending offset.
absl::Status ForEachHostRun(const BoxInArray& box, VisitRun visit) {
  std::vector<std::byte> staging;
  return ForEachPiece(
      box, kBlockBytes, [&](const BoxPiece& piece) -> absl::Status {
        const std::byte* data = piece.data;
        if (!piece.contiguous) {
          staging.resize(kBlockBytes);
          StridedCopy(staging.data(), ContiguousStrides(piece.sizes),
                      piece.data, piece.strides, piece.sizes, box.element_size);
          data = staging.data();
        }
        return visit(piece.offset, absl::MakeConstSpan(data, piece.bytes));
      });
}

// Calls `visit` with the elements of a tensor anywhere, row-major.
absl::Status ForEachRun(const Tensor& tensor, VisitRun visit) {
  const Dims zeros(tensor.dim(), 0);
  const BoxInArray box = WholeArray(tensor, zeros);
  return tensor.device().is_cpu() ? ForEachHostRun(box, visit)
                                  : ReadDeviceBox(box, tensor.device(), visit);
}

}  // namespace

absl::Status SequentialWriter::Append(absl::Span<const std::byte> data) {
  if (data.size() >= kLongBytes) {
    SHERD_RETURN_IF_ERROR(Flush());
    return Write(data);
  }
  if (buffer_.size() + data.size() > static_cast<size_t>(kBlockBytes)) {
    SHERD_RETURN_IF_ERROR(Flush());
  }
  buffer_.insert(buffer_.end(), data.begin(), data.end());
  return absl::OkStatus();
}

absl::Status SequentialWriter::Flush() {
  if (buffer_.empty()) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(Write(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status SequentialWriter::Write(absl::Span<const std::byte> data) {
  SHERD_RETURN_IF_ERROR(file_.WriteAt(written_, data));
  written_ += static_cast<int64_t>(data.size());
  return after_write_ == nullptr ? absl::OkStatus() : after_write_(written_);
}

absl::StatusOr<uint32_t> AppendTensor(SequentialWriter& writer,
                                      const Tensor& tensor, int64_t chunk_bytes,
                                      absl::Span<uint32_t> crcs,
                                      BoxFingerprint fingerprint) {
  const int64_t bytes = tensor.nbytes();
  std::fill(crcs.begin(), crcs.end(), 0);
  ChunkSums sums(bytes, chunk_bytes, crcs);
  SHERD_RETURN_IF_ERROR(ForEachRun(
      tensor,
      [&](int64_t offset, absl::Span<const std::byte> data) -> absl::Status {
        while (!data.empty()) {
          const auto block =
              data.first(std::min<size_t>(kBlockBytes, data.size()));
          sums.Add(offset, block);
          if (!fingerprint.contiguous()) fingerprint.Add(block);
          SHERD_RETURN_IF_ERROR(writer.Append(block));
          offset += static_cast<int64_t>(block.size());
          data.remove_prefix(block.size());
        }
        return absl::OkStatus();
      }));
  sums.Finish();
  for (size_t i = 0; i < crcs.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * chunk_bytes;
    const int64_t length = std::min(chunk_bytes, bytes - begin);
    if (fingerprint.contiguous()) fingerprint.AddLinear(crcs[i], length);
    crcs[i] = Crc32cFromLinear(crcs[i], static_cast<uint64_t>(length));
  }
  return fingerprint.Finish();
}

absl::StatusOr<uint32_t> Crc32cOfElements(
    const Tensor& tensor, absl::FunctionRef<absl::Status()> progress) {
  uint32_t crc = 0;
  int64_t unreported = 0;
  SHERD_RETURN_IF_ERROR(ForEachRun(
      tensor, [&](int64_t, absl::Span<const std::byte> data) -> absl::Status {
        while (!data.empty()) {
          const auto block =
              data.first(std::min<size_t>(kBlockBytes, data.size()));
          crc = Crc32c(block, crc);
          data.remove_prefix(block.size());
          unreported += static_cast<int64_t>(block.size());
          if (unreported < kBlockBytes) continue;
          unreported = 0;
          SHERD_RETURN_IF_ERROR(progress());
        }
        return absl::OkStatus();
      }));
  return crc;
}

}  // namespace sherd
