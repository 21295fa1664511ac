#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_LIKE_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_LIKE_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

// Properties that are not taken from the source.
struct LikeOptions {
  std::optional<DType> dtype = std::nullopt;
  std::optional<bool> requires_grad = std::nullopt;
  std::optional<bool> pin_memory = std::nullopt;
  // Null: the source's. Another group must hold the owners of all shards.
  std::shared_ptr<ProcessGroup> group = nullptr;
  ShardingSpecPtr spec = nullptr;
  // For local shards, as in ShardedTensorOptions.
  Allocator* allocator = nullptr;
};

// New tensors of the size, layout, dtype, properties and group of `source`, in
// memory of their own. Not collective: they are not published, whether or not
// the source is. A source without a group gives a tensor without one, of the
// shards that the source has here.
//   kFailedPrecondition  The source was not created.
// and otherwise as ShardedTensor::Empty.
//
// Cost. The metadata is shared with the source unless something is overridden.

// Contents are unspecified.
absl::StatusOr<ShardedTensor> EmptyLike(const ShardedTensor& source,
                                        const LikeOptions& options = {});
absl::StatusOr<ShardedTensor> ZerosLike(const ShardedTensor& source,
                                        const LikeOptions& options = {});
absl::StatusOr<ShardedTensor> OnesLike(const ShardedTensor& source,
                                       const LikeOptions& options = {});
absl::StatusOr<ShardedTensor> RandLike(const ShardedTensor& source,
                                       const LikeOptions& options = {},
                                       const RandomOptions& random = {});
absl::StatusOr<ShardedTensor> RandnLike(const ShardedTensor& source,
                                        const LikeOptions& options = {},
                                        const RandomOptions& random = {});

// Every element is `value`, converted as by Tensor::Fill.
template <typename T>
absl::StatusOr<ShardedTensor> FullLike(const ShardedTensor& source, T value,
                                       const LikeOptions& options = {}) {
  absl::StatusOr<ShardedTensor> result = EmptyLike(source, options);
  if (!result.ok()) return result;
  if (absl::Status status = result->Fill(value); !status.ok()) return status;
  return result;
}

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_LIKE_H_
