#ifndef SHERD_CORE_SHARDING_BOX_DISTINCT_BOXES_H_
#define SHERD_CORE_SHARDING_BOX_DISTINCT_BOXES_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "sherd/core/sharding/box/box_set.h"

namespace sherd::internal {

// Boxes of which no two are equal, and their holders.
struct DistinctBoxes {
  // With the smallest of the ids of those that were equal.
  BoxSet boxes;
  // By position in `boxes`: the ids of all that were equal, ascending.
  std::vector<absl::InlinedVector<int, 2>> holders;
  // By position in the set that they come from; -1 for excluded boxes.
  std::vector<int> position;
  // Two of `boxes` that overlap nevertheless, by their position; nullopt if no
  // two do.
  std::optional<std::pair<size_t, size_t>> overlap;
};

// The wanted boxes of `set`, by their position there, and with them those that
// are equal to one. `set` has ascending ids.
//
// Cost. As FindOverlap in box_overlap.h, and O(n * d) hashing if boxes overlap.
DistinctBoxes FindDistinct(const BoxSet& set,
                           absl::FunctionRef<bool(size_t)> is_wanted);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_BOX_DISTINCT_BOXES_H_
