#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

absl::Status Reshard(const ShardingSpecPtr& spec, Value& value) {
  if (auto* sharded = value.get_if<ShardedTensor>()) {
    return sharded->Reshard(spec);
  }
  if (const auto* partial = value.get_if<PartialTensor>()) {
    SHERD_ASSIGN_OR_RETURN(value, partial->Reshard(spec));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> LocalShardOf(const ShardedTensor& tensor) {
  SHERD_ASSIGN_OR_RETURN(Tensor local, tensor.local_tensor());
  const auto* chunks =
      dynamic_cast<const ChunkShardingSpec*>(tensor.spec().get());
  if (chunks == nullptr) return local;
  SHERD_ASSIGN_OR_RETURN(const int dim,
                         NormalizeDim(chunks->dim(), local.dim()));
  if (local.sizes()[static_cast<size_t>(dim)] != 1) return local;
  return local.Select(dim, 0);
}

}  // namespace

absl::Status ReshardOutput(Module& module, const ShardingSpecPtr& spec) {
  if (spec == nullptr) {
    return absl::InvalidArgumentError(
        "Only `ShardingSpec` is supported as output_plan, but got null");
  }
  module.AddOutputHook([spec](Value output) -> absl::StatusOr<Value> {
    SHERD_RETURN_IF_ERROR(internal::ForEachTensor(
        output, [&](Value& value) { return Reshard(spec, value); }));
    return output;
  });
  return absl::OkStatus();
}

void CollectLocalShard(Module& module) {
  module.AddOutputHook([](Value output) -> absl::StatusOr<Value> {
    SHERD_RETURN_IF_ERROR(
        internal::ForEachTensor(output, [](Value& value) -> absl::Status {
          const auto* sharded = value.get_if<ShardedTensor>();
          if (sharded == nullptr) return absl::OkStatus();
          SHERD_ASSIGN_OR_RETURN(value, LocalShardOf(*sharded));
          return absl::OkStatus();
        }));
    return output;
  });
}

}  // namespace sherd
