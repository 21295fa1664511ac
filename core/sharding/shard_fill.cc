#include "sherd/core/sharding/shard_fill.h"

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {

absl::Status FillShards(absl::Span<const Shard> shards,
                        absl::FunctionRef<absl::Status(Tensor&)> fill) {
  for (const Shard& shard : shards) {
    if (shard.tensor.device().is_meta()) continue;
    Tensor tensor = shard.tensor;
    SHERD_RETURN_IF_ERROR(fill(tensor));
  }
  return absl::OkStatus();
}

absl::Status FillShardsRandomly(absl::Span<const Shard> shards,
                                absl::Span<const int64_t> size, DType dtype,
                                const RandomOptions& options, DrawShard draw) {
  // Said here too, so that ranks without shards say the same.
  if (!IsFloatingPoint(dtype) && !IsComplex(dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "random numbers are drawn as floating-point or complex numbers, not ",
        Name(dtype)));
  }
  Generator& generator =
      options.generator == nullptr ? DefaultGenerator() : *options.generator;
  if (options.stream == RandomStream::kPerRank) {
    return FillShards(shards, [&](Tensor& tensor) {
      return draw(tensor, generator, nullptr);
    });
  }
  const Generator::State start = generator.GetState();
  for (const Shard& shard : shards) {
    if (shard.tensor.device().is_meta()) continue;
    Tensor tensor = shard.tensor;
    Generator same;
    same.SetState(start);
    const RandomRegion region = {.global_sizes = size,
                                 .offsets = shard.metadata.offsets};
    SHERD_RETURN_IF_ERROR(draw(tensor, same, &region));
  }
  return SkipRegion(size, dtype, generator);
}

}  // namespace sherd::internal
