#include "sherd/core/sharding/box/distinct_boxes.h"

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/box/box_overlap.h"

namespace sherd::internal {

namespace {

DistinctBoxes TakeAll(const BoxSet& set,
                      absl::FunctionRef<bool(size_t)> is_wanted) {
  DistinctBoxes result = {.boxes = BoxSet(set.dims())};
  result.position.assign(set.size(), -1);
  for (size_t i = 0; i < set.size(); ++i) {
    if (!is_wanted(i)) continue;
    result.position[i] = static_cast<int>(result.boxes.size());
    result.boxes.AddFrom(set, i, set.id(i));
    result.holders.push_back({set.id(i)});
  }
  return result;
}

}  // namespace

DistinctBoxes FindDistinct(const BoxSet& set,
                           absl::FunctionRef<bool(size_t)> is_wanted) {
  // Faster than looking every box up, and what most layouts are like.
  if (!FindOverlap(set)) return TakeAll(set, is_wanted);
  DistinctBoxes result = {.boxes = BoxSet(set.dims())};
  result.position.assign(set.size(), -1);
  size_t wanted = 0;
  for (size_t i = 0; i < set.size(); ++i) wanted += is_wanted(i) ? 1 : 0;
  absl::flat_hash_map<absl::Span<const int64_t>, int> position;
  position.reserve(wanted);
  for (size_t i = 0; i < set.size() && wanted > 0; ++i) {
    if (!is_wanted(i)) continue;
    const int next = static_cast<int>(position.size());
    result.position[i] =
        position.try_emplace(set.numbers(i), next).first->second;
  }
  result.holders.resize(position.size());
  std::vector<size_t> first(position.size());
  for (size_t i = 0; i < set.size() && wanted > 0; ++i) {
    if (result.position[i] < 0) {
      const auto found = position.find(set.numbers(i));
      if (found == position.end()) continue;
      result.position[i] = found->second;
    }
    auto& holders = result.holders[result.position[i]];
    if (holders.empty()) first[result.position[i]] = i;
    holders.push_back(set.id(i));
  }
  result.boxes.Reserve(first.size());
  for (const size_t i : first) result.boxes.AddFrom(set, i, set.id(i));
  result.overlap = FindOverlap(result.boxes);
  return result;
}

}  // namespace sherd::internal
