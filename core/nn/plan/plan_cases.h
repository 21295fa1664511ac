#ifndef SHERD_CORE_NN_PLAN_PLAN_CASES_H_
#define SHERD_CORE_NN_PLAN_PLAN_CASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/containers.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_pattern.h"

// Models and sharders of tests of plans.
namespace sherd::internal {

using SharderPtr = std::shared_ptr<Sharder>;
using ModulePtr = std::shared_ptr<Module>;

inline std::shared_ptr<testing::TestModule> MakeLinear(uint64_t salt = 0) {
  auto linear = std::make_shared<testing::TestModule>("Linear");
  linear->members = {{MemberKind::kParameter, "weight",
                      testing::PatternTensor({12, 4}, kFloat32, salt)},
                     {MemberKind::kParameter, "bias", ValueList{}}};
  return linear;
}

// ebc.bags.0.weight to ebc.bags.9.weight, embx.weight, fc.weight, fc.bias.
inline std::shared_ptr<testing::TestModule> MakeModel() {
  auto bags = std::make_shared<ModuleDict>();
  for (int i = 0; i < 10; ++i) {
    auto bag = std::make_shared<testing::TestModule>("Bag");
    bag->members = {{MemberKind::kParameter, "weight",
                     testing::PatternTensor({10, 8}, kFloat32, i)}};
    EXPECT_TRUE(bags->Insert(absl::StrCat(i), bag).ok());
  }
  auto ebc = std::make_shared<testing::TestModule>("Collection");
  ebc->children = {{"bags", bags}};
  auto model = std::make_shared<testing::TestModule>("Model");
  model->children = {
      {"ebc", ebc}, {"ebcx", MakeLinear(20)}, {"fc", MakeLinear(21)}};
  return model;
}

// A sharder of a test.
class FunctionSharder : public Sharder {
 public:
  using Function = std::function<absl::StatusOr<ModulePtr>(const ModulePtr&)>;
  explicit FunctionSharder(Function function)
      : function_(std::move(function)) {}
  absl::StatusOr<ModulePtr> Shard(const ModulePtr& module) override {
    return function_(module);
  }

 private:
  Function function_;
};

inline SharderPtr MakeSharder(FunctionSharder::Function function) {
  return std::make_shared<FunctionSharder>(std::move(function));
}

inline SharderPtr KeepingSharder() {
  return MakeSharder([](const ModulePtr& module) { return module; });
}

inline std::string PathOfBag(int i) {
  return absl::StrCat("bags.", i, ".weight");
}

// What a tree holds: kinds, addresses of plain tensors, modules and how many
// hooks they have. Two equal texts mean that nothing has changed.
inline std::string Contents(Module& root) {
  std::string text;
  const auto modules = NamedModules(root).value();
  const auto parameters = NamedParameters(root).value();
  const auto hooks = [](Module& module) {
    return ModuleAccess::HooksOf(module).output.size();
  };
  absl::StrAppend(&text, hooks(root), "\n");
  for (const NamedModule& m : modules) {
    absl::StrAppend(&text, m.name, " ", m.module->type_name(), " ",
                    reinterpret_cast<uintptr_t>(m.module.get()), " ",
                    hooks(*m.module), "\n");
  }
  for (const NamedValue& p : parameters) {
    absl::StrAppend(&text, p.name, " ", p.value.ToString());
    if (const auto* tensor = p.value.get_if<Tensor>()) {
      absl::StrAppend(&text, " ", reinterpret_cast<uintptr_t>(tensor->data()));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

inline const ShardedTensor& ShardedAt(const Value& value) {
  return *value.get_if<ShardedTensor>();
}

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_PLAN_CASES_H_
