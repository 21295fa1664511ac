#include "sherd/serialization/manifest/box_tree.h"

#include <algorithm>

namespace sherd {
namespace {

constexpr size_t kLeafBoxes = 8;

}  // namespace

void BoxTree::Add(const BoxView& box, int64_t number) {
  if (IsEmpty(box)) return;
  numbers_.insert(numbers_.end(), box.offsets.begin(), box.offsets.end());
  numbers_.insert(numbers_.end(), box.sizes.begin(), box.sizes.end());
  order_.push_back(ids_.size());
  ids_.push_back(number);
}

void BoxTree::Build() {
  if (!order_.empty()) Split(0, 0, order_.size());
}

void BoxTree::Split(size_t node, size_t begin, size_t end) {
  if (bounds_.size() < 2 * dims_ * (node + 1)) {
    bounds_.resize(2 * dims_ * (node + 1));
  }
  int64_t* const bounds = bounds_.data() + 2 * dims_ * node;
  size_t longest = 0;
  for (size_t d = 0; d < dims_; ++d) {
    int64_t lo = At(order_[begin]).offsets[d];
    int64_t hi = lo;
    for (size_t i = begin; i < end; ++i) {
      lo = std::min(lo, At(order_[i]).offsets[d]);
      hi = std::max(hi, At(order_[i]).end(d));
    }
    bounds[d] = lo;
    bounds[dims_ + d] = hi - lo;
    if (bounds[dims_ + d] > bounds[dims_ + longest]) longest = d;
  }
  if (end - begin <= kLeafBoxes) return;
  const size_t middle = begin + (end - begin) / 2;
  std::nth_element(order_.begin() + begin, order_.begin() + middle,
                   order_.begin() + end, [&](size_t a, size_t b) {
                     return At(a).offsets[longest] < At(b).offsets[longest];
                   });
  Split(2 * node + 1, begin, middle);
  Split(2 * node + 2, middle, end);
}

void BoxTree::Search(size_t node, size_t begin, size_t end, const BoxView& box,
                     std::vector<int64_t>& found) const {
  if (CommonVolume(View(bounds_, node), box) == 0) return;
  if (end - begin <= kLeafBoxes) {
    for (size_t i = begin; i < end; ++i) {
      if (CommonVolume(At(order_[i]), box) != 0) {
        found.push_back(ids_[order_[i]]);
      }
    }
    return;
  }
  const size_t middle = begin + (end - begin) / 2;
  Search(2 * node + 1, begin, middle, box, found);
  Search(2 * node + 2, middle, end, box, found);
}

bool BoxTree::ForEachIn(const BoxView& box,
                        absl::FunctionRef<bool(int64_t)> visit) const {
  std::vector<int64_t> found;
  if (!order_.empty()) Search(0, 0, order_.size(), box, found);
  std::sort(found.begin(), found.end());
  return std::all_of(found.begin(), found.end(), visit);
}

}  // namespace sherd
