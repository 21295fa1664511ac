#ifndef SHERD_SERIALIZATION_SAFETENSORS_BOX_PIECES_H_
#define SHERD_SERIALIZATION_SAFETENSORS_BOX_PIECES_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// A box of a row-major array in a file, and the memory that holds the box.
struct BoxInArray : BoxView {
  // The box is inside the array.
  absl::Span<const int64_t> array_sizes;
  size_t element_size = 1;
  // Address of the box's first element, and strides in elements.
  std::byte* data = nullptr;
  absl::Span<const int64_t> strides;
};

// The box of an array of `array_sizes`, at `offsets`, whose elements `tensor`
// has. Refers to all of them.
BoxInArray BoxOf(absl::Span<const int64_t> array_sizes,
                 absl::Span<const int64_t> offsets, const Tensor& tensor);

// Consecutive bytes of the array, and their place in memory.
struct BoxPiece {
  // The bytes [offset, offset + bytes) of the array.
  int64_t offset = 0;
  int64_t bytes = 0;
  std::byte* data = nullptr;
  // Whether they are consecutive in memory too. If not, they are a box of
  // `sizes` with `strides` there, to be copied through a buffer.
  bool contiguous = true;
  absl::Span<const int64_t> sizes;
  absl::Span<const int64_t> strides;
};

// Checks a user's slice of the array `tensor_name`.
//   kInvalidArgument  It has another number of dimensions.
//   kOutOfRange       It "is not inside tensor …".
absl::Status CheckSlice(absl::string_view tensor_name,
                        absl::Span<const int64_t> array_sizes,
                        const BoxView& slice);

// Calls `visit` for pieces that together are the box, by ascending offset, and
// stops at its first error. Pieces are as long as possible, but those that are
// not contiguous have at most `max_scattered_bytes`, which is positive and not
// below element_size.
absl::Status ForEachPiece(
    const BoxInArray& box, int64_t max_scattered_bytes,
    absl::FunctionRef<absl::Status(const BoxPiece&)> visit);

// Length of the runs of consecutive bytes of a box of `sizes` in the array,
// which is the same for all. 0 for a box without elements.
int64_t RunBytes(absl::Span<const int64_t> array_sizes,
                 absl::Span<const int64_t> sizes, size_t element_size);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_BOX_PIECES_H_
