#include "sherd/core/nn/sharding_plan.h"

#include <functional>
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
#include "sherd/core/nn/tree/module_access.h"
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
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr MemberKind kParameter = MemberKind::kParameter;
constexpr int kRanks = 3;

using SharderPtr = std::shared_ptr<Sharder>;
using ModulePtr = std::shared_ptr<Module>;

std::shared_ptr<TestModule> MakeLinear(uint64_t salt = 0) {
  auto linear = std::make_shared<TestModule>("Linear");
  linear->members = {
      {kParameter, "weight", PatternTensor({12, 4}, kFloat32, salt)},
      {kParameter, "bias", ValueList{}}};
  return linear;
}

// ebc.bags.0.weight to ebc.bags.9.weight, embx.weight, fc.weight, fc.bias.
std::shared_ptr<TestModule> MakeModel() {
  auto bags = std::make_shared<ModuleDict>();
  for (int i = 0; i < 10; ++i) {
    auto bag = std::make_shared<TestModule>("Bag");
    bag->members = {
        {kParameter, "weight", PatternTensor({10, 8}, kFloat32, i)}};
    EXPECT_THAT(bags->Insert(absl::StrCat(i), bag), IsOk());
  }
  auto ebc = std::make_shared<TestModule>("Collection");
  ebc->children = {{"bags", bags}};
  auto model = std::make_shared<TestModule>("Model");
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

SharderPtr MakeSharder(FunctionSharder::Function function) {
  return std::make_shared<FunctionSharder>(std::move(function));
}

SharderPtr KeepingSharder() {
  return MakeSharder([](const ModulePtr& module) { return module; });
}

std::string PathOfBag(int i) { return absl::StrCat("bags.", i, ".weight"); }

// What a tree holds: kinds, addresses of plain tensors, modules and how many
// hooks they have. Two equal texts mean that nothing has changed.
std::string Contents(Module& root) {
  std::string text;
  const auto modules = NamedModules(root).value();
  const auto parameters = NamedParameters(root).value();
  const auto hooks = [](Module& module) {
    return internal::ModuleAccess::HooksOf(module).output.size();
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

const ShardedTensor& ShardedAt(const Value& value) {
  return *value.get_if<ShardedTensor>();
}

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

// `fc.weight` is also `ebcx.weight`, and in a list.
std::shared_ptr<TestModule> MakeTiedModel() {
  auto model = MakeModel();
  const Value weight = *Get(*model, "fc.weight");
  EXPECT_THAT(Set(*model, "ebcx.weight", weight), IsOk());
  model->members = {{MemberKind::kAttribute, "list",
                     ValueList{Value(), ValueMap{{"a", weight}}}}};
  return model;
}

const void* LocalDataOf(const Value& value) {
  return ShardedAt(value).local_tensor()->data();
}

TEST(ShardModuleTest, TiedMembersAreShardedTogetherAndStayTied) {
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

TEST(ShardModuleTest, AnAttributeTiedToAParameterRequiresAGradient) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto fc = MakeLinear();
    fc->members.push_back({MemberKind::kAttribute, "a", *Get(*fc, "weight")});
    ASSERT_THAT(ShardParameter(*fc, "a", Chunks(0, 2)), IsOk());
    EXPECT_TRUE(ShardedAt(*Get(*fc, "weight")).requires_grad());
  });
}

TEST(ShardModuleTest, RefusesToSeparateTiedMembersAndNamesBoth) {
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
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
  });
}

TEST(ShardModuleTest, ASharderThatReturnsWhatContainsItsModuleIsRefused) {
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

TEST(ShardModuleTest, ATreeWithAModuleInItselfIsAnErrorOfAllRanks) {
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

TEST(ShardModuleTest, AnInvalidTreeIsAnErrorOfAllRanks) {
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

TEST(ShardModuleTest, AFailureOfTheSeventhOfTenLeavesTheModuleAsItWas) {
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

TEST(ShardModuleTest, ASharderMayShardAModuleOfItsOwnAndFailThen) {
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

TEST(ShardModuleTest, AnInnerGroupsFailureReachesTheOuterGroup) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({0, 1}));
    const auto model = MakeModel();
    const std::string before = Contents(*model);
    const auto sharder =
        MakeSharder([&](const ModulePtr& ebc) -> absl::StatusOr<ModulePtr> {
          if (!pair->is_member()) return ebc;
          SHERD_RETURN_IF_ERROR(ShardParameter(*ebc, PathOfBag(0), Chunks(0, 2),
                                               {.group = pair}));
          const absl::Status status =
              ShardParameter(*ebc, group.rank() == 1 ? "foo" : PathOfBag(1),
                             Chunks(0, 2), {.group = pair});
          EXPECT_THAT(status, StatusIs(kNotFound, "has no attribute `foo`"));
          // Whatever the sharder makes of it.
          return ebc;
        });
    EXPECT_THAT(ShardModule(*model, {.plan = {{"ebc", sharder}}}),
                StatusIs(kNotFound, "has no attribute `foo`"));
    EXPECT_EQ(Contents(*model), before);
    EXPECT_THAT(group.Barrier(), IsOk());
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
