#include "sherd/core/sharding/box_set.h"

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

}  // namespace sherd::internal
