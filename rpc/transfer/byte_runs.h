#ifndef SHERD_RPC_TRANSFER_BYTE_RUNS_H_
#define SHERD_RPC_TRANSFER_BYTE_RUNS_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {

// The bytes of a strided box of elements in row-major order, as runs of
// adjacent bytes, for system calls that take lists of runs. Addresses are
// numbers: they may be another process's.
class ByteRuns {
 public:
  // Strides in elements; the sizes are above 0.
  ByteRuns(uint64_t address, absl::Span<const int64_t> sizes,
           absl::Span<const int64_t> strides, size_t element_size);

  uint64_t bytes() const { return bytes_; }
  // All runs have the same length.
  uint64_t run_bytes() const { return run_bytes_; }

  // Writes the next runs to `parts`, as many as fit, and returns their number:
  // 0 at the end.
  size_t Peek(absl::Span<iovec> parts) const;
  void Advance(uint64_t bytes) { done_ += bytes; }

 private:
  uint64_t AddressOf(uint64_t run) const;

  const uint64_t address_;
  uint64_t bytes_;
  uint64_t run_bytes_;
  uint64_t done_ = 0;
  // Of the dimensions around a run; strides in bytes.
  Dims sizes_;
  Dims strides_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_TRANSFER_BYTE_RUNS_H_
