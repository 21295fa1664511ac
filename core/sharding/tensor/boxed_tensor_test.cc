#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Tensors in boxes that are listed one by one, on four ranks and on every
// backend: the documented behaviour of creating and gathering them.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BoxedTensorTest : public sherd::testing::PlacedFixture<
                            sherd::testing::PersistentDistributedTest> {
 protected:
  ShardingSpecPtr Boxes(std::vector<ShardMetadata> shards) {
    return EnumerableShardingSpec::Create(std::move(shards)).value();
  }

  // Two by two quarters of a tensor of 10 x 10.
  ShardingSpecPtr Quarters() {
    return Boxes({{{0, 0}, {5, 5}, At(0)},
                  {{0, 5}, {5, 5}, At(1)},
                  {{5, 0}, {5, 5}, At(2)},
                  {{5, 5}, {5, 5}, At(3)}});
  }

  TensorOptions Here(DType dtype = kFloat32) {
    return {.dtype = dtype, .device = DeviceOf(rank())};
  }
};

SHERD_DIST_TEST_F(BoxedTensorTest, HasTheMetadataThatItWasMadeWith) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor plain,
                             ShardedTensor::Empty(Quarters(), {10, 10}));
  EXPECT_THAT(plain.metadata().size, ElementsAre(10, 10));
  EXPECT_EQ(plain.dtype(), kFloat32);
  EXPECT_EQ(plain.layout(), Layout::kStrided);
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_TRUE(plain.is_contiguous());
  EXPECT_FALSE(plain.is_pinned());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor other,
      ShardedTensor::Empty(Quarters(), {10, 10},
                           {.dtype = kFloat64, .requires_grad = true}));
  EXPECT_EQ(other.dtype(), kFloat64);
  EXPECT_TRUE(other.requires_grad());
}

SHERD_DIST_TEST_F(BoxedTensorTest, EveryRankHoldsItsQuarter) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(Quarters(), {10, 10}));
  ASSERT_THAT(tensor.local_shards(), SizeIs(1));
  const Shard& shard = tensor.local_shards()[0];
  EXPECT_THAT(shard.tensor.sizes(), ElementsAre(5, 5));
  EXPECT_EQ(shard.tensor.device(), DeviceOf(rank()));
  EXPECT_THAT(shard.metadata.offsets,
              ElementsAre(rank() / 2 * 5, rank() % 2 * 5));
  ASSERT_THAT(tensor.metadata().shards, SizeIs(4));
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(tensor.metadata().shards[r],
              (ShardMetadata{{r / 2 * 5, r % 2 * 5}, {5, 5}, At(r)}));
  }
}

SHERD_DIST_TEST_F(BoxedTensorTest, IsFilledAsAsked) {
  const auto local = [](const absl::StatusOr<ShardedTensor>& tensor) {
    return tensor.value().local_tensor().value();
  };
  EXPECT_THAT(local(ShardedTensor::Ones(Quarters(), {10, 10})),
              TensorEq(Tensor::Ones({5, 5}, Here())));
  EXPECT_THAT(
      local(ShardedTensor::Full(Quarters(), {10, 10}, 7, {.dtype = kInt16})),
      TensorEq(Tensor::Full({5, 5}, 7, Here(kInt16))));
  ManualSeed(1234);
  const auto expected = Rand({5, 5}, Here());
  ManualSeed(1234);
  EXPECT_THAT(local(ShardedTensor::Rand(Quarters(), {10, 10}, {},
                                        {.stream = RandomStream::kPerRank})),
              TensorBitwiseEq(expected));
}

SHERD_DIST_TEST_F(BoxedTensorTest, BoxesMayDifferInSize) {
  const ShardingSpecPtr spec = Boxes({{{0, 0}, {2, 4}, At(0)},
                                      {{0, 4}, {4, 2}, At(1)},
                                      {{2, 0}, {4, 4}, At(2)},
                                      {{4, 4}, {2, 2}, At(3)}});
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::Ones(spec, {6, 6}));
  FillPattern(tensor);
  const Dims sizes[] = {{2, 4}, {4, 2}, {4, 4}, {2, 2}};
  EXPECT_EQ(tensor.local_shards()[0].tensor.sizes(),
            absl::MakeConstSpan(sizes[rank()]));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(1));
  ASSERT_EQ(whole.defined(), rank() == 1);
  if (whole.defined()) {
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {6, 6}));
  }
}

SHERD_DIST_TEST_F(BoxedTensorTest, SomeRanksMayHaveNothingOrSeveral) {
  const ShardingSpecPtr spec = Boxes({{{0, 0}, {5, 5}, At(2)},
                                      {{0, 5}, {5, 5}, At(2)},
                                      {{5, 0}, {5, 10}, At(3)}});
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(spec, {10, 10}));
  const size_t shards[] = {0, 0, 2, 1};
  EXPECT_THAT(tensor.local_shards(), SizeIs(shards[rank()]));
  EXPECT_THAT(tensor.metadata().shards, SizeIs(3));
}

SHERD_DIST_TEST_F(BoxedTensorTest, PlacementsInASmallerGroupAreGlobalRanks) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().NewGroup({1, 2, 3}));
  if (rank() == 0) return;
  const ShardingSpecPtr spec =
      Boxes({{{0, 0}, {5, 5}, At(1)}, {{5, 0}, {5, 5}, At(3)}});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(spec, {10, 5}, {.group = part}));
  if (rank() == 2) {
    EXPECT_THAT(tensor.local_shards(), IsEmpty());
  } else {
    EXPECT_THAT(tensor.local_shards(), SizeIs(1));
  }
}

// The reference cannot cut a tensor into listed boxes.
SHERD_DIST_TEST_F(BoxedTensorTest, ATensorIsCutIntoBoxes) {
  const Tensor whole = PatternTensor({10, 10}, kFloat32);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardTensor(whole, Quarters(), 2));
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(BoxedTensorTest, AGridIsTheSameInFewerWords) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr grid,
                             MeshShardingSpec::Grid({2, 2}, OnAllRanks()));
  const Tensor whole = PatternTensor({10, 10}, kFloat32);
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor, ShardTensor(whole, grid));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor boxes,
                             ShardTensor(whole, Quarters()));
  EXPECT_EQ(tensor.metadata(), boxes.metadata());
  ReshardStats stats;
  ASSERT_THAT(tensor.Reshard(Quarters(), {.stats = &stats}), IsOk());
  EXPECT_EQ(stats.bytes_sent + stats.bytes_received + stats.bytes_local, 0);
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(BoxedTensorTest, BoxesThatDoNotFitAreRefused) {
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ShardedTensor::Empty(Quarters(), {10, 11}),
              StatusIs(kInvalid, "does not match tensor volume"));
  EXPECT_THAT(ShardedTensor::Empty(Quarters(), {9, 11}),
              StatusIs(kInvalid, "exceeds tensor dim"));
  EXPECT_THAT(ShardedTensor::Empty(Quarters(), {100}),
              StatusIs(kInvalid, "Rank of tensor is 1, but shards rank is 2"));
}

}  // namespace
}  // namespace sherd
