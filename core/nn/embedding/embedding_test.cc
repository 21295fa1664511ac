#include "sherd/core/nn/embedding.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::HasErrorRank;
using ::sherd::testing::IsOk;
using ::sherd::testing::ModelLookUp;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::AllOf;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kRanks = 4;

// Seed 002's model: ten tables of 10 rows and 8 columns.
constexpr int kTables = 10;

Tensor Ids(int rank) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 8; ++i) ids.push_back((i * 3 + rank) % 10);
  return Tensor::FromSpan(absl::MakeConstSpan(ids), {2, 4}).value();
}

std::string NameOf(int table) { return absl::StrCat("t", table); }

// With one mode, or of all modes.
std::shared_ptr<EmbeddingBagCollection> Collection(
    std::optional<BagMode> of_all = std::nullopt) {
  auto collection = std::make_shared<EmbeddingBagCollection>();
  for (int t = 0; t < kTables; ++t) {
    const BagMode mode = of_all.value_or(static_cast<BagMode>(t % 3));
    const absl::Status inserted = collection->Insert(
        NameOf(t), EmbeddingBag::Create(10, 8, {.mode = mode}).value());
    EXPECT_THAT(inserted, IsOk());
  }
  return collection;
}

ShardingSpecPtr Chunks(int dim) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(kRanks)).value();
}

uint64_t Calls(const ProcessGroup& group) {
  return group.counters().Total().calls;
}

// Rows for the first tables, columns for the others.
absl::Status Shard(Module& collection) {
  ShardingPlan plan;
  for (int t = 0; t < kTables; ++t) {
    plan.plan.push_back({absl::StrCat("embedding_bags.", NameOf(t), ".weight"),
                         Chunks(t < kTables / 2 ? 0 : 1)});
  }
  return ShardModule(collection, plan);
}

TEST(EmbeddingTest, LooksUpAndClones) {
  const auto words = Embedding::Create(10, 3, {.padding_idx = -2}).value();
  const Tensor weight = words->weight().Get<Tensor>().value();
  EXPECT_THAT(*weight.Select(0, 8),
              TensorBitwiseEq(Tensor::Zeros({3}).value()));
  const Value y = words->Call({Ids(0)}).value();
  EXPECT_THAT(
      *y.Get<Tensor>(),
      TensorBitwiseEq(ModelLookUp(weight, {Ids(0)}, {.mode = BagMode::kNone})));
  const std::shared_ptr<Module> clone = words->Clone();
  ASSERT_NE(clone, nullptr);
  Tensor changed = weight;
  ASSERT_THAT(changed.Fill(7), IsOk());
  EXPECT_THAT(*clone->Call({Ids(0)})->Get<Tensor>(),
              TensorBitwiseEq(*y.Get<Tensor>()));
  EXPECT_THAT(words->Call({}).status(), StatusIs(kInvalid, "got 0 inputs"));
  EXPECT_THAT(words->Call({Ids(0), Ids(0)}).status(),
              StatusIs(kInvalid, "expected ids as inputs, got 2"));
  EXPECT_THAT(Embedding::Create(10, 3, {.padding_idx = 10}).status(),
              StatusIs(kInvalid, "padding_idx must be within"));
}

TEST(EmbeddingTest, ABagTakesOffsetsAndWeights) {
  const auto bag = EmbeddingBag::Create(10, 3, {.mode = BagMode::kSum}).value();
  const Tensor weight = bag->weight().Get<Tensor>().value();
  const Bags bags = {Ids(1).Flatten().value(),
                     Tensor::FromSpan<int32_t>({0, 0, 5}, {3}).value(),
                     Tensor::Full({8}, 0.5).value()};
  const auto y = bag->Call({bags.ids, bags.offsets, bags.per_sample_weights});
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(*y->Get<Tensor>(), TensorBitwiseEq(ModelLookUp(
                                     weight, bags, {.mode = BagMode::kSum})));
}

// The reference's rejections of what a module is called with. LookUp has those
// of tensors: see lookup_errors_test.cc.
TEST(EmbeddingTest, RefusesInputsThatAreNone) {
  const Tensor ids = Ids(0);
  const Tensor flat = ids.Flatten().value();
  const Tensor offsets = Tensor::FromSpan<int32_t>({0, 3}, {2}).value();
  const auto bag = EmbeddingBag::Create(10, 3, {.mode = BagMode::kSum}).value();
  const auto words = Embedding::Create(10, 3).value();
  const struct {
    std::shared_ptr<Module> module;
    std::vector<Value> inputs;
    std::string phrase;
  } kCases[] = {
      {words,
       {Value(ValueList{})},
       "input need to be torch.Tensor, but found list"},
      {words, {Value()}, "input need to be torch.Tensor"},
      {words, {ValueMap{}}, "input need to be torch.Tensor, but found map"},
      {bag,
       {Value(ValueList{})},
       "input need to be torch.Tensor, but found list"},
      {bag, {flat, ValueMap{}}, "offsets need to be torch.Tensor"},
      {bag,
       {flat, offsets, ValueList{}},
       "per_sample_weights need to be torch.Tensor"},
      {bag, {flat, Value(), Value()}, "offsets is required for 1D input"},
      {bag, {ids, offsets}, "Input dimension needs to be exactly 1 dim"},
      {bag, {ids, Value(), flat}, "not equal to input size"},
      {bag, {}, "got 0 inputs"},
      {bag, {ids, ids, ids, ids}, "got 4 inputs"},
      {std::make_shared<Embedding>(ValueList{}),
       {ids},
       "Expected Embedding.weight to be a Tensor, but found list"},
      {std::make_shared<EmbeddingBag>(Value()),
       {ids},
       "Expected EmbeddingBag.weight to be a Tensor, but found none"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(c.module->Call(c.inputs).status(),
                StatusIs(kInvalid, c.phrase));
  }
}

TEST(EmbeddingTest, ACollectionShardedByAPlanEqualsTheLocalOne) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto local = Collection();
    const std::shared_ptr<Module> sharded = local->Clone();
    ASSERT_NE(sharded, nullptr);
    ASSERT_THAT(Shard(*sharded), IsOk());
    const Value ids = Ids(group.rank());
    const auto expected = local->Call({ids});
    ASSERT_THAT(expected, IsOk());
    for (int call = 0; call < 3; ++call) {
      const uint64_t before = Calls(group);
      const auto y = sharded->Call({ids});
      ASSERT_THAT(y, IsOk());
      // An agreement before and one after, for all tables.
      if (call > 0) {
        EXPECT_EQ(Calls(group) - before, 2u);
      }
      for (int t = 0; t < kTables; ++t) {
        EXPECT_THAT(
            *y->get_if<ValueMap>()->at(NameOf(t)).Get<Tensor>(),
            TensorBitwiseEq(
                *expected->get_if<ValueMap>()->at(NameOf(t)).Get<Tensor>()));
      }
    }
  });
}

// Adds 1 to the output of a bag.
class PlusOne : public Module {
 public:
  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "PlusOne"; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value>) override {
    return Value(Tensor::Scalar(1.0).value());
  }
  void Visit(ModuleVisitor&) override {}
};

TEST(EmbeddingTest, ChildrenThatWereReplacedOrHaveHooksAreCalled) {
  const auto collection = Collection();
  auto& children = const_cast<ModuleDict&>(collection->embedding_bags());
  ASSERT_THAT(children.Insert("t3", std::make_shared<PlusOne>()), IsOk());
  children.Find("t5")->AddOutputHook([](Value) -> absl::StatusOr<Value> {
    return Value(Tensor::Scalar(5.0).value());
  });
  const auto y = collection->Call({Ids(0)});
  ASSERT_THAT(y, IsOk());
  const ValueMap& rows = *y->get_if<ValueMap>();
  EXPECT_EQ(rows.size(), size_t{kTables});
  EXPECT_EQ(rows.at("t3").Get<Tensor>()->At<double>({}).value(), 1);
  EXPECT_EQ(rows.at("t5").Get<Tensor>()->At<double>({}).value(), 5);
  EXPECT_THAT(rows.at("t4").Get<Tensor>()->sizes(),
              ::testing::ElementsAre(2, 8));
  // Messages count all children.
  ValueMap inputs;
  for (int t = 0; t < kTables; ++t) inputs[NameOf(t)] = Ids(0);
  inputs["t7"] = Tensor::Full({2, 1}, 1000, {.dtype = kInt64}).value();
  EXPECT_THAT(collection->Call({inputs}).status(),
              StatusIs(kInvalid, "table 7: Index out of range"));
}

TEST(EmbeddingTest, AWrongInputOfOneRankIsTheErrorOfAll) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto collection = Collection();
    ASSERT_THAT(Shard(*collection), IsOk());
    ValueMap all;
    for (int t = 0; t < kTables; ++t) all[NameOf(t)] = Ids(0);
    ValueMap one_less = all;
    one_less.erase("t4");
    ValueMap one_more = all;
    one_more["x"] = Ids(0);
    ValueMap list_in_list = all;
    list_in_list["t7"] = ValueList{Value(ValueList{})};
    const std::vector<std::pair<ValueMap, std::string>> wrong = {
        {one_less, "got none for \"t4\""},
        {one_more, "got inputs for 11 tables, expected 10"},
        {list_in_list, "input need to be torch.Tensor, but found list"}};
    // Called in one lookup, or each by itself.
    for (const bool hooked : {false, true}) {
      for (const NamedModule& bag : collection->embedding_bags().modules()) {
        if (!hooked) break;
        bag.module->AddOutputHook([](Value y) { return y; });
      }
      for (const auto& [inputs, phrase] : wrong) {
        EXPECT_THAT(
            collection->Call({group.rank() == 2 ? inputs : all}).status(),
            AllOf(StatusIs(kInvalid, phrase), HasErrorRank(2)));
      }
      EXPECT_THAT(collection->Call({all}), IsOk());
    }
  });
}

// Calls a bag, and may fail then.
class Wrapped : public Module {
 public:
  explicit Wrapped(std::shared_ptr<Module> bag) : bag_(std::move(bag)) {}
  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "Wrapped"; }
  bool fails = false;

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override {
    absl::StatusOr<Value> output = bag_->Call(inputs);
    if (fails) return absl::DataLossError("wrapped");
    return output;
  }
  void Visit(ModuleVisitor& v) override { v.Child("bag", bag_); }

 private:
  std::shared_ptr<Module> bag_;
};

TEST(EmbeddingTest, AnErrorOfAReplacedChildIsThatOfAllRanks) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto collection = Collection();
    ASSERT_THAT(Shard(*collection), IsOk());
    auto& children = const_cast<ModuleDict&>(collection->embedding_bags());
    std::vector<std::shared_ptr<Wrapped>> wrapped;
    for (int t = 0; t < kTables; ++t) {
      wrapped.push_back(std::make_shared<Wrapped>(children.Find(NameOf(t))));
      ASSERT_THAT(children.Insert(NameOf(t), wrapped.back()), IsOk());
    }
    wrapped[3]->fails = group.rank() == 2;
    EXPECT_THAT(collection->Call({Ids(0)}).status(),
                AllOf(StatusIs(absl::StatusCode::kDataLoss, "\"t3\": wrapped"),
                      HasErrorRank(2)));
    wrapped[3]->fails = false;
    EXPECT_THAT(collection->Call({Ids(0)}), IsOk());
  });
}

TEST(EmbeddingTest, AnErrorOfAHookIsThatOfAllRanks) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto collection = Collection();
    ASSERT_THAT(Shard(*collection), IsOk());
    const bool fails = group.rank() == 2;
    for (const NamedModule& bag : collection->embedding_bags().modules()) {
      const bool here = fails && bag.name == "t3";
      bag.module->AddOutputHook([here](Value y) -> absl::StatusOr<Value> {
        if (here) return absl::DataLossError("a hook");
        return y;
      });
    }
    EXPECT_THAT(collection->Call({Ids(0)}).status(),
                AllOf(StatusIs(absl::StatusCode::kDataLoss, "\"t3\": a hook"),
                      HasErrorRank(2)));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(EmbeddingTest, WeightsOfTwoGroupsAreRefused) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto other = group.NewGroup({0, 1, 2, 3}).value();
    const auto collection = Collection();
    ASSERT_THAT(Shard(*collection), IsOk());
    auto& children = const_cast<ModuleDict&>(collection->embedding_bags());
    const auto bag = EmbeddingBag::Create(10, 8).value();
    ASSERT_THAT(ShardParameter(*bag, "weight", Chunks(0), {.group = other}),
                IsOk());
    ASSERT_THAT(children.Insert("t3", std::make_shared<Wrapped>(bag)), IsOk());
    EXPECT_THAT(collection->Call({Ids(0)}).status(),
                StatusIs(absl::StatusCode::kUnimplemented, "2 groups"));
  });
}

TEST(EmbeddingTest, AWeightThatIsNotATensorOnOneRankIsTheErrorOfAll) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto collection = Collection();
    ASSERT_THAT(Shard(*collection), IsOk());
    if (group.rank() == 2) {
      auto& children = const_cast<ModuleDict&>(collection->embedding_bags());
      ASSERT_THAT(
          children.Insert("t4", std::make_shared<EmbeddingBag>(ValueList{})),
          IsOk());
    }
    EXPECT_THAT(
        collection->Call({Ids(0)}).status(),
        AllOf(StatusIs(kInvalid,
                       "Expected t4.weight to be a Tensor, but found list"),
              HasErrorRank(2)));
  });
}

// The lookups of a collection, one per table.
std::vector<TableLookUp> LookUpsOf(const EmbeddingBagCollection& collection,
                                   int rank) {
  std::vector<TableLookUp> lookups;
  for (const NamedModule& child : collection.embedding_bags().modules()) {
    const auto& bag = static_cast<const EmbeddingBag&>(*child.module);
    TableLookUp& lookup = lookups.emplace_back();
    if (const auto* const tensor = bag.weight().get_if<Tensor>()) {
      lookup.table = *tensor;
    } else {
      lookup.table = *bag.weight().get_if<ShardedTensor>();
    }
    lookup.bags.ids = Ids(rank);
    lookup.options.mode = BagMode::kMean;
  }
  return lookups;
}

absl::Status Step(const EmbeddingBagCollection& collection, SparseRule rule,
                  int rank, int step) {
  std::vector<Tensor> gradients;
  for (int t = 0; t < kTables; ++t) {
    std::vector<float> numbers;
    for (int i = 0; i < 16; ++i) {
      numbers.push_back(static_cast<float>((i * 7 + t + rank * 5 + step) % 11) -
                        4.7F);
    }
    gradients.push_back(
        Tensor::FromSpan(absl::MakeConstSpan(numbers), {2, 8}).value());
  }
  return Update(LookUpsOf(collection, rank), gradients,
                {.rule = rule, .learning_rate = 0.1});
}

// The weights and accumulators of all tables, whole.
std::vector<Tensor> Wholes(Module& collection) {
  std::vector<Tensor> wholes;
  for (int t = 0; t < kTables; ++t) {
    for (const char* const member : {".weight", ".accumulator"}) {
      const Value value =
          Get(collection, absl::StrCat("embedding_bags.", NameOf(t), member))
              .value();
      if (value.is_none()) continue;
      if (const auto* const tensor = value.get_if<Tensor>()) {
        wholes.push_back(*tensor);
      } else {
        wholes.push_back(value.get_if<ShardedTensor>()->AllGather().value());
      }
    }
  }
  return wholes;
}

TEST(EmbeddingTest, AccumulatorsGoWithTheStateIntoOtherLayouts) {
  for (const SparseRule rule :
       {SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad}) {
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      const auto trained = Collection();
      ASSERT_THAT(Shard(*trained), IsOk());
      for (int step = 0; step < 2; ++step) {
        ASSERT_THAT(Step(*trained, rule, group.rank(), step), IsOk());
      }
      const StateDict state = State(*trained).value();
      // Cut by the other dimension, and not at all.
      const auto other = Collection();
      ShardingPlan plan;
      for (int t = 0; t < kTables; ++t) {
        plan.plan.push_back(
            {absl::StrCat("embedding_bags.", NameOf(t), ".weight"),
             Chunks(t < kTables / 2 ? 1 : 0)});
      }
      ASSERT_THAT(ShardModule(*other, plan), IsOk());
      ASSERT_THAT(LoadState(*other, state).status(), IsOk());
      // First the other, whose accumulators are handles of the state's, and so
      // of the first one's, until an Update moves them.
      for (const auto& collection : {other, trained}) {
        for (int step = 2; step < 4; ++step) {
          ASSERT_THAT(Step(*collection, rule, group.rank(), step), IsOk());
        }
      }
      const std::vector<Tensor> expected = Wholes(*trained);
      const std::vector<Tensor> actual = Wholes(*other);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_THAT(actual[i], TensorBitwiseEq(expected[i])) << i;
      }
    });
  }
}

ValueMap Ones() {
  ValueMap gradients;
  for (int t = 0; t < kTables; ++t) {
    gradients[NameOf(t)] = Tensor::Ones({2, 8}).value();
  }
  return gradients;
}

TEST(EmbeddingTest, ACollectionIsUpdatedByOneCall) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto collection = Collection(BagMode::kMean);
    ASSERT_THAT(Shard(*collection), IsOk());
    const std::shared_ptr<Module> clone = collection->Clone();
    const auto& by_hand = static_cast<EmbeddingBagCollection&>(*clone);
    const std::vector<Tensor> ones(kTables, Tensor::Ones({2, 8}).value());
    const UpdateOptions options = {.rule = SparseRule::kAdagrad,
                                   .learning_rate = 0.5};
    for (int call = 0; call < 3; ++call) {
      const uint64_t before = Calls(group);
      ASSERT_THAT(collection->Update({Ids(group.rank())}, Ones(), options),
                  IsOk());
      if (call > 0) {
        EXPECT_EQ(Calls(group) - before, 2u);
      }
      ASSERT_THAT(Update(LookUpsOf(by_hand, group.rank()), ones, options),
                  IsOk());
    }
    const std::vector<Tensor> expected = Wholes(*clone);
    const std::vector<Tensor> actual = Wholes(*collection);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_THAT(actual[i], TensorBitwiseEq(expected[i])) << i;
    }
  });
}

TEST(EmbeddingTest, AWrongUpdateOfOneRankIsTheErrorOfAllAndChangesNothing) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto collection = Collection(BagMode::kMean);
    ASSERT_THAT(Shard(*collection), IsOk());
    const std::vector<Tensor> before = Wholes(*collection);
    ValueMap one_less = Ones();
    one_less.erase("t4");
    ValueMap one_more = Ones();
    one_more["x"] = one_more["t0"];
    ValueMap of_list = Ones();
    of_list["t7"] = ValueList{};
    ValueMap wide = Ones();
    wide["t7"] = Tensor::Ones({2, 9}).value();
    const std::vector<std::pair<Value, std::string>> wrong = {
        {Value(one_less), "expected a gradient for each table, got none for"},
        {Value(one_more), "got gradients for 11 tables, expected 10"},
        {Value(of_list), "the gradient of \"t7\" to be a Tensor, got list"},
        {Value(wide), "table 7: the gradient needs to be of float32"},
        {Value(), "a map with the gradient of each table, got none"}};
    for (const auto& [gradients, phrase] : wrong) {
      EXPECT_THAT(
          collection->Update({Ids(0)}, group.rank() == 2 ? gradients : Ones()),
          AllOf(StatusIs(kInvalid, phrase), HasErrorRank(2)));
    }
    EXPECT_THAT(collection->Update({}, Ones()),
                StatusIs(kInvalid, "expected one input"));
    collection->embedding_bags().Find("t5")->AddOutputHook(
        [](Value y) { return y; });
    EXPECT_THAT(
        collection->Update({Ids(0)}, Ones()),
        StatusIs(absl::StatusCode::kUnimplemented,
                 "\"t5\" is of class EmbeddingBag, or has output hooks"));
    const std::vector<Tensor> after = Wholes(*collection);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_THAT(after[i], TensorBitwiseEq(before[i])) << i;
    }
  });
}

TEST(EmbeddingTest, AWeightThatIsLoadedAsAHandleKeepsItsAccumulator) {
  const Tensor weight = Tensor::Ones({10, 8}).value();
  SetAccumulator(weight, Tensor::Ones({10, 1}).value());
  StateDict state;
  ASSERT_THAT(state.Set("weight", weight), IsOk());
  EmbeddingBag bag{Value()};
  ASSERT_THAT(LoadState(bag, state, {.strict = false}).status(), IsOk());
  EXPECT_FALSE(GetAccumulator(weight).is_none());
  EXPECT_FALSE(Get(bag, "accumulator")->is_none());
}

TEST(EmbeddingTest, AWeightThatIsSetKeepsItsAccumulatorOrTakesACopy) {
  const auto train = [](const Tensor& weight) {
    const auto ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
    ASSERT_THAT(Update({{weight, {ids}}}, {Tensor::Ones({2, 8}).value()},
                       {.rule = SparseRule::kAdagrad}),
                IsOk());
  };
  const auto sums = [](const Tensor& weight) {
    return GetAccumulator(weight).Get<Tensor>()->Clone().value();
  };
  const Tensor first = Tensor::Ones({10, 8}).value();
  const Tensor second = Tensor::Ones({10, 8}).value();
  train(first);
  train(second);
  train(second);
  const Tensor of_first = sums(first);
  const Tensor of_second = sums(second);
  EmbeddingBag bag(first);
  ASSERT_THAT(Set(bag, "weight", second), IsOk());
  EXPECT_THAT(sums(second), TensorBitwiseEq(of_second));
  // One without an accumulator begins with that of the weight before.
  const Tensor third = Tensor::Ones({10, 8}).value();
  ASSERT_THAT(Set(bag, "weight", third), IsOk());
  EXPECT_THAT(sums(third), TensorBitwiseEq(of_second));
  train(third);
  EXPECT_FALSE(sums(third).AllClose(of_second, 0, 0));
  EXPECT_THAT(sums(second), TensorBitwiseEq(of_second));
  // Unless it does not fit.
  const Tensor smaller = Tensor::Ones({9, 8}).value();
  ASSERT_THAT(Set(bag, "weight", smaller), IsOk());
  EXPECT_TRUE(GetAccumulator(smaller).is_none());
  ASSERT_THAT(Set(bag, "weight", second), IsOk());
  ASSERT_THAT(Set(bag, "accumulator", of_first), IsOk());
  EXPECT_THAT(sums(second), TensorBitwiseEq(of_first));
}

TEST(EmbeddingTest, AccumulatorsGoWithClonesAndIntoPlans) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto whole = Collection();
    // With the ids of one rank, so that all ranks have the same tables.
    ASSERT_THAT(Step(*whole, SparseRule::kRowWiseAdagrad, 0, 0), IsOk());
    const std::shared_ptr<Module> clone = whole->Clone();
    const auto& sharded = static_cast<EmbeddingBagCollection&>(*clone);
    ASSERT_THAT(Shard(*clone), IsOk());
    EXPECT_EQ(State(*whole)->Flatten().size(), size_t{2 * kTables});
    EXPECT_EQ(State(*clone)->Flatten().size(), size_t{2 * kTables});
    // Rank 0 has the ids, the others have none.
    std::vector<TableLookUp> lookups = LookUpsOf(sharded, 0);
    std::vector<Tensor> gradients(lookups.size(), Tensor::Ones({2, 8}).value());
    ASSERT_THAT(Update(LookUpsOf(*whole, 0), gradients,
                       {.rule = SparseRule::kRowWiseAdagrad}),
                IsOk());
    for (size_t t = 0; t < lookups.size() && group.rank() > 0; ++t) {
      lookups[t].bags.ids = Tensor::Zeros({0, 4}, {.dtype = kInt64}).value();
      gradients[t] = Tensor::Zeros({0, 8}).value();
    }
    ASSERT_THAT(
        Update(lookups, gradients, {.rule = SparseRule::kRowWiseAdagrad}),
        IsOk());
    const std::vector<Tensor> expected = Wholes(*whole);
    const std::vector<Tensor> actual = Wholes(*clone);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_THAT(actual[i], TensorBitwiseEq(expected[i])) << i;
    }
  });
}

TEST(EmbeddingTest, MakeAccumulatorsGivesEachTableOfATreeItsOwn) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    const auto tables = Collection();
    ASSERT_THAT(Shard(*tables), IsOk());
    EXPECT_EQ(State(*tables)->Flatten().size(), size_t{kTables});
    ASSERT_THAT(MakeAccumulators(*tables, SparseRule::kAdagrad), IsOk());
    EXPECT_EQ(State(*tables)->Flatten().size(), size_t{2 * kTables});
    EXPECT_THAT(MakeAccumulators(*tables, SparseRule::kRowWiseAdagrad),
                StatusIs(kInvalid,
                         "\"embedding_bags.t0.weight\": the "
                         "accumulator of a table for this rule"));
  });
  Embedding words{Value()};
  EXPECT_THAT(MakeAccumulators(words, SparseRule::kAdagrad),
              StatusIs(kInvalid,
                       "\"weight\": Expected Embedding.weight to be "
                       "a Tensor, but found none"));
}

}  // namespace
}  // namespace sherd
