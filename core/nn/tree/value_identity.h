#ifndef SHERD_CORE_NN_TREE_VALUE_IDENTITY_H_
#define SHERD_CORE_NN_TREE_VALUE_IDENTITY_H_

#include <optional>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {

// Equal for handles of the same elements: the address of the first element, or
// the state and the shards that handles of a sharded tensor share (also on
// ranks without shards: ranks find the same handles equal), dtype, sizes,
// strides.
using ValueIdentity = std::tuple<const void*, const void*, DType, Dims, Dims>;

// None for a tensor without elements here, which has no address, and for what
// is neither a tensor nor a sharded one.
std::optional<ValueIdentity> IdentityOf(const Value& value);

// Calls `convert` for each tensor in a value, also in lists and maps; it may
// replace it.
absl::Status ForEachTensor(Value& value,
                           absl::FunctionRef<absl::Status(Value&)> convert);

// Converts the tensor of a Tensor or the summand of a PartialTensor.
absl::StatusOr<Value> WithLocalTensor(
    const Value& value,
    absl::FunctionRef<absl::StatusOr<Tensor>(const Tensor&)> convert);

// A copy of a tensor in memory of its own; of one on meta, a handle. Not
// collective.
absl::StatusOr<Value> CloneTensor(const Value& value);

// Converts tensors, handles of the same elements once: their results share
// their elements, too.
class ConvertedTensors {
 public:
  absl::Status Convert(
      Value& value,
      absl::FunctionRef<absl::StatusOr<Value>(const Value&)> convert);

 private:
  absl::flat_hash_map<ValueIdentity, Value> converted_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_TREE_VALUE_IDENTITY_H_
