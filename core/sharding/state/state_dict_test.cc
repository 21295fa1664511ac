#include "sherd/core/sharding/state_dict.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kMissing = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kRange = absl::StatusCode::kOutOfRange;

Tensor Numbers(float first) {
  const float values[] = {first, 2, 3};
  return Tensor::FromSpan<float>(values, {3}).value();
}

ShardedTensor Sharded(float first, const char* placement = "rank:0/cpu") {
  const ShardMetadata shard = {{0}, {3}, Placement(placement)};
  return ShardedTensor::WithoutGroup({{Numbers(first), shard}},
                                     {.shards = {shard}, .size = {3}})
      .value();
}

// One value of each kind, and an empty and a full container of each.
StateDict Sample() {
  return StateDict::Unflatten({{"model.layer.weight", Numbers(1)},
                               {"model.layer.bias", Sharded(4)},
                               {"groups[0].lr", 0.5},
                               {"groups[0].betas[0]", 1.0},
                               {"groups[0].betas[1]", 1e-5},
                               {"groups[1]", StateDict()},
                               {"step", 3},
                               {"done", true},
                               {"name", "adam"},
                               {"random", StateBytes{std::string(12, '\0')}},
                               {"scheduler", StateValue()},
                               {"history", StateList()}})
      .value();
}

std::vector<std::string> Names(const std::vector<StateEntry>& entries) {
  std::vector<std::string> names;
  for (const StateEntry& entry : entries) names.push_back(entry.name);
  return names;
}

// Types from which a value can be made. Integers that may not fit, characters
// and pointers do not compile.
static_assert(std::is_convertible_v<bool, StateValue>);
static_assert(std::is_convertible_v<uint32_t, StateValue>);
static_assert(std::is_convertible_v<long long, StateValue>);
static_assert(std::is_convertible_v<float, StateValue>);
static_assert(std::is_convertible_v<const char*, StateValue>);
static_assert(std::is_convertible_v<absl::string_view, StateValue>);
static_assert(!std::is_constructible_v<StateValue, uint64_t>);
static_assert(!std::is_constructible_v<StateValue, char>);
static_assert(!std::is_constructible_v<StateValue, wchar_t>);
static_assert(!std::is_constructible_v<StateValue, char8_t>);
static_assert(!std::is_constructible_v<StateValue, char16_t>);
static_assert(!std::is_constructible_v<StateValue, char32_t>);
static_assert(std::is_convertible_v<int8_t, StateValue>);
static_assert(std::is_convertible_v<unsigned char, StateValue>);
static_assert(!std::is_constructible_v<StateValue, long double>);
static_assert(!std::is_constructible_v<StateValue, void*>);
static_assert(!std::is_constructible_v<StateValue, std::nullptr_t>);

TEST(StateDictTest, ReturnsWhatWasSet) {
  const StateDict state = Sample();
  EXPECT_THAT(state.Get<Tensor>("model.layer.weight"),
              IsOkAndHolds(TensorEq(Numbers(1))));
  EXPECT_TRUE(state.Get<ShardedTensor>("model.layer.bias").ok());
  EXPECT_THAT(state.Get<double>("groups[0].lr"), IsOkAndHolds(0.5));
  EXPECT_THAT(state.Get<double>("groups[0].betas[1]"), IsOkAndHolds(1e-5));
  EXPECT_THAT(state.Get<int64_t>("step"), IsOkAndHolds(3));
  EXPECT_THAT(state.Get<bool>("done"), IsOkAndHolds(true));
  EXPECT_THAT(state.Get<std::string>("name"), IsOkAndHolds("adam"));
  EXPECT_THAT(state.Get<StateBytes>("random"),
              IsOkAndHolds(StateBytes{std::string(12, '\0')}));
  EXPECT_EQ(state.Get<StateList>("groups").value().size(), 2u);
  EXPECT_EQ(state.Get<StateDict>("model.layer").value().size(), 2);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateValue* none, state.Find("scheduler"));
  EXPECT_TRUE(none->is_none());
  EXPECT_TRUE(state.Contains("groups[1]"));
  EXPECT_FALSE(state.Contains("groups[2]"));
}

TEST(StateDictTest, KeepsTheOrderOfInsertion) {
  StateDict state;
  for (const char* key : {"z", "a", "m.y", "b", "m.a"}) {
    ASSERT_THAT(state.Set(key, key), IsOk());
  }
  EXPECT_THAT(Names(state.Flatten()), ElementsAre("z", "a", "m.y", "m.a", "b"));
  // In its place.
  ASSERT_THAT(state.Set("a", 1), IsOk());
  ASSERT_THAT(state.Erase("z"), IsOk());
  // As the last one, where it has been erased.
  ASSERT_THAT(state.Set("z", 2), IsOk());
  EXPECT_THAT(Names(state.Flatten()), ElementsAre("a", "m.y", "m.a", "b", "z"));
  EXPECT_THAT(state.Get<std::string>("b"), IsOkAndHolds("b"));
  EXPECT_THAT(state.Get<int64_t>("z"), IsOkAndHolds(2));
  std::vector<std::string> keys;
  for (const StateEntry& entry : state) keys.push_back(entry.name);
  EXPECT_THAT(keys, ElementsAre("a", "m", "b", "z"));
}

TEST(StateDictTest, ListsGrowAtTheEndAndCloseGaps) {
  StateDict state;
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(state.Set(absl::StrCat("a[", i, "].x"), i), IsOk());
  }
  ASSERT_THAT(state.Set("a[1]", "one"), IsOk());
  ASSERT_THAT(state.Erase("a[0]"), IsOk());
  EXPECT_THAT(Names(state.Flatten()), ElementsAre("a[0]", "a[1].x"));
  EXPECT_THAT(state.Get<std::string>("a[0]"), IsOkAndHolds("one"));
}

TEST(StateDictTest, NamesTellAnyKeysAndPositionsApart) {
  StateDict state;
  int value = 0;
  for (const char* name :
       {"a.b", R"(a\.b)", "0", "list[0]", R"(list\[0])", "map.0", "]",
        R"(\\.\\)", R"(\\\.)", " ", "\n", "ä", R"(x\[.y)", "deep[0][0].a[0]"}) {
    ASSERT_THAT(state.Set(name, ++value), IsOk()) << name;
    EXPECT_THAT(state.Get<int64_t>(name), IsOkAndHolds(value));
  }
  std::vector<std::string> keys;
  for (const StateEntry& entry : state) keys.push_back(entry.name);
  EXPECT_THAT(keys, ElementsAre("a", "a.b", "0", "list", "list[0]", "map", "]",
                                "\\", "\\.", " ", "\n", "ä", "x[", "deep"));
  for (const StateEntry& entry : state) {
    EXPECT_TRUE(state.Contains(StateDict::EscapeKey(entry.name)));
  }
  EXPECT_THAT(StateDict::Unflatten(state.Flatten()).value().Difference(state),
              IsEmpty());
}

TEST(StateDictTest, RefusesMalformedNames) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "expected a key that is not empty"},
      {".", "expected a key that is not empty"},
      {".a", "expected a key that is not empty"},
      {"a.", "expected a key that is not empty"},
      {"a..b", "expected a key that is not empty"},
      {"a.[0]", "expected a key that is not empty"},
      {"[0]", "expected a key that is not empty"},
      {"a[0", "expected a position"},
      {"a[", "expected a position"},
      {"a[]", "expected a position"},
      {"a[-1]", "expected a position"},
      {"a[+1]", "expected a position"},
      {"a[01]", "expected a position"},
      {"a[ 1]", "expected a position"},
      {"a[x]", "expected a position"},
      {"a[9223372036854775808]", "expected a position"},
      {"a[0]b", "expected a dot, a bracket or the end"},
      {"a[0]]", "expected a dot, a bracket or the end"},
      {R"(a\)", "at a backslash"},
      {R"(a\n)", "at a backslash"},
      {R"(\])", "at a backslash"},
  };
  StateDict state;
  for (const auto& [name, message] : rows) {
    const auto refused =
        AllOf(StatusIs(kInvalid, message), StatusIs(kInvalid, "\":"));
    EXPECT_THAT(state.Set(name, 1), refused) << name;
    EXPECT_THAT(state.Find(name).status(), refused) << name;
    EXPECT_THAT(state.Erase(name), refused) << name;
    EXPECT_THAT(StateDict::Unflatten({{name, 1}}).status(), refused) << name;
  }
  EXPECT_TRUE(state.empty());
}

TEST(StateDictTest, ErrorsNameTheExpectedAndTheFoundValue) {
  struct Row {
    absl::StatusCode code;
    const char* message;
    std::function<absl::Status(StateDict&)> call;
  };
  const auto get = []<typename T>(std::type_identity<T>, const char* name) {
    return [=](StateDict& s) { return s.Get<T>(name).status(); };
  };
  const auto set = [](const char* name) {
    return [=](StateDict& s) { return s.Set(name, 1); };
  };
  const auto erase = [](const char* name) {
    return [=](StateDict& s) { return s.Erase(name); };
  };
  constexpr std::type_identity<Tensor> kTensor;
  constexpr std::type_identity<int64_t> kInteger;
  const Row rows[] = {
      {kMissing,
       R"("model.layer.wait": there is no key "wait" in "model.layer", which )"
       R"(has "weight", "bias")",
       get(kTensor, "model.layer.wait")},
      {kMissing,
       R"(no key "x" in the state, which has "model", "groups", "step", )"
       R"("done", "name", … (8 in all))",
       get(kTensor, "x")},
      {kMissing, R"(no key "lr" in "groups[1]", which has none)",
       get(kTensor, "groups[1].lr")},
      {kRange, R"("groups[2].lr": there is no item 2 in "groups", which has 2)",
       get(kTensor, "groups[2].lr")},
      {kInvalid,
       R"("step": expected a value of the kind tensor, found integer)",
       get(kTensor, "step")},
      {kInvalid, R"(expected a value of the kind tensor, found string "adam")",
       get(kTensor, "name")},
      {kInvalid, "of the kind tensor, found ShardedTensor(float32, [3], 1",
       get(kTensor, "model.layer.bias")},
      {kInvalid, "of the kind integer, found float 1.0",
       get(kInteger, "groups[0].betas[0]")},
      {kInvalid, "of the kind integer, found boolean true",
       get(kInteger, "done")},
      {kInvalid, "of the kind integer, found none", get(kInteger, "scheduler")},
      {kInvalid, "of the kind float, found map of 2",
       get(std::type_identity<double>(), "model.layer")},
      {kInvalid, R"("step.x": expected a map at "step", found integer 3)",
       get(kTensor, "step.x")},
      {kInvalid, R"("groups.x": expected a map at "groups", found list of 2)",
       get(kTensor, "groups.x")},
      {kInvalid, R"("model[0]": expected a list at "model", found map of 1)",
       get(kTensor, "model[0]")},
      {kInvalid, R"("history.x": expected a map at "history", found [])",
       set("history.x")},
      {kInvalid, R"("scheduler.x": expected a map at "scheduler", found none)",
       set("scheduler.x")},
      {kInvalid, R"(expected a list at "groups[1]", found {})",
       set("groups[1][0]")},
      {kRange, R"("groups[3]": there is no item 3 in "groups", which has 2)",
       set("groups[3]")},
      {kRange, R"(there is no item 1 in "groups[2].x", which has 0)",
       set("groups[2].x[1]")},
      {kRange, R"(there is no item 9223372036854775807 in "new", which has 0)",
       set("new[9223372036854775807]")},
      {kMissing, R"(no key "x" in the state)", erase("x")},
      {kRange, R"(no item 0 in "history")", erase("history[0]")},
  };
  for (const Row& row : rows) {
    StateDict state = Sample();
    EXPECT_THAT(row.call(state), StatusIs(row.code, row.message));
    EXPECT_THAT(state.Difference(Sample()), IsEmpty()) << row.message;
  }
}

TEST(StateDictTest, UnflattenRefusesNamesThatContradictEachOther) {
  struct Row {
    std::vector<StateEntry> entries;
    absl::StatusCode code;
    const char* message;
  };
  const Row rows[] = {
      {{{"a", 1}, {"a", 1}}, kInvalid, R"("a": expected each name once)"},
      {{{"a.b", 1}, {"a", 1}}, kInvalid, R"("a": expected each name once)"},
      {{{"a", 1}, {"a.b", 1}}, kInvalid, R"(expected a map at "a", found int)"},
      {{{"a[0]", 1}, {"a.b", 1}},
       kInvalid,
       R"(expected a map at "a", found l)"},
      {{{"a.0", 1}, {"a[0]", 1}}, kInvalid, R"(a list at "a", found map of 1)"},
      {{{"a[0]", 1}, {"a[0]", 1}}, kInvalid, "expected each name once"},
      {{{"a[1]", 1}, {"a[0]", 1}}, kRange, R"(no item 1 in "a", which has 0)"},
      {{{"a[0]", 1}, {"a[2]", 1}}, kRange, R"(no item 2 in "a", which has 1)"},
      {{{"a[4611686018427387904]", 1}}, kRange, "no item 4611686018427387904"},
  };
  for (const Row& row : rows) {
    EXPECT_THAT(StateDict::Unflatten(row.entries).status(),
                StatusIs(row.code, row.message));
  }
}

TEST(StateDictTest, EntriesOfAMapMayBeApart) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const StateDict state,
      StateDict::Unflatten(
          {{"a.x", 1}, {"l[0].x", 2}, {"b", 3}, {"a.y", 4}, {"l[0].y", 5}}));
  EXPECT_THAT(Names(state.Flatten()),
              ElementsAre("a.x", "a.y", "l[0].x", "l[0].y", "b"));
}

TEST(StateDictTest, UnflattenAddsToMapsAndListsAmongItsValues) {
  StateDict map;
  ASSERT_THAT(map.Set("b", 1), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const StateDict state,
      StateDict::Unflatten(
          {{"a", map}, {"l", StateList{2}}, {"a.c", 3}, {"l[1]", 4}}));
  EXPECT_THAT(Names(state.Flatten()),
              ElementsAre("a.b", "a.c", "l[0]", "l[1]"));
  EXPECT_THAT(StateDict::Unflatten({{"a", map}, {"a.b", 1}}).status(),
              StatusIs(kInvalid, R"("a.b": expected each name once)"));
}

// "a.a.a" and "a[0][0]", of `parts` parts.
std::string DeepName(int parts, bool keys) {
  std::string name = "a";
  for (int i = 1; i < parts; ++i) name += keys ? ".a" : "[0]";
  return name;
}

TEST(StateDictTest, NestingIsBounded) {
  for (const bool keys : {true, false}) {
    StateDict state;
    EXPECT_THAT(state.Set(DeepName(101, keys), 1),
                StatusIs(kInvalid, "expected at most 100 keys and positions"));
    EXPECT_THAT(StateDict::Unflatten({{DeepName(1000000, keys), 1}}).status(),
                StatusIs(kInvalid, "expected at most 100 keys and positions"));
    EXPECT_TRUE(state.empty());
    ASSERT_THAT(state.Set(DeepName(100, keys), 1), IsOk());
    EXPECT_THAT(StateDict::Unflatten(state.Flatten()).value().Difference(state),
                IsEmpty());
    // A value is nested as well: it has 100 levels itself.
    StateDict outer;
    EXPECT_THAT(outer.Set("b", state),
                StatusIs(kInvalid, R"("b": expected at most 100)"));
    EXPECT_TRUE(outer.empty());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateValue* inner,
                               state.Find(DeepName(2, keys)));
    EXPECT_THAT(outer.Set("b.c", *inner), IsOk());
    EXPECT_THAT(outer.Set("b.d.e", *inner),
                StatusIs(kInvalid, R"("b.d.e": expected at most 100)"));
    EXPECT_FALSE(outer.Contains("b.d"));
  }
}

TEST(StateDictTest, CopiesHaveMapsOfTheirOwnAndShareElements) {
  const StateDict state = Sample();
  StateDict copy = state;
  ASSERT_THAT(copy.Set("groups[0].lr", 0.25), IsOk());
  ASSERT_THAT(copy.Erase("step"), IsOk());
  EXPECT_THAT(state.Difference(Sample()), IsEmpty());
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor weight,
                             copy.Get<Tensor>("model.layer.weight"));
  ASSERT_THAT(weight.Fill(7), IsOk());
  EXPECT_THAT(state.Get<Tensor>("model.layer.weight"),
              IsOkAndHolds(TensorEq(weight)));
  // A value may be part of the state that it is set in.
  ASSERT_THAT(copy.Set("model.layer", *copy.Find("model").value()), IsOk());
  EXPECT_TRUE(copy.Contains("model.layer.layer.weight"));
  const StateDict moved = std::move(copy);
  EXPECT_TRUE(moved.Contains("groups[0].lr"));
}

TEST(StateDictTest, DifferenceNamesTheFirstOne) {
  struct Row {
    const char* difference;
    std::function<absl::Status(StateDict&)> change;
  };
  const auto set = [](const char* name, const StateValue& value) {
    return [=](StateDict& s) { return s.Set(name, value); };
  };
  const auto erase = [](const char* name) {
    return [=](StateDict& s) { return s.Erase(name); };
  };
  const Row rows[] = {
      {R"("step": integer 3 and integer 4)", set("step", 4)},
      {R"("step": integer 3 and float 3.0)", set("step", 3.0)},
      {R"("done": boolean true and boolean false)", set("done", false)},
      {R"("name": string "adam" and string "sgd")", set("name", "sgd")},
      {R"("name": string "adam" and 4 bytes)", set("name", StateBytes{"adam"})},
      {R"("random": 12 bytes of other contents)",
       set("random", StateBytes{std::string(12, '\1')})},
      {R"("model.layer.weight": Tensor(float32, [3], cpu) of other contents)",
       set("model.layer.weight", Numbers(9))},
      {R"("model.layer.weight": Tensor(float32, [3], cpu) and Tensor(undefined)",
       set("model.layer.weight", Tensor())},
      {R"([3], 1 shard) of other contents)",
       set("model.layer.bias", Sharded(9))},
      {R"([3], 1 shard) of other contents)",
       set("model.layer.bias", Sharded(4, "rank:1/cpu"))},
      {R"(1 shard) and ShardedTensor(undefined))",
       set("model.layer.bias", ShardedTensor())},
      {R"("scheduler": none and integer 0)", set("scheduler", 0)},
      {R"("history": [] and {})", set("history", StateDict())},
      {R"(the first has "history" where the second has "history[0]")",
       set("history[0]", 1)},
      {R"(only the second has "z")", set("z", 1)},
      {R"(only the first has "history")", erase("history")},
      {R"(the first has "step" where the second has "done")", erase("step")},
  };
  for (const Row& row : rows) {
    const StateDict state = Sample();
    StateDict other = Sample();
    ASSERT_THAT(row.change(other), IsOk());
    EXPECT_THAT(state.Difference(other), HasSubstr(row.difference));
    EXPECT_FALSE(state.BitwiseEqual(other));
    EXPECT_FALSE(other.BitwiseEqual(state)) << row.difference;
    EXPECT_TRUE(other.BitwiseEqual(StateDict(other)));
  }
}

TEST(StateDictTest, EqualityIsByBitsAndByOrder) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto state = [](const char* first, StateValue a, const char* second,
                        StateValue b) {
    return StateDict::Unflatten({{first, std::move(a)}, {second, std::move(b)}})
        .value();
  };
  EXPECT_TRUE(
      state("a", nan, "b", 0.0).BitwiseEqual(state("a", nan, "b", 0.0)));
  EXPECT_FALSE(
      state("a", nan, "b", 0.0).BitwiseEqual(state("a", nan, "b", -0.0)));
  EXPECT_FALSE(state("a", 1, "b", 2).BitwiseEqual(state("b", 2, "a", 1)));
  EXPECT_FALSE(state("a", 1, "b", 1).BitwiseEqual(state("b", 1, "a", 1)));
  ShardedTensor with_grad = Sharded(1);
  with_grad.SetRequiresGrad(true);
  EXPECT_FALSE(state("a", Sharded(1), "b", 1)
                   .BitwiseEqual(state("a", with_grad, "b", 1)));
  const Tensor meta = Tensor::Empty({2}, {.device = "meta"}).value();
  const Tensor other_meta = Tensor::Empty({3}, {.device = "meta"}).value();
  const Tensor empty = Tensor::Empty({0, 3}).value();
  EXPECT_TRUE(
      state("a", meta, "b", empty).BitwiseEqual(state("a", meta, "b", empty)));
  EXPECT_TRUE(state("a", Tensor(), "b", ShardedTensor())
                  .BitwiseEqual(state("a", Tensor(), "b", ShardedTensor())));
  EXPECT_FALSE(
      state("a", meta, "b", 1).BitwiseEqual(state("a", other_meta, "b", 1)));
  EXPECT_FALSE(
      state("a", meta, "b", 1)
          .BitwiseEqual(state("a", Tensor::Zeros({2}).value(), "b", 1)));
  // The same bytes as another type.
  EXPECT_FALSE(
      state("a", Tensor::Zeros({2}).value(), "b", 1)
          .BitwiseEqual(state(
              "a", Tensor::Zeros({2}, {.dtype = kInt32}).value(), "b", 1)));
}

TEST(StateDictTest, PrintsALinePerValue) {
  StateDict state = Sample();
  ASSERT_THAT(state.Set("a\nkey", std::string("\x1b[31mtext\n")), IsOk());
  std::ostringstream out;
  out << state;
  EXPECT_EQ(out.str(),
            "model.layer.weight: Tensor(float32, [3], cpu)\n"
            "model.layer.bias: ShardedTensor(float32, [3], 1 shard)\n"
            "groups[0].lr: 0.5\n"
            "groups[0].betas[0]: 1.0\n"
            "groups[0].betas[1]: 1e-05\n"
            "groups[1]: {}\n"
            "step: 3\n"
            "done: true\n"
            "name: \"adam\"\n"
            "random: 12 bytes\n"
            "scheduler: none\n"
            "history: []\n"
            "a\\nkey: \"text\\n\"\n");
  std::ostringstream value;
  value << *state.Find("groups").value() << " " << *state.Find("model").value()
        << " " << StateValue(INT64_MIN) << " "
        << StateValue(-std::numeric_limits<double>::infinity());
  EXPECT_EQ(value.str(), "list of 2 map of 1 -9223372036854775808 -inf");
}

TEST(StateDictTest, ListsItsShardedTensors) {
  const std::map<std::string, ShardedTensor> tensors =
      Sample().sharded_tensors();
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors.begin()->first, "model.layer.bias");
}

std::string RandomKey(std::mt19937_64& random) {
  constexpr absl::string_view kCharacters = "ab.[]\\0 ";
  std::string key;
  const size_t length = 1 + random() % 3;
  while (key.size() < length) key += kCharacters[random() % 8];
  return key;
}

StateValue RandomValue(int depth, std::mt19937_64& random) {
  switch (random() % (depth > 0 ? 11 : 8)) {
    case 0:
      return StateValue();
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<int64_t>(random());
    case 3:
      return static_cast<double>(random()) / 3;
    case 4:
      return RandomKey(random);
    case 5:
      return StateBytes{RandomKey(random)};
    case 6:
      return Numbers(static_cast<float>(random() % 100));
    case 7:
      return Sharded(static_cast<float>(random() % 100));
    case 8: {
      StateList list;
      for (size_t n = random() % 4; n > 0; --n) {
        list.push_back(RandomValue(depth - 1, random));
      }
      return list;
    }
    default: {
      StateDict map;
      for (size_t n = random() % 4; n > 0; --n) {
        EXPECT_THAT(map.Set(StateDict::EscapeKey(RandomKey(random)),
                            RandomValue(depth - 1, random)),
                    IsOk());
      }
      return map;
    }
  }
}

// The tree itself, not by Flatten.
void ExpectSameTree(const StateValue& a, const StateValue& b) {
  ASSERT_EQ(a.kind(), b.kind());
  if (const StateList* list = a.get_if<StateList>()) {
    const StateList& other = *b.get_if<StateList>();
    ASSERT_EQ(list->size(), other.size());
    for (size_t i = 0; i < list->size(); ++i) {
      ExpectSameTree((*list)[i], other[i]);
    }
  } else if (const StateDict* map = a.get_if<StateDict>()) {
    const StateDict& other = *b.get_if<StateDict>();
    ASSERT_EQ(map->size(), other.size());
    for (int64_t i = 0; i < map->size(); ++i) {
      EXPECT_EQ(map->begin()[i].name, other.begin()[i].name);
      ExpectSameTree(map->begin()[i].value, other.begin()[i].value);
    }
  } else {
    EXPECT_EQ(a.ToString(), b.ToString());
  }
}

TEST(StateDictTest, UnflattenIsTheInverseOfFlatten) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(500);
  for (int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(absl::StrCat("SHERD_TEST_SEED=", seed + i));
    std::mt19937_64 random(seed + i);
    StateDict state;
    for (size_t n = random() % 5; n > 0; --n) {
      ASSERT_THAT(state.Set(StateDict::EscapeKey(RandomKey(random)),
                            RandomValue(4, random)),
                  IsOk());
    }
    const std::vector<StateEntry> flat = state.Flatten();
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict again,
                               StateDict::Unflatten(flat));
    ExpectSameTree(again, state);
    ASSERT_THAT(state.Difference(again), IsEmpty());
    ASSERT_EQ(Names(again.Flatten()), Names(flat));
    for (const StateEntry& entry : flat) {
      SHERD_ASSERT_OK_AND_ASSIGN(const StateValue* value,
                                 state.Find(entry.name));
      ExpectSameTree(*value, entry.value);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd
