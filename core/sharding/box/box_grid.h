#ifndef SHERD_CORE_SHARDING_BOX_BOX_GRID_H_
#define SHERD_CORE_SHARDING_BOX_BOX_GRID_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/tensor/box.h"

namespace sherd::internal {

// A set of boxes that are cells of a grid: in each dimension, any two boxes
// have the same interval or disjoint ones. A million boxes of 100 x 100 x 100
// cells are described by 300 intervals.
//
// Boxes may be missing, but not most of them: visiting all cells of a region is
// cheap. Several boxes may fill the same cell.
class BoxGrid {
 public:
  // Returns nullopt if the boxes are not cells of such a grid. `boxes` is
  // borrowed.
  //
  // Cost. O(n * d) and a sort of the intervals.
  static std::optional<BoxGrid> Detect(const BoxSet& boxes);

  // Calls `visit` with the position of each box that has an element in common
  // with `box`, cell by cell in row-major order, until it returns false.
  // Returns the last result of `visit`, or true.
  bool ForEachIn(const BoxView& box,
                 absl::FunctionRef<bool(size_t)> visit) const;

 private:
  struct Interval {
    int64_t lo;
    int64_t hi;
  };

  explicit BoxGrid(const BoxSet& boxes) : boxes_(&boxes) {}

  bool FindIntervals();
  void FillCells();

  const BoxSet* boxes_;
  // Sorted and disjoint, by dimension.
  std::vector<std::vector<Interval>> axes_;
  // Cells in row-major order.
  std::vector<uint64_t> cell_of_box_;
  uint64_t cells_ = 1;
  // The first box of each cell, and the next one in the same cell as a box, by
  // ascending position; -1 for none.
  std::vector<int32_t> first_;
  std::vector<int32_t> next_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_BOX_BOX_GRID_H_
