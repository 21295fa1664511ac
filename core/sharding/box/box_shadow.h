#ifndef SHERD_CORE_SHARDING_BOX_BOX_SHADOW_H_
#define SHERD_CORE_SHARDING_BOX_BOX_SHADOW_H_

#include <cstdint>
#include <vector>

#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/tensor/box.h"

namespace sherd::internal {

// The intervals that some boxes cover in each dimension: quickly excludes most
// boxes that overlap none of them.
class BoxShadow {
 public:
  explicit BoxShadow(const BoxSet& boxes);

  // False if `box` has no element in common with any of the boxes.
  //
  // Cost. O(d log n).
  bool Touches(const BoxView& box) const;

 private:
  struct Interval {
    int64_t lo;
    int64_t hi;
  };

  // By dimension: sorted, and neither overlapping nor touching.
  std::vector<std::vector<Interval>> axes_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_BOX_BOX_SHADOW_H_
