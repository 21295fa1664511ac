#include "sherd/core/sharding/plan/replica_choice.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "sherd/core/sharding/box/box_overlap.h"
#include "sherd/core/sharding/box/box_set.h"

namespace sherd::internal {
namespace {

// Source boxes times destination boxes up to which turns are counted.
constexpr uint64_t kMaxCounted = uint64_t{1} << 26;

// Spreads numbers in any regular pattern evenly over [0, n): multiples of the
// golden ratio, cut to their fraction.
size_t Spread(uint64_t number, size_t n) {
  const uint64_t fraction = (number * 0x9E3779B97F4A7C15u) >> 32;
  return static_cast<size_t>((fraction * n) >> 32);
}

}  // namespace

int ReplicaChoice::Add(absl::Span<const int> holders) {
  // Most boxes have no replicas.
  if (holders.size() == 1) return -1 - holders[0];
  const auto [number, is_new] =
      number_.try_emplace(holders[0], static_cast<int>(groups_.size()));
  if (!is_new) return number->second;
  Group& group = groups_.emplace_back();
  for (const int holder : holders) {
    const int rank = from_[holder].rank;
    if (!group.by_rank.try_emplace(rank, holder).second) continue;
    group.holders.push_back(holder);
    if (host_of_rank_.empty()) continue;
    group.by_host[host_of_rank_[rank]].push_back(holder);
  }
  return number->second;
}

void ReplicaChoice::Prepare() {
  if (groups_.empty()) return;
  // A box begins as many turns later as its first holder has boxes before it.
  absl::flat_hash_map<int, size_t> boxes_of_rank;
  for (size_t i = 0; i < from_.size(); ++i) {
    const size_t before = boxes_of_rank[from_[i].rank]++;
    const auto number = number_.find(static_cast<int>(i));
    if (number != number_.end()) groups_[number->second].start = before;
  }
  counted_ = static_cast<uint64_t>(from_.size()) * to_.size() <= kMaxCounted;
  if (counted_) CountTurns();
}

void ReplicaChoice::CountTurns() {
  const int dims = static_cast<int>(from_[0].sizes.size());
  BoxSet replicated(dims);
  for (size_t i = 0; i < groups_.size(); ++i) {
    replicated.Add(from_[groups_[i].holders[0]], static_cast<int>(i));
  }
  const BoxSet targets = ToBoxSet(to_, dims);
  ForEachOverlap(replicated, targets, [&](size_t i, size_t j) {
    Group& group = groups_[static_cast<size_t>(replicated.id(i))];
    const int target = targets.id(j);
    if (!group.by_rank.contains(to_[target].rank)) {
      group.targets.push_back(target);
    }
    return true;
  });
  for (Group& group : groups_) {
    std::sort(group.targets.begin(), group.targets.end());
    // By the list of candidates.
    absl::flat_hash_map<const int*, size_t> turns;
    for (const int target : group.targets) {
      const std::vector<int>& candidates = Candidates(group, target);
      const size_t turn = group.start + turns[candidates.data()]++;
      group.chosen.push_back(candidates[turn % candidates.size()]);
    }
  }
}

const std::vector<int>& ReplicaChoice::Candidates(const Group& group,
                                                  int target) const {
  if (host_of_rank_.empty()) return group.holders;
  const auto near = group.by_host.find(host_of_rank_[to_[target].rank]);
  return near == group.by_host.end() ? group.holders : near->second;
}

int ReplicaChoice::Choose(int box, int target) const {
  if (box < 0) return -1 - box;
  const Group& group = groups_[static_cast<size_t>(box)];
  const auto own = group.by_rank.find(to_[target].rank);
  if (own != group.by_rank.end()) return own->second;
  if (counted_) {
    const auto at =
        std::lower_bound(group.targets.begin(), group.targets.end(), target);
    return group.chosen[static_cast<size_t>(at - group.targets.begin())];
  }
  const std::vector<int>& candidates = Candidates(group, target);
  const size_t first = group.start + static_cast<size_t>(candidates[0]);
  return candidates[Spread(first + static_cast<size_t>(target),
                           candidates.size())];
}

}  // namespace sherd::internal
