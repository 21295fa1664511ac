#ifndef SHERD_SERIALIZATION_ARCHIVE_TENSOR_STRIDES_H_
#define SHERD_SERIALIZATION_ARCHIVE_TENSOR_STRIDES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/tensor_properties.h"

// Strides as memory formats.
namespace sherd::internal {

// Of a tensor with the dimensions N, C, H, W whose elements lie in the order N,
// H, W, C. `sizes` have passed NumElements.
inline Dims ChannelsLastStrides(absl::Span<const int64_t> sizes) {
  const Dims in_order =
      ContiguousStrides({sizes[0], sizes[2], sizes[3], sizes[1]});
  return {in_order[0], in_order[3], in_order[1], in_order[2]};
}

// The format that has these strides: kPreserve if no other one does.
inline MemoryFormat FormatOf(absl::Span<const int64_t> sizes,
                             absl::Span<const int64_t> strides) {
  if (strides == absl::MakeConstSpan(ContiguousStrides(sizes))) {
    return MemoryFormat::kContiguous;
  }
  if (sizes.size() == 4 &&
      strides == absl::MakeConstSpan(ChannelsLastStrides(sizes))) {
    return MemoryFormat::kChannelsLast;
  }
  return MemoryFormat::kPreserve;
}

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_TENSOR_STRIDES_H_
