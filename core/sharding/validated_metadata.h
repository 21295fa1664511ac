#ifndef SHERD_CORE_SHARDING_VALIDATED_METADATA_H_
#define SHERD_CORE_SHARDING_VALIDATED_METADATA_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {

// Returns spec->BuildMetadata; checks the result of a user's spec: it must be
// for a tensor of this size and these properties, and its shards must be valid,
// cover the tensor and not overlap, except for replicas.
//   kInvalidArgument  "Expecting ShardingSpec" for null, from BuildMetadata,
//                     ValidateNonOverlapping or ValidateCover, or what the spec
//                     has got wrong, with its ToString.
//   other             As ShardMetadata::Validate.
//
// Cost. No more than BuildMetadata for the classes of sharding_spec.h and
// mesh_sharding_spec.h and those derived from them, whose rules are right;
// otherwise that of ValidateNonOverlapping.
absl::StatusOr<ShardedTensorMetadata> BuildValidatedMetadata(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const TensorProperties& properties);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_VALIDATED_METADATA_H_
