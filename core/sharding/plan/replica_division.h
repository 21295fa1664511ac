#ifndef SHERD_CORE_SHARDING_PLAN_REPLICA_DIVISION_H_
#define SHERD_CORE_SHARDING_PLAN_REPLICA_DIVISION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"

namespace sherd {

// Part of a box, owned by a rank that holds the box.
struct DividedBox {
  // Position in the list of boxes: the holder's own entry.
  size_t box = 0;
  // In the global tensor, with the holder.
  PlacedBox part;
};

// Replicas of fewer bytes than twice this are better left to one rank when they
// are saved or loaded.
inline constexpr int64_t kMinReplicaPartBytes = int64_t{4} << 20;

// Divides boxes so that every element is owned by one rank, although several
// hold it: for work that is done once per element, such as saving or summing.
// `boxes` have been checked: equal ones are replicas, others do not overlap.
//
// Result. A box that one rank holds is a part by itself, also if it is empty. A
// box with replicas is one part owned by the rank that has least to do so
// far, or, from 2 * `min_elements` on, parts of at least `min_elements`, cut
// along its first dimension that has more than one index, and so contiguous,
// for as many of the holders; empty ones are left out. Ordered by `box`, then
// by offset. The same on every rank that has the same arguments.
//
// With `host_of_rank`, numbers from 0 on, the host that has least to do comes
// first, and then its rank: hosts with fewer ranks do as much as others, where
// they can. Empty: the ranks alone count.
//
// `load` counts the elements owned by each rank; the function adds to it, and
// callers may reuse it from tensor to tensor. It has an entry for every rank of
// `boxes`.
//
// Cost. O(n * d + P) for n boxes in d dimensions and P ranks, besides sorting
// the holders of boxes with replicas by load.
std::vector<DividedBox> DivideReplicas(absl::Span<const PlacedBox> boxes,
                                       int64_t min_elements,
                                       absl::Span<int64_t> load,
                                       absl::Span<const int> host_of_rank = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_PLAN_REPLICA_DIVISION_H_
