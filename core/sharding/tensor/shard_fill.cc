#include "sherd/core/sharding/tensor/shard_fill.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

// The second of two shards that are the same box.
const ShardMetadata* FindReplica(absl::Span<const ShardMetadata> shards) {
  // Boxes that do not overlap differ in where they begin.
  absl::flat_hash_set<Dims> corners;
  corners.reserve(shards.size());
  for (const ShardMetadata& shard : shards) {
    if (!IsEmpty(shard) && !corners.insert(shard.offsets).second) return &shard;
  }
  return nullptr;
}

}  // namespace

absl::Status FillShards(absl::Span<const Shard> shards,
                        absl::FunctionRef<absl::Status(Tensor&)> fill) {
  for (const Shard& shard : shards) {
    if (shard.tensor.device().is_meta()) continue;
    Tensor tensor = shard.tensor;
    SHERD_RETURN_IF_ERROR(fill(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Generator::State>> FillShardsRandomly(
    absl::Span<const Shard> shards, const ShardedTensorMetadata& metadata,
    const RandomOptions& options, DrawShard draw) {
  const DType dtype = metadata.properties.dtype;
  // Checked here too, so that ranks without shards return the same error.
  if (!IsFloatingPoint(dtype) && !IsComplex(dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "random numbers are drawn as floating-point or complex numbers, not ",
        Name(dtype)));
  }
  Generator& generator =
      options.generator == nullptr ? DefaultGenerator() : *options.generator;
  const ShardMetadata* const replica = FindReplica(metadata.shards);
  if (options.stream == RandomStream::kPerRank) {
    if (replica != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          replica->ToString(),
          " is a replica, which would not be drawn like the others: use "
          "RandomStream::kGlobal, with equal generators on all ranks"));
    }
    SHERD_RETURN_IF_ERROR(FillShards(shards, [&](Tensor& tensor) {
      return draw(tensor, generator, nullptr);
    }));
    return std::nullopt;
  }
  const Generator::State start = generator.GetState();
  for (const Shard& shard : shards) {
    if (shard.tensor.device().is_meta()) continue;
    Tensor tensor = shard.tensor;
    Generator same;
    same.SetState(start);
    const RandomRegion region = {.global_sizes = metadata.size,
                                 .offsets = shard.metadata.offsets};
    SHERD_RETURN_IF_ERROR(draw(tensor, same, &region));
  }
  SHERD_RETURN_IF_ERROR(SkipRegion(metadata.size, dtype, generator));
  if (replica == nullptr) return std::nullopt;
  return start;
}

}  // namespace sherd::internal
