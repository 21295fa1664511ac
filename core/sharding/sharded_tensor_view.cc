#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/local_shards.h"
#include "sherd/core/sharding/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_access.h"
#include "sherd/core/sharding/sharded_tensor_state.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

absl::Status CheckRange(int64_t dim, int64_t start, int64_t length,
                        absl::Span<const int64_t> size) {
  const int64_t n = size[static_cast<size_t>(dim)];
  if (start >= 0 && length >= 0 && start <= n && length <= n - start) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      "narrow: start ", start, " and length ", length, " are not inside [0, ",
      n, "], dimension ", dim, " of size ", FormatDims(size)));
}

// The part of a shard that lies in the box, in coordinates of the box. Empty
// if they do not meet.
ShardMetadata CutTo(const ShardMetadata& shard,
                    absl::Span<const int64_t> offsets,
                    absl::Span<const int64_t> sizes) {
  ShardMetadata part = {.offsets = Dims(sizes.size(), 0),
                        .sizes = Dims(sizes.size(), 0),
                        .placement = shard.placement};
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t begin = std::max(shard.offsets[d], offsets[d]);
    const int64_t end =
        std::min(shard.offsets[d] + shard.sizes[d], offsets[d] + sizes[d]);
    if (begin >= end) {
      part.sizes[d] = 0;
      continue;
    }
    part.offsets[d] = begin - offsets[d];
    part.sizes[d] = end - begin;
  }
  return part;
}

bool IsEmpty(const ShardMetadata& shard) {
  return std::find(shard.sizes.begin(), shard.sizes.end(), 0) !=
         shard.sizes.end();
}

// The first shard, in a view without elements: there is no tensor without
// shards.
ShardMetadata EmptyPart(const ShardMetadata& shard,
                        absl::Span<const int64_t> sizes) {
  ShardMetadata part = {.offsets = Dims(sizes.size(), 0),
                        .sizes = Dims(sizes.begin(), sizes.end()),
                        .placement = shard.placement};
  for (size_t d = 0; d < sizes.size(); ++d) {
    part.sizes[d] = std::min(sizes[d], shard.sizes[d]);
  }
  return part;
}

// The elements of `part`, which was cut from the metadata of `shard`.
absl::StatusOr<Tensor> CutTensor(const Shard& shard, const ShardMetadata& part,
                                 absl::Span<const int64_t> offsets) {
  Dims at(offsets.size(), 0);
  if (!IsEmpty(part)) {
    for (size_t d = 0; d < offsets.size(); ++d) {
      at[d] = offsets[d] + part.offsets[d] - shard.metadata.offsets[d];
    }
  }
  return shard.tensor.Narrow(at, part.sizes);
}

// Where a view of a view begins, or of a tensor whose own place is empty.
Dims ViewOffsets(Dims base, absl::Span<const int64_t> offsets) {
  base.resize(offsets.size(), 0);
  for (size_t d = 0; d < offsets.size(); ++d) base[d] += offsets[d];
  return base;
}

// What is left of a tensor in a box.
struct Cut {
  ShardedTensorMetadata metadata;
  std::vector<PlacedBox> boxes;
  std::vector<Shard> shards;
  std::vector<int> local_indices;
};

absl::StatusOr<Cut> CutAll(const ShardedTensor& tensor,
                           absl::Span<const int64_t> offsets,
                           absl::Span<const int64_t> sizes) {
  const std::vector<ShardMetadata>& all = tensor.metadata().shards;
  const absl::Span<const int> locals = tensor.local_shard_indices();
  const bool keep_first =
      std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  Cut cut;
  cut.metadata.size.assign(sizes.begin(), sizes.end());
  cut.metadata.properties = tensor.metadata().properties;
  size_t next_local = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Shard* local = nullptr;
    if (next_local < locals.size() &&
        locals[next_local] == static_cast<int>(i)) {
      local = &tensor.local_shards()[next_local++];
    }
    ShardMetadata part = CutTo(all[i], offsets, sizes);
    if (IsEmpty(part)) {
      if (!keep_first || i > 0) continue;
      part = EmptyPart(all[i], sizes);
    }
    if (local != nullptr) {
      SHERD_ASSIGN_OR_RETURN(Tensor elements, CutTensor(*local, part, offsets));
      cut.local_indices.push_back(static_cast<int>(cut.metadata.shards.size()));
      cut.shards.push_back({std::move(elements), part});
    }
    if (!tensor.placed_boxes().empty()) {
      cut.boxes.push_back(
          {part.offsets, part.sizes, tensor.placed_boxes()[i].rank});
    }
    cut.metadata.shards.push_back(std::move(part));
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
  for (size_t d = 0; d < sizes.size(); ++d) {
    SHERD_RETURN_IF_ERROR(
        CheckRange(static_cast<int64_t>(d), offsets[d], sizes[d], size()));
  }
  SHERD_ASSIGN_OR_RETURN(Cut cut, CutAll(*this, offsets, sizes));
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
          state().workers, ViewOffsets(state().view_offsets, offsets)));
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
