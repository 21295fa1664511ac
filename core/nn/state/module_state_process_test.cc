#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/linear.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// States of modules on four ranks, on every kind of group: what PyTorch's tests
// of its state-dict hooks expect. Writing and reading them is tested with
// checkpoints.

namespace sherd {
namespace {

using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::ShardedModel;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TestModule;
using ::testing::IsEmpty;

class ModuleStateProcessTest : public sherd::testing::PlacedFixture<
                                   sherd::testing::PersistentDistributedTest> {
 protected:
  // A model with hooks loads the state of another one.
  void ExpectLoaded(const ShardingSpecPtr& spec,
                    const std::shared_ptr<ProcessGroup>& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto model,
                               ShardedModel::Create(spec, group));
    AddShardedAttributeHooks(*model);
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
    EXPECT_TRUE(state.Contains("sharded_tensor1"));
    EXPECT_TRUE(state.Contains("submodule.sharded_tensor2"));

    SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded,
                               ShardedModel::Create(nullptr, group));
    AddShardedAttributeHooks(*loaded);
    SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                               LoadState(*loaded, state));
    EXPECT_THAT(report.unexpected, IsEmpty());
    EXPECT_EQ(State(*loaded)->Difference(state), "");
  }
};

SHERD_DIST_TEST_F(ModuleStateProcessTest, HooksSaveAndLoadShardedAttributes) {
  ExpectLoaded(Chunks(0), nullptr);
}

SHERD_DIST_TEST_F(ModuleStateProcessTest, AlsoOverAGroupOfSomeRanks) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, this->group().NewGroup({2, 3}));
  ExpectLoaded(Chunks(0, {2, 3, 2, 3}), group);
}

SHERD_DIST_TEST_F(ModuleStateProcessTest, HooksChangeNothingWithoutSharded) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto linear, Linear::Create(10, 10));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict before, State(*linear));
  AddShardedAttributeHooks(*linear);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict after, State(*linear));
  EXPECT_EQ(after.Difference(before), "");
  SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded, Linear::Create(10, 10));
  ASSERT_THAT(LoadState(*loaded, after).status(), IsOk());
  EXPECT_EQ(State(*loaded)->Difference(before), "");
}

SHERD_DIST_TEST_F(ModuleStateProcessTest,
                  ElementsMoveToOtherLayoutsAndDevices) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr on_hosts,
      ChunkShardingSpec::Create(1, PlacementsOnRanks(4)));
  const Tensor whole = PatternTensor({10, 6}, kFloat32);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor rows,
                             ShardTensor(whole, Chunks(0, {3, 1, 2, 0})));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor columns,
                             ShardTensor(whole, on_hosts));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor mine, Mine(whole));
  const std::vector<Value> sources = {rows, columns, whole, mine};
  for (const Value& source : sources) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor to_rows,
                               ShardedTensor::Zeros(Chunks(0), {10, 6}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor to_columns,
                               ShardedTensor::Zeros(on_hosts, {10, 6}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor to_mine,
                               Mine(Tensor::Zeros({10, 6})));
    TestModule from;
    TestModule to;
    for (const char* name : {"rows", "columns", "plain"}) {
      from.members.push_back({MemberKind::kParameter, name, source});
    }
    to.members = {{MemberKind::kParameter, "rows", to_rows},
                  {MemberKind::kParameter, "columns", to_columns},
                  {MemberKind::kParameter, "plain", to_mine}};
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(from));
    ASSERT_THAT(LoadState(to, state).status(), IsOk());
    EXPECT_TRUE(HasPattern(to_rows));
    EXPECT_TRUE(HasPattern(to_columns));
    EXPECT_THAT(to_mine, TensorBitwiseEq(Mine(whole)));
  }
}

}  // namespace
}  // namespace sherd
