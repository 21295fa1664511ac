#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_TENSOR_RUNS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_TENSOR_RUNS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// The bytes [begin, end) of the elements of a tensor, row-major. Both are at
// elements.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// Calls `visit` with these bytes and their offset among those of the tensor, in
// order, and stops at its first error. The tensor may have any strides and be
// on any device; the bytes are valid until `visit` returns.
//
// Cost. Of a contiguous tensor in host memory one call, without a copy; others
// take a buffer of 256 KiB, those on a device two of kDeviceBlockBytes.
absl::Status ForEachRun(const Tensor& tensor, ByteRange range,
                        absl::FunctionRef<absl::Status(
                            int64_t offset, absl::Span<const std::byte> data)>
                            visit);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_TENSOR_RUNS_H_
