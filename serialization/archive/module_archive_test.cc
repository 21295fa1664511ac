#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/linear.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/archive.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/sharded_model.h"

// States of modules through an archive, on every kind of group: what PyTorch's
// tests of its state-dict hooks write and read.

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::ShardedModel;
using ::testing::IsEmpty;

class ModuleArchiveTest : public sherd::testing::PlacedFixture<
                              sherd::testing::PersistentDistributedTest> {
 protected:
  void ExpectSavedAndLoaded(const ShardingSpecPtr& spec,
                            const std::shared_ptr<ProcessGroup>& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto model,
                               ShardedModel::Create(spec, group));
    AddShardedAttributeHooks(*model);
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict saved, State(*model));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(saved));
    std::optional<ScopedLoadGroup> scope;
    if (group != nullptr) {
      SHERD_ASSERT_OK_AND_ASSIGN(ScopedLoadGroup created,
                                 ScopedLoadGroup::Create(group));
      scope.emplace(std::move(created));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict read, LoadFromString(bytes));

    SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded,
                               ShardedModel::Create(nullptr, group));
    AddShardedAttributeHooks(*loaded);
    SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                               LoadState(*loaded, read));
    EXPECT_THAT(report.unexpected, IsEmpty());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict found, State(*loaded));
    EXPECT_TRUE(found.Contains("sharded_tensor1"));
    EXPECT_TRUE(found.Contains("submodule.sharded_tensor2"));
    EXPECT_EQ(found.Difference(saved), "");
  }
};

SHERD_DIST_TEST_F(ModuleArchiveTest, ShardedAttributesComeBack) {
  ExpectSavedAndLoaded(Chunks(0), nullptr);
}

SHERD_DIST_TEST_F(ModuleArchiveTest, AlsoOverAGroupOfSomeRanks) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, this->group().NewGroup({2, 3}));
  ExpectSavedAndLoaded(Chunks(0, {2, 3, 2, 3}), group);
}

SHERD_DIST_TEST_F(ModuleArchiveTest, AModuleWithoutShardedTensorsAsWell) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto linear, Linear::Create(10, 10));
  AddShardedAttributeHooks(*linear);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict saved, State(*linear));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(saved));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict read, LoadFromString(bytes));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded, Linear::Create(10, 10));
  ASSERT_THAT(LoadState(*loaded, read).status(), IsOk());
  EXPECT_EQ(State(*loaded)->Difference(saved), "");
}

}  // namespace
}  // namespace sherd
