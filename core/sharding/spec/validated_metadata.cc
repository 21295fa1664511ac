#include "sherd/core/sharding/validated_metadata.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

bool IsBuiltIn(const ShardingSpec& spec) {
  return dynamic_cast<const ChunkShardingSpec*>(&spec) != nullptr ||
         dynamic_cast<const EnumerableShardingSpec*>(&spec) != nullptr ||
         dynamic_cast<const MeshShardingSpec*>(&spec) != nullptr;
}

absl::Status Check(const ShardedTensorMetadata& metadata,
                   absl::Span<const int64_t> size,
                   const TensorProperties& properties) {
  if (metadata.size != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("it built metadata for size ", FormatDims(metadata.size),
                     ", expected ", FormatDims(size)));
  }
  if (metadata.properties != properties) {
    return absl::InvalidArgumentError(
        absl::StrCat("it built metadata with ", metadata.properties.ToString(),
                     ", expected ", properties.ToString()));
  }
  SHERD_RETURN_IF_ERROR(
      ValidateNonOverlapping(metadata.shards, Replicas::kAllowed));
  return ValidateCover(metadata.shards, size, Replicas::kAllowed);
}

}  // namespace

absl::StatusOr<ShardedTensorMetadata> BuildValidatedMetadata(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const TensorProperties& properties) {
  if (spec == nullptr) {
    return absl::InvalidArgumentError("Expecting ShardingSpec but got null");
  }
  SHERD_RETURN_IF_ERROR(NumElements(size).status());
  SHERD_ASSIGN_OR_RETURN(ShardedTensorMetadata metadata,
                         spec->BuildMetadata(size, properties));
  if (IsBuiltIn(*spec)) return metadata;
  absl::Status status = Check(metadata, size, properties);
  if (!status.ok()) {
    return Annotate(std::move(status),
                    absl::StrCat("sharding spec ", spec->ToString()));
  }
  return metadata;
}

}  // namespace sherd
