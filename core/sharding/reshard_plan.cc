#include "sherd/core/sharding/reshard_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/box_overlap.h"
#include "sherd/core/sharding/box_set.h"
#include "sherd/core/sharding/placement.h"

namespace sherd {
namespace {

using internal::BoxSet;

std::string Format(const PlacedBox& box) {
  return absl::StrCat("box at ", FormatDims(box.offsets), " of size ",
                      FormatDims(box.sizes), " on rank ", box.rank);
}

absl::Status CheckBox(const PlacedBox& box, size_t dims) {
  bool valid = box.offsets.size() == box.sizes.size() && box.rank >= 0;
  for (size_t d = 0; valid && d < box.sizes.size(); ++d) {
    valid = box.offsets[d] >= 0 && box.sizes[d] >= 0 &&
            CheckedAdd(box.offsets[d], box.sizes[d]).has_value();
  }
  if (!valid || !NumElements(box.sizes).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Format(box),
                     ": expected as many offsets as sizes, none negative, "
                     "and an end that fits in 64 bits"));
  }
  if (box.sizes.size() != dims) {
    return absl::InvalidArgumentError(
        absl::StrCat(Format(box), " has ", box.sizes.size(),
                     " dimensions, the first one has ", dims));
  }
  return absl::OkStatus();
}

absl::Status CheckBoxes(absl::Span<const PlacedBox> boxes, size_t dims) {
  for (const PlacedBox& box : boxes) {
    SHERD_RETURN_IF_ERROR(CheckBox(box, dims));
  }
  return absl::OkStatus();
}

// The boxes of one rank, or of all ranks.
BoxSet Collect(absl::Span<const PlacedBox> boxes, size_t dims,
               std::optional<int> rank) {
  BoxSet set(static_cast<int>(dims));
  if (!rank) set.Reserve(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (rank && boxes[i].rank != *rank) continue;
    set.Add(boxes[i].offsets, boxes[i].sizes, static_cast<int>(i));
  }
  return set;
}

absl::uint128 Volume(const BoxSet& set, size_t i) {
  absl::uint128 volume = 1;
  for (int d = 0; d < set.dims(); ++d) {
    volume *= static_cast<uint64_t>(set.hi(i)[d] - set.lo(i)[d]);
  }
  return volume;
}

absl::uint128 OverlapVolume(const BoxSet& a, size_t i, const BoxSet& b,
                            size_t j) {
  absl::uint128 volume = 1;
  for (int d = 0; d < a.dims(); ++d) {
    volume *= static_cast<uint64_t>(std::min(a.hi(i)[d], b.hi(j)[d]) -
                                    std::max(a.lo(i)[d], b.lo(j)[d]));
  }
  return volume;
}

// Computes the copies of one rank.
class Planner {
 public:
  Planner(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
          int rank, size_t dims)
      : from_(from),
        to_(to),
        rank_(rank),
        dims_(dims),
        from_all_(Collect(from, dims, std::nullopt)),
        to_mine_(Collect(to, dims, rank)),
        from_mine_(static_cast<int>(dims)) {
    GroupOwnReplicas();
  }

  absl::Status PlanReceives(std::vector<BoxCopy>& copies);
  void PlanSends(std::vector<BoxCopy>& copies);
  absl::StatusOr<int64_t> LowerBound();
  int MaxPeers() const;

 private:
  // Source boxes that are equal, by their index in `from`, ascending.
  using Holders = std::vector<int>;

  void GroupOwnReplicas();
  absl::Status CheckDisjoint(
      const std::vector<std::vector<uint32_t>>& sources) const;
  absl::Status AddReceives(size_t target, std::vector<uint32_t>& sources,
                           std::vector<BoxCopy>& copies) const;
  int Choose(absl::Span<const int> holders, int target) const;
  BoxCopy Copy(int source, int target) const;

  const absl::Span<const PlacedBox> from_;
  const absl::Span<const PlacedBox> to_;
  const int rank_;
  const size_t dims_;
  const BoxSet from_all_;
  const BoxSet to_mine_;
  // The different boxes that this rank holds, and for each of them everybody
  // who does.
  BoxSet from_mine_;
  std::vector<Holders> holders_of_mine_;
};

void Planner::GroupOwnReplicas() {
  absl::flat_hash_map<absl::Span<const int64_t>, size_t> group_of;
  for (size_t i = 0; i < from_all_.size(); ++i) {
    const PlacedBox& box = from_[from_all_.id(i)];
    if (box.rank != rank_) continue;
    if (!group_of.try_emplace(from_all_.bounds(i), from_mine_.size()).second) {
      continue;
    }
    from_mine_.Add(box.offsets, box.sizes, from_all_.id(i));
  }
  holders_of_mine_.resize(from_mine_.size());
  if (group_of.empty()) return;
  for (size_t i = 0; i < from_all_.size(); ++i) {
    const auto group = group_of.find(from_all_.bounds(i));
    if (group == group_of.end()) continue;
    holders_of_mine_[group->second].push_back(from_all_.id(i));
  }
}

// The source for a destination box among equal ones: the destination's own rank
// if it is among them, otherwise in turn. Sources and destinations that come in
// either of the usual orders, replicas together or layouts one after the other,
// load all replicas alike.
int Planner::Choose(absl::Span<const int> holders, int target) const {
  for (const int holder : holders) {
    if (from_[holder].rank == to_[target].rank) return holder;
  }
  const size_t n = holders.size();
  const size_t turn = static_cast<size_t>(holders[0]) / n;
  return holders[(turn + static_cast<size_t>(target)) % n];
}

BoxCopy Planner::Copy(int source, int target) const {
  const PlacedBox& from = from_[source];
  const PlacedBox& to = to_[target];
  BoxCopy copy = {.src_rank = from.rank,
                  .src_shard = source,
                  .dst_rank = to.rank,
                  .dst_shard = target};
  copy.offsets.resize(dims_);
  copy.sizes.resize(dims_);
  for (size_t d = 0; d < dims_; ++d) {
    const int64_t lo = std::max(from.offsets[d], to.offsets[d]);
    const int64_t hi =
        std::min(from.offsets[d] + from.sizes[d], to.offsets[d] + to.sizes[d]);
    copy.offsets[d] = lo;
    copy.sizes[d] = hi - lo;
  }
  return copy;
}

absl::Status Planner::PlanReceives(std::vector<BoxCopy>& copies) {
  std::vector<std::vector<uint32_t>> sources(to_mine_.size());
  internal::ForEachOverlap(to_mine_, from_all_, [&](size_t target, size_t i) {
    sources[target].push_back(static_cast<uint32_t>(i));
    return true;
  });
  // Grouped first: replicas are equal, so all or none of them overlap.
  for (std::vector<uint32_t>& list : sources) {
    std::sort(list.begin(), list.end(), [&](uint32_t a, uint32_t b) {
      const absl::Span<const int64_t> x = from_all_.bounds(a);
      const absl::Span<const int64_t> y = from_all_.bounds(b);
      return x != y ? x < y : a < b;
    });
  }
  SHERD_RETURN_IF_ERROR(CheckDisjoint(sources));
  for (size_t target = 0; target < sources.size(); ++target) {
    SHERD_RETURN_IF_ERROR(AddReceives(target, sources[target], copies));
  }
  return absl::OkStatus();
}

// Of the source boxes that this rank could receive from, no two that differ may
// overlap: then volumes tell whether a destination is covered.
absl::Status Planner::CheckDisjoint(
    const std::vector<std::vector<uint32_t>>& sources) const {
  absl::flat_hash_map<absl::Span<const int64_t>, uint32_t> distinct;
  for (const std::vector<uint32_t>& list : sources) {
    for (const uint32_t i : list) distinct.emplace(from_all_.bounds(i), i);
  }
  std::vector<uint32_t> order;
  order.reserve(distinct.size());
  for (const auto& [bounds, i] : distinct) order.push_back(i);
  std::sort(order.begin(), order.end());
  BoxSet boxes(static_cast<int>(dims_));
  boxes.Reserve(order.size());
  for (const uint32_t i : order) {
    const PlacedBox& box = from_[from_all_.id(i)];
    boxes.Add(box.offsets, box.sizes, from_all_.id(i));
  }
  const auto overlap = internal::FindOverlap(boxes);
  if (!overlap) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("source ", Format(from_[boxes.id(overlap->first)]), " and ",
                   Format(from_[boxes.id(overlap->second)]),
                   " overlap without being equal"));
}

// `sources` are positions in from_all_, equal boxes next to one another.
absl::Status Planner::AddReceives(size_t target, std::vector<uint32_t>& sources,
                                  std::vector<BoxCopy>& copies) const {
  const int target_id = to_mine_.id(target);
  absl::uint128 volume = 0;
  Holders holders;
  for (size_t i = 0; i < sources.size();) {
    const absl::Span<const int64_t> bounds = from_all_.bounds(sources[i]);
    volume += OverlapVolume(to_mine_, target, from_all_, sources[i]);
    holders.clear();
    for (; i < sources.size() && from_all_.bounds(sources[i]) == bounds; ++i) {
      holders.push_back(from_all_.id(sources[i]));
    }
    copies.push_back(Copy(Choose(holders, target_id), target_id));
  }
  if (volume == Volume(to_mine_, target)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the source boxes do not hold all elements of the ",
                   Format(to_[target_id])));
}

void Planner::PlanSends(std::vector<BoxCopy>& copies) {
  if (from_mine_.size() == 0) return;
  const BoxSet to_all = Collect(to_, dims_, std::nullopt);
  internal::ForEachOverlap(from_mine_, to_all, [&](size_t source, size_t i) {
    const int target = to_all.id(i);
    if (to_[target].rank == rank_) return true;
    const int chosen = Choose(holders_of_mine_[source], target);
    if (from_[chosen].rank == rank_) copies.push_back(Copy(chosen, target));
    return true;
  });
}

absl::StatusOr<int64_t> Planner::LowerBound() {
  absl::uint128 missing = 0;
  for (size_t i = 0; i < to_mine_.size(); ++i) missing += Volume(to_mine_, i);
  if (missing > static_cast<uint64_t>(INT64_MAX)) {
    return absl::InvalidArgumentError(
        "the destination boxes of one rank hold more elements than fit in 64 "
        "bits");
  }
  internal::ForEachOverlap(to_mine_, from_mine_, [&](size_t i, size_t j) {
    missing -= OverlapVolume(to_mine_, i, from_mine_, j);
    return true;
  });
  return static_cast<int64_t>(missing);
}

// Pairs of ranks with overlapping boxes, counted at both ends. Which replica is
// chosen does not matter to the bound.
int Planner::MaxPeers() const {
  constexpr size_t kMaxPairs = 100'000;
  int last_rank = 0;
  for (const PlacedBox& box : from_) last_rank = std::max(last_rank, box.rank);
  for (const PlacedBox& box : to_) last_rank = std::max(last_rank, box.rank);
  if (std::max({from_.size(), to_.size(), static_cast<size_t>(last_rank)}) >
      kMaxPairs) {
    return last_rank;
  }
  const BoxSet to_all = Collect(to_, dims_, std::nullopt);
  absl::flat_hash_set<std::pair<int, int>> pairs;
  std::vector<int> sends(static_cast<size_t>(last_rank) + 1);
  std::vector<int> receives(sends.size());
  size_t overlaps = 0;
  internal::ForEachOverlap(from_all_, to_all, [&](size_t i, size_t j) {
    const int src = from_[from_all_.id(i)].rank;
    const int dst = to_[to_all.id(j)].rank;
    if (src != dst && pairs.emplace(src, dst).second) {
      ++sends[src];
      ++receives[dst];
    }
    return ++overlaps <= kMaxPairs;
  });
  if (overlaps > kMaxPairs) return last_rank;
  return std::max(*std::max_element(sends.begin(), sends.end()),
                  *std::max_element(receives.begin(), receives.end()));
}

int64_t CountElements(absl::Span<const BoxCopy> copies) {
  int64_t elements = 0;
  for (const BoxCopy& copy : copies) {
    int64_t product = 1;
    for (const int64_t size : copy.sizes) product *= size;
    elements += product;
  }
  return elements;
}

// Sorts copies into messages. `peer` is the rank at the other end.
std::vector<PeerCopies> GroupByPeer(std::vector<BoxCopy> copies,
                                    int BoxCopy::*peer) {
  std::sort(copies.begin(), copies.end(),
            [peer](const BoxCopy& a, const BoxCopy& b) {
              if (a.*peer != b.*peer) return a.*peer < b.*peer;
              if (a.dst_shard != b.dst_shard) return a.dst_shard < b.dst_shard;
              return a.src_shard < b.src_shard;
            });
  std::vector<PeerCopies> groups;
  for (BoxCopy& copy : copies) {
    if (groups.empty() || groups.back().peer != copy.*peer) {
      groups.emplace_back().peer = copy.*peer;
    }
    groups.back().copies.push_back(std::move(copy));
  }
  for (PeerCopies& group : groups) {
    group.elements = CountElements(group.copies);
  }
  return groups;
}

int64_t TotalElements(const std::vector<PeerCopies>& groups) {
  int64_t elements = 0;
  for (const PeerCopies& group : groups) elements += group.elements;
  return elements;
}

}  // namespace

absl::StatusOr<std::vector<PlacedBox>> PlacedBoxes(
    absl::Span<const ShardMetadata> shards, int world_size) {
  std::vector<PlacedBox> boxes;
  boxes.reserve(shards.size());
  for (const ShardMetadata& shard : shards) {
    SHERD_ASSIGN_OR_RETURN(const int rank,
                           ResolveRank(shard.placement, world_size));
    boxes.push_back({shard.offsets, shard.sizes, rank});
  }
  return boxes;
}

absl::StatusOr<ReshardPlan> ReshardPlan::Create(
    absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
    int rank) {
  const absl::Span<const PlacedBox> any = from.empty() ? to : from;
  const size_t dims = any.empty() ? 0 : any[0].sizes.size();
  SHERD_RETURN_IF_ERROR(CheckBoxes(from, dims));
  SHERD_RETURN_IF_ERROR(CheckBoxes(to, dims));

  ReshardPlan plan;
  plan.rank_ = rank;
  Planner planner(from, to, rank, dims);
  std::vector<BoxCopy> copies;
  SHERD_ASSIGN_OR_RETURN(plan.lower_bound_elements_, planner.LowerBound());
  SHERD_RETURN_IF_ERROR(planner.PlanReceives(copies));
  plan.receives_ = GroupByPeer(std::move(copies), &BoxCopy::src_rank);
  const auto own =
      std::find_if(plan.receives_.begin(), plan.receives_.end(),
                   [rank](const PeerCopies& p) { return p.peer == rank; });
  if (own != plan.receives_.end()) {
    plan.local_ = std::move(own->copies);
    plan.elements_local_ = own->elements;
    plan.receives_.erase(own);
  }
  copies.clear();
  planner.PlanSends(copies);
  plan.sends_ = GroupByPeer(std::move(copies), &BoxCopy::dst_rank);
  plan.max_peers_ = planner.MaxPeers();
  plan.elements_sent_ = TotalElements(plan.sends_);
  plan.elements_received_ = TotalElements(plan.receives_);
  return plan;
}

}  // namespace sherd
