#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/containers.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/plan/plan_cases.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using internal::Contents;
using internal::KeepingSharder;
using internal::MakeLinear;
using internal::MakeModel;
using internal::MakeSharder;
using internal::ModulePtr;
using internal::ShardedAt;
using internal::SharderPtr;
using ::sherd::testing::Chunks;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TestModule;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr int kRanks = 3;

// With another tensor before it.
Value ListWith(const Value& weight) {
  return ValueList{PatternTensor({2}, kFloat32), ValueMap{{"a", weight}}};
}

// `fc.weight` is also `ebcx.weight`, and in a list.
std::shared_ptr<TestModule> MakeTiedModel() {
  auto model = MakeModel();
  const Value weight = *Get(*model, "fc.weight");
  EXPECT_THAT(Set(*model, "ebcx.weight", weight), IsOk());
  model->members = {{MemberKind::kAttribute, "list", ListWith(weight)}};
  return model;
}

const void* LocalDataOf(const Value& value) {
  return ShardedAt(value).local_tensor()->data();
}

TEST(TiedParametersTest, TiedMembersAreShardedTogetherAndStayTied) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    const ShardingSpecPtr rows = Chunks(0, kRanks);
    const std::vector<ShardingPlan> plans = {
        {.plan = {{"fc.weight", rows}}},
        {.plan = {{"ebcx.weight", rows}}},
        {.plan = {{"fc.weight", rows}, {"ebcx.weight", Chunks(0, kRanks)}}}};
    for (const ShardingPlan& plan : plans) {
      const auto model = MakeTiedModel();
      ASSERT_THAT(ShardModule(*model, plan), IsOk());
      const Value weight = *Get(*model, "fc.weight");
      EXPECT_TRUE(HasPattern(ShardedAt(weight), 21));
      EXPECT_TRUE(ShardedAt(weight).requires_grad());
      EXPECT_EQ(LocalDataOf(*Get(*model, "ebcx.weight")), LocalDataOf(weight));
      const Value list = *Get(*model, "list");
      const Value& item = (*list.get_if<ValueList>())[1];
      EXPECT_EQ(LocalDataOf(item.get_if<ValueMap>()->at("a")),
                LocalDataOf(weight));
      EXPECT_EQ((*list.get_if<ValueList>())[0].kind(), ValueKind::kTensor);
      // Other tensors are as they were.
      EXPECT_EQ(Get(*model, "ebc.bags.0.weight")->kind(), ValueKind::kTensor);
    }
    // One module with two paths.
    TestModule root;
    root.children = {{"a", MakeLinear(4)}};
    root.children.push_back({"b", root.children[0].module});
    ASSERT_THAT(
        ShardModule(root, {.plan = {{"a.weight", rows}, {"b.weight", rows}}}),
        IsOk());
    EXPECT_TRUE(HasPattern(ShardedAt(*Get(root, "b.weight")), 4));
  });
}

TEST(TiedParametersTest, AnAttributeTiedToAParameterRequiresAGradient) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto fc = MakeLinear();
    fc->members.push_back({MemberKind::kAttribute, "a", *Get(*fc, "weight")});
    ASSERT_THAT(ShardParameter(*fc, "a", Chunks(0, 2)), IsOk());
    EXPECT_TRUE(ShardedAt(*Get(*fc, "weight")).requires_grad());
  });
}

TEST(TiedParametersTest, RefusesToSeparateTiedMembersAndNamesBoth) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeTiedModel();
    const ShardingSpecPtr rows = Chunks(0, kRanks);
    const auto shards_one =
        MakeSharder([&](const ModulePtr& fc) -> absl::StatusOr<ModulePtr> {
          SHERD_RETURN_IF_ERROR(ShardParameter(*fc, "weight", rows));
          return fc;
        });
    const auto replaces_one =
        MakeSharder([](const ModulePtr&) -> absl::StatusOr<ModulePtr> {
          return MakeLinear(21);
        });
    const struct {
      ShardingPlan plan;
      std::string phrase;
    } kCases[] = {
        {{.plan = {{"fc.weight", rows}, {"ebcx.weight", Chunks(1, kRanks)}}},
         "`ebcx.weight` and `fc.weight` are one tensor, which is sharded once, "
         "but the plan has two layouts"},
        {{.plan = {{"fc.weight", rows}, {"ebcx", KeepingSharder()}}},
         "`fc.weight` and `ebcx.weight` are one tensor, which is sharded once, "
         "but the sharder for `ebcx` decides"},
        {{.plan = {{"fc", shards_one}}},
         "the sharder for `fc`: `ebcx.weight` and `fc.weight` were one tensor"},
        {{.plan = {{"fc", replaces_one}}}, "were one tensor and are two"},
    };
    for (const auto& c : kCases) {
      SCOPED_TRACE(c.phrase);
      const std::string before = Contents(*model);
      EXPECT_THAT(ShardModule(*model, c.plan),
                  StatusIs(kPrecondition, c.phrase));
      EXPECT_EQ(Contents(*model), before);
    }
    // A sharder that takes both.
    EXPECT_THAT(ShardModule(*model, {.plan = {{"fc", KeepingSharder()},
                                              {"ebcx", KeepingSharder()}}}),
                IsOk());
    if (group.rank() == 1) {
      ASSERT_THAT(Set(*model, "ebcx.weight", PatternTensor({12, 4}, kFloat32)),
                  IsOk());
    }
    EXPECT_THAT(ShardModule(*model, {.plan = {{"fc.weight", rows}}}),
                StatusIs(kInvalid,
                         "rank 1: `list` and `ebcx.weight` are one tensor on "
                         "the source, but not here"));
    ASSERT_THAT(Set(*model, "ebcx.weight", *Get(*model, "fc.weight")), IsOk());
    ASSERT_THAT(Set(*model, "ebcx.bias",
                    group.rank() == 2 ? *Get(*model, "ebc.bags.0.weight")
                                      : PatternTensor({10, 8}, kFloat32)),
                IsOk());
    EXPECT_THAT(ShardModule(*model, {.plan = {{"ebc.bags.0.weight", rows}}}),
                StatusIs(kInvalid,
                         "rank 2: `ebc.bags.0.weight` and `ebcx.bias` are one "
                         "tensor here, but not on the source"));
  });
}

// Gives up elements: what a rank that is not the source may have.
void MoveToMeta(Module& model, const std::string& path) {
  const Value value = *Get(model, path);
  const Tensor& tensor = *value.get_if<Tensor>();
  ASSERT_THAT(Set(model, path,
                  Tensor::Empty(tensor.sizes(), {.device = {DeviceType::kMeta}})
                      .value()),
              IsOk());
}

TEST(TiedParametersTest, TensorsWithoutElementsAreTiedAsThoseOfTheSource) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const ShardingSpecPtr rows = Chunks(0, kRanks);
    const std::vector<ShardingPlan> plans = {
        {.plan = {{"fc.weight", rows}}},
        {.plan = {{"ebcx.weight", rows}, {"ebc.bags.0.weight", rows}}},
        {.plan = {{"fc", KeepingSharder()}, {"ebcx", KeepingSharder()}}},
        {.plan = {{"ebc", KeepingSharder()},
                  {"ebcx.weight", rows},
                  {"fc.weight", Chunks(0, kRanks)}}}};
    for (const ShardingPlan& plan : plans) {
      const bool is_sharded = plan.plan[0].path != "fc";
      const auto model = MakeTiedModel();
      // Rank 0 has no elements, rank 2 those of some.
      if (group.rank() != 1) MoveToMeta(*model, "ebcx.weight");
      if (group.rank() == 0) {
        MoveToMeta(*model, "fc.weight");
        MoveToMeta(*model, "ebc.bags.0.weight");
        const Value meta = *Get(*model, "fc.weight");
        ASSERT_THAT(Set(*model, "list", ListWith(meta)), IsOk());
      }
      ASSERT_THAT(ShardModule(*model, plan, {.src_rank = 1}), IsOk());
      const Value weight = *Get(*model, "fc.weight");
      ASSERT_EQ(weight.kind() == ValueKind::kShardedTensor, is_sharded);
      if (!is_sharded) continue;
      EXPECT_TRUE(HasPattern(ShardedAt(weight), 21));
      EXPECT_EQ(LocalDataOf(*Get(*model, "ebcx.weight")), LocalDataOf(weight));
      const Value list = *Get(*model, "list");
      const Value& item = (*list.get_if<ValueList>())[1];
      EXPECT_EQ(LocalDataOf(item.get_if<ValueMap>()->at("a")),
                LocalDataOf(weight));
    }
  });
}

TEST(TiedParametersTest, TensorsWithoutElementsOfOtherSizesAreRefused) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const auto model = MakeTiedModel();
    if (group.rank() == 1) {
      ASSERT_THAT(
          Set(*model, "ebcx.weight",
              Tensor::Empty({4, 12}, {.device = {DeviceType::kMeta}}).value()),
          IsOk());
    }
    const std::string before = Contents(*model);
    EXPECT_THAT(ShardModule(*model, {.plan = {{"fc.weight", Chunks(0, 2)}}}),
                StatusIs(kInvalid, "rank 1: `list` and `ebcx.weight` are one"));
    EXPECT_EQ(Contents(*model), before);
  });
}

TEST(TiedParametersTest, ASourceThatIsNoRankIsRefusedAfterTheTies) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeTiedModel();
    const std::string before = Contents(*model);
    // All ranks are in the same call.
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          EXPECT_THAT(group.Barrier(), IsOk());
          return ebc;
        });
    EXPECT_THAT(ShardModule(*model,
                            {.plan = {{"ebc", sharder},
                                      {"fc.weight", Chunks(0, kRanks)}}},
                            {.src_rank = group.rank() == 1 ? kRanks : 0}),
                StatusIs(kInvalid, "src_rank"));
    EXPECT_EQ(Contents(*model), before);
    EXPECT_THAT(ShardParameter(*model, "fc.weight", Chunks(0, kRanks)), IsOk());
  });
}

TEST(TiedParametersTest, AModuleWithTwoPathsMayHaveNoElements) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    TestModule root;
    root.children = {{"a", MakeLinear(4)}};
    root.children.push_back({"b", root.children[0].module});
    if (group.rank() == 1) MoveToMeta(root, "a.weight");
    const ShardingSpecPtr rows = Chunks(0, 2);
    ASSERT_THAT(
        ShardModule(root, {.plan = {{"a.weight", rows}, {"b.weight", rows}}}),
        IsOk());
    EXPECT_TRUE(HasPattern(ShardedAt(*Get(root, "b.weight")), 4));
  });
}

}  // namespace
}  // namespace sherd
