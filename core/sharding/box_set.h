#ifndef SHERD_CORE_SHARDING_BOX_SET_H_
#define SHERD_CORE_SHARDING_BOX_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

namespace sherd::internal {

// Boxes of a tensor as one array of numbers, for geometry on many of them.
// Holds only boxes that are not empty, each with a number chosen by the caller.
class BoxSet {
 public:
  explicit BoxSet(int dims) : dims_(dims) {}

  void Reserve(size_t boxes) {
    bounds_.reserve(2 * static_cast<size_t>(dims_) * boxes);
    ids_.reserve(boxes);
  }

  // Adds the box unless it is empty. The end of the box fits in int64_t.
  void Add(absl::Span<const int64_t> offsets, absl::Span<const int64_t> sizes,
           int id);

  // Adds box `i` of `other`, which has as many dimensions.
  void AddFrom(const BoxSet& other, size_t i, int id) {
    const absl::Span<const int64_t> bounds = other.bounds(i);
    bounds_.insert(bounds_.end(), bounds.begin(), bounds.end());
    ids_.push_back(id);
  }

  int dims() const { return dims_; }
  size_t size() const { return ids_.size(); }
  int id(size_t i) const { return ids_[i]; }

  // Box i holds x with lo(i)[d] <= x[d] < hi(i)[d] for every d.
  const int64_t* lo(size_t i) const {
    return bounds_.data() + 2 * static_cast<size_t>(dims_) * i;
  }
  const int64_t* hi(size_t i) const { return lo(i) + dims_; }

  // lo(i) and hi(i), one after the other: equal for equal boxes.
  absl::Span<const int64_t> bounds(size_t i) const {
    return {lo(i), 2 * static_cast<size_t>(dims_)};
  }

 private:
  int dims_;
  std::vector<int64_t> bounds_;
  std::vector<int> ids_;
};

// Elements of box i.
absl::uint128 Volume(const BoxSet& set, size_t i);

// Elements that box i of `a` and box j of `b`, which overlap, have in common.
absl::uint128 OverlapVolume(const BoxSet& a, size_t i, const BoxSet& b,
                            size_t j);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_BOX_SET_H_
