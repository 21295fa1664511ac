#include "sherd/core/nn/module_state.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardedModel;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TestModule;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr MemberKind kParameter = MemberKind::kParameter;
constexpr int kRanks = 3;

std::shared_ptr<TestModule> Make(std::vector<TestModule::Member> members,
                                 std::vector<NamedModule> children = {}) {
  auto module = std::make_shared<TestModule>();
  module->members = std::move(members);
  module->children = std::move(children);
  return module;
}

Tensor Zeros(absl::Span<const int64_t> size) {
  return Tensor::Zeros(size).value();
}

std::vector<std::string> NamesOf(const StateDict& state) {
  std::vector<std::string> names;
  for (const StateEntry& entry : state.Flatten()) names.push_back(entry.name);
  return names;
}

TEST(StateTest, HasParametersAndBuffersByTheirPathsAndSharesElements) {
  const Tensor weight = PatternTensor({2, 2}, kFloat32);
  const auto model =
      Make({{kParameter, "weight", weight},
            {MemberKind::kAttribute, "cache", weight},
            {kParameter, "bias", Value()},
            {MemberKind::kBuffer, "list", ValueList{weight, weight}}},
           {{"sub",
             Make({{kParameter, "odd[0]", weight},
                   {MemberKind::kBuffer, "map", ValueMap{{"k.", weight}}}})}});
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
  EXPECT_THAT(NamesOf(state), ElementsAre("weight", "list[0]", "list[1]",
                                          "sub.odd\\[0]", "sub.map.k\\."));
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor held, state.Get<Tensor>("weight"));
  EXPECT_EQ(held.data(), weight.data());
}

TEST(StateTest, AllThatItHasIsLoadedAgainByTheSameNames) {
  const auto make = [](uint64_t salt) {
    const Tensor tensor = PatternTensor({2, 3}, kFloat32, salt);
    return Make({{kParameter, "weight", tensor.Clone().value()},
                 {MemberKind::kBuffer, "list",
                  ValueList{tensor.Clone().value(), tensor.Clone().value()}}},
                {{"sub", Make({{MemberKind::kBuffer, "map[",
                                ValueMap{{"k.", tensor.Clone().value()}}}})}});
  };
  const auto source = make(1);
  const auto target = make(2);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*source));
  SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                             LoadState(*target, state));
  EXPECT_THAT(report.missing, IsEmpty());
  EXPECT_THAT(report.unexpected, IsEmpty());
  EXPECT_THAT(report.mismatched, IsEmpty());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, State(*target));
  EXPECT_EQ(loaded.Difference(state), "");
  // Copied, not shared.
  EXPECT_NE(loaded.Get<Tensor>("weight")->data(),
            state.Get<Tensor>("weight")->data());
}

TEST(StateTest, RefusesMembersWithoutAValue) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto model = Make(
        {{kParameter, "partial", PartialTensor::Create(Zeros({2})).value()}});
    EXPECT_THAT(State(*model), StatusIs(kInvalid, "partial: a PartialTensor"));
    StateDict state;
    ASSERT_THAT(state.Set("partial", Zeros({2})), IsOk());
    EXPECT_THAT(LoadState(*model, state),
                StatusIs(kPrecondition, "a PartialTensor cannot be loaded"));
  });
}

TEST(HookTest, ShardedAttributesBelongToTheStateByHooks) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto model,
                               ShardedModel::Create(Chunks(0, kRanks)));
    EXPECT_THAT(NamesOf(State(*model).value()),
                ElementsAre("random_tensor1", "submodule.random_tensor2"));
    AddShardedAttributeHooks(*model);
    // Also below another root.
    const auto root = Make({}, {{"m", model}});
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*root));
    EXPECT_THAT(
        NamesOf(state),
        ElementsAre("m.random_tensor1", "m.submodule.random_tensor2",
                    "m.submodule.sharded_tensor2", "m.sharded_tensor1"));

    SHERD_ASSERT_OK_AND_ASSIGN(const auto empty, ShardedModel::Create());
    AddShardedAttributeHooks(*empty);
    const auto other = Make({}, {{"m", empty}});
    SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                               LoadState(*other, state));
    EXPECT_THAT(report.unexpected, IsEmpty());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, State(*other));
    EXPECT_EQ(loaded.Difference(state), "");
  });
}

TEST(HookTest, ChangeNothingInAModuleWithoutShardedTensors) {
  const auto model = Make({{kParameter, "w", Zeros({2})},
                           {MemberKind::kAttribute, "a", Zeros({2})}});
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict before, State(*model));
  AddShardedAttributeHooks(*model);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict after, State(*model));
  EXPECT_EQ(after.Difference(before), "");
  EXPECT_THAT(LoadState(*model, after).status(), IsOk());
}

TEST(HookTest, AnErrorOfAHookIsThatOfTheCallAndUndoesTheOthers) {
  const auto model = Make({{MemberKind::kAttribute, "a", Value()}});
  model->AddLoadHook([](Module& module, absl::string_view, const StateDict&,
                        std::vector<std::string>&) {
    return Set(module, "a", Tensor::Zeros({1}).value());
  });
  model->AddLoadHook([](Module&, absl::string_view, const StateDict&,
                        std::vector<std::string>&) {
    return absl::DataLossError("the second hook");
  });
  model->AddStateHook([](Module&, absl::string_view, StateDict&) {
    return absl::DataLossError("a state hook");
  });
  EXPECT_THAT(State(*model),
              StatusIs(absl::StatusCode::kDataLoss, "a state hook"));
  EXPECT_THAT(LoadState(*model, StateDict()),
              StatusIs(absl::StatusCode::kDataLoss, "the second hook"));
  EXPECT_TRUE(Get(*model, "a")->is_none());
}

}  // namespace
}  // namespace sherd
