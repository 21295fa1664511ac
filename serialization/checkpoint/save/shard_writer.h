#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_SHARD_WRITER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_SHARD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/save/tensor_runs.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"

namespace sherd {

// Writes a file from front to back: long data directly, short data gathered
// into longer writes. Not thread-safe.
class SequentialWriter {
 public:
  // Called after each write with the position behind it; its error ends the
  // writing.
  using AfterWrite = std::function<absl::Status(int64_t)>;

  // `file` is borrowed. Writing begins at `position`.
  explicit SequentialWriter(File& file, AfterWrite after_write = nullptr,
                            int64_t position = 0)
      : file_(file), after_write_(std::move(after_write)), written_(position) {}

  absl::Status Append(absl::Span<const std::byte> data);

  // Call it after the last Append.
  absl::Status Flush();

  // Behind what was appended.
  int64_t position() const {
    return written_ + static_cast<int64_t>(buffer_.size());
  }

 private:
  absl::Status Write(absl::Span<const std::byte> data);

  File& file_;
  const AfterWrite after_write_;
  int64_t written_;
  std::vector<std::byte> buffer_;
};

// Appends a range of the elements of a tensor, row-major, with any strides, and
// stores the CRC-32C of each chunk of `chunk_bytes` of the range in `crcs`,
// which has one entry per chunk. `fingerprint` is that of the tensor as a box
// of a larger one, from its beginning; the result is what the range adds to
// that one's. `fingerprints`, unless empty, receives what each chunk adds to
// it.
//
// Cost. One pass: the CRC of a block is computed while the block is in the
// cache for writing, for the fingerprint once more if the box is not contiguous
// in the larger tensor. Some microseconds per entry of `fingerprints`. Buffers
// as ForEachRun.
absl::StatusOr<uint32_t> AppendTensor(SequentialWriter& writer,
                                      const Tensor& tensor, ByteRange range,
                                      int64_t chunk_bytes,
                                      BoxFingerprint fingerprint,
                                      absl::Span<uint32_t> crcs,
                                      absl::Span<uint32_t> fingerprints = {});

// The CRC-32C of the elements of a tensor, row-major, with any strides.
// `progress` is called at least once per 512 KiB; its error ends the work.
//
// Cost. One pass; buffers as AppendTensor.
absl::StatusOr<uint32_t> Crc32cOfElements(
    const Tensor& tensor, absl::FunctionRef<absl::Status()> progress);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_SHARD_WRITER_H_
