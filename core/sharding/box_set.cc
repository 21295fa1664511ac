#include "sherd/core/sharding/box_set.h"

#include <algorithm>

namespace sherd::internal {

void BoxSet::Add(absl::Span<const int64_t> offsets,
                 absl::Span<const int64_t> sizes, int id) {
  for (const int64_t size : sizes) {
    if (size == 0) return;
  }
  bounds_.insert(bounds_.end(), offsets.begin(), offsets.end());
  for (int d = 0; d < dims_; ++d) bounds_.push_back(offsets[d] + sizes[d]);
  ids_.push_back(id);
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

}  // namespace sherd::internal
