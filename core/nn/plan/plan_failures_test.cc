#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
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
using internal::MakeLinear;
using internal::MakeModel;
using internal::MakeSharder;
using internal::ModulePtr;
using internal::PathOfBag;
using ::sherd::testing::Chunks;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TestModule;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr int kRanks = 3;

TEST(PlanFailuresTest, ASharderThatReturnsWhatContainsItsModuleIsRefused) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    for (const bool root : {true, false}) {
      for (const bool everywhere : {true, false}) {
        const auto sharder = MakeSharder(
            [&](const ModulePtr& bags) -> absl::StatusOr<ModulePtr> {
              if (!everywhere && group.rank() != 1) return bags;
              if (root) return model;
              auto wrapped = std::make_shared<TestModule>("Wrapped");
              wrapped->children = {{"ebc", model->children[0].module}};
              return wrapped;
            });
        const std::string before = Contents(*model);
        EXPECT_THAT(
            ShardModule(*model, {.plan = {{"fc.weight", Chunks(0, kRanks)},
                                          {"ebc.bags", sharder}}}),
            StatusIs(kInvalid, "no module may be a member of itself"));
        EXPECT_EQ(Contents(*model), before);
      }
    }
    EXPECT_THAT(ShardParameter(*model, "fc.weight", Chunks(0, kRanks)), IsOk());
  });
}

TEST(PlanFailuresTest, ATreeWithAModuleInItselfIsAnErrorOfAllRanks) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    if (group.rank() == 1) model->children.push_back({"self", model});
    EXPECT_THAT(
        ShardModule(*model, {.plan = {{"ebcx.weight", Chunks(0, kRanks)}}}),
        StatusIs(kInvalid, "no module may be a member of itself"));
    EXPECT_EQ(Get(*model, "ebcx.weight")->kind(), ValueKind::kTensor);
    model->children.resize(3);
  });
}

TEST(PlanFailuresTest, AnInvalidTreeIsAnErrorOfAllRanks) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    if (group.rank() == 1) model->children[2].name = "ebc";
    EXPECT_THAT(
        ShardModule(*model, {.plan = {{"ebcx.weight", Chunks(0, kRanks)}}}),
        StatusIs(kInvalid, "rank 1: Model names a member `ebc` twice"));
  });
}

// Where the 7th of ten calls that a sharder makes fails, and how the sharder
// goes on.
enum class Failure { kOnAllRanks, kOnOneRank, kOfTheSharderOnOneRank };
enum class Afterwards { kReturnsTheError, kIgnoresIt, kReturnsAnotherError };

void ExpectRollBack(Failure failure, Afterwards afterwards) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto model = MakeModel();
    const bool here = failure == Failure::kOnAllRanks || group.rank() == 1;
    if (failure != Failure::kOfTheSharderOnOneRank && here) {
      ASSERT_THAT(Set(*model, "ebc.bags.6.weight",
                      PatternTensor({8, 10}, kFloat32).Transpose(0, 1).value()),
                  IsOk());
    }
    const std::string before = Contents(*model);
    const auto shard = [&](const ModulePtr& ebc) -> absl::Status {
      SHERD_ASSIGN_OR_RETURN(Module * bags, Find(*ebc, "bags"));
      for (int i = 0; i < 10; ++i) {
        if (i == 6 && failure == Failure::kOfTheSharderOnOneRank && here) {
          return absl::InvalidArgumentError("not a contiguous idea");
        }
        SHERD_RETURN_IF_ERROR(
            ShardModule(*ebc, {.plan = {{PathOfBag(i), Chunks(0, kRanks)}},
                               .return_local_tensor = {"bags"}}));
        dynamic_cast<ModuleDict*>(bags)->Erase(absl::StrCat(i + 10));
      }
      return absl::OkStatus();
    };
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          const absl::Status status = shard(ebc);
          // What a sharder did to the children is undone, too.
          SHERD_ASSIGN_OR_RETURN(Module * bags, Find(*ebc, "bags"));
          EXPECT_TRUE(dynamic_cast<ModuleDict*>(bags)->Erase("3"));
          EXPECT_FALSE(status.ok());
          const bool own = failure == Failure::kOfTheSharderOnOneRank && here;
          if (afterwards == Afterwards::kReturnsTheError || own) return status;
          if (afterwards == Afterwards::kIgnoresIt) return ebc;
          return absl::DataLossError("another error");
        });
    EXPECT_THAT(
        ShardModule(*model, {.plan = {{"fc.weight", Chunks(0, kRanks)},
                                      {"ebc", sharder},
                                      {"ebcx.weight", Chunks(0, kRanks)}}}),
        StatusIs(kInvalid, "not a contiguous"));
    EXPECT_EQ(Contents(*model), before);
    // The group works.
    EXPECT_THAT(ShardParameter(*model, "fc.weight", Chunks(0, kRanks)), IsOk());
  });
}

TEST(PlanFailuresTest, AFailureOfTheSeventhOfTenLeavesTheModuleAsItWas) {
  for (const Failure failure : {Failure::kOnAllRanks, Failure::kOnOneRank,
                                Failure::kOfTheSharderOnOneRank}) {
    for (const Afterwards afterwards :
         {Afterwards::kReturnsTheError, Afterwards::kIgnoresIt,
          Afterwards::kReturnsAnotherError}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(failure), " ",
                                static_cast<int>(afterwards)));
      ExpectRollBack(failure, afterwards);
    }
  }
}

TEST(PlanFailuresTest, ASharderMayShardAModuleOfItsOwnAndFailThen) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    const auto model = MakeModel();
    const std::string before = Contents(*model);
    const auto sharder =
        MakeSharder([](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          // Does not exist any more when the model is put back.
          TestModule own;
          own.children = {{"ebc", ebc}, {"fc", MakeLinear()}};
          const ShardingSpecPtr rows = Chunks(0, kRanks);
          SHERD_RETURN_IF_ERROR(ShardModule(
              own, {.plan = {{"ebc.bags.0.weight", rows}, {"fc.weight", rows}},
                    .return_local_tensor = {"ebc"}}));
          return absl::DataLossError("after that");
        });
    EXPECT_THAT(ShardModule(*model, {.plan = {{"ebc", sharder}}}),
                StatusIs(absl::StatusCode::kDataLoss, "after that"));
    EXPECT_EQ(Contents(*model), before);
  });
}

TEST(PlanFailuresTest, ASharderThatFailsOnOneRankFailsAnyCallOfTheOthers) {
  using Call = std::function<absl::Status(ProcessGroup&)>;
  const std::vector<Call> calls = {
      [](ProcessGroup&) {
        return ShardTensor(PatternTensor({12, 4}, kFloat32), Chunks(0, kRanks))
            .status();
      },
      [](ProcessGroup&) -> absl::Status {
        SHERD_ASSIGN_OR_RETURN(auto ones,
                               ShardedTensor::Ones(Chunks(0, kRanks), {12, 4}));
        return ones.Reshard(Chunks(1, kRanks));
      },
      [](ProcessGroup& group) {
        const std::array<int64_t, 40> note = {};
        return AgreeAndGather(group, "work", absl::OkStatus(), {}, note)
            .status();
      },
      [](ProcessGroup& group) {
        return Agree(group, "work",
                     group.rank() == 0 ? absl::InternalError("its own")
                                       : absl::OkStatus());
      }};
  for (const Call& call : calls) {
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      const auto model = MakeModel();
      const std::string before = Contents(*model);
      const auto sharder =
          MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
            if (group.rank() == 1) return absl::DataLossError("no table");
            constexpr char kPhrase[] =
                "shard_module: rank 1: the sharder for `ebc`: no table";
            for (int i = 0; i < 2; ++i) {
              EXPECT_THAT(call(group),
                          StatusIs(absl::StatusCode::kDataLoss, kPhrase));
            }
            // The error stays that of the plan.
            return ebc;
          });
      EXPECT_THAT(
          ShardModule(*model, {.plan = {{"fc.weight", Chunks(0, kRanks)},
                                        {"ebc", sharder}}}),
          StatusIs(absl::StatusCode::kDataLoss,
                   "shard_module: rank 1: the sharder for `ebc`: "));
      EXPECT_EQ(Contents(*model), before);
      EXPECT_THAT(ShardParameter(*model, "fc.weight", Chunks(0, kRanks)),
                  IsOk());
    });
  }
}

TEST(PlanFailuresTest, AnErrorOfACollectiveOfTheSharderIsTheShardersOwn) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          const auto refused =
              ShardTensor(PatternTensor({12, 4}, kFloat32),
                          Chunks(group.rank() == 0 ? 0 : 1, kRanks));
          EXPECT_THAT(refused, StatusIs(kInvalid, "sharding_spec"));
          SHERD_RETURN_IF_ERROR(
              ShardTensor(PatternTensor({12, 4}, kFloat32), Chunks(0, kRanks))
                  .status());
          return ebc;
        });
    EXPECT_THAT(ShardModule(*model, {.plan = {{"ebc", sharder}}}), IsOk());
  });
}

TEST(PlanFailuresTest, TheFailedRankReportsItsCauseWhereTheGroupFails) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    const std::string before = Contents(*model);
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          if (group.rank() == 1) return absl::DataLossError("no table");
          SHERD_RETURN_IF_ERROR(group.Barrier());
          return ebc;
        });
    const absl::Status status =
        ShardModule(*model, {.plan = {{"ebc", sharder}}});
    EXPECT_EQ(ErrorRank(status), 1) << status;
    if (group.rank() == 1) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "no table"));
    } else {
      EXPECT_THAT(status, StatusIs(kInvalid, "rank 1 called all_gather"));
    }
    EXPECT_EQ(Contents(*model), before);
  });
}

TEST(PlanFailuresTest, AnInnerGroupsFailureReachesTheOuterGroup) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({1, 2}));
    const ShardingSpecPtr rows =
        ChunkShardingSpec::Create(0, {"rank:1", "rank:2"}).value();
    const auto model = MakeModel();
    const std::string before = Contents(*model);
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          if (!pair->is_member()) return ebc;
          SHERD_RETURN_IF_ERROR(
              ShardParameter(*ebc, PathOfBag(0), rows, {.group = pair}));
          const absl::Status status =
              ShardParameter(*ebc, group.rank() == 2 ? "foo" : PathOfBag(1),
                             rows, {.group = pair});
          EXPECT_THAT(status, StatusIs(kNotFound, "has no attribute `foo`"));
          // The error stays that of the plan.
          return ebc;
        });
    const absl::Status status =
        ShardModule(*model, {.plan = {{"ebc", sharder}}});
    EXPECT_THAT(status, StatusIs(kNotFound,
                                 "shard_module: rank 1: shard_module: "
                                 "rank 1: "));
    EXPECT_EQ(ErrorRank(status), 2);
    EXPECT_EQ(Contents(*model), before);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
