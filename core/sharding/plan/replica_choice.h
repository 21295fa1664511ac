#ifndef SHERD_CORE_SHARDING_PLAN_REPLICA_CHOICE_H_
#define SHERD_CORE_SHARDING_PLAN_REPLICA_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"

namespace sherd::internal {

// Decides which of several equal source boxes a destination box reads. A
// function of the two lists and the hosts: all ranks decide alike, each for the
// boxes that it reads or holds.
//
//     ReplicaChoice choice(from, to, host_of_rank);
//     const int box = choice.Add(holders);      // for each box that is needed
//     choice.Prepare();
//     choice.Choose(box, target);
//
// The rank's own replica comes first, then those of its host, then all. Among
// several, the destinations that have to choose take turns, in the order of
// `to`; and since each box begins its turns elsewhere, so do boxes with few
// destinations.
class ReplicaChoice {
 public:
  // Borrows its arguments. `host_of_rank` may be empty.
  ReplicaChoice(absl::Span<const PlacedBox> from,
                absl::Span<const PlacedBox> to,
                absl::Span<const int> host_of_rank)
      : from_(from), to_(to), host_of_rank_(host_of_rank) {}

  // Adds a source box by the positions in `from` of all boxes that are equal
  // to it and not empty, ascending. Returns its number; a box that is added
  // again keeps it.
  int Add(absl::Span<const int> holders);

  // Once, after the last Add.
  //
  // Cost. O(number of boxes added) if none of them has replicas. Otherwise
  // O(|from| + |to|) and, where |from| * |to| is at most 2^26, the pairs of an
  // added box and a destination that overlap. In larger cases turns are taken
  // by a sequence of low discrepancy instead of by counting.
  void Prepare();

  // The position in `from` that destination `target`, which overlaps the box,
  // reads.
  int Choose(int box, int target) const;

 private:
  // Boxes that are equal. A box without replicas has none, its number is -1 -
  // its position in `from`.
  struct Group {
    // One for each rank, in the order of `from`.
    std::vector<int> holders;
    // The holders by rank and, where hosts are known, by host.
    absl::flat_hash_map<int, int> by_rank;
    absl::flat_hash_map<int, std::vector<int>> by_host;
    // Where turns begin.
    size_t start = 0;
    // With counted turns: the destinations that overlap the box and read from
    // another rank, ascending, and the replicas that they read.
    std::vector<int> targets;
    std::vector<int> chosen;
  };

  void CountTurns();
  // The holders on the target's host, or all if there are none.
  const std::vector<int>& Candidates(const Group& group, int target) const;

  const absl::Span<const PlacedBox> from_;
  const absl::Span<const PlacedBox> to_;
  const absl::Span<const int> host_of_rank_;
  std::vector<Group> groups_;
  // Of a group by its first holder.
  absl::flat_hash_map<int, int> number_;
  bool counted_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_PLAN_REPLICA_CHOICE_H_
