#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;

Tensor Floats(const std::vector<float>& values, const Dims& sizes) {
  return Tensor::FromSpan(absl::MakeConstSpan(values), sizes).value();
}

TEST(SgdStepTest, SubtractsGradientsAndDecay) {
  const Tensor weight = Floats({1, 2, 3, 4}, {2, 2});
  const Tensor frozen = Floats({5}, {1});
  ASSERT_THAT(
      SgdStep({weight, frozen}, {Floats({2, 0, -4, 8}, {2, 2}), Value()},
              {.learning_rate = 0.5}),
      IsOk());
  EXPECT_THAT(weight, TensorBitwiseEq(Floats({0, 2, 5, 0}, {2, 2})));
  EXPECT_THAT(frozen, TensorBitwiseEq(Floats({5}, {1})));
  // w -= 0.5 * (1 + 0.25 * w)
  ASSERT_THAT(SgdStep({weight}, {Tensor::Ones({2, 2}).value()},
                      {.learning_rate = 0.5, .weight_decay = 0.25}),
              IsOk());
  EXPECT_THAT(weight,
              TensorBitwiseEq(Floats({-0.5F, 1.25F, 3.875F, -0.5F}, {2, 2})));
}

TEST(SgdStepTest, ShardsAreUpdatedAsTheWhole) {
  RunLocalRanks(3, [](ProcessGroup&) {
    const auto spec =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(3)).value();
    const Tensor whole = Floats({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2});
    const Tensor gradient = Floats({3, 1, 4, 1, 5, 9, 2, 6}, {4, 2});
    const ShardedTensor weight = ShardsOf(whole, spec);
    const SgdOptions options = {.learning_rate = 0.3, .weight_decay = 0.1};
    ASSERT_THAT(SgdStep({weight}, {ShardsOf(gradient, spec)}, options), IsOk());
    ASSERT_THAT(SgdStep({whole}, {gradient}, options), IsOk());
    EXPECT_THAT(weight.AllGather().value(), TensorBitwiseEq(whole));
  });
}

TEST(SgdStepTest, RejectionsChangeNothing) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value();
    const auto columns =
        ChunkShardingSpec::Create(1, PlacementsOnRanks(2)).value();
    const Tensor first = Tensor::Ones({2}).value();
    const Tensor ones = Tensor::Ones({4, 2}).value();
    const Value sharded = ShardedTensor::Ones(rows, {4, 2}).value();
    const Tensor integers = Tensor::Ones({2}, {.dtype = kInt64}).value();
    const Tensor on_meta =
        Tensor::Empty({2}, {.device = {DeviceType::kMeta}}).value();
    const auto storage =
        Storage::BorrowReadOnly(first.data(), 8, first.storage()).value();
    const Tensor fixed = Tensor::FromStorage(storage, 0, {2}, kFloat32).value();
    const auto one = Storage::Allocate(4).value();
    const Tensor repeated =
        Tensor::FromStorageStrided(one, 0, {2}, {0}, kFloat32).value();
    const ShardMetadata box = {
        .offsets = {0}, .sizes = {2}, .placement = "rank:0/cpu"};
    const Value repeated_shard =
        ShardedTensor::WithoutGroup({{repeated, box}},
                                    {.shards = {box}, .size = {2}})
            .value();
    constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
    constexpr auto kState = absl::StatusCode::kFailedPrecondition;
    const struct {
      Value parameter;
      Value gradient;
      absl::StatusCode code;
      std::string phrase;
    } rejections[] = {
        {first, ones, kInvalid, "parameter 1: expected a floating-point"},
        {first, first.To(kFloat64).value(), kInvalid, "kind, size, dtype"},
        {integers, integers, kInvalid, "a floating-point parameter"},
        {ones, sharded, kInvalid, "kind, size, dtype and layout"},
        {sharded, ones, kInvalid, "kind, size, dtype and layout"},
        {sharded, ShardedTensor::Ones(columns, {4, 2}).value(), kInvalid,
         "kind, size, dtype and layout"},
        {ValueList{first}, first, kInvalid, "Tensor or ShardedTensor as a"},
        {Value(), first, kInvalid, "Tensor or ShardedTensor as a parameter"},
        {on_meta, on_meta, kState, "in host memory, got meta"},
        {fixed, first, kState, "may not be written to"},
        {repeated, first, kInvalid, "parameter 1: elements of the parameter"},
        {repeated_shard, repeated_shard, kInvalid, "coincide"},
    };
    for (const auto& rejection : rejections) {
      EXPECT_THAT(SgdStep({first, rejection.parameter},
                          {Tensor::Ones({2}).value(), rejection.gradient}),
                  StatusIs(rejection.code, rejection.phrase))
          << rejection.phrase;
      EXPECT_THAT(first, TensorBitwiseEq(Tensor::Ones({2}).value()));
    }
    EXPECT_THAT(SgdStep({first}, {}), StatusIs(kInvalid, "each of 1"));
    EXPECT_THAT(SgdStep({}, {}, {.learning_rate = -1}),
                StatusIs(kInvalid, "finite learning rate"));
  });
}

}  // namespace
}  // namespace sherd
