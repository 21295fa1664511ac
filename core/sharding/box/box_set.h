#ifndef SHERD_CORE_SHARDING_BOX_BOX_SET_H_
#define SHERD_CORE_SHARDING_BOX_BOX_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"

namespace sherd::internal {

// Boxes of a tensor as one array of numbers, for geometry on many of them.
// Holds only boxes that are not empty, each with a number chosen by the caller.
class BoxSet {
 public:
  explicit BoxSet(int dims) : dims_(dims) {}

  void Reserve(size_t boxes) {
    numbers_.reserve(stride() * boxes);
    ids_.reserve(boxes);
  }

  // Adds the box, which has dims() dimensions, unless it is empty.
  void Add(const BoxView& box, int id) {
    if (IsEmpty(box)) return;
    // Few numbers: faster than to insert the ranges.
    for (const int64_t offset : box.offsets) numbers_.push_back(offset);
    for (const int64_t size : box.sizes) numbers_.push_back(size);
    ids_.push_back(id);
  }

  // Adds box `i` of `other`, which has as many dimensions.
  void AddFrom(const BoxSet& other, size_t i, int id) {
    const absl::Span<const int64_t> numbers = other.numbers(i);
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
    ids_.push_back(id);
  }

  int dims() const { return dims_; }
  size_t size() const { return ids_.size(); }
  int id(size_t i) const { return ids_[i]; }

  // Valid until the set changes.
  BoxView operator[](size_t i) const {
    const int64_t* const offsets = numbers(i).data();
    const size_t dims = static_cast<size_t>(dims_);
    return {{offsets, dims}, {offsets + dims, dims}};
  }

  // In dimension d, box i holds the indices [lo, hi).
  int64_t lo(size_t i, int d) const {
    return numbers_[stride() * i + static_cast<size_t>(d)];
  }
  int64_t hi(size_t i, int d) const { return lo(i, d) + lo(i, dims_ + d); }

  // Offsets and sizes of box i, one after the other: equal for equal boxes.
  absl::Span<const int64_t> numbers(size_t i) const {
    return {numbers_.data() + stride() * i, stride()};
  }

 private:
  // Numbers of a box.
  size_t stride() const { return 2 * static_cast<size_t>(dims_); }

  int dims_;
  std::vector<int64_t> numbers_;
  std::vector<int> ids_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_BOX_BOX_SET_H_
