#include <memory>
#include <optional>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/shard_fill.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/random.h"

namespace sherd {
namespace internal {

absl::Status ShardedTensorAccess::FillRandomly(ShardedTensor& tensor,
                                               const RandomOptions& options,
                                               DrawShard draw) {
  SHERD_ASSIGN_OR_RETURN(const std::optional<Generator::State> drawn,
                         FillShardsRandomly(tensor.local_shards(),
                                            tensor.metadata(), options, draw));
  if (drawn == tensor.state_->drawn) return absl::OkStatus();
  tensor.state_ = WithDrawn(*tensor.state_, drawn);
  return absl::OkStatus();
}

}  // namespace internal

absl::StatusOr<ShardedTensor> ShardedTensor::Empty(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  const TensorProperties properties = {.dtype = options.dtype,
                                       .layout = options.layout,
                                       .requires_grad = options.requires_grad,
                                       .memory_format = options.memory_format,
                                       .pin_memory = options.pin_memory};
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<const State> state,
                         internal::MakeState(std::move(group), spec, size,
                                             properties, options.workers));
  return internal::ShardedTensorAccess::Allocate(std::move(state),
                                                 options.allocator);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Zeros(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  return Full(spec, size, 0, options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Ones(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  return Full(spec, size, 1, options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Rand(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options, const RandomOptions& random) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result, Empty(spec, size, options));
  SHERD_RETURN_IF_ERROR(internal::ShardedTensorAccess::FillRandomly(
      result, random,
      [](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillUniform(shard, 0, 1, generator, region);
      }));
  return result;
}

absl::StatusOr<ShardedTensor> ShardedTensor::Randn(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options, const RandomOptions& random) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result, Empty(spec, size, options));
  SHERD_RETURN_IF_ERROR(internal::ShardedTensorAccess::FillRandomly(
      result, random,
      [](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillNormal(shard, 0, 1, generator, region);
      }));
  return result;
}

}  // namespace sherd
