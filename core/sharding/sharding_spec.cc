#include "sherd/core/sharding/sharding_spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_validation.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// Part `index` of `count` of a dimension: what follows from ceil division, with
// an offset that is not cut off at the end.
struct Chunk {
  int64_t offset;
  int64_t size;
};

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

absl::Status CheckGrid(absl::Span<const int64_t> size,
                       absl::Span<const int64_t> grid, size_t placements) {
  SHERD_RETURN_IF_ERROR(NumElements(size).status());
  int64_t cells = 1;
  bool valid = grid.size() == size.size();
  for (const int64_t parts : grid) {
    const std::optional<int64_t> product = CheckedMul(cells, parts);
    valid = valid && parts > 0 && product.has_value();
    cells = product.value_or(0);
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a grid of ", FormatDims(grid), " does not fit a tensor of size ",
        FormatDims(size), ": expected one positive number per dimension"));
  }
  if (static_cast<uint64_t>(cells) != placements) {
    return absl::InvalidArgumentError(
        absl::StrCat("a grid of ", FormatDims(grid), " has ", cells,
                     " cells, but there are ", placements, " placements"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ChunkLength(int64_t size, int64_t chunks) {
  return size / chunks + (size % chunks != 0 ? 1 : 0);
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
  for (const Placement& placement : placements) {
    SHERD_RETURN_IF_ERROR(placement.status());
  }
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

bool ChunkShardingSpec::Equals(const ShardingSpec& other) const {
  const auto* chunk = dynamic_cast<const ChunkShardingSpec*>(&other);
  return chunk != nullptr && dim_ == chunk->dim_ &&
         placements_ == chunk->placements_;
}

absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>>
EnumerableShardingSpec::Create(std::vector<ShardMetadata> shards) {
  if (shards.empty()) {
    return absl::InvalidArgumentError(
        "Empty shard list provided, expected at least one shard");
  }
  SHERD_RETURN_IF_ERROR(ValidateNonOverlapping(shards));
  return std::shared_ptr<const EnumerableShardingSpec>(
      new EnumerableShardingSpec(std::move(shards)));
}

absl::StatusOr<ShardedTensorMetadata> EnumerableShardingSpec::BuildMetadata(
    absl::Span<const int64_t> size, const TensorProperties& properties) const {
  SHERD_RETURN_IF_ERROR(ValidateCover(shards_, size));
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

bool EnumerableShardingSpec::Equals(const ShardingSpec& other) const {
  const auto* enumerable = dynamic_cast<const EnumerableShardingSpec*>(&other);
  return enumerable != nullptr && shards_ == enumerable->shards_;
}

absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>> GridShardingSpec(
    absl::Span<const int64_t> size, absl::Span<const int64_t> grid,
    const std::vector<Placement>& placements) {
  SHERD_RETURN_IF_ERROR(CheckGrid(size, grid, placements.size()));
  std::vector<ShardMetadata> shards;
  shards.reserve(placements.size());
  Dims cell(grid.size(), 0);
  for (const Placement& placement : placements) {
    ShardMetadata& shard = shards.emplace_back();
    for (size_t d = 0; d < grid.size(); ++d) {
      SHERD_ASSIGN_OR_RETURN(const Chunk chunk,
                             ChunkAt(size[d], grid[d], cell[d]));
      shard.offsets.push_back(chunk.offset);
      shard.sizes.push_back(chunk.size);
    }
    shard.placement = placement;
    for (size_t d = grid.size(); d-- > 0;) {
      if (++cell[d] < grid[d]) break;
      cell[d] = 0;
    }
  }
  return EnumerableShardingSpec::Create(std::move(shards));
}

absl::StatusOr<ShardingSpecPtr> InferShardingSpec(
    absl::Span<const ShardMetadata> shards) {
  // Also finds what is wrong with them.
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr enumerable,
      EnumerableShardingSpec::Create(
          std::vector<ShardMetadata>(shards.begin(), shards.end())));
  const std::optional<size_t> dim = FindChunkedDim(shards);
  if (!dim) return enumerable;
  std::optional<std::vector<Placement>> placements = AsChunks(shards, *dim);
  if (!placements) return enumerable;
  return ChunkShardingSpec::Create(static_cast<int>(*dim),
                                   *std::move(placements));
}

}  // namespace sherd
