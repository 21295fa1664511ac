#include "sherd/serialization/checkpoint/save/shard_writer.h"

#include <algorithm>

#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/save/chunk_sums.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {
namespace {

// Small enough to stay in the second-level cache between CRC and write.
constexpr int64_t kBlockBytes = 256 << 10;
// Below this, a copy into the buffer is cheaper than a system call.
constexpr size_t kLongBytes = 32 << 10;

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
                                      const Tensor& tensor, ByteRange range,
                                      int64_t chunk_bytes,
                                      BoxFingerprint fingerprint,
                                      absl::Span<uint32_t> crcs,
                                      absl::Span<uint32_t> fingerprints) {
  const bool one_by_one = !fingerprints.empty();
  std::fill(crcs.begin(), crcs.end(), 0);
  ChunkSums sums(range.size(), chunk_bytes, crcs);
  fingerprint.Skip(range.begin);
  uint32_t total = 0;
  const auto end_chunk = [&](size_t chunk) {
    fingerprints[chunk] = fingerprint.Take();
    total ^= fingerprints[chunk];
  };
  SHERD_RETURN_IF_ERROR(ForEachRun(
      tensor, range,
      [&](int64_t offset, absl::Span<const std::byte> data) -> absl::Status {
        offset -= range.begin;
        while (!data.empty()) {
          const int64_t chunk_end =
              std::min((offset / chunk_bytes + 1) * chunk_bytes, range.size());
          const auto block = data.first(static_cast<size_t>(
              std::min({kBlockBytes, chunk_end - offset,
                        static_cast<int64_t>(data.size())})));
          sums.Add(offset, block);
          if (!fingerprint.contiguous()) fingerprint.Add(block);
          SHERD_RETURN_IF_ERROR(writer.Append(block));
          offset += static_cast<int64_t>(block.size());
          data.remove_prefix(block.size());
          if (one_by_one && !fingerprint.contiguous() && offset == chunk_end) {
            end_chunk(static_cast<size_t>((offset - 1) / chunk_bytes));
          }
        }
        return absl::OkStatus();
      }));
  sums.Finish();
  for (size_t i = 0; i < crcs.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * chunk_bytes;
    const int64_t length = std::min(chunk_bytes, range.size() - begin);
    if (fingerprint.contiguous()) {
      fingerprint.AddLinear(crcs[i], length);
      if (one_by_one) end_chunk(i);
    }
    crcs[i] = Crc32cFromLinear(crcs[i], static_cast<uint64_t>(length));
  }
  return one_by_one ? total : fingerprint.Take();
}

absl::StatusOr<uint32_t> Crc32cOfElements(
    const Tensor& tensor, absl::FunctionRef<absl::Status()> progress) {
  uint32_t crc = 0;
  int64_t unreported = 0;
  SHERD_RETURN_IF_ERROR(ForEachRun(
      tensor, {0, tensor.nbytes()},
      [&](int64_t, absl::Span<const std::byte> data) -> absl::Status {
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
