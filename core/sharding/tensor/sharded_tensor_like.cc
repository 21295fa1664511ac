#include "sherd/core/sharding/sharded_tensor_like.h"

#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor_fill.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {
namespace {

using internal::ShardedTensorState;
using internal::ShardedTensorStatePtr;

absl::StatusOr<ShardedTensorStatePtr> StateLike(
    const ShardedTensorStatePtr& source, const LikeOptions& options) {
  TensorProperties properties = source->metadata.properties;
  properties.dtype = options.dtype.value_or(properties.dtype);
  properties.requires_grad =
      options.requires_grad.value_or(properties.requires_grad);
  properties.pin_memory = options.pin_memory.value_or(properties.pin_memory);
  const bool other_group =
      options.group != nullptr && options.group != source->group;
  if (options.spec != nullptr || other_group) {
    SHERD_ASSIGN_OR_RETURN(
        std::shared_ptr<ProcessGroup> group,
        internal::GroupOrDefault(other_group ? options.group : source->group));
    return internal::MakeState(
        std::move(group), options.spec != nullptr ? options.spec : source->spec,
        source->metadata.size, properties, source->workers.lock());
  }
  if (properties == source->metadata.properties) {
    if (!source->drawn) return source;
    return internal::WithDrawn(*source, std::nullopt);
  }
  SHERD_RETURN_IF_ERROR(
      NumBytes(source->metadata.size, properties.dtype).status());
  return internal::WithDrawn(*internal::WithProperties(*source, properties),
                             std::nullopt);
}

absl::StatusOr<ShardedTensor> DrawLike(const ShardedTensor& source,
                                       const LikeOptions& options,
                                       const RandomOptions& random,
                                       DrawShard draw) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result, EmptyLike(source, options));
  SHERD_RETURN_IF_ERROR(FillRandomly(result, random, draw));
  return result;
}

}  // namespace

absl::StatusOr<ShardedTensor> EmptyLike(const ShardedTensor& source,
                                        const LikeOptions& options) {
  const ShardedTensorStatePtr& state =
      internal::ShardedTensorAccess::StateOf(source);
  if (state == nullptr) return internal::NotCreated("empty_like");
  SHERD_ASSIGN_OR_RETURN(ShardedTensorStatePtr like, StateLike(state, options));
  if (like->publication != nullptr) {
    like = internal::WithPublication(*like, nullptr);
  }
  return internal::ShardedTensorAccess::Allocate(std::move(like),
                                                 options.allocator);
}

absl::StatusOr<ShardedTensor> ZerosLike(const ShardedTensor& source,
                                        const LikeOptions& options) {
  return FullLike(source, 0, options);
}

absl::StatusOr<ShardedTensor> OnesLike(const ShardedTensor& source,
                                       const LikeOptions& options) {
  return FullLike(source, 1, options);
}

absl::StatusOr<ShardedTensor> RandLike(const ShardedTensor& source,
                                       const LikeOptions& options,
                                       const RandomOptions& random) {
  return DrawLike(
      source, options, random,
      [](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillUniform(shard, 0, 1, generator, region);
      });
}

absl::StatusOr<ShardedTensor> RandnLike(const ShardedTensor& source,
                                        const LikeOptions& options,
                                        const RandomOptions& random) {
  return DrawLike(
      source, options, random,
      [](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillNormal(shard, 0, 1, generator, region);
      });
}

}  // namespace sherd
