#include "sherd/testing/sharded_model.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

absl::StatusOr<std::shared_ptr<ShardedModel>> ShardedModel::Create(
    const ShardingSpecPtr& spec, std::shared_ptr<ProcessGroup> group) {
  auto model = std::make_shared<ShardedModel>();
  auto child = std::make_shared<TestModule>("ShardedSubmodel");
  child->members = {{MemberKind::kAttribute, "sharded_tensor2", Value()},
                    {MemberKind::kParameter, "random_tensor2", Value()}};
  model->submodule_ = child;
  for (Value* random : {&model->random_, &child->members[1].value}) {
    SHERD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty({2, 2}));
    SHERD_RETURN_IF_ERROR(FillUniform(tensor, 0, 1));
    *random = std::move(tensor);
  }
  if (spec == nullptr) return model;
  for (Value* sharded : {&model->sharded_, &child->members[0].value}) {
    SHERD_ASSIGN_OR_RETURN(
        *sharded, ShardedTensor::Rand(spec, {10, 20}, {.group = group}));
  }
  return model;
}

absl::StatusOr<Value> ShardedModel::Forward(
    absl::Span<const Value> /*inputs*/) {
  SHERD_ASSIGN_OR_RETURN(Value below, Get(*this, "submodule.sharded_tensor2"));
  return Value(ValueList{sharded_, std::move(below)});
}

void ShardedModel::Visit(ModuleVisitor& v) {
  v.Attribute("sharded_tensor1", sharded_);
  v.Parameter("random_tensor1", random_);
  v.Child("submodule", submodule_);
}

absl::StatusOr<Value> TestModule::Forward(absl::Span<const Value> inputs) {
  if (!inputs.empty()) return inputs[0];
  return members.empty() ? Value() : members[0].value;
}

void TestModule::Visit(ModuleVisitor& v) {
  for (Member& member : members) {
    if (member.kind == MemberKind::kParameter) {
      v.Parameter(member.name, member.value);
    } else if (member.kind == MemberKind::kBuffer) {
      v.Buffer(member.name, member.value);
    } else {
      v.Attribute(member.name, member.value);
    }
  }
  v.Children(children);
}

}  // namespace sherd::testing
