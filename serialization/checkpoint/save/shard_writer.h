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
#include "sherd/serialization/safetensors/tensor_fingerprint.h"

namespace sherd {

// Writes a file from front to back: long data directly, short data gathered
// into longer writes. Not thread-safe.
class SequentialWriter {
 public:
  // Called after each write with all bytes written so far; its error ends the
  // writing.
  using AfterWrite = std::function<absl::Status(int64_t)>;

  // `file` is borrowed.
  explicit SequentialWriter(File& file, AfterWrite after_write = nullptr)
      : file_(file), after_write_(std::move(after_write)) {}

  absl::Status Append(absl::Span<const std::byte> data);

  // Call it after the last Append.
  absl::Status Flush();

  // Bytes appended so far.
  int64_t position() const {
    return written_ + static_cast<int64_t>(buffer_.size());
  }

 private:
  absl::Status Write(absl::Span<const std::byte> data);

  File& file_;
  const AfterWrite after_write_;
  int64_t written_ = 0;
  std::vector<std::byte> buffer_;
};

// Appends the elements of a tensor, row-major, with any strides, stores the
// CRC-32C of each chunk of `chunk_bytes` in `crcs`, which has one entry per
// chunk, and adds all of it to `fingerprint`, which it finishes: the result is
// what the tensor, as a box of a larger one, adds to that one's fingerprint.
//
// Cost. One pass: the CRC of a block is computed while the block is in the
// cache for writing, for the fingerprint once more if the box is not contiguous
// in the larger tensor. Tensors that are not contiguous take a buffer of 256
// KiB, those on a device two of kDeviceBlockBytes.
absl::StatusOr<uint32_t> AppendTensor(SequentialWriter& writer,
                                      const Tensor& tensor, int64_t chunk_bytes,
                                      absl::Span<uint32_t> crcs,
                                      BoxFingerprint fingerprint);

// The CRC-32C of the elements of a tensor, row-major, with any strides.
// `progress` is called at least once per 512 KiB; its error ends the work.
//
// Cost. One pass; buffers as AppendTensor.
absl::StatusOr<uint32_t> Crc32cOfElements(
    const Tensor& tensor, absl::FunctionRef<absl::Status()> progress);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_SHARD_WRITER_H_
