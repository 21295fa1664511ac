#include "sherd/core/tensor/box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"

namespace sherd {
namespace {

// The intersection of two boxes in one dimension: its size is not positive if
// it is empty.
struct CommonRange {
  int64_t offset;
  int64_t size;
};

CommonRange CommonIn(size_t d, const BoxView& a, const BoxView& b) {
  const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
  return {begin, std::min(a.end(d), b.end(d)) - begin};
}

// Without overflow, whatever the numbers are.
bool RangeIsInside(int64_t offset, int64_t size, int64_t length) {
  return offset >= 0 && size >= 0 && offset <= length &&
         size <= length - offset;
}

bool HaveAsManyDims(const BoxView& box,
                    absl::Span<const int64_t> tensor_sizes) {
  return box.offsets.size() == tensor_sizes.size() &&
         box.sizes.size() == tensor_sizes.size();
}

}  // namespace

BoxDefect FindBoxDefect(const BoxView& box, size_t* dim) {
  if (box.offsets.size() != box.sizes.size()) return BoxDefect::kDifferentDims;
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    BoxDefect defect = BoxDefect::kNone;
    if (box.offsets[d] < 0) {
      defect = BoxDefect::kNegativeOffset;
    } else if (box.sizes[d] < 0) {
      defect = BoxDefect::kNegativeSize;
    } else if (!CheckedAdd(box.offsets[d], box.sizes[d])) {
      defect = BoxDefect::kEndOverflows;
    }
    if (defect == BoxDefect::kNone) continue;
    if (dim != nullptr) *dim = d;
    return defect;
  }
  return CheckedVolume(box.sizes) ? BoxDefect::kNone : BoxDefect::kTooLarge;
}

Box WholeBox(absl::Span<const int64_t> sizes) {
  return {Dims(sizes.size(), 0), Dims(sizes.begin(), sizes.end())};
}

bool Contains(const BoxView& box, absl::Span<const int64_t> index) {
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < box.offsets[d] || index[d] >= box.end(d)) return false;
  }
  return true;
}

std::optional<size_t> FindDimOutside(const BoxView& box,
                                     absl::Span<const int64_t> tensor_sizes,
                                     TrailingBoxes trailing) {
  for (size_t d = 0; d < tensor_sizes.size(); ++d) {
    if (RangeIsInside(box.offsets[d], box.sizes[d], tensor_sizes[d])) continue;
    if (trailing == TrailingBoxes::kAllowed && box.sizes[d] == 0 &&
        box.offsets[d] >= 0) {
      continue;
    }
    return d;
  }
  return std::nullopt;
}

bool IsInside(const BoxView& box, absl::Span<const int64_t> tensor_sizes,
              TrailingBoxes trailing) {
  return HaveAsManyDims(box, tensor_sizes) &&
         !FindDimOutside(box, tensor_sizes, trailing);
}

bool Intersect(const BoxView& a, const BoxView& b, absl::Span<int64_t> offsets,
               absl::Span<int64_t> sizes) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const CommonRange common = CommonIn(d, a, b);
    if (common.size <= 0) return false;
    offsets[d] = common.offset;
    sizes[d] = common.size;
  }
  return true;
}

std::optional<Box> Intersect(const BoxView& a, const BoxView& b) {
  if (CommonVolume(a, b) == 0) return std::nullopt;
  std::optional<Box> common = Box{Dims(a.sizes.size()), Dims(a.sizes.size())};
  if (!Intersect(a, b, absl::MakeSpan(common->offsets),
                 absl::MakeSpan(common->sizes))) {
    common.reset();
  }
  return common;
}

int64_t CommonVolume(const BoxView& a, const BoxView& b) {
  int64_t volume = 1;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const CommonRange common = CommonIn(d, a, b);
    if (common.size <= 0) return 0;
    volume *= common.size;
  }
  return volume;
}

Dims OffsetsFrom(absl::Span<const int64_t> origin, const BoxView& box) {
  Dims offsets(origin.size());
  for (size_t d = 0; d < origin.size(); ++d) {
    offsets[d] = box.offsets[d] - origin[d];
  }
  return offsets;
}

Box RelativeTo(absl::Span<const int64_t> origin, const BoxView& box) {
  return {OffsetsFrom(origin, box), Dims(box.sizes.begin(), box.sizes.end())};
}

size_t OuterDim(const BoxView& box) {
  size_t dim = 0;
  while (dim + 1 < box.sizes.size() && box.sizes[dim] == 1) ++dim;
  return dim;
}

Box PartOf(const BoxView& box, size_t dim, int64_t count, int64_t k) {
  Box part(box);
  if (count == 1) return part;
  const int64_t size = box.sizes[dim];
  const int64_t longer = size % count;
  part.offsets[dim] += size / count * k + std::min(k, longer);
  part.sizes[dim] = size / count + (k < longer ? 1 : 0);
  return part;
}

std::string FormatBox(const BoxView& box) {
  return absl::StrCat(FormatDims(box.sizes), " at ", FormatDims(box.offsets));
}

}  // namespace sherd
