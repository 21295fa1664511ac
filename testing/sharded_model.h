#ifndef SHERD_TESTING_SHARDED_MODEL_H_
#define SHERD_TESTING_SHARDED_MODEL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/sharding_spec.h"

namespace sherd::testing {

// A module for tests of states and checkpoints, with sharded attributes in
// itself and in a child:
//
//     sharded_tensor1            attribute, [10, 20]
//     random_tensor1             parameter, [2, 2]
//     submodule.sharded_tensor2  attribute, [10, 20]
//     submodule.random_tensor2   parameter, [2, 2]
//
// PyTorch's tests call it MyShardedModel1. Link @sherd//testing:modules.
//
// Call returns the list of the two sharded tensors.
class ShardedModel : public Module {
 public:
  // Fills the tensors with random numbers: the same on every rank for
  // parameters, and by the index in the whole tensor for attributes. With a
  // null `spec` the attributes are none. A null `group` is the default group.
  // AddShardedAttributeHooks is left to the caller.
  static absl::StatusOr<std::shared_ptr<ShardedModel>> Create(
      const ShardingSpecPtr& spec = nullptr,
      std::shared_ptr<ProcessGroup> group = nullptr);

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "ShardedModel"; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override;

 private:
  Value sharded_;
  Value random_;
  std::shared_ptr<Module> submodule_;
};

// A module whose members and children a test lists:
//
//     auto fc = std::make_shared<TestModule>("Linear");
//     fc->members = {{MemberKind::kParameter, "weight", weight}};
//
// Call returns the first input, or its first member if there is none.
class TestModule : public Module {
 public:
  struct Member {
    MemberKind kind;
    std::string name;
    Value value;
  };

  explicit TestModule(std::string type_name = "TestModule")
      : type_name_(std::move(type_name)) {}

  std::vector<Member> members;
  std::vector<NamedModule> children;

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return type_name_; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override;

 private:
  std::string type_name_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_SHARDED_MODEL_H_
