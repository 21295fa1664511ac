#ifndef SHERD_CORE_TENSOR_SHAPE_H_
#define SHERD_CORE_TENSOR_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

// Sizes, strides or offsets, one entry per dimension. Up to four dimensions
// live without an allocation. Counts elements, never bytes.
using Dims = absl::InlinedVector<int64_t, 4>;

inline constexpr int kMaxRank = 64;

// Product of `sizes`; 1 for rank 0.
//   kInvalidArgument  More than kMaxRank dimensions, a negative size, or the
//                     product of the sizes, zeros counted as ones, does not
//                     fit in int64_t. (So strides never overflow either, as in
//                     NumPy, which also refuses [0, 2^40, 2^40].)
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> sizes);

// As NumElements, without a message: nullopt where NumElements is an error.
// Inline, since it is called for each of a million shards.
inline std::optional<int64_t> CheckedVolume(absl::Span<const int64_t> sizes) {
  if (sizes.size() > kMaxRank) return std::nullopt;
  int64_t volume = 1;
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
      continue;
    }
    const std::optional<int64_t> product = CheckedMul(volume, size);
    if (!product.has_value()) return std::nullopt;
    volume = *product;
  }
  return empty ? 0 : volume;
}

// As NumElements, for sizes that have passed it, without a check.
int64_t Volume(absl::Span<const int64_t> sizes);

// NumElements times SizeOf(dtype), with the same errors.
absl::StatusOr<int64_t> NumBytes(absl::Span<const int64_t> sizes, DType dtype);

// Row-major strides in elements: the last dimension has stride 1, each other
// one the product of max(size, 1) of those after it. `sizes` have passed
// NumElements.
Dims ContiguousStrides(absl::Span<const int64_t> sizes);

// The distance in elements from `origin` to `index`, in memory of these
// strides: the sum of (index[d] - origin[d]) * strides[d]. Both are indices of
// one tensor, or of the global tensor of which the memory has a box; without
// `origin`, index 0. Nothing is checked.
inline int64_t ElementOffset(absl::Span<const int64_t> index,
                             absl::Span<const int64_t> strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
  return offset;
}
inline int64_t ElementOffset(absl::Span<const int64_t> index,
                             absl::Span<const int64_t> origin,
                             absl::Span<const int64_t> strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    offset += (index[d] - origin[d]) * strides[d];
  }
  return offset;
}

// Whether the strides are row-major without gaps. Strides of dimensions of
// size 1 do not matter, and nothing matters in an empty tensor.
bool IsContiguous(absl::Span<const int64_t> sizes,
                  absl::Span<const int64_t> strides);

// Whether no two indices refer to the same element. May return false for exotic
// layouts that do not overlap; never returns true for one that does.
bool IsNonOverlapping(absl::Span<const int64_t> sizes,
                      absl::Span<const int64_t> strides);

// Maps a dimension in [-rank, rank) to [0, rank).
//   kOutOfRange  Any other value.
absl::StatusOr<int> NormalizeDim(int64_t dim, int64_t rank);

// "[3, 4]", "[]".
std::string FormatDims(absl::Span<const int64_t> dims);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_SHAPE_H_
