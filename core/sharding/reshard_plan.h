#ifndef SHERD_CORE_SHARDING_RESHARD_PLAN_H_
#define SHERD_CORE_SHARDING_RESHARD_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// A box of the global tensor and the rank that has it, or is to have it.
struct PlacedBox {
  Dims offsets;
  Dims sizes;
  int rank = 0;
};

// One PlacedBox per shard, in the same order.
//   kInvalidArgument  See ResolveRank.
absl::StatusOr<std::vector<PlacedBox>> PlacedBoxes(
    absl::Span<const ShardMetadata> shards, int world_size);

// Part of a source shard that becomes part of a destination shard.
struct BoxCopy {
  int src_rank = 0;
  // Position in the list `from`.
  int src_shard = 0;
  int dst_rank = 0;
  // Position in the list `to`.
  int dst_shard = 0;
  // In the global tensor; never empty.
  Dims offsets;
  Dims sizes;

  friend bool operator==(const BoxCopy&, const BoxCopy&) = default;
};

// All copies between this rank and one other.
struct PeerCopies {
  int peer = 0;
  // Elements of all copies.
  int64_t elements = 0;
  // Ordered by dst_shard, then src_shard. Both ends have the same list, so it
  // is also the layout of the message between them.
  std::vector<BoxCopy> copies;
};

// What one rank sends, receives and copies when boxes change hands. A pure
// function of the two lists: ranks that have the same lists need not talk to
// know what the others do.
//
// Every destination box gets each of its elements exactly once: from the same
// rank if it has it, otherwise by one message from a rank that has it. Equal
// source boxes are replicas, between which destinations choose in turn.
// Destination boxes may overlap in any way. Empty boxes take no part.
class ReshardPlan {
 public:
  // `from` and `to` are the same lists on every rank; the plan is that of
  // `rank`.
  //   kInvalidArgument  A box is malformed or has another number of dimensions;
  //                     source boxes overlap without being equal, or do not
  //                     hold all elements of a destination box of `rank`. The
  //                     message has the box.
  //
  // Cost. With n boxes in all, k copies of this rank and d dimensions, time
  // O(n * d + k log k) where `from` and `to` are grids, however uneven and in
  // any order, and O(n log^d n + k log k) otherwise. Memory O(n * d + k).
  static absl::StatusOr<ReshardPlan> Create(absl::Span<const PlacedBox> from,
                                            absl::Span<const PlacedBox> to,
                                            int rank);

  int rank() const { return rank_; }

  // By peer, ascending; peers without copies and this rank itself are left
  // out.
  const std::vector<PeerCopies>& sends() const { return sends_; }
  const std::vector<PeerCopies>& receives() const { return receives_; }
  // Ordered like a message.
  const std::vector<BoxCopy>& local() const { return local_; }

  int64_t elements_sent() const { return elements_sent_; }
  int64_t elements_received() const { return elements_received_; }
  int64_t elements_local() const { return elements_local_; }
  // What this rank must receive under any plan: elements of its destination
  // boxes that none of its source boxes holds. Counted from the volumes of the
  // boxes, not from the copies.
  int64_t lower_bound_elements() const { return lower_bound_elements_; }

  int64_t bytes_sent(size_t element_size) const {
    return elements_sent_ * static_cast<int64_t>(element_size);
  }
  int64_t bytes_received(size_t element_size) const {
    return elements_received_ * static_cast<int64_t>(element_size);
  }
  int64_t bytes_local(size_t element_size) const {
    return elements_local_ * static_cast<int64_t>(element_size);
  }
  int64_t lower_bound_bytes(size_t element_size) const {
    return lower_bound_elements_ * static_cast<int64_t>(element_size);
  }
  // An upper bound on the number of peers that any one rank sends to, or
  // receives from: the same on all ranks, which is why buffers can be sized by
  // it. The number of ranks in the lists, less one, if counting would take
  // long.
  int max_peers() const { return max_peers_; }
  // Pairs of ranks with this one at either end that exchange data.
  int messages() const {
    return static_cast<int>(sends_.size() + receives_.size());
  }

 private:
  ReshardPlan() = default;

  int rank_ = 0;
  int max_peers_ = 0;
  std::vector<PeerCopies> sends_;
  std::vector<PeerCopies> receives_;
  std::vector<BoxCopy> local_;
  int64_t elements_sent_ = 0;
  int64_t elements_received_ = 0;
  int64_t elements_local_ = 0;
  int64_t lower_bound_elements_ = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_RESHARD_PLAN_H_
