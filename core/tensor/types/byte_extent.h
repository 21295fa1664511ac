#ifndef SHERD_CORE_TENSOR_TYPES_BYTE_EXTENT_H_
#define SHERD_CORE_TENSOR_TYPES_BYTE_EXTENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// Bytes from the first to the last element, that one included, or nothing if
// they do not fit in 64 bits. Sizes and strides are as many, and not negative.
inline std::optional<int64_t> ByteExtent(absl::Span<const int64_t> sizes,
                                         absl::Span<const int64_t> strides,
                                         DType dtype) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    const auto span = CheckedMul(sizes[d] - 1, strides[d]);
    if (!span.has_value()) return std::nullopt;
    const auto sum = CheckedAdd(last, *span);
    if (!sum.has_value()) return std::nullopt;
    last = *sum;
  }
  const auto count = CheckedAdd<int64_t>(last, 1);
  if (!count.has_value()) return std::nullopt;
  return CheckedMul(*count, static_cast<int64_t>(SizeOf(dtype)));
}

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_TYPES_BYTE_EXTENT_H_
