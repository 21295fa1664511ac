#include "sherd/core/nn/tree/value_identity.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd::internal {
namespace {

// Not ShardedTensor::Clone, which is collective.
absl::StatusOr<Value> CloneSharded(const ShardedTensor& tensor) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensor clone, EmptyLike(tensor));
  for (size_t i = 0; i < clone.local_shards().size(); ++i) {
    Tensor shard = clone.local_shards()[i].tensor;
    if (shard.device().is_meta()) continue;
    SHERD_RETURN_IF_ERROR(shard.CopyFrom(tensor.local_shards()[i].tensor));
  }
  return clone;
}

}  // namespace

std::optional<ValueIdentity> IdentityOf(const Value& value) {
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    return ValueIdentity{ShardedTensorAccess::StateOf(*sharded).get(),
                         ShardedTensorAccess::ShardsOf(*sharded).get(),
                         sharded->dtype(),
                         {},
                         {}};
  }
  const auto* tensor = value.get_if<Tensor>();
  if (tensor == nullptr || tensor->data() == nullptr) return std::nullopt;
  return ValueIdentity{
      tensor->data(), nullptr, tensor->dtype(),
      Dims(tensor->sizes().begin(), tensor->sizes().end()),
      Dims(tensor->strides().begin(), tensor->strides().end())};
}

absl::Status ForEachTensor(Value& value,
                           absl::FunctionRef<absl::Status(Value&)> convert) {
  if (value.is_none()) return absl::OkStatus();
  if (auto* list = value.get_if<ValueList>()) {
    for (Value& item : *list) {
      SHERD_RETURN_IF_ERROR(ForEachTensor(item, convert));
    }
    return absl::OkStatus();
  }
  if (auto* map = value.get_if<ValueMap>()) {
    for (auto& [key, item] : *map) {
      SHERD_RETURN_IF_ERROR(ForEachTensor(item, convert));
    }
    return absl::OkStatus();
  }
  return convert(value);
}

absl::StatusOr<Value> WithLocalTensor(
    const Value& value,
    absl::FunctionRef<absl::StatusOr<Tensor>(const Tensor&)> convert) {
  const auto* partial = value.get_if<PartialTensor>();
  if (partial == nullptr) return convert(*value.get_if<Tensor>());
  SHERD_ASSIGN_OR_RETURN(Tensor local, convert(partial->local()));
  return PartialTensor::Create(std::move(local), partial->op(),
                               partial->group());
}

absl::StatusOr<Value> CloneTensor(const Value& value) {
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    return CloneSharded(*sharded);
  }
  return WithLocalTensor(value,
                         [](const Tensor& tensor) -> absl::StatusOr<Tensor> {
                           if (tensor.device().is_meta()) return tensor;
                           return tensor.Clone();
                         });
}

absl::Status ConvertedTensors::Convert(
    Value& value,
    absl::FunctionRef<absl::StatusOr<Value>(const Value&)> convert) {
  return ForEachTensor(value, [&](Value& tensor) -> absl::Status {
    const std::optional<ValueIdentity> identity = IdentityOf(tensor);
    if (identity) {
      const auto known = converted_.find(*identity);
      if (known != converted_.end()) {
        tensor = known->second;
        return absl::OkStatus();
      }
    }
    SHERD_ASSIGN_OR_RETURN(tensor, convert(tensor));
    if (identity) converted_.emplace(*identity, tensor);
    return absl::OkStatus();
  });
}

}  // namespace sherd::internal
