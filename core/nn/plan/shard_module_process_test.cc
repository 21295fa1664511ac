#include <csignal>
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
#include "sherd/core/nn/embedding.h"
#include "sherd/core/nn/linear.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/sharded_model.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Plans on four ranks, on every kind of group: what PyTorch's tests of
// shard_parameter, of the module hooks and of custom sharders expect.

namespace sherd {
namespace {

using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorNear;
using ::sherd::testing::TestModule;
using ::testing::ElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr MemberKind kParameter = MemberKind::kParameter;

const ShardedTensor& ShardedAt(const Value& value) {
  return *value.get_if<ShardedTensor>();
}

// Bags by name, called with the same ids: a collection as users write them.
class BagCollection : public Module {
 public:
  BagCollection(std::string type_name, std::shared_ptr<ModuleDict> bags)
      : type_name_(std::move(type_name)), bags_(std::move(bags)) {}
  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return type_name_; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override {
    ValueList outputs;
    for (const NamedModule& bag : bags_->modules()) {
      SHERD_ASSIGN_OR_RETURN(Value output, bag.module->Call(inputs));
      outputs.push_back(std::move(output));
    }
    return Value(std::move(outputs));
  }
  void Visit(ModuleVisitor& v) override { v.Child("embedding_bags", bags_); }

 private:
  const std::string type_name_;
  std::shared_ptr<ModuleDict> bags_;
};

class ShardModuleProcessTest : public sherd::testing::PlacedFixture<
                                   sherd::testing::PersistentDistributedTest> {
 protected:
  Tensor OnMine(const Tensor& tensor) { return Mine(tensor).value(); }

  // Ten bags of size [10, 8], as `embedding_bags.embedding_bag_I.weight`.
  std::shared_ptr<Module> Collection() {
    auto bags = std::make_shared<ModuleDict>();
    for (int i = 0; i < 10; ++i) {
      auto bag = std::make_shared<EmbeddingBag>(
          OnMine(PatternTensor({10, 8}, kFloat32, i)),
          BagOptions{.mode = BagMode::kSum});
      EXPECT_THAT(bags->Insert(absl::StrCat("embedding_bag_", i), bag), IsOk());
    }
    return std::make_shared<BagCollection>("CustomEmbeddingBagCollection",
                                           bags);
  }
};

// Shards the first bags by rows and the others by columns, one plan for each,
// and adopts them in a collection of its own.
class CustomSharder : public Sharder {
 public:
  CustomSharder(ShardingSpecPtr rows, ShardingSpecPtr columns, int split)
      : rows_(std::move(rows)), columns_(std::move(columns)), split_(split) {}

  absl::StatusOr<std::shared_ptr<Module>> Shard(
      const std::shared_ptr<Module>& ebc) override {
    if (ebc->type_name() != "CustomEmbeddingBagCollection") {
      return absl::FailedPreconditionError(
          "The custom sharder only supports CustomEmbeddingBagCollection");
    }
    auto bags = std::make_shared<ModuleDict>();
    SHERD_ASSIGN_OR_RETURN(Module * old, Find(*ebc, "embedding_bags"));
    const auto& from = dynamic_cast<const ModuleDict&>(*old);
    for (int i = 0; i < from.size(); ++i) {
      const std::string key = absl::StrCat("embedding_bag_", i);
      SHERD_RETURN_IF_ERROR(ShardModule(
          *ebc, {.plan = {{absl::StrCat("embedding_bags.", key, ".weight"),
                           i < split_ ? rows_ : columns_}}}));
      SHERD_RETURN_IF_ERROR(bags->Insert(key, from.Find(key)));
    }
    return std::make_shared<BagCollection>("CustomShardedEBC", bags);
  }

 private:
  const ShardingSpecPtr rows_;
  const ShardingSpecPtr columns_;
  const int split_;
};

SHERD_DIST_TEST_F(ShardModuleProcessTest, AParameterIsCutIntoRows) {
  auto fc = std::make_shared<Linear>(OnMine(PatternTensor({12, 12}, kFloat32)));
  ASSERT_THAT(ShardParameter(*fc, "weight", Chunks(0)), IsOk());
  const Value weight = *Get(*fc, "weight");
  ASSERT_EQ(weight.kind(), ValueKind::kShardedTensor);
  EXPECT_THAT(ShardedAt(weight).local_tensor()->sizes(), ElementsAre(3, 12));
  EXPECT_EQ(ShardedAt(weight).device(), DeviceOf(rank()));
  EXPECT_TRUE(HasPattern(ShardedAt(weight)));
}

SHERD_DIST_TEST_F(ShardModuleProcessTest, AParameterThatCannotBeCutIsRefused) {
  auto fc = std::make_shared<TestModule>("Linear");
  const Tensor whole = OnMine(PatternTensor({12, 12}, kFloat32));
  fc->members = {{kParameter, "weight", whole},
                 {kParameter, "bias", ValueList{}}};
  EXPECT_THAT(ShardParameter(*fc, "weight", Chunks(0), {.src_rank = rank()}),
              StatusIs(kInvalid, "does not match with src_rank"));
  EXPECT_THAT(ShardParameter(*fc, "foo", Chunks(0)),
              StatusIs(absl::StatusCode::kNotFound, "has no attribute"));
  EXPECT_THAT(ShardParameter(*fc, "bias", Chunks(0)),
              StatusIs(kInvalid,
                       "Expected Linear.bias to be a Tensor, but found list"));
  ASSERT_THAT(Set(*fc, "bias", whole.Transpose(0, 1).value()), IsOk());
  EXPECT_THAT(ShardParameter(*fc, "bias", Chunks(0)),
              StatusIs(kInvalid, "not a contiguous Tensor"));
  EXPECT_THAT(ShardParameter(*fc, "weight", Chunks(0, {rank(), 1, 2, 3})),
              StatusIs(kInvalid, "does not match with sharding_spec"));
  // The reference cannot shard by an enumerable spec at all; here it is this
  // one that does not fit.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto too_small,
      EnumerableShardingSpec::Create(
          {{.offsets = {0, 0}, .sizes = {5, 5}, .placement = At(0)},
           {.offsets = {5, 0}, .sizes = {5, 5}, .placement = At(1)}}));
  EXPECT_THAT(ShardParameter(*fc, "weight", too_small),
              StatusIs(kInvalid, "does not match tensor volume"));
  EXPECT_EQ(Get(*fc, "weight")->get_if<Tensor>()->data(), whole.data());
  EXPECT_THAT(ShardParameter(*fc, "weight", Chunks(0)), IsOk());
}

SHERD_DIST_TEST_F(ShardModuleProcessTest, OutputsAreResharded) {
  const auto specs = ChunkSpecs({0, 1}, /*seed=*/5);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Rand(specs[0], {24, 12}));
  TestModule module;
  module.members = {{MemberKind::kAttribute, "st", tensor}};
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor expected,
                             tensor.Resharded(specs[1]));
  ASSERT_THAT(ReshardOutput(module, specs[1]), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Value output, module.Call({}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor local,
                             ShardedAt(output).local_tensor());
  EXPECT_THAT(local, TensorBitwiseEq(expected.local_tensor()));
  EXPECT_THAT(local.sizes(), ElementsAre(24, 3));
}

SHERD_DIST_TEST_F(ShardModuleProcessTest, OutputsAreLocalShards) {
  const auto specs = ChunkSpecs({0}, /*seed=*/5);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Rand(specs[0], {23, 15}));
  TestModule module;
  module.members = {{MemberKind::kAttribute, "st", tensor}};
  CollectLocalShard(module);
  SHERD_ASSERT_OK_AND_ASSIGN(const Value output, module.Call({}));
  ASSERT_EQ(output.kind(), ValueKind::kTensor);
  EXPECT_THAT(*output.get_if<Tensor>(), TensorBitwiseEq(tensor.local_tensor()));
}

SHERD_DIST_TEST_F(ShardModuleProcessTest, ACustomSharderReplacesItsModule) {
  auto model = std::make_shared<TestModule>("MyModule");
  model->children = {{"ebc", Collection()}};
  const std::shared_ptr<Module> local = model->Clone();
  ASSERT_NE(local, nullptr);
  const auto sharder = std::make_shared<CustomSharder>(Chunks(0), Chunks(1), 2);
  ASSERT_THAT(ShardModule(*model, {.plan = {{"ebc", sharder}}}), IsOk());
  EXPECT_EQ((*Find(*model, "ebc"))->type_name(), "CustomShardedEBC");
  for (int i = 0; i < 10; ++i) {
    const Value weight =
        *Get(*model,
             absl::StrCat("ebc.embedding_bags.embedding_bag_", i, ".weight"));
    ASSERT_EQ(weight.kind(), ValueKind::kShardedTensor);
    EXPECT_EQ(*ShardedAt(weight).spec(), *Chunks(i < 2 ? 0 : 1));
    EXPECT_TRUE(HasPattern(ShardedAt(weight), i));
  }

  // It computes what the local model does.
  std::vector<Value> outputs;
  for (const std::shared_ptr<Module>& m :
       {local, std::shared_ptr<Module>(model)}) {
    ASSERT_THAT(To(*m, Device()), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(Module * ebc, Find(*m, "ebc"));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor ids,
        Tensor::FromSpan<int64_t>({0, 1, 2, 3, 4, 5, 6, 7}, {2, 4}));
    SHERD_ASSERT_OK_AND_ASSIGN(Value output, ebc->Call({ids}));
    outputs.push_back(std::move(output));
  }
  const auto& expected = *outputs[0].get_if<ValueList>();
  const auto& found = *outputs[1].get_if<ValueList>();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_THAT(*found[i].get_if<Tensor>(),
                TensorNear(*expected[i].get_if<Tensor>()));
  }
}

SHERD_DIST_TEST_F(ShardModuleProcessTest,
                  AFailureOfTheSeventhOfTenLeavesTheModuleAsItWas) {
  for (const int failed_rank : {-1, 2}) {
    auto model = std::make_shared<TestModule>("MyModule");
    model->children = {{"ebc", Collection()}};
    if (failed_rank < 0 || failed_rank == rank()) {
      const Tensor wide = OnMine(PatternTensor({8, 10}, kFloat32));
      ASSERT_THAT(Set(*model, "ebc.embedding_bags.embedding_bag_6.weight",
                      wide.Transpose(0, 1).value()),
                  IsOk());
    }
    const auto contents = [&] {
      std::vector<const void*> held = {*Find(*model, "ebc")};
      const auto parameters = NamedParameters(*model);
      for (const NamedValue& parameter : *parameters) {
        const auto* tensor = parameter.value.get_if<Tensor>();
        held.push_back(tensor == nullptr ? nullptr : tensor->data());
      }
      return held;
    };
    const std::vector<const void*> before = contents();
    EXPECT_THAT(
        ShardModule(*model, {.plan = {{"ebc", std::make_shared<CustomSharder>(
                                                  Chunks(0), Chunks(1), 2)}}}),
        StatusIs(kInvalid, "not a contiguous Tensor"));
    EXPECT_EQ(contents(), before);
    // The group is as it was, too.
    EXPECT_THAT(
        ShardParameter(*model, "ebc.embedding_bags.embedding_bag_0.weight",
                       Chunks(0)),
        IsOk());
  }
}

SHERD_DIST_TEST_F(ShardModuleProcessTest, ACustomSharderIsRefused) {
  const auto sharder = std::make_shared<CustomSharder>(Chunks(0), Chunks(1), 2);
  const auto model = Collection();
  EXPECT_THAT(ShardModule(*model, {.plan = {{"", sharder}}}),
              StatusIs(kInvalid, "path must not be empty for custom sharder!"));
  EXPECT_THAT(
      ShardModule(*model, {.plan = {{"embedding_bags.embedding_bag_0.weight",
                                     Chunks(0, {0, 1})},
                                    {"embedding_bags", sharder}}}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "should not conflict with the submodule tree"));
  EXPECT_THAT(ShardModule(*model, {.plan = {{"embedding_bags", sharder}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "only supports CustomEmbeddingBagCollection"));
  const auto all = NamedParameters(*model);
  for (const NamedValue& parameter : *all) {
    EXPECT_EQ(parameter.value.kind(), ValueKind::kTensor);
  }
}

SHERD_DIST_TEST_F(ShardModuleProcessTest, AModelMovesToItsDeviceAndBack) {
  auto model = Collection();
  ASSERT_THAT(ShardParameter(*model, "embedding_bags.embedding_bag_3.weight",
                             Chunks(0)),
              IsOk());
  for (const Device& device : {Device(), DeviceOf(rank())}) {
    ASSERT_THAT(To(*model, device), IsOk());
    const Value sharded = *Get(*model, "embedding_bags.embedding_bag_3.weight");
    EXPECT_EQ(ShardedAt(sharded).device(), device);
    EXPECT_TRUE(HasPattern(ShardedAt(sharded), 3));
    const Value plain = *Get(*model, "embedding_bags.embedding_bag_4.weight");
    EXPECT_EQ(plain.get_if<Tensor>()->device(), device);
  }
}

class DyingRankTest
    : public sherd::testing::PlacedFixture<sherd::testing::DistributedTest> {};

class DyingSharder : public Sharder {
 public:
  explicit DyingSharder(bool dies) : dies_(dies) {}
  absl::StatusOr<std::shared_ptr<Module>> Shard(
      const std::shared_ptr<Module>& module) override {
    if (dies_) ::raise(SIGKILL);
    SHERD_RETURN_IF_ERROR(ShardParameter(
        *module, "weight",
        ChunkShardingSpec::Create(0, PlacementsOnRanks(4)).value()));
    return module;
  }

 private:
  const bool dies_;
};

SHERD_DIST_TEST_F(DyingRankTest, TheOthersGetAnErrorAndKeepTheirModule) {
  ExpectRankDies(2, SIGKILL);
  auto model = std::make_shared<TestModule>();
  std::vector<Tensor> weights;
  for (const char* name : {"a", "b"}) {
    weights.push_back(PatternTensor({12, 12}, kFloat32));
    auto child = std::make_shared<TestModule>();
    child->members = {{kParameter, "weight", weights.back()}};
    model->children.push_back({name, child});
  }
  const auto status = ShardModule(
      *model,
      {.plan = {{"a.weight",
                 ChunkShardingSpec::Create(0, PlacementsOnRanks(4)).value()},
                {"b", std::make_shared<DyingSharder>(rank() == 2)}}});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "rank 2"));
  for (size_t i = 0; i < 2; ++i) {
    const Value value = *Get(*model, i == 0 ? "a.weight" : "b.weight");
    ASSERT_EQ(value.kind(), ValueKind::kTensor);
    EXPECT_EQ(value.get_if<Tensor>()->data(), weights[i].data());
  }
}

}  // namespace
}  // namespace sherd
