#include "sherd/core/sharding/box/box_shadow.h"

#include <algorithm>

namespace sherd::internal {

BoxShadow::BoxShadow(const BoxSet& boxes) : axes_(boxes.dims()) {
  for (int d = 0; d < boxes.dims(); ++d) {
    std::vector<Interval> all;
    all.reserve(boxes.size());
    for (size_t i = 0; i < boxes.size(); ++i) {
      all.push_back({boxes.lo(i, d), boxes.hi(i, d)});
    }
    std::sort(all.begin(), all.end(),
              [](const Interval& a, const Interval& b) { return a.lo < b.lo; });
    std::vector<Interval>& axis = axes_[d];
    for (const Interval& interval : all) {
      if (axis.empty() || interval.lo > axis.back().hi) {
        axis.push_back(interval);
      } else {
        axis.back().hi = std::max(axis.back().hi, interval.hi);
      }
    }
  }
}

bool BoxShadow::Touches(const BoxView& box) const {
  for (size_t d = 0; d < axes_.size(); ++d) {
    const auto next = std::partition_point(
        axes_[d].begin(), axes_[d].end(), [&](const Interval& interval) {
          return interval.hi <= box.offsets[d];
        });
    if (next == axes_[d].end() || next->lo >= box.end(d)) return false;
  }
  return true;
}

}  // namespace sherd::internal
