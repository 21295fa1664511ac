#ifndef SHERD_CORE_TENSOR_BOX_H_
#define SHERD_CORE_TENSOR_BOX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// A part of a tensor: the elements x with offsets[d] <= x[d] < offsets[d] +
// sizes[d] in every dimension d. A box with a size of 0 is empty. A tensor
// without dimensions has one element, and its box no offsets and no sizes.
//
// A type that extends a box (by its owner or location) derives from Box and
// defines its own operator==: that of Box, like its hash, compares the boxes
// only.
struct Box {
  Dims offsets;
  Dims sizes;

  friend bool operator==(const Box&, const Box&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const Box& box) {
    return H::combine(std::move(state), box.offsets, box.sizes);
  }
};

// A box whose numbers are owned elsewhere. All functions on boxes take it by
// reference, since it does not fit in registers.
//
// Owner. Borrows: valid as long as the numbers stay where they are. A view of a
// temporary Box lives until the end of the full expression.
//
// Validity. Unless a function documents otherwise, the box has passed
// FindBoxDefect: nothing is checked again, and nothing overflows.
struct BoxView {
  absl::Span<const int64_t> offsets;
  absl::Span<const int64_t> sizes;

  // That of a tensor without dimensions.
  BoxView() = default;
  BoxView(absl::Span<const int64_t> offsets, absl::Span<const int64_t> sizes)
      : offsets(offsets), sizes(sizes) {}
  BoxView(const Box& box)  // NOLINT(google-explicit-constructor)
      : BoxView(box.offsets, box.sizes) {}

  // A copy that owns its numbers.
  explicit operator Box() const {
    return {Dims(offsets.begin(), offsets.end()),
            Dims(sizes.begin(), sizes.end())};
  }

  // Where the box ends in a dimension.
  int64_t end(size_t d) const { return offsets[d] + sizes[d]; }

  friend bool operator==(const BoxView& a, const BoxView& b) {
    return a.offsets == b.offsets && a.sizes == b.sizes;
  }

  template <typename H>
  friend H AbslHashValue(H state, const BoxView& box) {
    return H::combine(std::move(state), box.offsets, box.sizes);
  }
};

// The defect because of which two lists of numbers from any source are not a
// box.
enum class BoxDefect {
  kNone,
  // As many offsets as sizes are expected.
  kDifferentDims,
  kNegativeOffset,
  kNegativeSize,
  // The end does not fit in int64_t.
  kEndOverflows,
  // NumElements(sizes) is an error.
  kTooLarge,
};

// The first defect of `box`, which may hold any numbers. `dim`, unless null,
// receives the dimension with the defect, and is unchanged if the defect
// concerns all of them.
BoxDefect FindBoxDefect(const BoxView& box, size_t* dim = nullptr);
inline bool IsValid(const BoxView& box) {
  return FindBoxDefect(box) == BoxDefect::kNone;
}

// All of a tensor of these sizes.
Box WholeBox(absl::Span<const int64_t> sizes);

inline bool IsEmpty(const BoxView& box) {
  for (const int64_t size : box.sizes) {
    if (size == 0) return true;
  }
  return false;
}

// Elements of the box.
inline int64_t Volume(const BoxView& box) { return Volume(box.sizes); }

// Whether the element at `index` is one of the box.
bool Contains(const BoxView& box, absl::Span<const int64_t> index);

// Whether a box may lie past the end of a tensor in a dimension in which its
// size is 0, as that of an empty trailing chunk does. (An empty shard of a
// layout holds nothing, and may have any offsets.)
enum class TrailingBoxes { kRefused, kAllowed };

// The first dimension in which the box is not inside a tensor of these sizes,
// of which there are as many; nullopt if it is inside. In each dimension offset
// and end are in [0, size], also of an empty box, unless it may trail there.
// The box may be anything that has as many offsets as sizes.
std::optional<size_t> FindDimOutside(
    const BoxView& box, absl::Span<const int64_t> tensor_sizes,
    TrailingBoxes trailing = TrailingBoxes::kRefused);

// Whether the box is inside a tensor of these sizes, with as many dimensions.
// The box may be anything.
bool IsInside(const BoxView& box, absl::Span<const int64_t> tensor_sizes,
              TrailingBoxes trailing = TrailingBoxes::kRefused);

// The elements that two boxes with equally many dimensions have in common.
//
// The first form writes them to `offsets` and `sizes`, which have an entry per
// dimension, and allocates nothing; returns false, with unspecified contents
// there, if there are no common elements.
bool Intersect(const BoxView& a, const BoxView& b, absl::Span<int64_t> offsets,
               absl::Span<int64_t> sizes);
std::optional<Box> Intersect(const BoxView& a, const BoxView& b);
// How many there are. Allocates nothing.
int64_t CommonVolume(const BoxView& a, const BoxView& b);

// Where `box` begins, counted from `origin`; and all of it, counted from there.
// Offsets are negative where it begins before `origin`.
Dims OffsetsFrom(absl::Span<const int64_t> origin, const BoxView& box);
Box RelativeTo(absl::Span<const int64_t> origin, const BoxView& box);

// The first dimension whose size is not 1, otherwise the last one: parts
// that are cut along it are contiguous in a row-major array of the box. 0 for a
// box without dimensions.
size_t OuterDim(const BoxView& box);

// Part `k` of `count` parts, in order, along `dim`. Their sizes differ by one
// at most, and the first ones are the longer ones. Of a box
// without dimensions `count` is 1.
Box PartOf(const BoxView& box, size_t dim, int64_t count, int64_t k);

// "[4, 2] at [0, 2]": sizes and offsets. The box may be anything.
std::string FormatBox(const BoxView& box);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_BOX_H_
