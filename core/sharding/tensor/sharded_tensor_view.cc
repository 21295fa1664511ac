#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// As many dimensions as the tensor has.
absl::Status CheckInside(const BoxView& box, absl::Span<const int64_t> size) {
  const std::optional<size_t> d = FindDimOutside(box, size);
  if (!d) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("narrow: start ", box.offsets[*d], " and length ",
                   box.sizes[*d], " are not inside [0, ", size[*d],
                   "], dimension ", *d, " of size ", FormatDims(size)));
}

// The part of the first shard that an empty view keeps: every tensor has at
// least one shard.
Box EmptyPart(const BoxView& shard, const BoxView& view) {
  Box part(view);
  for (size_t d = 0; d < part.sizes.size(); ++d) {
    part.sizes[d] = std::min(part.sizes[d], shard.sizes[d]);
  }
  return part;
}

// The elements of `part` of a shard; both are boxes of the global tensor.
absl::StatusOr<Tensor> CutTensor(const Shard& shard, const BoxView& part) {
  if (IsEmpty(part)) {
    return shard.tensor.Narrow(Dims(part.sizes.size(), 0), part.sizes);
  }
  return shard.tensor.Narrow(OffsetsFrom(shard.metadata.offsets, part),
                             part.sizes);
}

// Where a view of a view begins, or of a tensor whose own place is empty.
Dims ViewOffsets(Dims base, absl::Span<const int64_t> offsets) {
  base.resize(offsets.size(), 0);
  for (size_t d = 0; d < offsets.size(); ++d) base[d] += offsets[d];
  return base;
}

// The part of a tensor inside a box.
struct Cut {
  ShardedTensorMetadata metadata;
  std::vector<PlacedBox> boxes;
  std::vector<Shard> shards;
  std::vector<int> local_indices;
};

absl::StatusOr<Cut> CutAll(const ShardedTensor& tensor, const BoxView& view) {
  const std::vector<ShardMetadata>& all = tensor.metadata().shards;
  const absl::Span<const int> locals = tensor.local_shard_indices();
  Cut cut;
  cut.metadata.size.assign(view.sizes.begin(), view.sizes.end());
  cut.metadata.properties = tensor.metadata().properties;
  size_t next_local = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Shard* local = nullptr;
    if (next_local < locals.size() &&
        locals[next_local] == static_cast<int>(i)) {
      local = &tensor.local_shards()[next_local++];
    }
    std::optional<Box> part = Intersect(all[i], view);
    if (!part && IsEmpty(view) && i == 0) part = EmptyPart(all[i], view);
    if (!part) continue;
    Box in_view = RelativeTo(view.offsets, *part);
    ShardMetadata shard = {in_view.offsets, in_view.sizes, all[i].placement};
    if (local != nullptr) {
      SHERD_ASSIGN_OR_RETURN(Tensor elements, CutTensor(*local, *part));
      cut.local_indices.push_back(static_cast<int>(cut.metadata.shards.size()));
      cut.shards.push_back({std::move(elements), shard});
    }
    if (!tensor.placed_boxes().empty()) {
      cut.boxes.push_back({std::move(in_view), tensor.placed_boxes()[i].rank});
    }
    cut.metadata.shards.push_back(std::move(shard));
  }
  return cut;
}

}  // namespace

absl::StatusOr<ShardedTensor> ShardedTensor::Narrow(
    absl::Span<const int64_t> offsets, absl::Span<const int64_t> sizes) const {
  if (!defined()) return internal::NotCreated("narrow");
  if (offsets.size() != size().size() || sizes.size() != size().size()) {
    return absl::OutOfRangeError(
        absl::StrCat("narrow: ", offsets.size(), " offsets and ", sizes.size(),
                     " sizes for a tensor of size ", FormatDims(size())));
  }
  const BoxView view(offsets, sizes);
  SHERD_RETURN_IF_ERROR(CheckInside(view, size()));
  SHERD_ASSIGN_OR_RETURN(Cut cut, CutAll(*this, view));
  SHERD_ASSIGN_OR_RETURN(
      ShardingSpecPtr spec,
      InferShardingSpec(cut.metadata.shards, Replicas::kAllowed));
  auto shards =
      std::make_shared<const std::vector<Shard>>(std::move(cut.shards));
  if (group() == nullptr) {
    return ShardedTensor(internal::MakeStateWithoutGroup(
                             std::move(spec), std::move(cut.metadata),
                             std::move(cut.local_indices)),
                         std::move(shards));
  }
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<const State> narrowed,
      internal::MakeStateOf(
          group(), std::move(spec), std::move(cut.metadata),
          std::make_shared<const std::vector<PlacedBox>>(std::move(cut.boxes)),
          state().workers.lock(), ViewOffsets(state().view_offsets, offsets)));
  return ShardedTensor(std::move(narrowed), std::move(shards));
}

absl::StatusOr<ShardedTensor> ShardedTensor::Narrow(int64_t dim, int64_t start,
                                                    int64_t length) const {
  if (!defined()) return internal::NotCreated("narrow");
  absl::StatusOr<int> normal = NormalizeDim(dim, this->dim());
  if (!normal.ok()) {
    return absl::OutOfRangeError(
        absl::StrCat("Dimension out of range: narrow along dimension ", dim,
                     " of a tensor of size ", FormatDims(size())));
  }
  Dims offsets(size().size(), 0);
  Dims sizes(size().begin(), size().end());
  offsets[static_cast<size_t>(*normal)] = start;
  sizes[static_cast<size_t>(*normal)] = length;
  return Narrow(offsets, sizes);
}

}  // namespace sherd
