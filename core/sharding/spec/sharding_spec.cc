#include "sherd/core/sharding/sharding_spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// The dimension in which shards begin elsewhere than at 0, if it is exactly
// one.
std::optional<size_t> FindChunkedDim(absl::Span<const ShardMetadata> shards) {
  std::optional<size_t> dim;
  for (const ShardMetadata& shard : shards) {
    for (size_t d = 0; d < shard.offsets.size(); ++d) {
      if (shard.offsets[d] == 0) continue;
      if (dim && *dim != d) return std::nullopt;
      dim = d;
    }
  }
  return dim;
}

// The placements of `shards` in the order of their offsets in `dim`, if they
// are what ChunkShardingSpec makes of their total.
std::optional<std::vector<Placement>> AsChunks(
    absl::Span<const ShardMetadata> shards, size_t dim) {
  std::vector<const ShardMetadata*> order;
  absl::uint128 total = 0;
  for (const ShardMetadata& shard : shards) {
    order.push_back(&shard);
    total += static_cast<uint64_t>(shard.sizes[dim]);
    if (!shard.placement) return std::nullopt;
    for (size_t d = 0; d < shard.sizes.size(); ++d) {
      if (d != dim && shard.sizes[d] != shards[0].sizes[d]) return std::nullopt;
    }
  }
  if (total > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  std::stable_sort(order.begin(), order.end(),
                   [dim](const ShardMetadata* a, const ShardMetadata* b) {
                     return a->offsets[dim] < b->offsets[dim];
                   });
  std::vector<Placement> placements;
  for (size_t i = 0; i < order.size(); ++i) {
    const absl::StatusOr<Chunk> chunk =
        ChunkAt(static_cast<int64_t>(total), static_cast<int64_t>(order.size()),
                static_cast<int64_t>(i));
    if (!chunk.ok() || chunk->offset != order[i]->offsets[dim] ||
        chunk->size != order[i]->sizes[dim]) {
      return std::nullopt;
    }
    placements.push_back(*order[i]->placement);
  }
  return placements;
}

absl::Status CheckPlacements(absl::Span<const Placement> placements) {
  for (size_t i = 0; i < placements.size(); ++i) {
    absl::Status status = placements[i].status();
    if (!status.ok()) {
      return Annotate(std::move(status), absl::StrCat("placement ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ChunkLength(int64_t size, int64_t chunks) {
  return size / chunks + (size % chunks != 0 ? 1 : 0);
}

absl::StatusOr<Chunk> ChunkAt(int64_t size, int64_t count, int64_t index) {
  const int64_t length = ChunkLength(size, count);
  const std::optional<int64_t> offset = CheckedMul(length, index);
  if (!offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", index, " of ", count, " of a dimension of ",
                     size, " begins where 64 bits do not reach"));
  }
  return Chunk{*offset, std::clamp<int64_t>(size - *offset, 0, length)};
}

std::ostream& operator<<(std::ostream& out, const ShardingSpec& spec) {
  return out << spec.ToString();
}

absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>>
ChunkShardingSpec::Create(int dim, std::vector<Placement> placements) {
  if (placements.empty()) {
    return absl::InvalidArgumentError(
        "ChunkShardingSpec needs at least one placement, found none");
  }
  SHERD_RETURN_IF_ERROR(CheckPlacements(placements));
  return std::shared_ptr<const ChunkShardingSpec>(
      new ChunkShardingSpec(dim, std::move(placements)));
}

absl::StatusOr<ShardedTensorMetadata> ChunkShardingSpec::BuildMetadata(
    absl::Span<const int64_t> size, const TensorProperties& properties) const {
  SHERD_RETURN_IF_ERROR(NumElements(size).status());
  const int64_t rank = static_cast<int64_t>(size.size());
  if (dim_ >= rank || dim_ < -rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Invalid sharding dim: ", dim_, " for a tensor of size ",
        FormatDims(size), ", expected one in [", -rank, ", ", rank, ")"));
  }
  const size_t dim = static_cast<size_t>(dim_ < 0 ? dim_ + rank : dim_);
  ShardedTensorMetadata metadata;
  metadata.size.assign(size.begin(), size.end());
  metadata.properties = properties;
  metadata.shards.reserve(placements_.size());
  const int64_t count = static_cast<int64_t>(placements_.size());
  for (int64_t i = 0; i < count; ++i) {
    SHERD_ASSIGN_OR_RETURN(const Chunk chunk, ChunkAt(size[dim], count, i));
    ShardMetadata& shard = metadata.shards.emplace_back();
    shard.offsets.assign(size.size(), 0);
    shard.sizes.assign(size.begin(), size.end());
    shard.offsets[dim] = chunk.offset;
    shard.sizes[dim] = chunk.size;
    shard.placement = placements_[static_cast<size_t>(i)];
  }
  return metadata;
}

std::string ChunkShardingSpec::ToString() const {
  const auto format = [](std::string* out, const Placement& placement) {
    absl::StrAppend(out, placement.ToString());
  };
  return absl::StrCat("ChunkShardingSpec(dim=", dim_, ", placements=[",
                      absl::StrJoin(placements_, ", ", format), "])");
}

ShardingSpecPtr ChunkShardingSpec::WithPlacements(
    absl::FunctionRef<Placement(const Placement&)> replace) const {
  std::vector<Placement> placements;
  placements.reserve(placements_.size());
  for (const Placement& placement : placements_) {
    placements.push_back(replace(placement));
  }
  return Create(dim_, std::move(placements)).value_or(nullptr);
}

bool ChunkShardingSpec::Equals(const ShardingSpec& other) const {
  const auto& chunk = static_cast<const ChunkShardingSpec&>(other);
  return dim_ == chunk.dim_ && placements_ == chunk.placements_;
}

absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>>
EnumerableShardingSpec::Create(std::vector<ShardMetadata> shards) {
  return Make(std::move(shards), Replicas::kRefused);
}

absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>>
EnumerableShardingSpec::CreateWithReplicas(std::vector<ShardMetadata> shards) {
  return Make(std::move(shards), Replicas::kAllowed);
}

absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>>
EnumerableShardingSpec::Make(std::vector<ShardMetadata> shards,
                             Replicas replicas) {
  if (shards.empty()) {
    return absl::InvalidArgumentError(
        "Empty shard list provided, expected at least one shard");
  }
  absl::Status disjoint = ValidateNonOverlapping(shards);
  if (disjoint.ok()) {
    replicas = Replicas::kRefused;
  } else if (replicas == Replicas::kAllowed) {
    disjoint = ValidateNonOverlapping(shards, replicas);
  }
  SHERD_RETURN_IF_ERROR(disjoint);
  return std::shared_ptr<const EnumerableShardingSpec>(
      new EnumerableShardingSpec(std::move(shards), replicas));
}

absl::StatusOr<ShardedTensorMetadata> EnumerableShardingSpec::BuildMetadata(
    absl::Span<const int64_t> size, const TensorProperties& properties) const {
  SHERD_RETURN_IF_ERROR(ValidateCover(shards_, size, replicas_));
  return ShardedTensorMetadata{.shards = shards_,
                               .size = Dims(size.begin(), size.end()),
                               .properties = properties};
}

std::string EnumerableShardingSpec::ToString() const {
  const auto format = [](std::string* out, const ShardMetadata& shard) {
    absl::StrAppend(out, shard.ToString());
  };
  return absl::StrCat("EnumerableShardingSpec(shards=[",
                      absl::StrJoin(shards_, ", ", format), "])");
}

ShardingSpecPtr EnumerableShardingSpec::WithPlacements(
    absl::FunctionRef<Placement(const Placement&)> replace) const {
  std::vector<ShardMetadata> shards = shards_;
  for (ShardMetadata& shard : shards) {
    if (shard.placement) shard.placement = replace(*shard.placement);
  }
  return Make(std::move(shards), replicas_).value_or(nullptr);
}

bool EnumerableShardingSpec::Equals(const ShardingSpec& other) const {
  const auto& enumerable = static_cast<const EnumerableShardingSpec&>(other);
  return shards_ == enumerable.shards_;
}

absl::StatusOr<ShardingSpecPtr> InferShardingSpec(
    absl::Span<const ShardMetadata> shards, Replicas replicas) {
  std::vector<ShardMetadata> list(shards.begin(), shards.end());
  // Also finds what is wrong with them.
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr enumerable,
      replicas == Replicas::kAllowed
          ? EnumerableShardingSpec::CreateWithReplicas(std::move(list))
          : EnumerableShardingSpec::Create(std::move(list)));
  const std::optional<size_t> dim = FindChunkedDim(shards);
  if (!dim) return enumerable;
  std::optional<std::vector<Placement>> placements = AsChunks(shards, *dim);
  if (!placements) return enumerable;
  return ChunkShardingSpec::Create(static_cast<int>(*dim),
                                   *std::move(placements));
}

}  // namespace sherd
