#include "sherd/core/nn/balanced_planner.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TestModule;
using ::testing::ElementsAre;

// Children `t0`, `t1`, … with weights of these rows, eight bytes wide.
std::shared_ptr<TestModule> MakeTables(const std::vector<int64_t>& rows) {
  auto root = std::make_shared<TestModule>();
  for (size_t i = 0; i < rows.size(); ++i) {
    auto bag = std::make_shared<TestModule>("EmbeddingBag");
    bag->members = {{MemberKind::kParameter, "weight",
                     PatternTensor({rows[i], 2}, kFloat32, i)}};
    root->children.push_back({absl::StrCat("t", i), bag});
  }
  return root;
}

BalancedPlannerOptions OnRanks(int count, int64_t bytes_per_rank = 0) {
  return {.bytes_per_rank = bytes_per_rank,
          .placements = PlacementsOnRanks(count)};
}

// Bytes of tables on each rank.
std::vector<int64_t> BytesOf(const ShardingPlan& plan, size_t ranks) {
  std::vector<int64_t> bytes(ranks, 0);
  for (const PlanEntry& entry : plan.plan) {
    const auto& spec = dynamic_cast<const EnumerableShardingSpec&>(
        *std::get<ShardingSpecPtr>(entry.method));
    for (const ShardMetadata& shard : spec.shards()) {
      bytes[static_cast<size_t>(*shard.placement->rank())] +=
          shard.sizes[0] * shard.sizes[1] * 4;
    }
  }
  return bytes;
}

TEST(BalancedPlannerTest, PlacesWholeTablesAndCutsLargeOnes) {
  const auto model = MakeTables({10, 40, 10, 20});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingPlan plan,
      BalancedPlanner(OnRanks(2, 8 * 41)).BuildPlan(*model));
  EXPECT_EQ(plan.reasons,
            "t1.weight, 320 B: whole on rank:0/cpu, which had the fewest "
            "bytes, 0 B\n"
            "t3.weight, 160 B: whole on rank:1/cpu, which had the fewest "
            "bytes, 0 B\n"
            "t0.weight, 80 B: whole on rank:1/cpu, which had the fewest "
            "bytes, 160 B\n"
            "t2.weight, 80 B: whole on rank:1/cpu, which had the fewest "
            "bytes, 240 B\n");
  EXPECT_THAT(BytesOf(plan, 2), ElementsAre(320, 320));

  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingPlan cut,
      BalancedPlanner(OnRanks(3, 8 * 30)).BuildPlan(*model));
  EXPECT_THAT(cut.reasons,
              ::testing::StartsWith(
                  "t1.weight, 320 B: rows 0-13 on rank:0/cpu, 14-26 on "
                  "rank:1/cpu, 27-39 on rank:2/cpu; as a whole it exceeds "
                  "240 B per rank\n"));
}

TEST(BalancedPlannerTest, ItsPlanShardsTheModule) {
  RunLocalRanks(3, [](ProcessGroup&) {
    const auto model = MakeTables({10, 47, 1, 20, 0});
    auto dense = std::make_shared<TestModule>("Linear");
    dense->members = {
        {MemberKind::kParameter, "weight", PatternTensor({9, 9}, kFloat32)}};
    model->children.push_back({"dense", dense});
    BalancedPlanner planner;
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardingPlan plan,
                               planner.BuildPlan(*model));
    ASSERT_THAT(ShardModule(*model, plan), IsOk());
    for (int i = 0; i < 5; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Value weight,
                                 Get(*model, absl::StrCat("t", i, ".weight")));
      EXPECT_TRUE(HasPattern(*weight.get_if<ShardedTensor>(),
                             static_cast<uint64_t>(i)));
    }
    EXPECT_EQ(Get(*model, "dense.weight")->kind(), ValueKind::kTensor);
  });
}

TEST(BalancedPlannerTest, EachRankHasAnEqualPartOfRandomTables) {
  const uint64_t seed = RandomSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const int ranks = std::uniform_int_distribution<int>(1, 9)(random);
    std::vector<int64_t> rows(
        std::uniform_int_distribution<size_t>(1, 30)(random));
    int64_t total = 0;
    for (int64_t& r : rows) {
      r = std::uniform_int_distribution<int64_t>(
          0, int64_t{1} << std::uniform_int_distribution<int>(0, 10)(random))(
          random);
      total += 8 * r;
    }
    const auto model = MakeTables(rows);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingPlan plan,
        BalancedPlanner(OnRanks(ranks)).BuildPlan(*model));
    const std::vector<int64_t> bytes =
        BytesOf(plan, static_cast<size_t>(ranks));
    const int64_t most = *std::max_element(bytes.begin(), bytes.end());
    const int64_t even = (total + ranks - 1) / ranks;
    EXPECT_LE(most, even + even / 20 + 8) << plan.ToString();
    EXPECT_EQ(plan.plan.size(), rows.size());
    // Each row once: the specs fit the tables.
    for (const PlanEntry& entry : plan.plan) {
      const Value table = *Get(*model, entry.path);
      EXPECT_THAT(std::get<ShardingSpecPtr>(entry.method)
                      ->BuildMetadata(table.get_if<Tensor>()->sizes(), {})
                      .status(),
                  IsOk());
    }
  }
}

TEST(BalancedPlannerTest, TheCallerDecidesWhichParametersAreTables) {
  const auto model = MakeTables({10, 10});
  BalancedPlannerOptions options = OnRanks(2);
  options.is_table = [](const Module&, absl::string_view path,
                        absl::string_view name) {
    return path == "t1." && name == "weight";
  };
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardingPlan plan,
                             BalancedPlanner(options).BuildPlan(*model));
  ASSERT_EQ(plan.plan.size(), 1U);
  EXPECT_EQ(plan.plan[0].path, "t1.weight");
}

TEST(BalancedPlannerTest, Refuses) {
  const auto model = MakeTables({10, 40});
  EXPECT_THAT(BalancedPlanner(OnRanks(2, 8 * 24)).BuildPlan(*model),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "t0.weight of 80 B does not fit"));
  EXPECT_THAT(BalancedPlanner(OnRanks(2, -1)).BuildPlan(*model),
              StatusIs(absl::StatusCode::kInvalidArgument, "bytes_per_rank"));
  EXPECT_THAT(BalancedPlanner({.placements = {"rank:x/cpu"}}).BuildPlan(*model),
              StatusIs(absl::StatusCode::kInvalidArgument, "Could not parse"));
  EXPECT_THAT(BalancedPlanner().BuildPlan(*model),
              StatusIs(absl::StatusCode::kFailedPrecondition, "group"));
}

}  // namespace
}  // namespace sherd
