#include "sherd/core/nn/sharding_plan.h"

#include <algorithm>
#include <cstdint>
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
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using internal::Contents;
using internal::KeepingSharder;
using internal::MakeLinear;
using internal::MakeModel;
using internal::MakeSharder;
using internal::ModulePtr;
using internal::PathOfBag;
using internal::ShardedAt;
using internal::SharderPtr;
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
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr MemberKind kParameter = MemberKind::kParameter;
constexpr int kRanks = 3;

TEST(ShardParameterTest, AParameterBecomesShardedAndAsBefore) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    // Only the source's elements count.
    const auto fc = MakeLinear(group.rank() == 1 ? 5 : 6);
    ASSERT_THAT(
        ShardParameter(*fc, "weight", Chunks(0, kRanks), {.src_rank = 1}),
        IsOk());
    const Value weight = *Get(*fc, "weight");
    EXPECT_TRUE(HasPattern(ShardedAt(weight), 5));
    EXPECT_THAT(ShardedAt(weight).local_tensor()->sizes(), ElementsAre(4, 4));
    EXPECT_TRUE(ShardedAt(weight).requires_grad());
  });
}

TEST(ShardParameterTest, OnlyParametersThatCanHaveAGradientRequireOne) {
  RunLocalRanks(2, [](ProcessGroup&) {
    auto module = std::make_shared<TestModule>();
    module->members = {
        {kParameter, "integers", PatternTensor({4}, kInt64)},
        {MemberKind::kBuffer, "buffer", PatternTensor({4}, kFloat32)},
        {MemberKind::kAttribute, "attribute", PatternTensor({4}, kFloat32)}};
    for (const char* name : {"integers", "buffer", "attribute"}) {
      ASSERT_THAT(ShardParameter(*module, name, Chunks(0, 2)), IsOk());
      EXPECT_FALSE(ShardedAt(*Get(*module, name)).requires_grad());
    }
  });
}

TEST(ShardParameterTest, RefusesWithTheSameErrorOnAllRanks) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto fc = MakeLinear();
    const Tensor transposed =
        PatternTensor({4, 12}, kFloat32).Transpose(0, 1).value();
    fc->members.push_back({kParameter, "transposed", transposed});
    fc->members.push_back({kParameter, "none", Value()});
    fc->members.push_back(
        {kParameter, "other",
         PatternTensor({group.rank() == 2 ? 13 : 12, 4}, kFloat32)});
    fc->children = {{"child", MakeLinear()}};
    const ShardingSpecPtr rows = Chunks(0, kRanks);
    const struct {
      std::string name;
      ShardingSpecPtr spec;
      int src_rank;
      absl::StatusCode code;
      std::string phrase;
    } kCases[] = {
        {"foo", rows, 0, kNotFound, "Linear has no attribute `foo`"},
        {"bias", rows, 0, kInvalid,
         "Expected Linear.bias to be a Tensor, but found list"},
        {"none", rows, 0, kInvalid,
         "Expected Linear.none to be a Tensor, but found none"},
        {"child", rows, 0, kInvalid,
         "Expected Linear.child to be a Tensor, but found module"},
        {"transposed", rows, 0, kInvalid,
         "param: transposed is not a contiguous Tensor"},
        {"weight", rows, group.rank(), kInvalid,
         "does not match with src_rank"},
        {"weight", Chunks(group.rank() == 0 ? 0 : 1, kRanks), 0, kInvalid,
         "does not match with sharding_spec"},
        {"weight", rows, 7, kInvalid, "src_rank"},
        {"weight", Chunks(2, kRanks), 0, kInvalid, "Invalid sharding dim"},
        {"weight", nullptr, 0, kInvalid,
         "Only `ShardingSpec` and `Sharder` are supported to shard"},
        {"other", rows, 0, kInvalid, "rank 2"},
    };
    for (const auto& c : kCases) {
      SCOPED_TRACE(c.phrase);
      const std::string before = Contents(*fc);
      EXPECT_THAT(ShardParameter(*fc, c.name, c.spec, {.src_rank = c.src_rank}),
                  StatusIs(c.code, c.phrase));
      EXPECT_EQ(Contents(*fc), before);
    }
    ASSERT_THAT(ShardParameter(*fc, "weight", rows), IsOk());
    EXPECT_THAT(ShardParameter(*fc, "weight", rows),
                StatusIs(kInvalid, "but found sharded tensor"));
  });
}

TEST(ShardParameterTest, NeedsAGroupOfWhichTheProcessIsAMember) {
  const auto fc = MakeLinear();
  EXPECT_THAT(ShardParameter(*fc, "weight", Chunks(0, 1)),
              StatusIs(kPrecondition, "group"));
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto one, group.NewGroup({1}));
    const auto mine = MakeLinear();
    const absl::Status status = ShardParameter(
        *mine, "weight",
        ChunkShardingSpec::Create(0, {Placement("rank:1/cpu")}).value(),
        {.group = one});
    if (group.rank() == 1) {
      EXPECT_THAT(status, IsOk());
    } else {
      EXPECT_THAT(status, StatusIs(kPrecondition, "member"));
    }
  });
}

TEST(ShardModuleTest, AppliesSpecsShardersAndOutputPlans) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    const auto replacement = std::make_shared<TestModule>("Replacement");
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          EXPECT_EQ(ebc->type_name(), "Collection");
          for (int i = 0; i < 10; ++i) {
            SHERD_RETURN_IF_ERROR(ShardModule(
                *ebc,
                {.plan = {{PathOfBag(i), Chunks(i < 5 ? 0 : 1, kRanks)}}}));
          }
          SHERD_ASSIGN_OR_RETURN(Module * bags, Find(*ebc, "bags"));
          const auto& dict = dynamic_cast<ModuleDict&>(*bags);
          for (const NamedModule& bag : dict.modules()) {
            replacement->children.push_back(bag);
          }
          return replacement;
        });
    const ShardingPlan plan = {.plan = {{"ebc", sharder},
                                        {"ebcx.weight", Chunks(0, kRanks)},
                                        {"fc.weight", Chunks(0, kRanks)}},
                               .output_plan = {{"fc", Chunks(1, kRanks)}},
                               .return_local_tensor = {"fc", "ebc.9"}};
    ASSERT_THAT(ShardModule(*model, plan), IsOk());
    EXPECT_EQ(*Find(*model, "ebc"), replacement.get());
    for (int i = 0; i < 10; ++i) {
      const Value weight = *Get(*model, absl::StrCat("ebc.", i, ".weight"));
      EXPECT_TRUE(HasPattern(ShardedAt(weight), i));
      EXPECT_EQ(*ShardedAt(weight).spec(), *Chunks(i < 5 ? 0 : 1, kRanks));
    }
    // First resharded, then the local tensor: [12, 4] by columns.
    SHERD_ASSERT_OK_AND_ASSIGN(Module * fc, Find(*model, "fc"));
    SHERD_ASSERT_OK_AND_ASSIGN(const Value out, fc->Call({}));
    const Tensor whole = PatternTensor({12, 4}, kFloat32, 21);
    const int64_t columns = group.rank() == 2 ? 0 : 2;
    EXPECT_THAT(*out.get_if<Tensor>(),
                TensorBitwiseEq(whole.Narrow(1, 2 * group.rank(), columns)));
    // The module's own tensor keeps its layout.
    EXPECT_EQ(*ShardedAt(*Get(*model, "fc.weight")).spec(), *Chunks(0, kRanks));
  });
}

TEST(ShardModuleTest, RefusesPlansWithTheSameErrorAndChangesNothing) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = MakeModel();
    const ShardingSpecPtr rows = Chunks(0, kRanks);
    const SharderPtr keep = KeepingSharder();
    const auto returns_null = MakeSharder(
        [](const ModulePtr&) -> absl::StatusOr<ModulePtr> { return nullptr; });
    const auto refuses =
        MakeSharder([](const ModulePtr&) -> absl::StatusOr<ModulePtr> {
          return absl::UnimplementedError("supports Collection only");
        });
    const struct {
      ShardingPlan plan;
      absl::StatusCode code;
      std::string phrase;
    } kCases[] = {
        {{.plan = {{"", keep}}},
         kInvalid,
         "path must not be empty for custom sharder!"},
        {{.plan = {{"ebc.bags.0.weight", rows}, {"ebc.bags", keep}}},
         kPrecondition,
         "should not conflict with the submodule tree"},
        {{.plan = {{"ebc", keep}, {"ebc.bags", keep}}},
         kPrecondition,
         "should not conflict with the submodule tree"},
        {{.plan = {{"fc", keep}, {"fc", keep}}}, kInvalid, "occurs twice"},
        {{.plan = {{"fc.weight", rows}, {"fc.weight", rows}}},
         kInvalid,
         "occurs twice"},
        {{.plan = {{"fc", SharderPtr()}}},
         kInvalid,
         "Only `ShardingSpec` and `Sharder` are supported to shard"},
        {{.plan = {{"fc.weight", ShardingSpecPtr()}}},
         kInvalid,
         "Only `ShardingSpec` and `Sharder` are supported to shard"},
        {{.plan = {{"fc.weight", rows}, {"foo", keep}}},
         kNotFound,
         "Model has no attribute `foo`"},
        {{.plan = {{"foo.weight", rows}}}, kNotFound, "has no attribute `foo`"},
        {{.plan = {{"fc.weight", rows}, {"fc", returns_null}}},
         kPrecondition,
         "should not conflict"},
        {{.plan = {{"fc.weight", rows}, {"ebcx", returns_null}}},
         kInvalid,
         "the sharder for `ebcx`: Shard returned no module"},
        {{.plan = {{"fc.weight", rows}, {"ebcx", refuses}}},
         absl::StatusCode::kUnimplemented,
         "supports Collection only"},
        {{.plan = {{"fc.weight", rows}}, .output_plan = {{"fc", nullptr}}},
         kInvalid,
         "Only `ShardingSpec` is supported as output_plan"},
        {{.plan = {{"fc.weight", rows}}, .output_plan = {{"foo", rows}}},
         kNotFound,
         "has no attribute `foo`"},
        {{.plan = {{"fc.weight", rows}},
          .output_plan = {{"", rows}},
          .return_local_tensor = {"", "foo"}},
         kNotFound,
         "has no attribute `foo`"},
        {{.plan = {{group.rank() == 1 ? "ebcx.weight" : "fc.weight", rows}}},
         kInvalid,
         "rank 1"},
        {{.output_plan = {{"fc",
                           group.rank() == 1 ? Chunks(1, kRanks) : rows}}},
         kInvalid,
         "rank 1"},
    };
    for (const auto& c : kCases) {
      SCOPED_TRACE(c.phrase);
      const std::string before = Contents(*model);
      EXPECT_THAT(ShardModule(*model, c.plan), StatusIs(c.code, c.phrase));
      EXPECT_EQ(Contents(*model), before);
    }
  });
}

TEST(ShardModuleTest, PathsConflictByNamesAndNotByLetters) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    const auto model = MakeModel();
    EXPECT_THAT(
        ShardModule(*model, {.plan = {{"ebc", KeepingSharder()},
                                      {"ebcx.weight", Chunks(0, kRanks)}}}),
        IsOk());
  });
}

// Counts how often it is walked through.
class CountedModule : public TestModule {
 public:
  int64_t visits = 0;

 protected:
  void Visit(ModuleVisitor& v) override {
    ++visits;
    TestModule::Visit(v);
  }
};

TEST(ShardModuleTest, AContainerIsWalkedThroughAsOftenForAllEntriesAsForOne) {
  constexpr int kEntries = 20000;
  RunLocalRanks(1, [](ProcessGroup&) {
    const auto visits_with = [](int entries, bool sharders) {
      TestModule root;
      const auto dict = std::make_shared<CountedModule>();
      root.children = {{"dict", dict}};
      const Tensor zeros = Tensor::Zeros({2}).value();
      ShardingPlan plan;
      for (int i = 0; i < std::max(entries, 10); ++i) {
        auto module = std::make_shared<TestModule>();
        module->members = {{kParameter, "w", zeros.Clone().value()}};
        dict->children.push_back({absl::StrCat(i), std::move(module)});
        if (i >= entries) continue;
        if (sharders) {
          plan.plan.push_back({absl::StrCat("dict.", i), KeepingSharder()});
        } else {
          plan.plan.push_back({absl::StrCat("dict.", i, ".w"), Chunks(0, 1)});
        }
      }
      EXPECT_THAT(ShardModule(root, plan), IsOk());
      EXPECT_EQ(Get(root, "dict.0.w")->kind(),
                sharders ? ValueKind::kTensor : ValueKind::kShardedTensor);
      return dict->visits;
    };
    EXPECT_EQ(visits_with(kEntries, false), visits_with(1, false));
    // A sharder takes its module out, and puts another one in.
    EXPECT_EQ(visits_with(kEntries / 10, true) - visits_with(1, true),
              2 * (kEntries / 10 - 1));
  });
}

TEST(ShardingPlanTest, PrintsALinePerEntryAndTheReasons) {
  const ShardingPlan plan = {
      .plan = {{"a", KeepingSharder()}, {"w", Chunks(0, 1)}},
      .output_plan = {{"o", Chunks(1, 1)}},
      .return_local_tensor = {"l"},
      .reasons = "because\n"};
  EXPECT_EQ(plan.ToString(),
            absl::StrCat("a: a sharder\nw: ", Chunks(0, 1)->ToString(),
                         "\noutput of o: ", Chunks(1, 1)->ToString(),
                         "\nlocal tensor of l\nbecause\n"));
}

}  // namespace
}  // namespace sherd
