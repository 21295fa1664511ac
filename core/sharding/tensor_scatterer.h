#ifndef SHERD_CORE_SHARDING_TENSOR_SCATTERER_H_
#define SHERD_CORE_SHARDING_TENSOR_SCATTERER_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// One call of ShardTensor, as a TensorScatterer sees it.
struct ScatterCall {
  // The whole tensor on `src_rank`, in host memory or on a device; unspecified
  // on other ranks, where it may be undefined.
  const Tensor& tensor;
  // In the group.
  int src_rank = 0;
  ProcessGroup& group;
  // The metadata that the spec has built for this tensor, the same on all
  // ranks.
  const ShardedTensorMetadata& metadata;
  // This rank's shards, allocated on their placements: shards[i] receives the
  // elements of metadata.shards[shard_indices[i]].
  absl::Span<const int> shard_indices;
  absl::Span<Tensor> shards;
  // For each collective, as in ReshardOptions.
  std::optional<absl::Duration> timeout;
};

// A spec that distributes the elements of a whole tensor by its own method,
// instead of by ReshardPlan, because it is faster or transforms the elements:
//
//     class MySpec : public ShardingSpec, public TensorScatterer { … };
class TensorScatterer {
 public:
  virtual ~TensorScatterer() = default;

  // Fills this rank's shards. ShardTensor calls it on every rank of the group,
  // ranks without shards too, once all have agreed on spec and source and have
  // memory for their shards; it compares the results afterwards, so that an
  // error on one rank is the error of all.
  //
  // Collective. May use the group: each message sent on one rank is received on
  // others, even if Scatter fails on one of them.
  virtual absl::Status Scatter(const ScatterCall& call) const = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_TENSOR_SCATTERER_H_
