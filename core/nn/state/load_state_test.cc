#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TestModule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

ShardedTensor Sharded(const ShardingSpecPtr& spec, uint64_t salt = 0) {
  return ShardTensor(PatternTensor({7, 6}, kFloat32, salt), spec).value();
}

// What is there, and what the state has, for each pair of layouts.
TEST(LoadStateTest, CopiesIntoExistingValuesOfAnyLayout) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr grid,
        EnumerableShardingSpec::Create(
            {{.offsets = {0, 0}, .sizes = {7, 2}, .placement = "rank:2/cpu"},
             {.offsets = {0, 2}, .sizes = {3, 4}, .placement = "rank:0/cpu"},
             {.offsets = {3, 2}, .sizes = {4, 4}, .placement = "rank:2/cpu"}}));
    const std::vector<ShardingSpecPtr> specs = {
        nullptr, Chunks(0, kRanks), Chunks(1, kRanks), Chunks(1, 2), grid};
    for (const ShardingSpecPtr& from : specs) {
      for (const ShardingSpecPtr& to : specs) {
        Value source = PatternTensor({7, 6}, kFloat32);
        if (from != nullptr) source = Sharded(from);
        Value target = Zeros({7, 6});
        if (to != nullptr) target = Sharded(to, /*salt=*/9);
        const auto model =
            Make({}, {{"sub", Make({{kParameter, "w", target}})}});
        const auto other =
            Make({}, {{"sub", Make({{kParameter, "w", source}})}});
        SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*other));
        ASSERT_THAT(LoadState(*model, state).status(), IsOk());
        // Written through the handle that was there.
        if (const auto* sharded = target.get_if<ShardedTensor>()) {
          EXPECT_TRUE(HasPattern(*sharded));
          EXPECT_EQ(*sharded->spec(), *to);
        } else {
          EXPECT_THAT(*target.get_if<Tensor>(),
                      TensorBitwiseEq(PatternTensor({7, 6}, kFloat32)));
        }
      }
    }
  });
}

TEST(LoadStateTest, AModelLoadsItsOwnState) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    const auto model = Make({{kParameter, "w", Sharded(Chunks(0, kRanks))},
                             {kParameter, "b", PatternTensor({3}, kInt64)}});
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
    ASSERT_THAT(LoadState(*model, state).status(), IsOk());
    EXPECT_TRUE(HasPattern(*Get(*model, "w")->get_if<ShardedTensor>()));
  });
}

TEST(LoadStateTest, FillsAbsentValuesWithHandlesOfTheState) {
  StateDict state;
  const Tensor tensor = PatternTensor({2, 3}, kFloat32);
  ASSERT_THAT(state.Set("w", tensor), IsOk());
  ASSERT_THAT(state.Set("list", StateList{tensor, tensor}), IsOk());
  ASSERT_THAT(state.Set("map.a", tensor), IsOk());
  const auto model = Make({{kParameter, "w", Value()},
                           {kParameter, "bias", Value()},
                           {MemberKind::kBuffer, "list", Value()},
                           {MemberKind::kBuffer, "map", Value()}});
  SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                             LoadState(*model, state));
  EXPECT_THAT(report.missing, IsEmpty());
  EXPECT_EQ(Get(*model, "w")->get_if<Tensor>()->data(), tensor.data());
  EXPECT_EQ(State(*model)->Difference(state), "");
}

TEST(LoadStateTest, FillsItemsThatAreNone) {
  const Tensor tensor = PatternTensor({2, 3}, kFloat32);
  StateDict state;
  ASSERT_THAT(state.Set("list", StateList{tensor, tensor}), IsOk());
  ASSERT_THAT(state.Set("map.a", tensor), IsOk());
  const auto model =
      Make({{kParameter, "list", ValueList{Zeros({2, 3}), Value()}},
            {kParameter, "map", ValueMap{{"a", Value()}}}});
  ASSERT_THAT(LoadState(*model, state).status(), IsOk());
  EXPECT_EQ(State(*model)->Difference(state), "");
  // What is not a tensor is not lost in silence.
  ASSERT_THAT(state.Set("none.text", "weight"), IsOk());
  ASSERT_THAT(state.Set("none.tensor", tensor), IsOk());
  model->members.push_back({kParameter, "none", Value()});
  EXPECT_THAT(LoadState(*model, state),
              StatusIs(kPrecondition,
                       "mismatched: none.text: \"weight\" is not a tensor"));
  EXPECT_TRUE(Get(*model, "none")->is_none());
}

TEST(LoadStateTest, AModuleWithTwoPathsDoesNotCopyIntoTheCallersState) {
  const Tensor first = PatternTensor({2, 3}, kFloat32, 1);
  const Tensor last = PatternTensor({2, 3}, kFloat32, 2);
  StateDict state;
  for (const auto& [path, tensor] :
       {std::pair("a", first), std::pair("b", last)}) {
    ASSERT_THAT(state.Set(absl::StrCat(path, ".w"), tensor), IsOk());
    ASSERT_THAT(state.Set(absl::StrCat(path, ".list"), StateList{tensor}),
                IsOk());
  }
  const auto shared = Make(
      {{kParameter, "w", Value()}, {kParameter, "list", ValueList{Value()}}});
  const auto model = Make({}, {{"a", shared}, {"b", shared}});
  ASSERT_THAT(LoadState(*model, state).status(), IsOk());
  EXPECT_THAT(first, TensorBitwiseEq(PatternTensor({2, 3}, kFloat32, 1)));
  EXPECT_THAT(last, TensorBitwiseEq(PatternTensor({2, 3}, kFloat32, 2)));
  EXPECT_EQ(Get(*model, "a.w")->get_if<Tensor>()->data(), last.data());
  const Value list = *Get(*model, "a.list");
  EXPECT_EQ((*list.get_if<ValueList>())[0].get_if<Tensor>()->data(),
            last.data());
  // A value that is no tensor leaves what the path before has filled.
  ASSERT_THAT(Set(*model, "a.w", Value()), IsOk());
  ASSERT_THAT(state.Set("b.w", 3), IsOk());
  ASSERT_THAT(LoadState(*model, state, {.strict = false}).status(), IsOk());
  EXPECT_EQ(Get(*model, "a.w")->get_if<Tensor>()->data(), first.data());
}

TEST(LoadStateTest, TiedMembersStayTiedAndMoveOnce) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto make = [](uint64_t salt) {
      const Value sharded = Sharded(Chunks(0, kRanks), salt);
      const Value plain = PatternTensor({2, 3}, kFloat32, salt);
      return Make({{kParameter, "w", sharded}, {kParameter, "p", plain}},
                  {{"head", Make({{kParameter, "w", sharded},
                                  {MemberKind::kBuffer, "p", plain}})}});
    };
    const auto source = make(1);
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict tied, State(*source));
    EXPECT_EQ(tied.Get<Tensor>("p")->data(),
              tied.Get<Tensor>("head.p")->data());
    // As from a file, where each name has elements of its own.
    StateDict apart = tied;
    ASSERT_THAT(apart.Set("w", Sharded(Chunks(0, kRanks), 1)), IsOk());
    ASSERT_THAT(apart.Set("p", PatternTensor({2, 3}, kFloat32, 1)), IsOk());
    std::vector<uint64_t> calls;
    for (const StateDict& state : {tied, apart}) {
      const auto target = make(2);
      const uint64_t before = group.counters().Total().calls;
      ASSERT_THAT(LoadState(*target, state).status(), IsOk());
      calls.push_back(group.counters().Total().calls - before);
      for (const char* path : {"w", "head.w"}) {
        const Value value = *Get(*target, path);
        EXPECT_TRUE(HasPattern(*value.get_if<ShardedTensor>(), 1));
      }
      EXPECT_EQ(Get(*target, "p")->get_if<Tensor>()->data(),
                Get(*target, "head.p")->get_if<Tensor>()->data());
      EXPECT_EQ(NamedParameters(*target)->size(), 2U);
    }
    EXPECT_LT(calls[0], calls[1]);
  });
}

TEST(LoadStateTest, OfTiedMembersTheLastValueCounts) {
  const Value weight = Zeros({2, 3});
  const auto model = Make({{kParameter, "a", weight},
                           {kParameter, "b", weight},
                           {kParameter, "c", weight}});
  const Tensor one = PatternTensor({2, 3}, kFloat32, 1);
  const Tensor other = PatternTensor({2, 3}, kFloat32, 2);
  for (const Tensor& middle : {one, other}) {
    StateDict state;
    ASSERT_THAT(state.Set("a", one), IsOk());
    ASSERT_THAT(state.Set("b", middle), IsOk());
    ASSERT_THAT(state.Set("c", one), IsOk());
    ASSERT_THAT(LoadState(*model, state).status(), IsOk());
    EXPECT_THAT(*weight.get_if<Tensor>(), TensorBitwiseEq(one));
  }
}

TEST(LoadStateTest, EmptyListsAndMapsAreExpected) {
  const auto model = Make({{kParameter, "list", ValueList{}},
                           {kParameter, "map", ValueMap{{"m", ValueMap{}}}},
                           {kParameter, "empty", ValueMap{}}});
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
  EXPECT_THAT(LoadState(*model, state).status(), IsOk());
}

TEST(LoadStateTest, AProcessOutsideTheGroupHasNothingToFill) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({0, 1}));
    const auto make = [&](int dim, float value) {
      return ShardedTensor::Full(Chunks(dim, 2), {7, 6}, value, {.group = pair})
          .value();
    };
    // It passes the same tree, and so may meet the others.
    for (const auto& where :
         {std::shared_ptr<ProcessGroup>(), DefaultGroup().value()}) {
      for (const int dim : {0, 1}) {
        const ShardedTensor target = make(0, 1);
        const auto model = Make({{kParameter, "w", target}});
        StateDict state;
        ASSERT_THAT(state.Set("w", make(dim, 2)), IsOk());
        ASSERT_THAT(LoadState(*model, state, {.group = where}).status(),
                    IsOk());
        for (const Shard& shard : target.local_shards()) {
          EXPECT_THAT(shard.tensor, TensorBitwiseEq(Tensor::Full(
                                        shard.tensor.sizes(), 2.0F)));
        }
      }
    }
  });
}

// The others would gather, and only this one fail.
TEST(LoadStateTest, AProcessOutsideTheGroupCannotGetTheWhole) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({0, 1}));
    const Tensor target = Zeros({7, 6});
    const auto model = Make({{kParameter, "w", target}});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor source,
        ShardedTensor::Full(Chunks(0, 2), {7, 6}, 1.0F, {.group = pair}));
    StateDict state;
    ASSERT_THAT(state.Set("w", source), IsOk());
    const auto all = DefaultGroup().value();
    EXPECT_THAT(LoadState(*model, state, {.group = all}),
                StatusIs(kPrecondition, "rank 2: the state does not fit"));
    EXPECT_THAT(LoadState(*model, state, {.strict = false, .group = all}),
                StatusIs(kInvalid, "rank 2 was called with other arguments"));
    EXPECT_THAT(target, TensorBitwiseEq(Zeros({7, 6})));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

// Nor does it wait in the group of an attribute, where the others are not.
TEST(LoadStateTest, AProcessOutsideTheGroupOfTheMembersMeetsNoOne) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor weight,
        ShardedTensor::Full(Chunks(0, 2), {7, 6}, 1.0F, {.group = pair}));
    const auto model =
        Make({{kParameter, "w", weight},
              {MemberKind::kAttribute, "a", Sharded(Chunks(0, kRanks))}});
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
    EXPECT_THAT(LoadState(*model, state).status(), IsOk());
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(LoadStateTest, AnInvalidTreeIsAnErrorOfAllRanks) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = Make({{kParameter, "w", Sharded(Chunks(0, kRanks), 1)},
                             {kParameter, "none", Value()}});
    SHERD_ASSERT_OK_AND_ASSIGN(StateDict state, State(*model));
    ASSERT_THAT(state.Set("none", Zeros({2})), IsOk());
    const std::string name = group.rank() == 1 ? "w" : "v";
    model->children = {{"sub", Make({{MemberKind::kAttribute, name, Value()},
                                     {MemberKind::kAttribute, "w", Value()}})}};
    EXPECT_THAT(LoadState(*model, state),
                StatusIs(kInvalid, "rank 1: TestModule names a member `w`"));
    EXPECT_TRUE(Get(*model, "none")->is_none());
  });
}

// Rank 1 has no sharded tensor where the others have one.
TEST(LoadStateTest, RanksMeetInTheGivenGroup) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto all = DefaultGroup().value();
    Value weight = Sharded(Chunks(0, kRanks), 1);
    Value loaded = Sharded(Chunks(1, kRanks));
    if (group.rank() == 1) {
      weight = PatternTensor({7, 6}, kFloat32, 1);
      loaded = PatternTensor({7, 6}, kFloat32);
    }
    const auto model =
        Make({{kParameter, "w", weight}, {kParameter, "none", Value()}});
    SHERD_ASSERT_OK_AND_ASSIGN(StateDict state,
                               State(*Make({{kParameter, "w", loaded}})));
    ASSERT_THAT(state.Set("none", Zeros({2})), IsOk());
    EXPECT_THAT(LoadState(*model, state, {.group = all}),
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
    EXPECT_TRUE(Get(*model, "none")->is_none());
    if (group.rank() == 1) {
      ASSERT_THAT(state.Erase("w"), IsOk());
    }
    EXPECT_THAT(LoadState(*model, state, {.group = all}),
                StatusIs(kPrecondition, "rank 1: the state does not fit"));
    EXPECT_TRUE(Get(*model, "none")->is_none());
    // Plain tensors alone load, too, on all ranks together.
    ASSERT_THAT(Set(*model, "w", Value()), IsOk());
    ASSERT_THAT(state.Set("w", Zeros({2})), IsOk());
    EXPECT_THAT(LoadState(*model, state, {.group = all}).status(), IsOk());
  });
}

TEST(LoadStateTest, RanksMeetInTheGroupOfAnyMember) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    // What names the group on rank 1, whose weight is plain.
    const std::vector<TestModule::Member> elsewhere = {
        {MemberKind::kAttribute, "a", Sharded(Chunks(0, kRanks))},
        {MemberKind::kAttribute, "list", ValueList{Sharded(Chunks(0, kRanks))}},
        {MemberKind::kAttribute, "partial",
         PartialTensor::Create(Zeros({2})).value()}};
    for (const TestModule::Member& member : elsewhere) {
      Value weight = Sharded(Chunks(0, kRanks), 1);
      if (group.rank() == 1) weight = Zeros({1});
      const auto model = Make({{kParameter, "w", weight}, member});
      StateDict state;
      ASSERT_THAT(state.Set("w", PatternTensor({7, 6}, kFloat32)), IsOk());
      EXPECT_THAT(LoadState(*model, state),
                  StatusIs(kPrecondition, "rank 1: the state does not fit"));
    }
  });
}

TEST(LoadStateTest, RefusesAGroupThatIsNotThatOfTheTensors) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({0, 1}));
    const auto model = Make({{kParameter, "w", Sharded(Chunks(0, kRanks), 1)}});
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
    const absl::Status status =
        LoadState(*model, state, {.group = pair}).status();
    if (group.rank() == 2) {
      EXPECT_THAT(status, StatusIs(kPrecondition, "member"));
    } else {
      EXPECT_THAT(status, StatusIs(kInvalid, "lacks rank 2 of the group"));
    }
    // A larger group is one in which the ranks can meet.
    if (pair->is_member()) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor small,
          ShardedTensor::Full(Chunks(0, 2), {7, 6}, 1.0F, {.group = pair}));
      ASSERT_THAT(Set(*model, "w", small), IsOk());
    } else {
      ASSERT_THAT(Set(*model, "w", Value()), IsOk());
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict own, State(*model));
    EXPECT_THAT(
        LoadState(*model, own, {.group = DefaultGroup().value()}).status(),
        IsOk());
  });
}

// As the card says of a rank that names no group.
TEST(LoadStateTest, ARankThatDoesNotMeetTheOthersIsNamedByItsNextCall) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    Value weight = Sharded(Chunks(0, kRanks), 1);
    if (group.rank() == 1) weight = Zeros({7, 6});
    const auto model = Make({{kParameter, "w", weight}});
    StateDict state;
    ASSERT_THAT(state.Set("w", PatternTensor({7, 6}, kFloat32)), IsOk());
    const absl::Status status = LoadState(*model, state).status();
    if (group.rank() == 1) {
      EXPECT_THAT(status, IsOk());
      EXPECT_THAT(group.Barrier(), HasErrorRank(1));
    } else {
      EXPECT_THAT(status, HasErrorRank(1));
      EXPECT_TRUE(HasPattern(*weight.get_if<ShardedTensor>(), 1));
    }
  });
}

TEST(LoadStateTest, PlainTensorsAreAMatterOfOneRank) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return;
    const auto model = Make({{kParameter, "w", Zeros({2})}});
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, State(*model));
    EXPECT_THAT(LoadState(*model, state).status(), IsOk());
    EXPECT_THAT(To(*model, Device()), IsOk());
  });
}

TEST(LoadStateTest, ReportsMissingUnexpectedAndMismatchedNames) {
  const auto make_model = [] {
    return Make({{kParameter, "size", Zeros({2, 3})},
                 {kParameter, "dtype", Zeros({2})},
                 {kParameter, "text", Zeros({2})},
                 {kParameter, "none", Value()},
                 {kParameter, "list", ValueList{Zeros({1})}},
                 {kParameter, "map", ValueMap{{"a", Zeros({1})}}},
                 {kParameter, "fits", Zeros({2})}},
                {{"sub", Make({{kParameter, "missing", Zeros({2})}})}});
  };
  StateDict state;
  ASSERT_THAT(state.Set("size", Zeros({3, 2})), IsOk());
  ASSERT_THAT(state.Set("dtype", PatternTensor({2}, kInt32)), IsOk());
  ASSERT_THAT(state.Set("text", "weight"), IsOk());
  ASSERT_THAT(state.Set("none", 3), IsOk());
  ASSERT_THAT(state.Set("list", StateList{Zeros({1}), Zeros({1})}), IsOk());
  ASSERT_THAT(state.Set("map.b", Zeros({1})), IsOk());
  ASSERT_THAT(state.Set("fits", PatternTensor({2}, kFloat32)), IsOk());
  ASSERT_THAT(state.Set("other.w", Zeros({1})), IsOk());
  const auto model = make_model();
  SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                             LoadState(*model, state, {.strict = false}));
  EXPECT_THAT(report.missing, ElementsAre("map.a", "sub.missing"));
  EXPECT_THAT(report.unexpected, ElementsAre("map.b", "other.w"));
  EXPECT_THAT(
      report.mismatched,
      ElementsAre(
          HasSubstr("size: a float32 tensor of size [3, 2] does not fit "
                    "a float32 one of size [2, 3]"),
          HasSubstr("dtype: a int32 tensor"),
          HasSubstr("text: \"weight\" is not a tensor"),
          HasSubstr("none: 3 is not a tensor"),
          HasSubstr("does not fit a list of 1")));
  EXPECT_THAT(*Get(*model, "fits")->get_if<Tensor>(),
              TensorBitwiseEq(PatternTensor({2}, kFloat32)));

  const auto strict = make_model();
  EXPECT_THAT(LoadState(*strict, state),
              StatusIs(kPrecondition,
                       "missing keys: map.a, sub.missing; "
                       "unexpected keys: map.b, other.w; "
                       "mismatched: size: "));
  EXPECT_THAT(*Get(*strict, "fits")->get_if<Tensor>(),
              TensorBitwiseEq(Zeros({2})));
}

// Names of a state come from a file.
TEST(LoadStateTest, ControlCharactersOfNamesAreEscapedInMessages) {
  const std::string odd = "two\nlines\x1b";
  const std::string shown = "two\\nlines\\x1b";
  const auto make_model = [&] {
    return Make({{kParameter, odd, Zeros({2})},
                 {kParameter, "missing" + odd, Zeros({2})}});
  };
  StateDict state;
  ASSERT_THAT(state.Set(StateDict::EscapeKey(odd), Zeros({3})), IsOk());
  ASSERT_THAT(state.Set(StateDict::EscapeKey("other" + odd), Zeros({3})),
              IsOk());
  const auto model = make_model();
  SHERD_ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                             LoadState(*model, state, {.strict = false}));
  EXPECT_THAT(report.mismatched, ElementsAre(HasSubstr(shown + ": a float32")));
  EXPECT_THAT(report.mismatched[0], Not(HasSubstr("\n")));
  // Those are the keys themselves.
  EXPECT_THAT(report.missing,
              ElementsAre(StateDict::EscapeKey("missing" + odd)));
  EXPECT_THAT(report.unexpected,
              ElementsAre(StateDict::EscapeKey("other" + odd)));

  const absl::Status status = LoadState(*make_model(), state).status();
  EXPECT_THAT(status, StatusIs(kPrecondition,
                               absl::StrCat("missing keys: missing", shown,
                                            "; unexpected keys: other", shown,
                                            "; mismatched: ", shown, ": ")));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\x1b")));
}

TEST(LoadStateTest, AnErrorOfOneRankIsThatOfAllAndNothingHasChanged) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = Make({{kParameter, "w", Sharded(Chunks(0, kRanks), 1)},
                             {kParameter, "b", Zeros({2})},
                             {kParameter, "none", Value()}});
    StateDict state;
    ASSERT_THAT(state.Set("w", Sharded(Chunks(1, kRanks))), IsOk());
    ASSERT_THAT(state.Set("b", Zeros({group.rank() == 1 ? 3 : 2})), IsOk());
    ASSERT_THAT(state.Set("none", Zeros({2})), IsOk());
    EXPECT_THAT(LoadState(*model, state),
                StatusIs(kPrecondition, "rank 1: the state does not fit"));
    EXPECT_TRUE(HasPattern(*Get(*model, "w")->get_if<ShardedTensor>(), 1));
    EXPECT_TRUE(Get(*model, "none")->is_none());
    // The group works, and what fits is loaded without `strict`.
    ASSERT_THAT(LoadState(*model, state, {.strict = false}).status(), IsOk());
    EXPECT_TRUE(HasPattern(*Get(*model, "w")->get_if<ShardedTensor>()));
  });
}

TEST(LoadStateTest, ARankWithoutTheValueDoesNotKeepTheOthersWaiting) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto model = Make({{kParameter, "w", Sharded(Chunks(0, kRanks), 1)}});
    StateDict state;
    if (group.rank() != 1) {
      ASSERT_THAT(state.Set("w", PatternTensor({7, 6}, kFloat32)), IsOk());
    }
    EXPECT_THAT(LoadState(*model, state),
                StatusIs(kPrecondition,
                         "rank 1: the state does not fit the "
                         "module; missing keys: w"));
    if (group.rank() == 1) {
      model->AddLoadHook([](Module&, absl::string_view, const StateDict&,
                            std::vector<std::string>&) {
        return absl::DataLossError("a hook");
      });
    }
    EXPECT_THAT(LoadState(*model, state, {.strict = false}),
                StatusIs(absl::StatusCode::kDataLoss, "rank 1: a hook"));
    EXPECT_TRUE(HasPattern(*Get(*model, "w")->get_if<ShardedTensor>(), 1));
  });
}

TEST(LoadStateTest, RanksWithOtherNamesGetOneError) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const std::string name = group.rank() == 2 ? "v" : "w";
    const auto model = Make({{kParameter, name, Sharded(Chunks(0, kRanks))}});
    StateDict state;
    ASSERT_THAT(state.Set(name, Sharded(Chunks(1, kRanks))), IsOk());
    EXPECT_THAT(LoadState(*model, state), StatusIs(kInvalid, "rank 2"));
  });
}

TEST(LoadStateTest, TensorsOfAnotherGroupDoNotFit) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto other, group.NewGroup({0, 1}));
    const auto model = Make({{kParameter, "w", Sharded(Chunks(0, 2))}});
    StateDict state;
    ASSERT_THAT(state.Set("w", ShardTensor(PatternTensor({7, 6}, kFloat32),
                                           Chunks(0, 2), 0, other)
                                   .value()),
                IsOk());
    EXPECT_THAT(LoadState(*model, state),
                StatusIs(kPrecondition, "is spread over the group"));
  });
}

}  // namespace
}  // namespace sherd
