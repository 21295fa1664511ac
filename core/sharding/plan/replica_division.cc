#include "sherd/core/sharding/plan/replica_division.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// The boxes that are equal to others and not empty, in the order of the first
// of each kind; indices ascend.
std::vector<std::vector<size_t>> FindReplicas(
    absl::Span<const PlacedBox> boxes) {
  absl::flat_hash_map<BoxView, size_t> first;
  first.reserve(boxes.size());
  absl::flat_hash_map<size_t, size_t> kind_of_first;
  std::vector<std::vector<size_t>> kinds;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (IsEmpty(boxes[i])) continue;
    const auto [it, added] = first.try_emplace(boxes[i], i);
    if (added) continue;
    const auto [kind, is_new] =
        kind_of_first.try_emplace(it->second, kinds.size());
    if (is_new) kinds.push_back({it->second});
    kinds[kind->second].push_back(i);
  }
  return kinds;
}

// What each rank and each host has to do so far.
class Loads {
 public:
  Loads(absl::Span<int64_t> of_rank, absl::Span<const int> host_of_rank)
      : of_rank_(of_rank), host_of_rank_(host_of_rank) {
    SHERD_CHECK(host_of_rank.empty() || host_of_rank.size() == of_rank.size());
    if (host_of_rank.empty()) return;
    const int last =
        *std::max_element(host_of_rank.begin(), host_of_rank.end());
    if (last == 0) return;
    of_host_.resize(static_cast<size_t>(last) + 1);
    for (size_t r = 0; r < of_rank.size(); ++r) HostOf(r) += of_rank[r];
  }

  void Add(int rank, int64_t elements) {
    const auto r = static_cast<size_t>(rank);
    of_rank_[r] += elements;
    if (!of_host_.empty()) HostOf(r) += elements;
  }

  // Orders holders of a box so that those with least to do come first, if each
  // is to get about `elements`.
  void Sort(absl::Span<const PlacedBox> boxes, int64_t elements,
            std::vector<size_t>& holders) {
    const auto of_rank = [&](size_t holder) {
      return of_rank_[static_cast<size_t>(boxes[holder].rank)];
    };
    std::stable_sort(holders.begin(), holders.end(), [&](size_t a, size_t b) {
      return of_rank(a) < of_rank(b);
    });
    if (of_host_.empty()) return;
    // A host's next rank comes when its first ones have their parts.
    std::vector<int64_t> before = of_host_;
    std::vector<std::pair<int64_t, size_t>> by_host;
    for (const size_t holder : holders) {
      int64_t& host = before[static_cast<size_t>(
          host_of_rank_[static_cast<size_t>(boxes[holder].rank)])];
      by_host.emplace_back(host, holder);
      host += elements;
    }
    std::stable_sort(
        by_host.begin(), by_host.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    std::transform(by_host.begin(), by_host.end(), holders.begin(),
                   [](const auto& entry) { return entry.second; });
  }

 private:
  int64_t& HostOf(size_t rank) {
    return of_host_[static_cast<size_t>(host_of_rank_[rank])];
  }

  const absl::Span<int64_t> of_rank_;
  const absl::Span<const int> host_of_rank_;
  // Empty where there is one, or hosts do not count.
  std::vector<int64_t> of_host_;
};

// Hands the parts of one box to those of its holders that have least to do.
void Divide(absl::Span<const PlacedBox> boxes, std::vector<size_t> holders,
            int64_t min_elements, Loads& loads,
            std::vector<DividedBox>& result) {
  const Dims& sizes = boxes[holders[0]].sizes;
  const size_t dim = OuterDim(boxes[holders[0]]);
  const int64_t length = sizes.empty() ? 1 : sizes[dim];
  // The shorter parts have length / count rows.
  const int64_t row = Volume(sizes) / length;
  int64_t count =
      std::min(static_cast<int64_t>(holders.size()),
               length / std::max<int64_t>(1, (min_elements + row - 1) / row));
  count = std::max<int64_t>(count, 1);
  loads.Sort(boxes, Volume(sizes) / count, holders);
  for (int64_t k = 0; k < count; ++k) {
    const size_t holder = holders[static_cast<size_t>(k)];
    const PlacedBox& box = boxes[holder];
    result.push_back({holder, {PartOf(box, dim, count, k), box.rank}});
    loads.Add(box.rank, Volume(result.back().part));
  }
}

}  // namespace

std::vector<DividedBox> DivideReplicas(absl::Span<const PlacedBox> boxes,
                                       int64_t min_elements,
                                       absl::Span<int64_t> load,
                                       absl::Span<const int> host_of_rank) {
  Loads loads(load, host_of_rank);
  const std::vector<std::vector<size_t>> kinds = FindReplicas(boxes);
  std::vector<bool> replicated(boxes.size());
  for (const std::vector<size_t>& kind : kinds) {
    for (const size_t i : kind) replicated[i] = true;
  }
  std::vector<DividedBox> result;
  result.reserve(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    SHERD_CHECK(boxes[i].rank >= 0 &&
                static_cast<size_t>(boxes[i].rank) < load.size());
    if (replicated[i]) continue;
    result.push_back({i, boxes[i]});
    loads.Add(boxes[i].rank, Volume(boxes[i]));
  }
  for (const std::vector<size_t>& kind : kinds) {
    Divide(boxes, kind, min_elements, loads, result);
  }
  std::stable_sort(
      result.begin(), result.end(),
      [](const DividedBox& a, const DividedBox& b) { return a.box < b.box; });
  return result;
}

}  // namespace sherd
