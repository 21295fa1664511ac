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
  return Publish(Allocate(spec, size, options), options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Allocate(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  const TensorProperties properties = {.dtype = options.dtype,
                                       .layout = options.layout,
                                       .requires_grad = options.requires_grad,
                                       .memory_format = options.memory_format,
                                       .pin_memory = options.pin_memory};
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<const State> state,
      internal::MakeState(std::move(group), spec, size, properties,
                          internal::WorkersOrDefault(options)));
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

absl::StatusOr<ShardedTensor> ShardedTensor::Draw(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options, const RandomOptions& random,
    DrawShard draw) {
  absl::StatusOr<ShardedTensor> result = Allocate(spec, size, options);
  if (result.ok()) {
    absl::Status status =
        internal::ShardedTensorAccess::FillRandomly(*result, random, draw);
    if (!status.ok()) result = std::move(status);
  }
  return Publish(std::move(result), options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Rand(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options, const RandomOptions& random) {
  return Draw(
      spec, size, options, random,
      [](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillUniform(shard, 0, 1, generator, region);
      });
}

absl::StatusOr<ShardedTensor> ShardedTensor::Randn(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options, const RandomOptions& random) {
  return Draw(
      spec, size, options, random,
      [](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillNormal(shard, 0, 1, generator, region);
      });
}

}  // namespace sherd
