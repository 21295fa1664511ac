#include "sherd/core/nn/module.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/containers.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardedModel;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TestModule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

using MemberList = std::vector<TestModule::Member>;

std::shared_ptr<TestModule> Make(std::string type, MemberList members,
                                 std::vector<NamedModule> children = {}) {
  auto module = std::make_shared<TestModule>(std::move(type));
  module->members = std::move(members);
  module->children = std::move(children);
  return module;
}

std::shared_ptr<TestModule> MakeLinear(uint64_t salt = 0) {
  return Make("Linear", {{MemberKind::kParameter, "weight",
                          PatternTensor({4, 3}, kFloat32, salt)},
                         {MemberKind::kParameter, "bias", Value()},
                         {MemberKind::kBuffer, "steps",
                          PatternTensor({1}, kInt64, salt)}});
}

// layers.0.weight, layers.1.weight, head.weight, …
std::shared_ptr<TestModule> MakeModel() {
  auto layers =
      Make("Layers", {}, {{"0", MakeLinear(1)}, {"1", MakeLinear(2)}});
  return Make("Model", {{MemberKind::kAttribute, "cache", Value()}},
              {{"layers", layers}, {"head", MakeLinear(3)}});
}

std::vector<std::string> Names(const std::vector<NamedValue>& values) {
  std::vector<std::string> names;
  for (const NamedValue& value : values) names.push_back(value.name);
  return names;
}

const void* DataOf(Module& root, absl::string_view path) {
  return Get(root, path)->get_if<Tensor>()->data();
}

TEST(ValueTest, NamesItsKindAndItsContents) {
  const Tensor tensor = PatternTensor({2, 3}, kFloat32);
  const Value list(ValueList{tensor, Value()});
  const Value map(ValueMap{{"a", tensor}});
  EXPECT_EQ(list.ToString(), "[Tensor(float32, [2, 3], cpu), none]");
  EXPECT_EQ(map.ToString(), "{a: Tensor(float32, [2, 3], cpu)}");
  EXPECT_TRUE(Value(Tensor()).is_none());
  EXPECT_TRUE(Value(ShardedTensor()).is_none());
  EXPECT_TRUE(Value(PartialTensor()).is_none());
  EXPECT_THAT(list.Get<Tensor>(),
              StatusIs(kInvalid, "Expected a tensor, but found list"));
  EXPECT_THAT(map.Get<ShardedTensor>(),
              StatusIs(kInvalid, "Expected a sharded tensor, but found map"));
  EXPECT_THAT(Value(tensor).Get<Tensor>(),
              IsOkAndHolds(TensorBitwiseEq(tensor)));
}

TEST(ModuleTest, OutputHooksRunInTheirOrderOnEachOther) {
  const auto module = MakeLinear();
  module->AddOutputHook(
      [](Value v) -> absl::StatusOr<Value> { return Value(ValueList{v}); });
  module->AddOutputHook([](Value v) -> absl::StatusOr<Value> {
    return Value(ValueMap{{"out", v}});
  });
  module->AddOutputHook(nullptr);
  SHERD_ASSERT_OK_AND_ASSIGN(const Value out,
                             module->Call({PatternTensor({1}, kInt8)}));
  EXPECT_EQ(out.ToString(), "{out: [Tensor(int8, [1], cpu)]}");
  module->AddOutputHook([](Value) -> absl::StatusOr<Value> {
    return absl::DataLossError("the third hook");
  });
  EXPECT_THAT(module->Call({}),
              StatusIs(absl::StatusCode::kDataLoss, "the third hook"));
}

TEST(ModuleTreeTest, PathsLeadToModulesAndMembers) {
  const auto model = MakeModel();
  SHERD_ASSERT_OK_AND_ASSIGN(Module * layer, Find(*model, "layers.1"));
  EXPECT_EQ(layer->type_name(), "Linear");
  EXPECT_THAT(Find(*model, ""), IsOkAndHolds(model.get()));
  SHERD_ASSERT_OK_AND_ASSIGN(const Value weight,
                             Get(*model, "layers.1.weight"));
  EXPECT_THAT(*weight.get_if<Tensor>(),
              TensorBitwiseEq(PatternTensor({4, 3}, kFloat32, 2)));
  EXPECT_TRUE(Get(*model, "head.bias")->is_none());

  EXPECT_THAT(Set(*model, "head.bias", PatternTensor({4}, kFloat32)), IsOk());
  EXPECT_EQ(Get(*model, "head.bias")->kind(), ValueKind::kTensor);
  EXPECT_THAT(Names(NamedParameters(*model).value()),
              ElementsAre("layers.0.weight", "layers.1.weight", "head.weight",
                          "head.bias"));
  EXPECT_THAT(Names(NamedBuffers(*model).value()),
              ElementsAre("layers.0.steps", "layers.1.steps", "head.steps"));
  EXPECT_THAT(NamedAttributes(*model), IsOkAndHolds(IsEmpty()));
  std::vector<std::string> modules;
  const auto named_modules = NamedModules(*model);
  for (const NamedModule& named : *named_modules) {
    modules.push_back(named.name);
  }
  EXPECT_THAT(modules, ElementsAre("layers", "head", "layers.0", "layers.1"));
}

TEST(ModuleTreeTest, RefusesPathsThatLeadNowhere) {
  const auto model = MakeModel();
  const struct {
    std::string path;
    absl::StatusCode code;
    std::string phrase;
  } kCases[] = {
      {"foo", kNotFound, "Model has no attribute `foo`"},
      {"layers.2.weight", kNotFound, "Layers has no attribute `2`"},
      {"head.foo", kNotFound, "it has: weight, bias, steps"},
      {"head.weight.foo", kNotFound, "Linear has no attribute `weight`"},
      {"", kNotFound, "Model has no attribute ``"},
      {".head", kNotFound, "has no attribute ``"},
      {"head..weight", kNotFound, "has no attribute ``"},
      {"layers.0", kInvalid, "is a module (a Linear)"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.path);
    EXPECT_THAT(Get(*model, c.path), StatusIs(c.code, c.phrase));
    EXPECT_THAT(Set(*model, c.path, Value()), StatusIs(c.code, c.phrase));
  }
  EXPECT_THAT(Find(*model, "head.weight"), StatusIs(kNotFound, "`weight`"));
}

TEST(ModuleTreeTest, RefusesTreesWhosePathsAreNotUnique) {
  const Tensor tensor = PatternTensor({1}, kInt8);
  const MemberKind kind = MemberKind::kParameter;
  auto cycle = Make("Cycle", {});
  cycle->children = {{"self", cycle}};
  const struct {
    std::shared_ptr<Module> module;
    std::string phrase;
  } kCases[] = {
      {Make("A", {{kind, "", tensor}}), "not empty"},
      {Make("A", {{kind, "a.b", tensor}}), "has no dot"},
      {Make("A", {{kind, "w", tensor}, {kind, "w", tensor}}), "`w` twice"},
      {Make("A", {{kind, "w", tensor}}, {{"w", MakeLinear()}}), "`w` twice"},
      {cycle, "no module may be a member of itself"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(NamedParameters(*c.module), StatusIs(kInvalid, c.phrase));
    EXPECT_THAT(NamedModules(*c.module), StatusIs(kInvalid, c.phrase));
    EXPECT_THAT(To(*c.module, Device()), StatusIs(kInvalid, c.phrase));
  }
  EXPECT_EQ(cycle->Clone(), nullptr);
  cycle->children.clear();
}

TEST(ModuleTreeTest, SharedMembersAndModulesOccurOnce) {
  const auto shared = MakeLinear();
  const auto model = Make("Model", {}, {{"a", shared}, {"b", shared}});
  model->members.push_back(
      {MemberKind::kParameter, "tied", *Get(*shared, "weight")});
  EXPECT_THAT(Names(NamedParameters(*model).value()), ElementsAre("tied"));
  EXPECT_THAT(NamedModules(*model), IsOkAndHolds(SizeIs(1)));
}

TEST(CloneTest, HasElementsAndChildrenOfItsOwnAndTheSameHooks) {
  const auto model = MakeModel();
  int calls = 0;
  model->AddOutputHook([&calls](Value v) -> absl::StatusOr<Value> {
    ++calls;
    return v;
  });
  const std::shared_ptr<Module> clone = model->Clone();
  ASSERT_NE(clone, nullptr);
  const auto originals = NamedParameters(*model);
  for (const NamedValue& original : *originals) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Value copy, Get(*clone, original.name));
    EXPECT_THAT(*copy.get_if<Tensor>(),
                TensorBitwiseEq(*original.value.get_if<Tensor>()));
    EXPECT_NE(DataOf(*clone, original.name), DataOf(*model, original.name));
  }
  EXPECT_NE(*Find(*clone, "layers.0"), *Find(*model, "layers.0"));
  EXPECT_THAT(clone->Call({}).status(), IsOk());
  EXPECT_EQ(calls, 1);
}

TEST(CloneTest, MembersThatShareElementsShareThemInTheClone) {
  const auto shared = MakeLinear();
  const auto model = Make(
      "Model",
      {{MemberKind::kParameter, "tied", *Get(*shared, "weight")},
       {MemberKind::kAttribute, "list", ValueList{*Get(*shared, "weight")}}},
      {{"a", shared}, {"b", shared}});
  const std::shared_ptr<Module> clone = model->Clone();
  ASSERT_NE(clone, nullptr);
  EXPECT_EQ(*Find(*clone, "a"), *Find(*clone, "b"));
  EXPECT_EQ(DataOf(*clone, "tied"), DataOf(*clone, "a.weight"));
  EXPECT_NE(DataOf(*clone, "tied"), DataOf(*model, "tied"));
  const Value list = *Get(*clone, "list");
  EXPECT_EQ((*list.get_if<ValueList>())[0].get_if<Tensor>()->data(),
            DataOf(*clone, "tied"));
  // Nothing is remembered from one clone to the next.
  EXPECT_NE(DataOf(*model->Clone(), "tied"), DataOf(*clone, "tied"));
}

TEST(CloneTest, IsNullWithoutMemoryAndNothingIsLeftBehind) {
  const auto model = MakeModel();
  {
    FailAllocationAt fault;
    EXPECT_EQ(model->Clone(), nullptr);
  }
  const std::shared_ptr<Module> clone = model->Clone();
  ASSERT_NE(clone, nullptr);
  EXPECT_NE(DataOf(*clone, "head.weight"), DataOf(*model, "head.weight"));
}

TEST(CloneTest, ShardedMembersAreCopiedWithoutOtherRanks) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(PatternTensor({7, 2}, kFloat64), Chunks(0, 3)));
    const auto model = Make("Model", {{MemberKind::kParameter, "w", tensor}});
    if (group.rank() != 1) return;
    const std::shared_ptr<Module> clone = model->Clone();
    ASSERT_NE(clone, nullptr);
    const Value copy = *Get(*clone, "w");
    const auto& sharded = *copy.get_if<ShardedTensor>();
    EXPECT_TRUE(HasPattern(sharded));
    EXPECT_EQ(*sharded.spec(), *tensor.spec());
    EXPECT_NE(sharded.local_tensor()->data(), tensor.local_tensor()->data());
  });
}

TEST(ToTest, MembersThatAreThereStayAndRemainShared) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto shared = MakeLinear();
    const auto model = Make("Model", {}, {{"a", shared}, {"b", shared}});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(PatternTensor({7, 2}, kFloat64), Chunks(0, 2)));
    model->members = {{MemberKind::kParameter, "x", tensor},
                      {MemberKind::kAttribute, "y", ValueList{tensor}}};
    const void* before = DataOf(*model, "a.weight");
    ASSERT_THAT(To(*model, Device()), IsOk());
    EXPECT_EQ(DataOf(*model, "a.weight"), before);
    EXPECT_TRUE(HasPattern(*Get(*model, "x")->get_if<ShardedTensor>()));
  });
}

TEST(ToTest, AnErrorOfOneRankIsThatOfAllAndNothingHasChanged) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(PatternTensor({7, 2}, kFloat64), Chunks(0, 3)));
    const auto model = MakeLinear();
    model->members.push_back({MemberKind::kBuffer, "sharded", tensor});
    const Device target =
        group.rank() == 1 ? Device(DeviceType::kMeta) : Device();
    const void* before = DataOf(*model, "weight");
    EXPECT_THAT(To(*model, target), StatusIs(kInvalid, "rank 1"));
    EXPECT_EQ(DataOf(*model, "weight"), before);
    EXPECT_THAT(To(*model, Device()), IsOk());
  });
}

TEST(ToTest, RanksWithOtherTreesGetOneError) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(PatternTensor({7, 2}, kFloat64), Chunks(0, 3)));
    const auto model = MakeLinear();
    model->members.push_back({MemberKind::kBuffer, "sharded", tensor});
    // Handles of the same elements on all ranks but one.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, tensor.Clone());
    model->members.push_back(
        {MemberKind::kBuffer, "again", group.rank() == 1 ? copy : tensor});
    EXPECT_THAT(To(*model, Device()), StatusIs(kInvalid, "rank 1"));
    if (group.rank() == 1) model->members.back().name = "sharded";
    EXPECT_THAT(To(*model, Device()),
                StatusIs(kInvalid, "names a member `sharded` twice"));
    model->members.pop_back();
    EXPECT_THAT(To(*model, Device()), IsOk());
  });
}

TEST(ToTest, RanksMeetInTheGivenGroup) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const auto model = MakeLinear();
    if (group.rank() != 1) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                 ShardedTensor::Zeros(Chunks(0, 3), {7, 2}));
      model->members.push_back({MemberKind::kBuffer, "sharded", tensor});
    }
    const auto all = DefaultGroup().value();
    EXPECT_THAT(To(*model, Device(), {.group = all}),
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
    model->members.resize(3);
    EXPECT_THAT(To(*model, Device(), {.group = all}), IsOk());
    // On a rank alone.
    if (group.rank() == 1) {
      EXPECT_THAT(To(*model, Device()), IsOk());
    }
  });
}

TEST(ToTest, SeveralGroupsAreRefusedOnAllTheirRanks) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto left, group.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto right, group.NewGroup({1, 2}));
    const auto model = MakeLinear();
    for (const auto& [part, first] :
         {std::pair(left, 0), std::pair(right, 1)}) {
      if (!part->is_member()) continue;
      SHERD_ASSERT_OK_AND_ASSIGN(
          const auto rows,
          ChunkShardingSpec::Create(0, PlacementsOn({first, first + 1})));
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor tensor,
          ShardTensor(PatternTensor({7, 2}, kFloat64), rows, 0, part));
      model->members.push_back(
          {MemberKind::kBuffer, absl::StrCat("sharded", first), tensor});
    }
    EXPECT_THAT(To(*model, Device()),
                StatusIs(absl::StatusCode::kUnimplemented,
                         "spread over 2 groups; expected one"));
    // Each group is usable.
    EXPECT_THAT(group.Barrier(), IsOk());
    model->members.resize(4);
    if (group.rank() != 2) {
      EXPECT_THAT(To(*model, Device()), IsOk());
    }
  });
}

TEST(ContainersTest, KeepModulesByNameAndPosition) {
  ModuleDict dict;
  EXPECT_THAT(dict.Insert("a", MakeLinear()), IsOk());
  EXPECT_THAT(dict.Insert("b", MakeLinear()), IsOk());
  const auto replacement = MakeLinear();
  EXPECT_THAT(dict.Insert("a", replacement), IsOk());
  EXPECT_EQ(dict.Find("a"), replacement);
  EXPECT_EQ(dict.modules()[0].name, "a");
  EXPECT_EQ(dict.size(), 2);
  EXPECT_THAT(dict.Insert("", MakeLinear()), StatusIs(kInvalid, "no dot"));
  EXPECT_THAT(dict.Insert("a.b", MakeLinear()), StatusIs(kInvalid, "no dot"));
  EXPECT_THAT(dict.Insert("c", nullptr), StatusIs(kInvalid, "null"));
  EXPECT_TRUE(dict.Erase("a"));
  EXPECT_FALSE(dict.Erase("a"));
  EXPECT_EQ(dict.Find("a"), nullptr);
  EXPECT_THAT(dict.Call({}), StatusIs(absl::StatusCode::kUnimplemented,
                                      "a ModuleDict computes nothing"));

  ModuleList list;
  EXPECT_THAT(list.Call({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "no output"));
  for (const char* name : {"x", "y"}) {
    const auto module = MakeLinear();
    module->AddOutputHook([name](Value v) -> absl::StatusOr<Value> {
      return Value(ValueMap{{name, v}});
    });
    EXPECT_THAT(list.Append(module), IsOk());
  }
  EXPECT_THAT(list.Append(nullptr), StatusIs(kInvalid, "null"));
  EXPECT_EQ(list.At(2), nullptr);
  EXPECT_EQ(list.At(-1), nullptr);
  EXPECT_THAT(Names(NamedParameters(list).value()),
              ElementsAre("0.weight", "1.weight"));
  SHERD_ASSERT_OK_AND_ASSIGN(const Value out,
                             list.Call({PatternTensor({1}, kInt8)}));
  EXPECT_EQ(out.ToString(), "{y: {x: Tensor(int8, [1], cpu)}}");
}

TEST(ModuleTest, AChildOfADeclaredClassIsReplacedByThatClassOnly) {
  const auto original = std::make_shared<ModuleList>();
  std::shared_ptr<ModuleList> member = original;
  ChildSlot slot(member);
  EXPECT_EQ(slot.module(), original);
  EXPECT_THAT(slot.Set(MakeLinear()), StatusIs(kInvalid, "a Linear cannot"));
  EXPECT_EQ(member, original);
  EXPECT_THAT(slot.Set(std::make_shared<ModuleList>()), IsOk());
  EXPECT_NE(member, original);
  EXPECT_THAT(slot.Set(nullptr), IsOk());
  EXPECT_EQ(member, nullptr);
}

TEST(ShardedModelTest, HasItsNamesWithAndWithoutShardedTensors) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto model,
                               ShardedModel::Create(Chunks(0, 2)));
    EXPECT_THAT(Names(NamedAttributes(*model).value()),
                ElementsAre("sharded_tensor1", "submodule.sharded_tensor2"));
    EXPECT_THAT(Names(NamedParameters(*model).value()),
                ElementsAre("random_tensor1", "submodule.random_tensor2"));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto empty, ShardedModel::Create());
    EXPECT_THAT(NamedAttributes(*empty), IsOkAndHolds(IsEmpty()));
  });
}

}  // namespace
}  // namespace sherd
