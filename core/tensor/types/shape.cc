#include "sherd/core/tensor/shape.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> sizes) {
  if (const std::optional<int64_t> volume = CheckedVolume(sizes)) {
    return *volume;
  }
  if (sizes.size() > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor has at most ", kMaxRank, " dimensions, got ", sizes.size()));
  }
  // Of several reasons, the first one.
  for (size_t d = 0; d < sizes.size() && CheckedVolume(sizes.first(d)); ++d) {
    if (sizes[d] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sizes must not be negative, got ", FormatDims(sizes)));
  }
  return absl::InvalidArgumentError(absl::StrCat("the number of elements of ",
                                                 FormatDims(sizes),
                                                 " does not fit in 64 bits"));
}

int64_t Volume(absl::Span<const int64_t> sizes) {
  int64_t volume = 1;
  for (const int64_t size : sizes) volume *= size;
  return volume;
}

absl::StatusOr<int64_t> NumBytes(absl::Span<const int64_t> sizes, DType dtype) {
  SHERD_ASSIGN_OR_RETURN(const int64_t elements, NumElements(sizes));
  const std::optional<int64_t> bytes =
      CheckedMul(elements, static_cast<int64_t>(SizeOf(dtype)));
  if (!bytes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of bytes of ", FormatDims(sizes), " of ",
                     Name(dtype), " does not fit in 64 bits"));
  }
  return *bytes;
}

Dims ContiguousStrides(absl::Span<const int64_t> sizes) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

bool IsContiguous(absl::Span<const int64_t> sizes,
                  absl::Span<const int64_t> strides) {
  // Unsigned, which may wrap: the sizes that are asked about need not be those
  // of memory that exists.
  uint64_t expected = 1;
  bool contiguous = true;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 0) return true;
    if (sizes[d] == 1) continue;
    if (static_cast<uint64_t>(strides[d]) != expected) contiguous = false;
    expected *= static_cast<uint64_t>(sizes[d]);
  }
  return contiguous;
}

bool IsNonOverlapping(absl::Span<const int64_t> sizes,
                      absl::Span<const int64_t> strides) {
  struct Axis {
    uint64_t stride;
    int64_t size;
  };
  std::array<Axis, kMaxRank> axes;
  int rank = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] == 1) continue;
    const uint64_t stride = static_cast<uint64_t>(strides[d]);
    axes[rank++] = {strides[d] < 0 ? ~stride + 1 : stride, sizes[d]};
  }
  std::sort(axes.begin(), axes.begin() + rank,
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  // Elements of the dimensions so far lie within `extent` of the first one.
  uint64_t extent = 0;
  for (int i = 0; i < rank; ++i) {
    if (axes[i].stride <= extent) return false;
    const std::optional<uint64_t> span =
        CheckedMul(axes[i].stride, static_cast<uint64_t>(axes[i].size - 1));
    if (!span.has_value()) return i + 1 == rank;
    const std::optional<uint64_t> sum = CheckedAdd(extent, *span);
    if (!sum.has_value()) return i + 1 == rank;
    extent = *sum;
  }
  return true;
}

absl::StatusOr<int> NormalizeDim(int64_t dim, int64_t rank) {
  if (dim < -rank || dim >= rank) {
    return absl::OutOfRangeError(
        rank == 0 ? absl::StrCat("dimension ", dim,
                                 " of a tensor that has no dimensions")
                  : absl::StrCat("dimension out of range: expected one in [",
                                 -rank, ", ", rank - 1, "], got ", dim));
  }
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

std::string FormatDims(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

}  // namespace sherd
