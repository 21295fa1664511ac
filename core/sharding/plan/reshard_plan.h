#ifndef SHERD_CORE_SHARDING_PLAN_RESHARD_PLAN_H_
#define SHERD_CORE_SHARDING_PLAN_RESHARD_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"

namespace sherd {

// Part of a source shard that becomes part of a destination shard: a box of the
// global tensor that is never empty.
struct BoxCopy : Box {
  int src_rank = 0;
  // Position in the list `from`.
  int src_shard = 0;
  int dst_rank = 0;
  // Position in the list `to`.
  int dst_shard = 0;

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

// The data that one rank sends, receives and copies in a redistribution. A pure
// function of the two lists: ranks that have the same lists need no
// communication to know the plans of the others. ExplainPlan in plan_report.h
// reports the work of all ranks together, and compares it with the minimum of
// any plan.
//
// Every destination box gets each of its elements exactly once: from the same
// rank if it has it, otherwise by one message from a rank that has it.
// Destination boxes may overlap in any way. Empty boxes take no part.
//
// Replicas. Equal source boxes are replicas. A destination box reads the
// replica of its own rank; if there is none, one of those on its host; if there
// is none either, one of all of them. Destinations with the same replicas to
// choose from take them in turn, so that each is read about as often.
class ReshardPlan {
 public:
  // `from` and `to` are the same lists on every rank; the plan is that of
  // `rank`. `host_of_rank` has a number for each rank, equal for ranks that
  // share a host; also the same on every rank. Empty: all hosts are alike.
  //   kInvalidArgument  A box is malformed or has another number of dimensions;
  //                     source boxes overlap without being equal, or do not
  //                     hold all elements of a destination box of `rank`; a
  //                     rank has no entry in `host_of_rank`; the total that
  //                     `rank` sends or receives, counted in bytes of the
  //                     largest dtype, does not fit in 64 bits. The message has
  //                     the box.
  //
  // Cost. With n boxes in all, k copies of this rank and d dimensions, time
  // O(n * d + k log k) where `from` and `to` are grids, however uneven and in
  // any order, and O(n log^d n + k log k) otherwise. Memory O(n * d + k).
  // Replicas that this rank reads or holds add O(n) and, for each box that has
  // any, up to 4096 destinations.
  static absl::StatusOr<ReshardPlan> Create(
      absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
      int rank, absl::Span<const int> host_of_rank = {});

  // The plan of a reduction: every rank of `world_size` holds a summand of the
  // whole tensor, source shard 0, and each element of a box in `to` comes once
  // from each of them. local() is this rank's own contribution to its boxes; it
  // has the same boxes in the same order as each of receives().
  //
  // `to` is the same list on every rank; no two of its boxes overlap.
  //   kInvalidArgument  A box is malformed, has another number of dimensions or
  //                     a rank that is not in [0, world_size); the total that
  //                     `rank` sends or receives, counted in bytes of the
  //                     largest dtype, does not fit in 64 bits.
  //
  // Cost. O((n + k) * d) for n boxes of d dimensions and k copies of this rank.
  static absl::StatusOr<ReshardPlan> CreateReduction(
      absl::Span<const PlacedBox> to, int rank, int world_size);

  // A plan of copies that the caller has chosen, of any number of tensors, for
  // a group of `world_size`: those at one end of which is `rank`, in any order.
  // Shards of one rank have different numbers, also of different tensors, and
  // both ends use the same ones; so (src_shard, dst_shard) is unique among the
  // copies of a pair of ranks. lower_bound_elements() is what the copies bring.
  //   kInvalidArgument  A rank is not in [0, world_size), or `rank` is at no
  //                     end of a copy; a pair of shards has two copies; the
  //                     total that `rank` sends or receives, counted in bytes
  //                     of the largest dtype, does not fit in 64 bits.
  //
  // Cost. O(k log k) for k copies.
  static absl::StatusOr<ReshardPlan> OfCopies(std::vector<BoxCopy> copies,
                                              int rank, int world_size);

  int rank() const { return rank_; }

  // By peer, ascending; peers without copies and this rank itself are left
  // out.
  const std::vector<PeerCopies>& sends() const { return sends_; }
  const std::vector<PeerCopies>& receives() const { return receives_; }
  // Ordered like a message.
  const std::vector<BoxCopy>& local() const { return local_; }
  // Copies between equal boxes: they are unnecessary where the destination may
  // reuse the memory of the source. Positions in local(), ascending; every
  // source shard and every destination shard occurs once at most.
  const std::vector<int>& in_place() const { return in_place_; }

  int64_t elements_sent() const { return elements_sent_; }
  int64_t elements_received() const { return elements_received_; }
  // Those of in_place() included.
  int64_t elements_local() const { return elements_local_; }
  int64_t elements_in_place() const { return elements_in_place_; }
  // The elements that this rank must receive under any plan: those of its
  // destination boxes that none of its source boxes holds. Counted from the
  // volumes of the boxes, not from the copies.
  int64_t lower_bound_elements() const { return lower_bound_elements_; }

  // `element_size` is at most that of the largest dtype: then nothing wraps.
  int64_t bytes_sent(size_t element_size) const {
    return elements_sent_ * static_cast<int64_t>(element_size);
  }
  int64_t bytes_received(size_t element_size) const {
    return elements_received_ * static_cast<int64_t>(element_size);
  }
  int64_t bytes_local(size_t element_size) const {
    return elements_local_ * static_cast<int64_t>(element_size);
  }
  int64_t bytes_in_place(size_t element_size) const {
    return elements_in_place_ * static_cast<int64_t>(element_size);
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

  void FindInPlace(absl::Span<const PlacedBox> from,
                   absl::Span<const PlacedBox> to);

  int rank_ = 0;
  int max_peers_ = 0;
  std::vector<PeerCopies> sends_;
  std::vector<PeerCopies> receives_;
  std::vector<BoxCopy> local_;
  std::vector<int> in_place_;
  int64_t elements_sent_ = 0;
  int64_t elements_received_ = 0;
  int64_t elements_local_ = 0;
  int64_t elements_in_place_ = 0;
  int64_t lower_bound_elements_ = 0;
};

namespace internal {

// The intersection of two boxes that overlap, as a copy.
BoxCopy CopyBetween(absl::Span<const PlacedBox> from, int src_shard,
                    absl::Span<const PlacedBox> to, int dst_shard);

// ReshardPlan::max_peers() of boxes that CheckBoxes has passed.
int MaxPeers(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
             int dims);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_PLAN_RESHARD_PLAN_H_
