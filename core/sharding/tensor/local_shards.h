#ifndef SHERD_CORE_SHARDING_TENSOR_LOCAL_SHARDS_H_
#define SHERD_CORE_SHARDING_TENSOR_LOCAL_SHARDS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/tensor_properties.h"

// The shards of this rank as memory: the common part of creation and moves.
namespace sherd::internal {

using LocalShards = std::shared_ptr<const std::vector<Shard>>;

// Returns `given` if it is for `device`, otherwise the allocator of `group` for
// shards there; null for the default of the device.
Allocator* AllocatorFor(const ProcessGroup* group, const Device& device,
                        Allocator* given);

// A tensor for a shard of this rank, contents unspecified.
absl::StatusOr<Tensor> AllocateShard(const ProcessGroup* group,
                                     const ShardMetadata& shard,
                                     const TensorProperties& properties,
                                     Allocator* allocator);

// New shards for the local indices of `state`, contents unspecified.
absl::StatusOr<LocalShards> AllocateShards(const ShardedTensorState& state,
                                           Allocator* allocator);

// The tensors of `shards`, which are as many as the local indices of `state`,
// with its metadata.
LocalShards Relabel(const ShardedTensorState& state, const LocalShards& shards);

//   kFailedPrecondition  "… is on meta, expected one in host memory or on a
//                        device".
absl::Status CheckHasData(const Tensor& tensor, absl::string_view what);
absl::Status CheckHasData(absl::Span<const Shard> shards);

// Returns the tensor if it is in host memory, otherwise a copy there, for which
// it waits.
absl::StatusOr<Tensor> OnHost(const Tensor& tensor);

// Checks that an operation may write to `destinations`, and read `sources`
// before, after or meanwhile. Shards without data pass.
//   kFailedPrecondition  A shard "may not be written to".
//   kInvalidArgument     Elements of a destination coincide, or two of them, or
//                        a source and a destination, share memory.
// Cost. As FindConflict in memory_overlap.h.
absl::Status CheckDestinations(absl::Span<const Shard> destinations,
                               absl::Span<const Shard> sources = {});

// Returns the shards to read instead of `sources` where destination i is
// computed from source i and others, one after the other: `sources` itself, or
// if writing one would change another that is still to be read, `copies`, which
// hold copies of the shards that are not their own destination.
//   kResourceExhausted  There is no memory for the copies.
absl::StatusOr<absl::Span<const Shard>> ApartFrom(
    absl::Span<const Shard> destinations, absl::Span<const Shard> sources,
    std::vector<Shard>& copies);

Dims StridesOf(const Tensor& tensor);

// `indices`: positions in the lists of the plan.
std::vector<SourceMemory> SourcesOf(absl::Span<const Shard> shards,
                                    absl::Span<const int> indices);
std::vector<DestinationMemory> DestinationsOf(absl::Span<const Shard> shards,
                                              absl::Span<const int> indices);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TENSOR_LOCAL_SHARDS_H_
