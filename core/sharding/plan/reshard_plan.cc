#include "sherd/core/sharding/plan/reshard_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/box/box_overlap.h"
#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/sharding/box/box_shadow.h"
#include "sherd/core/sharding/box/distinct_boxes.h"
#include "sherd/core/sharding/plan/replica_choice.h"

namespace sherd {
namespace {

using internal::BoxSet;
using internal::BoxShadow;
using internal::DistinctBoxes;
using internal::FormatPlacedBox;
using internal::ReplicaChoice;

BoxSet BoxesOfRank(absl::Span<const PlacedBox> boxes, int dims, int rank) {
  BoxSet set(dims);
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].rank != rank) continue;
    set.Add(boxes[i], static_cast<int>(i));
  }
  return set;
}

// The boxes of all ranks that may have an element in common with one of `mine`.
BoxSet BoxesNear(const BoxSet& mine, absl::Span<const PlacedBox> boxes) {
  BoxSet near(mine.dims());
  if (mine.size() == 0) return near;
  const BoxShadow shadow(mine);
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (shadow.Touches(boxes[i])) near.Add(boxes[i], static_cast<int>(i));
  }
  return near;
}

// A copy by the positions of its boxes.
struct ShardPair {
  int peer;
  int dst_shard;
  int src_shard;

  friend bool operator<(const ShardPair& a, const ShardPair& b) {
    return std::tie(a.peer, a.dst_shard, a.src_shard) <
           std::tie(b.peer, b.dst_shard, b.src_shard);
  }
};

// Decides what one rank reads and what others read from it.
class Planner {
 public:
  Planner(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
          int rank, int dims, absl::Span<const int> host_of_rank)
      : from_(from),
        to_(to),
        rank_(rank),
        to_mine_(BoxesOfRank(to, dims, rank)),
        choice_(from, to, host_of_rank) {}

  absl::Status Run();

  // The pairs that this rank reads, its own included, and those that others
  // read from it.
  const std::vector<ShardPair>& reads() const { return reads_; }
  const std::vector<ShardPair>& sends() const { return sends_; }
  int64_t lower_bound() const { return lower_bound_; }

 private:
  // The sources that a destination box of this rank reads: positions in
  // to_mine_ and in the distinct sources.
  using Reads = std::vector<std::pair<size_t, int>>;

  absl::Status ComputeLowerBound(const BoxSet& mine);
  absl::StatusOr<DistinctBoxes> FindSources(Reads& reads) const;
  absl::Status CheckCover(const Reads& reads, const BoxSet& sources) const;

  const absl::Span<const PlacedBox> from_;
  const absl::Span<const PlacedBox> to_;
  const int rank_;
  const BoxSet to_mine_;
  ReplicaChoice choice_;
  std::vector<ShardPair> reads_;
  std::vector<ShardPair> sends_;
  int64_t lower_bound_ = 0;
};

absl::Status Planner::Run() {
  const BoxSet from_mine = BoxesOfRank(from_, to_mine_.dims(), rank_);
  const BoxSet near_mine = BoxesNear(from_mine, from_);
  const DistinctBoxes mine = internal::FindDistinct(near_mine, [&](size_t i) {
    return from_[near_mine.id(i)].rank == rank_;
  });
  SHERD_RETURN_IF_ERROR(ComputeLowerBound(mine.boxes));
  Reads reads;
  SHERD_ASSIGN_OR_RETURN(const DistinctBoxes sources, FindSources(reads));

  std::vector<int> source_choices, own_choices;
  for (const auto& h : sources.holders)
    source_choices.push_back(choice_.Add(h));
  for (const auto& h : mine.holders) own_choices.push_back(choice_.Add(h));
  choice_.Prepare();

  reads_.reserve(reads.size());
  for (const auto& [target, source] : reads) {
    const int dst_shard = to_mine_.id(target);
    const int src_shard = choice_.Choose(source_choices[source], dst_shard);
    reads_.push_back({from_[src_shard].rank, dst_shard, src_shard});
  }
  const BoxSet near_to = BoxesNear(mine.boxes, to_);
  internal::ForEachOverlap(mine.boxes, near_to, [&](size_t source, size_t i) {
    const int dst_shard = near_to.id(i);
    const int peer = to_[dst_shard].rank;
    if (peer == rank_) return true;
    const int src_shard = choice_.Choose(own_choices[source], dst_shard);
    if (from_[src_shard].rank == rank_) {
      sends_.push_back({peer, dst_shard, src_shard});
    }
    return true;
  });
  return absl::OkStatus();
}

absl::Status Planner::ComputeLowerBound(const BoxSet& mine) {
  absl::uint128 missing = 0;
  for (size_t i = 0; i < to_mine_.size(); ++i) {
    missing += static_cast<uint64_t>(Volume(to_mine_[i]));
  }
  if (missing > static_cast<uint64_t>(internal::kMaxPlannedElements)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the destination boxes of rank ", rank_,
        " hold more elements than fit in 64 bits when counted in bytes"));
  }
  internal::ForEachOverlap(to_mine_, mine, [&](size_t i, size_t j) {
    missing -= static_cast<uint64_t>(CommonVolume(to_mine_[i], mine[j]));
    return true;
  });
  lower_bound_ = static_cast<int64_t>(missing);
  return absl::OkStatus();
}

absl::StatusOr<DistinctBoxes> Planner::FindSources(Reads& reads) const {
  const BoxSet near_from = BoxesNear(to_mine_, from_);
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  std::vector<bool> is_read(near_from.size());
  internal::ForEachOverlap(to_mine_, near_from, [&](size_t target, size_t i) {
    pairs.emplace_back(target, i);
    is_read[i] = true;
    return true;
  });
  DistinctBoxes sources =
      internal::FindDistinct(near_from, [&](size_t i) { return is_read[i]; });
  for (const auto& [target, i] : pairs) {
    const int source = sources.position[i];
    // One of several equal boxes represents all.
    if (sources.boxes.id(source) == near_from.id(i)) {
      reads.emplace_back(target, source);
    }
  }
  // Of the source boxes that this rank could read, no two that differ may
  // overlap: then volumes show whether a destination is covered.
  if (const auto& overlap = sources.overlap) {
    return absl::InvalidArgumentError(absl::StrCat(
        "source ", FormatPlacedBox(from_[sources.boxes.id(overlap->first)]),
        " and ", FormatPlacedBox(from_[sources.boxes.id(overlap->second)]),
        " overlap without being equal"));
  }
  SHERD_RETURN_IF_ERROR(CheckCover(reads, sources.boxes));
  return sources;
}

absl::Status Planner::CheckCover(const Reads& reads,
                                 const BoxSet& sources) const {
  std::vector<int64_t> missing(to_mine_.size());
  for (size_t i = 0; i < missing.size(); ++i) missing[i] = Volume(to_mine_[i]);
  for (const auto& [target, source] : reads) {
    missing[target] -= CommonVolume(to_mine_[target], sources[source]);
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the source boxes do not hold all elements of the ",
                     FormatPlacedBox(to_[to_mine_.id(i)])));
  }
  return absl::OkStatus();
}

// Turns pairs into messages, each of which has its copies by destination and
// source.
class MessageBuilder {
 public:
  MessageBuilder(absl::Span<const PlacedBox> from,
                 absl::Span<const PlacedBox> to)
      : from_(from), to_(to) {}

  //   kInvalidArgument  The sum of all elements is beyond kMaxPlannedElements.
  absl::StatusOr<std::vector<PeerCopies>> Build(std::vector<ShardPair> pairs,
                                                int rank) const {
    if (!std::is_sorted(pairs.begin(), pairs.end())) {
      std::sort(pairs.begin(), pairs.end());
    }
    std::vector<PeerCopies> messages;
    absl::uint128 total = 0;
    for (auto begin = pairs.begin(); begin != pairs.end();) {
      const auto end = std::find_if(
          begin, pairs.end(),
          [&](const ShardPair& pair) { return pair.peer != begin->peer; });
      PeerCopies& message = messages.emplace_back();
      message.peer = begin->peer;
      message.copies.reserve(static_cast<size_t>(end - begin));
      const absl::uint128 before = total;
      for (; begin != end; ++begin) {
        message.copies.push_back(internal::CopyBetween(from_, begin->src_shard,
                                                       to_, begin->dst_shard));
        total += static_cast<uint64_t>(Volume(message.copies.back()));
      }
      if (total > static_cast<uint64_t>(internal::kMaxPlannedElements)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", rank,
            " sends more elements than fit in 64 bits when counted in bytes"));
      }
      message.elements = static_cast<int64_t>(total - before);
    }
    return messages;
  }

 private:
  const absl::Span<const PlacedBox> from_;
  const absl::Span<const PlacedBox> to_;
};

// By rank, what `rank` has of the boxes of each in a reduction.
absl::StatusOr<std::vector<PeerCopies>> SummandsFor(
    absl::Span<const PlacedBox> to, int rank, int world_size) {
  std::vector<PeerCopies> of_rank(static_cast<size_t>(world_size));
  absl::uint128 total = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    const PlacedBox& box = to[i];
    if (box.rank < 0 || box.rank >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("destination ", FormatPlacedBox(box),
                       ", expected a rank of a group of ", world_size));
    }
    if (IsEmpty(box)) continue;
    total += static_cast<uint64_t>(Volume(box));
    if (total > static_cast<uint64_t>(internal::kMaxPlannedElements)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank,
          " sends more elements than fit in 64 bits when counted in bytes"));
    }
    PeerCopies& copies = of_rank[static_cast<size_t>(box.rank)];
    copies.peer = box.rank;
    copies.elements += Volume(box);
    BoxCopy& copy = copies.copies.emplace_back();
    static_cast<Box&>(copy) = box;
    copy.src_rank = rank;
    copy.dst_rank = box.rank;
    copy.dst_shard = static_cast<int>(i);
  }
  return of_rank;
}

int PeerOf(const BoxCopy& copy, int rank) {
  return copy.src_rank == rank ? copy.dst_rank : copy.src_rank;
}

auto OrderOf(const BoxCopy& copy, int rank) {
  return std::make_tuple(PeerOf(copy, rank), copy.src_rank == rank,
                         copy.dst_shard, copy.src_shard);
}

// Sorts the copies of `rank` by peer, direction and message order, and checks
// them.
absl::Status SortCopies(std::vector<BoxCopy>& copies, int rank,
                        int world_size) {
  // Sorted by number, each copy is moved once: they are large.
  std::vector<std::pair<decltype(OrderOf(copies[0], rank)), size_t>> order;
  order.reserve(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    order.emplace_back(OrderOf(copies[i], rank), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<BoxCopy> sorted;
  sorted.reserve(copies.size());
  for (const auto& [place, i] : order) sorted.push_back(std::move(copies[i]));
  copies = std::move(sorted);
  absl::uint128 total = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const BoxCopy& copy = copies[i];
    const int peer = PeerOf(copy, rank);
    if (peer < 0 || peer >= world_size ||
        (copy.src_rank != rank && copy.dst_rank != rank)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a copy from rank ", copy.src_rank, " to rank ", copy.dst_rank,
          ", expected rank ", rank, " and one in a group of ", world_size));
    }
    if (i > 0 && OrderOf(copies[i - 1], rank) == OrderOf(copy, rank)) {
      return absl::InvalidArgumentError(
          absl::StrCat("two copies from shard ", copy.src_shard, " of rank ",
                       copy.src_rank, " to shard ", copy.dst_shard, " of rank ",
                       copy.dst_rank, ", expected one"));
    }
    total += static_cast<uint64_t>(Volume(copy));
  }
  if (total <= static_cast<uint64_t>(internal::kMaxPlannedElements)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank,
      " sends and receives more elements than fit in 64 bits when counted in "
      "bytes"));
}

int64_t TotalElements(const std::vector<PeerCopies>& messages) {
  int64_t elements = 0;
  for (const PeerCopies& message : messages) elements += message.elements;
  return elements;
}

}  // namespace

absl::StatusOr<ReshardPlan> ReshardPlan::Create(
    absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to, int rank,
    absl::Span<const int> host_of_rank) {
  SHERD_ASSIGN_OR_RETURN(const int dims,
                         internal::CheckBoxes(from, to, host_of_rank));
  Planner planner(from, to, rank, dims, host_of_rank);
  SHERD_RETURN_IF_ERROR(planner.Run());

  ReshardPlan plan;
  plan.rank_ = rank;
  plan.lower_bound_elements_ = planner.lower_bound();
  const MessageBuilder builder(from, to);
  SHERD_ASSIGN_OR_RETURN(plan.receives_, builder.Build(planner.reads(), rank));
  SHERD_ASSIGN_OR_RETURN(plan.sends_, builder.Build(planner.sends(), rank));
  const auto own =
      std::find_if(plan.receives_.begin(), plan.receives_.end(),
                   [rank](const PeerCopies& p) { return p.peer == rank; });
  if (own != plan.receives_.end()) {
    plan.local_ = std::move(own->copies);
    plan.elements_local_ = own->elements;
    plan.receives_.erase(own);
  }
  plan.FindInPlace(from, to);
  plan.max_peers_ = internal::MaxPeers(from, to, dims);
  plan.elements_sent_ = TotalElements(plan.sends_);
  plan.elements_received_ = TotalElements(plan.receives_);
  return plan;
}

absl::StatusOr<ReshardPlan> ReshardPlan::CreateReduction(
    absl::Span<const PlacedBox> to, int rank, int world_size) {
  SHERD_CHECK(rank >= 0 && rank < world_size);
  SHERD_RETURN_IF_ERROR(internal::CheckBoxes({}, to, {}).status());
  SHERD_ASSIGN_OR_RETURN(std::vector<PeerCopies> summands,
                         SummandsFor(to, rank, world_size));
  const PeerCopies own =
      std::exchange(summands[static_cast<size_t>(rank)], PeerCopies());
  if (absl::uint128(static_cast<uint64_t>(own.elements)) *
          static_cast<uint64_t>(world_size) >
      static_cast<uint64_t>(internal::kMaxPlannedElements)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank,
        " receives more elements than fit in 64 bits when counted in bytes"));
  }

  ReshardPlan plan;
  plan.rank_ = rank;
  plan.max_peers_ = world_size - 1;
  for (int peer = 0; peer < world_size && own.elements > 0; ++peer) {
    if (peer == rank) continue;
    PeerCopies& message = plan.receives_.emplace_back(own);
    message.peer = peer;
    for (BoxCopy& copy : message.copies) copy.src_rank = peer;
  }
  for (PeerCopies& message : summands) {
    if (message.elements > 0) plan.sends_.push_back(std::move(message));
  }
  plan.local_ = own.copies;
  plan.elements_local_ = own.elements;
  plan.elements_sent_ = TotalElements(plan.sends_);
  plan.elements_received_ = TotalElements(plan.receives_);
  plan.lower_bound_elements_ = plan.elements_received_;
  return plan;
}

absl::StatusOr<ReshardPlan> ReshardPlan::OfCopies(std::vector<BoxCopy> copies,
                                                  int rank, int world_size) {
  SHERD_RETURN_IF_ERROR(SortCopies(copies, rank, world_size));
  ReshardPlan plan;
  plan.rank_ = rank;
  plan.max_peers_ = world_size - 1;
  for (BoxCopy& copy : copies) {
    const int peer = PeerOf(copy, rank);
    if (peer == rank) {
      plan.elements_local_ += Volume(copy);
      plan.local_.push_back(std::move(copy));
      continue;
    }
    std::vector<PeerCopies>& side =
        copy.src_rank == rank ? plan.sends_ : plan.receives_;
    if (side.empty() || side.back().peer != peer) {
      side.emplace_back().peer = peer;
    }
    side.back().elements += Volume(copy);
    side.back().copies.push_back(std::move(copy));
  }
  plan.elements_sent_ = TotalElements(plan.sends_);
  plan.elements_received_ = TotalElements(plan.receives_);
  plan.lower_bound_elements_ = plan.elements_received_;
  return plan;
}

void ReshardPlan::FindInPlace(absl::Span<const PlacedBox> from,
                              absl::Span<const PlacedBox> to) {
  absl::flat_hash_set<int> taken;
  for (size_t i = 0; i < local_.size(); ++i) {
    const BoxCopy& copy = local_[i];
    // The copy is what both boxes have in common.
    if (copy.sizes != from[copy.src_shard].sizes ||
        copy.sizes != to[copy.dst_shard].sizes ||
        !taken.insert(copy.src_shard).second) {
      continue;
    }
    in_place_.push_back(static_cast<int>(i));
    elements_in_place_ += Volume(copy);
  }
}

namespace internal {

BoxCopy CopyBetween(absl::Span<const PlacedBox> from, int src_shard,
                    absl::Span<const PlacedBox> to, int dst_shard) {
  const PlacedBox& src = from[src_shard];
  const PlacedBox& dst = to[dst_shard];
  BoxCopy copy;
  copy.src_rank = src.rank;
  copy.src_shard = src_shard;
  copy.dst_rank = dst.rank;
  copy.dst_shard = dst_shard;
  copy.offsets.resize(dst.sizes.size());
  copy.sizes.resize(dst.sizes.size());
  SHERD_CHECK(Intersect(src, dst, absl::MakeSpan(copy.offsets),
                        absl::MakeSpan(copy.sizes)));
  return copy;
}

// Pairs of ranks with overlapping boxes, counted at both ends. Which replica is
// chosen does not matter to the bound.
int MaxPeers(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
             int dims) {
  constexpr size_t kMaxPairs = 100'000;
  const int last_rank = LastRank(from, to);
  if (std::max({from.size(), to.size(), static_cast<size_t>(last_rank)}) >
      kMaxPairs) {
    return last_rank;
  }
  const BoxSet from_all = ToBoxSet(from, dims);
  const BoxSet to_all = ToBoxSet(to, dims);
  absl::flat_hash_set<std::pair<int, int>> pairs;
  std::vector<int> sends(static_cast<size_t>(last_rank) + 1);
  std::vector<int> receives(sends.size());
  size_t overlaps = 0;
  ForEachOverlap(from_all, to_all, [&](size_t i, size_t j) {
    const int src = from[from_all.id(i)].rank;
    const int dst = to[to_all.id(j)].rank;
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

}  // namespace internal
}  // namespace sherd
