#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TestModule;
using ::testing::ElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kRanks = 3;

const ShardedTensor& ShardedAt(const Value& value) {
  return *value.get_if<ShardedTensor>();
}

TEST(OutputHookTest, ReachTensorsInListsAndMaps) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const Tensor plain = PatternTensor({2}, kFloat32);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor sharded,
        ShardTensor(PatternTensor({3, 6}, kFloat32), Chunks(1, kRanks)));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(Tensor::Ones({3, 2}).value()));
    const Value output(
        ValueList{sharded, ValueMap{{"a", sharded}, {"b", partial}}, plain});
    TestModule module;
    EXPECT_THAT(ReshardOutput(module, nullptr), StatusIs(kInvalid, "Only"));
    ASSERT_THAT(ReshardOutput(module, Chunks(0, kRanks)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Value moved, module.Call({output}));
    const auto& list = *moved.get_if<ValueList>();
    const auto& map = *list[1].get_if<ValueMap>();
    EXPECT_TRUE(HasPattern(ShardedAt(list[0])));
    EXPECT_EQ(*ShardedAt(map.at("a")).spec(), *Chunks(0, kRanks));
    EXPECT_THAT(*ShardedAt(map.at("b")).local_tensor(),
                TensorBitwiseEq(Tensor::Full({1, 2}, 3.0F)));
    EXPECT_EQ(list[2].get_if<Tensor>()->data(), plain.data());

    CollectLocalShard(module);
    SHERD_ASSERT_OK_AND_ASSIGN(const Value local, module.Call({output}));
    // One row per rank: the dimension disappears.
    const Tensor row =
        PatternTensor({3, 6}, kFloat32).Select(0, group.rank()).value();
    const auto& locals = *local.get_if<ValueList>();
    EXPECT_THAT(*locals[0].get_if<Tensor>(), TensorBitwiseEq(row));
    EXPECT_THAT(*locals[1].get_if<ValueMap>()->at("a").get_if<Tensor>(),
                TensorBitwiseEq(row));
  });
}

TEST(OutputHookTest, ALocalShardKeepsOtherDimensions) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr boxes,
        EnumerableShardingSpec::Create(
            {{.offsets = {0, 0}, .sizes = {1, 4}, .placement = "rank:0/cpu"},
             {.offsets = {1, 0}, .sizes = {1, 4}, .placement = "rank:1/cpu"}}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr several,
        EnumerableShardingSpec::Create(
            {{.offsets = {0, 0}, .sizes = {1, 4}, .placement = "rank:0/cpu"},
             {.offsets = {1, 0}, .sizes = {1, 4}, .placement = "rank:0/cpu"}}));
    const Tensor whole = PatternTensor({2, 4}, kFloat32);
    TestModule module;
    CollectLocalShard(module);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor boxed,
                               ShardTensor(whole, boxes));
    EXPECT_THAT(module.Call({boxed})->get_if<Tensor>()->sizes(),
                ElementsAre(1, 4));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor two,
                               ShardTensor(whole, several));
    EXPECT_THAT(module.Call({two}),
                StatusIs(absl::StatusCode::kUnimplemented,
                         "Only single local shard is supported."));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
