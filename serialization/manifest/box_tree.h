#ifndef SHERD_SERIALIZATION_MANIFEST_BOX_TREE_H_
#define SHERD_SERIALIZATION_MANIFEST_BOX_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "sherd/core/tensor/box.h"

namespace sherd {

// Finds those of many boxes that have elements in a box.
//
// Threads. ForEachIn may be called by several at once.
class BoxTree {
 public:
  explicit BoxTree(int dims) : dims_(static_cast<size_t>(dims)) {}

  // Adds a box with a number of the caller's choice, unless it is empty.
  void Add(const BoxView& box, int64_t number);

  // Call it after the last Add. O(n log n) for n boxes.
  void Build();

  // Calls `visit` with the number of each box that has an element in common
  // with `box`, ascending, until it returns false; returns the last result of
  // `visit`, or true.
  bool ForEachIn(const BoxView& box,
                 absl::FunctionRef<bool(int64_t)> visit) const;

 private:
  void Split(size_t node, size_t begin, size_t end);
  void Search(size_t node, size_t begin, size_t end, const BoxView& box,
              std::vector<int64_t>& found) const;
  BoxView At(size_t i) const { return View(numbers_, i); }
  BoxView View(const std::vector<int64_t>& from, size_t i) const {
    const int64_t* const begin = from.data() + 2 * dims_ * i;
    return {{begin, dims_}, {begin + dims_, dims_}};
  }

  size_t dims_;
  // Offsets and sizes of each box in turn, as added, and the boxes' numbers.
  std::vector<int64_t> numbers_;
  std::vector<int64_t> ids_;
  // The boxes in the order of the leaves. A node has a range of them, its
  // children, 2 * node + 1 and 2 * node + 2, the halves.
  std::vector<size_t> order_;
  // The box around all of a node's.
  std::vector<int64_t> bounds_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_BOX_TREE_H_
