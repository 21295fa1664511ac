#ifndef SHERD_SERIALIZATION_MANIFEST_SAVED_LAYOUT_H_
#define SHERD_SERIALIZATION_MANIFEST_SAVED_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// Of one tensor.
inline constexpr int64_t kMaxShards = int64_t{1} << 26;

// The boxes of a tensor by number; together they are the tensor, without
// overlaps. A grid takes no memory per box. Copies share all memory.
//
// Validity. Unless a function says otherwise, the layout has passed Validate,
// or was made by Whole or FromBoxes.
//
// Threads. Safe.
class SavedLayout {
 public:
  // A dimension of a grid. If step > 0, cell i is [i * step, (i + 1) * step)
  // cut off at the size; otherwise cuts has cells + 1 entries, and cell i is
  // [cuts[i], cuts[i + 1]). Cells may be empty.
  struct Axis {
    int64_t cells = 1;
    int64_t step = 0;
    std::vector<int64_t> cuts;

    friend bool operator==(const Axis&, const Axis&) = default;
  };

  // A tensor without dimensions, in one box.
  SavedLayout();

  // One box.
  static SavedLayout Whole(Dims sizes);

  // One axis per dimension; the boxes are numbered row-major. The numbers may
  // be anything: see Validate.
  static SavedLayout Grid(Dims sizes, std::vector<Axis> axes);

  // Boxes with as many dimensions as `sizes`, in their order, also if they
  // form a grid. Their numbers may be anything: see Validate.
  static SavedLayout Boxes(Dims sizes, absl::Span<const Box> boxes);

  // The grid that the boxes form, if they do, with empty trailing ones
  // wherever they begin; otherwise Boxes. The boxes are valid, and cover the
  // tensor once. `order`, if given, receives for each box of the result its
  // position in `boxes`.
  //
  // Cost. With n boxes in d dimensions, O(n * d) if they are in the order of a
  // grid, otherwise O(d * n log n).
  static SavedLayout FromBoxes(Dims sizes, absl::Span<const Box> boxes,
                               std::vector<int64_t>* order = nullptr);

  const Dims& sizes() const { return sizes_; }
  // The number of boxes.
  int64_t size() const { return count_; }
  bool is_grid() const { return boxes_ == nullptr; }
  // Of a grid.
  absl::Span<const Axis> axes() const {
    return axes_ == nullptr ? absl::Span<const Axis>() : *axes_;
  }

  // Box `i`, into memory that is kept. O(d).
  void BoxAt(int64_t i, Box& box) const;
  Box BoxAt(int64_t i) const;
  // Elements of box `i`. O(d).
  int64_t VolumeAt(int64_t i) const;
  // Whether a box has no elements, or the boxes are not a grid and one might
  // have none. O(d + cuts).
  bool HasEmptyBoxes() const;

  // Calls visit(i) for each box that has an element in common with `box`, by
  // ascending i, until it returns false; returns whether it never did. `box` is
  // inside the tensor.
  //
  // Cost. With h hits, a grid O(d log cells + h). Boxes: O(n log n) for the
  // first call, which builds an index, then O(log n + h log h) where the boxes
  // are not needles.
  bool ForEachIn(const BoxView& box,
                 absl::FunctionRef<bool(int64_t)> visit) const;

  // Checks numbers from outside: that the boxes are the tensor, each element
  // once.
  //   kDataLoss  They are not; the message says where.
  //
  // Cost. O(cuts) for a grid, otherwise as ValidateNonOverlapping.
  absl::Status Validate() const;

  // Whether this is a copy of `other`, or the reverse; so they are equal. O(d).
  bool IsCopyOf(const SavedLayout& other) const {
    return axes_ == other.axes_ && boxes_ == other.boxes_ &&
           sizes_ == other.sizes_;
  }

  // Equal boxes in equal form.
  friend bool operator==(const SavedLayout& a, const SavedLayout& b);

 private:
  struct BoxList;

  SavedLayout(Dims sizes, std::vector<Axis> axes,
              std::shared_ptr<const BoxList> boxes, int64_t count);

  const Axis& AxisAt(size_t dim) const { return (*axes_)[dim]; }

  Dims sizes_;
  // Of a grid; null: without dimensions.
  std::shared_ptr<const std::vector<Axis>> axes_;
  // Otherwise.
  std::shared_ptr<const BoxList> boxes_;
  int64_t count_ = 1;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_SAVED_LAYOUT_H_
