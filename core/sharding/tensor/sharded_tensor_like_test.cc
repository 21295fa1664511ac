#include "sherd/core/sharding/sharded_tensor_like.h"

#include <memory>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(LikeTest, TakesEverythingFromTheSource) {
  RunLocalRanks(4, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 3}));
    const auto spec =
        ChunkShardingSpec::Create(1, {"rank:3", "rank:1"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor source,
                               ShardedTensor::Full(spec, {2, 5}, 7,
                                                   {.dtype = kInt16,
                                                    .group = group,
                                                    .requires_grad = true,
                                                    .pin_memory = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor like, ZerosLike(source));
    EXPECT_EQ(&like.metadata(), &source.metadata());
    EXPECT_EQ(like.group(), group);
    EXPECT_EQ(*like.spec(), *spec);
    EXPECT_EQ(like.dtype(), kInt16);
    EXPECT_TRUE(like.requires_grad());
    EXPECT_TRUE(like.is_pinned());
    EXPECT_THAT(like.local_shards(), SizeIs(group->is_member() ? 1 : 0));
    if (!group->is_member()) return;
    const Dims size = source.local_shards()[0].metadata.sizes;
    const TensorOptions same = {.dtype = kInt16};
    EXPECT_THAT(like.local_tensor(),
                IsOkAndHolds(TensorEq(Tensor::Zeros(size, same))));
    EXPECT_THAT(OnesLike(source).value().local_tensor(),
                IsOkAndHolds(TensorEq(Tensor::Ones(size, same))));
    EXPECT_THAT(FullLike(source, -3).value().local_tensor(),
                IsOkAndHolds(TensorEq(Tensor::Full(size, -3, same))));
    EXPECT_EQ(EmptyLike(source).value().metadata(), source.metadata());
    // The source is another tensor.
    EXPECT_THAT(source.local_tensor(),
                IsOkAndHolds(TensorEq(Tensor::Full(size, 7, same))));
  });
}

TEST(LikeTest, OverridesTheGivenProperties) {
  RunLocalRanks(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor source,
        ShardedTensor::Ones(Chunks(0, 2), {6, 4}, {.requires_grad = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor typed,
        OnesLike(source, {.dtype = kFloat64, .requires_grad = false}));
    EXPECT_EQ(typed.dtype(), kFloat64);
    EXPECT_FALSE(typed.requires_grad());
    EXPECT_EQ(typed.metadata().shards, source.metadata().shards);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor laid_out,
        ZerosLike(source, {.pin_memory = true, .spec = Chunks(1, 3)}));
    EXPECT_EQ(*laid_out.spec(), *Chunks(1, 3));
    EXPECT_TRUE(laid_out.requires_grad());
    EXPECT_TRUE(laid_out.is_pinned());
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, all.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor elsewhere,
                               ZerosLike(source, {.group = pair}));
    EXPECT_EQ(elsewhere.group(), pair);
    if (pair->is_member()) {
      EXPECT_THAT(ZerosLike(source, {.group = pair, .spec = Chunks(0, 3)}),
                  StatusIs(kInvalid, "Global rank 2 does not exist"));
    }
    EXPECT_THAT(ZerosLike(source, {.spec = Chunks(2, 3)}),
                StatusIs(kInvalid, "Invalid sharding dim"));
  });
}

TEST(LikeTest, DrawsTheRandomNumbersOfItsStream) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor source,
        ShardedTensor::Zeros(Chunks(0, 2), {6, 4}, {.dtype = kFloat64}));
    const TensorOptions same = {.dtype = kFloat64};
    ManualSeed(5);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor own,
        RandLike(source, {}, {.stream = RandomStream::kPerRank}));
    ManualSeed(5);
    EXPECT_THAT(own.local_tensor(),
                IsOkAndHolds(TensorBitwiseEq(Rand({3, 4}, same))));
    ManualSeed(5);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor global, RandnLike(source));
    ManualSeed(5);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, Randn({6, 4}, same));
    EXPECT_THAT(
        global.local_tensor(),
        IsOkAndHolds(TensorBitwiseEq(whole.Narrow(0, 3 * group.rank(), 3))));
    EXPECT_THAT(RandLike(source, {.dtype = kInt8}),
                StatusIs(absl::StatusCode::kUnimplemented));
  });
}

TEST(LikeTest, NeedsNoGroupIfTheSourceHasNone) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Zeros({2, 3}));
  const ShardMetadata only = {{0, 0}, {2, 3}, Placement("rank:7")};
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor source,
      ShardedTensor::WithoutGroup({{tensor, only}},
                                  {.shards = {only}, .size = {2, 3}}));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor like,
                             OnesLike(source, {.dtype = kInt8}));
  EXPECT_EQ(like.group(), nullptr);
  EXPECT_THAT(like.local_tensor(),
              IsOkAndHolds(TensorEq(Tensor::Ones({2, 3}, {.dtype = kInt8}))));
  EXPECT_THAT(
      ZerosLike(ShardedTensor()),
      StatusIs(absl::StatusCode::kFailedPrecondition, "was not created"));
}

}  // namespace
}  // namespace sherd
