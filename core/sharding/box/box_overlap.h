#ifndef SHERD_CORE_SHARDING_BOX_BOX_OVERLAP_H_
#define SHERD_CORE_SHARDING_BOX_BOX_OVERLAP_H_

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "sherd/core/sharding/box/box_set.h"

namespace sherd::internal {

// Returns two boxes of the set that have an element in common, by their
// position in the set, the smaller first; nullopt if no two do.
//
// Cost. With n boxes in d dimensions, O(n * d) where planes cut the set into
// single boxes, as grids and rows of bricks, in the order of their rows or of
// their columns, and O(d * n log n) in any other order. Where no plane cuts,
// O(n log n) for d <= 2 and O(n log^d n) for more.
std::optional<std::pair<size_t, size_t>> FindOverlap(const BoxSet& boxes);

// Calls `visit` once with each pair of a box of `a` and a box of `b` that have
// an element in common, by their positions, in an order that depends on the
// boxes only. Stops when `visit` returns false. Both sets have the same number
// of dimensions.
//
// Cost. With k pairs, O(n * d + k) if the boxes of `b` form a grid, with
// replicas and a few holes perhaps; otherwise O(n log^d n + k). Where one set
// has far fewer boxes than the other, n counts only the near boxes of the
// other, and each of the rest costs O(d log n).
void ForEachOverlap(const BoxSet& a, const BoxSet& b,
                    absl::FunctionRef<bool(size_t, size_t)> visit);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_BOX_BOX_OVERLAP_H_
