#include "sherd/core/sharding/plan/replica_division.h"

#include <algorithm>

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

// Hands the parts of one box to those of its holders that have least to do.
void Divide(absl::Span<const PlacedBox> boxes, std::vector<size_t> holders,
            int64_t min_elements, absl::Span<int64_t> load,
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
  std::stable_sort(holders.begin(), holders.end(), [&](size_t a, size_t b) {
    return load[static_cast<size_t>(boxes[a].rank)] <
           load[static_cast<size_t>(boxes[b].rank)];
  });
  for (int64_t k = 0; k < count; ++k) {
    const size_t holder = holders[static_cast<size_t>(k)];
    const PlacedBox& box = boxes[holder];
    result.push_back({holder, {PartOf(box, dim, count, k), box.rank}});
    load[static_cast<size_t>(box.rank)] += Volume(result.back().part);
  }
}

}  // namespace

std::vector<DividedBox> DivideReplicas(absl::Span<const PlacedBox> boxes,
                                       int64_t min_elements,
                                       absl::Span<int64_t> load) {
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
    load[static_cast<size_t>(boxes[i].rank)] += Volume(boxes[i]);
  }
  for (const std::vector<size_t>& kind : kinds) {
    Divide(boxes, kind, min_elements, load, result);
  }
  std::stable_sort(
      result.begin(), result.end(),
      [](const DividedBox& a, const DividedBox& b) { return a.box < b.box; });
  return result;
}

}  // namespace sherd
