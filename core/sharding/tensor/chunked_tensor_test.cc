#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Tensors in chunks of one dimension on four ranks, on every backend: the
// documented behaviour of creating, cutting, inspecting and gathering them.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class ChunkedTensorTest : public sherd::testing::PlacedFixture<
                              sherd::testing::PersistentDistributedTest> {
 protected:
  Tensor LocalTensor(const absl::StatusOr<ShardedTensor>& tensor) {
    return tensor.value().local_tensor().value();
  }

  // Rows of ten over four ranks: 3, 3, 3, 1.
  int64_t RowsOfTen() { return rank() == 3 ? 1 : 3; }

  TensorOptions Here(DType dtype = kFloat32) {
    return {.dtype = dtype, .device = DeviceOf(rank())};
  }
};

// Cutting a tensor

SHERD_DIST_TEST_F(ChunkedTensorTest, ATensorIsCutIntoRows) {
  const Tensor whole = PatternTensor({12, 12}, kFloat32);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardTensor(whole, Chunks(0)));
  ASSERT_THAT(tensor.local_shards(), SizeIs(1));
  EXPECT_THAT(
      tensor.local_tensor(),
      IsOkAndHolds(TensorBitwiseEq(Mine(whole.Narrow(0, 3 * rank(), 3)))));
  EXPECT_EQ(*tensor.spec(), *Chunks(0));
}

SHERD_DIST_TEST_F(ChunkedTensorTest, TheLastRankMayGetAnEmptyShard) {
  const Tensor whole = PatternTensor({9, 12}, kFloat32);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardTensor(whole, Chunks(0)));
  ASSERT_THAT(tensor.metadata().shards, SizeIs(4));
  for (const ShardMetadata& shard : tensor.metadata().shards) {
    EXPECT_LE(shard.offsets[0] + shard.sizes[0], 9);
  }
  ASSERT_THAT(tensor.local_shards(), SizeIs(1));
  if (rank() < 3) {
    EXPECT_THAT(
        tensor.local_tensor(),
        IsOkAndHolds(TensorBitwiseEq(Mine(whole.Narrow(0, 3 * rank(), 3)))));
  } else {
    EXPECT_THAT(tensor.local_tensor()->sizes(), ElementsAre(0, 12));
  }
}

SHERD_DIST_TEST_F(ChunkedTensorTest, WhatCannotBeCutIsRefusedOnEveryRank) {
  const Tensor whole = PatternTensor({12, 12}, kFloat32);
  EXPECT_THAT(ShardTensor(whole, Chunks(0), rank()),
              StatusIs(kInvalid, "does not match with src_rank"));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor transposed, whole.Transpose(0, 1));
  EXPECT_THAT(ShardTensor(transposed, Chunks(0)),
              StatusIs(kInvalid, "not a contiguous Tensor"));
  EXPECT_THAT(ShardTensor(whole, Chunks(0, {rank(), 1, 2, 3})),
              StatusIs(kInvalid, "does not match with sharding_spec"));
  // The reference cannot cut by an enumerable spec at all; here it is this one
  // that does not fit.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto too_small,
      EnumerableShardingSpec::Create(
          {{.offsets = {0, 0}, .sizes = {5, 5}, .placement = At(0)},
           {.offsets = {5, 0}, .sizes = {5, 5}, .placement = At(1)}}));
  EXPECT_THAT(ShardTensor(whole, too_small),
              StatusIs(kInvalid, "does not match tensor volume"));
  EXPECT_THAT(ShardTensor(whole, Chunks(0)), IsOk());
}

// The local tensor

SHERD_DIST_TEST_F(ChunkedTensorTest, TheLocalTensorIsTheOnlyShard) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Rand(Chunks(0), {24, 12}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor local, tensor.local_tensor());
  EXPECT_THAT(local.sizes(), ElementsAre(6, 12));
  EXPECT_EQ(local.data(), tensor.local_shards()[0].tensor.data());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor several,
      ShardedTensor::Rand(Chunks(0, {0, 0, 1, 1, 1, 2, 2, 2, 3, 3}), {24, 12}));
  EXPECT_THAT(several.local_tensor(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "Only single local shard is supported."));
}

// Creation

SHERD_DIST_TEST_F(ChunkedTensorTest, HasTheMetadataThatItWasMadeWith) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor plain,
                             ShardedTensor::Empty(Chunks(0), {10, 20}));
  EXPECT_THAT(plain.metadata().size, ElementsAre(10, 20));
  EXPECT_THAT(plain.size(), ElementsAre(10, 20));
  EXPECT_EQ(plain.dtype(), kFloat32);
  EXPECT_EQ(plain.layout(), Layout::kStrided);
  EXPECT_EQ(plain.device(), DeviceOf(rank()));
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_TRUE(plain.is_contiguous());
  EXPECT_FALSE(plain.is_pinned());
  EXPECT_FALSE(plain.is_meta());

  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor with_grad,
      ShardedTensor::Empty(Chunks(0), {10, 20}, {.requires_grad = true}));
  EXPECT_TRUE(with_grad.requires_grad());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor wide,
      ShardedTensor::Empty(Chunks(0), {10, 20}, {.dtype = kFloat64}));
  EXPECT_EQ(wide.dtype(), kFloat64);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto on_cpu,
      ChunkShardingSpec::Create(0, PlacementsOnRanks(world_size())));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor pinned,
      ShardedTensor::Empty(on_cpu, {10, 20}, {.pin_memory = true}));
  EXPECT_TRUE(pinned.is_pinned());
}

SHERD_DIST_TEST_F(ChunkedTensorTest, ADimensionCountsFromEitherEnd) {
  for (const int dim : {0, -2}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(dim), {10, 20}));
    ASSERT_THAT(tensor.local_shards(), SizeIs(1));
    EXPECT_THAT(tensor.local_shards()[0].tensor.sizes(),
                ElementsAre(RowsOfTen(), 20));
    EXPECT_EQ(tensor.local_shards()[0].tensor.device(), DeviceOf(rank()));
    ASSERT_THAT(tensor.metadata().shards, SizeIs(4));
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(tensor.metadata().shards[r],
                (ShardMetadata{{3 * r, 0}, {r == 3 ? 1 : 3, 20}, At(r)}));
    }
  }
}

SHERD_DIST_TEST_F(ChunkedTensorTest, ColumnsAreChunksOfTheLastDimension) {
  for (const int dim : {1, -1}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(dim), {10, 32}));
    EXPECT_THAT(tensor.local_shards()[0].tensor.sizes(), ElementsAre(10, 8));
    ASSERT_THAT(tensor.metadata().shards, SizeIs(4));
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(tensor.metadata().shards[r],
                (ShardMetadata{{0, 8 * r}, {10, 8}, At(r)}));
    }
  }
}

SHERD_DIST_TEST_F(ChunkedTensorTest, IsFilledAsAsked) {
  const auto spec = Chunks(0);
  EXPECT_THAT(LocalTensor(ShardedTensor::Ones(spec, {10, 20})),
              TensorEq(Tensor::Ones({RowsOfTen(), 20}, Here())));
  EXPECT_THAT(LocalTensor(ShardedTensor::Zeros(spec, {10, 20})),
              TensorEq(Tensor::Zeros({RowsOfTen(), 20}, Here())));
  EXPECT_THAT(
      LocalTensor(ShardedTensor::Full(spec, {10, 20}, 1234, {.dtype = kInt32})),
      TensorEq(Tensor::Full({RowsOfTen(), 20}, 1234, Here(kInt32))));
}

SHERD_DIST_TEST_F(ChunkedTensorTest, RandomNumbersAreThoseOfThisRanksSeed) {
  ManualSeed(1234);
  const auto uniform = Rand({2, 2}, Here(kFloat64));
  ManualSeed(1234);
  EXPECT_THAT(
      LocalTensor(ShardedTensor::Rand(Chunks(0), {8, 2}, {.dtype = kFloat64},
                                      {.stream = RandomStream::kPerRank})),
      TensorBitwiseEq(uniform));
  ManualSeed(1234);
  const auto normal = Randn({2, 2}, Here(kFloat64));
  ManualSeed(1234);
  EXPECT_THAT(
      LocalTensor(ShardedTensor::Randn(Chunks(0), {8, 2}, {.dtype = kFloat64},
                                       {.stream = RandomStream::kPerRank})),
      TensorBitwiseEq(normal));
}

// With the dtype of the source, which need not be repeated.
SHERD_DIST_TEST_F(ChunkedTensorTest, LikeFunctionsFillTheSameLayout) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor source,
      ShardedTensor::Rand(Chunks(0), {8, 8}, {.dtype = kFloat64}));
  const TensorOptions here = Here(kFloat64);
  EXPECT_THAT(LocalTensor(ZerosLike(source)),
              TensorEq(Tensor::Zeros({2, 8}, here)));
  EXPECT_THAT(LocalTensor(OnesLike(source)),
              TensorEq(Tensor::Ones({2, 8}, here)));
  EXPECT_THAT(LocalTensor(FullLike(source, 8.8)),
              TensorEq(Tensor::Full({2, 8}, 8.8, here)));
  EXPECT_THAT(LocalTensor(EmptyLike(source)).sizes(), ElementsAre(2, 8));
  for (const bool normal : {false, true}) {
    ManualSeed(1234);
    const auto expected = normal ? Randn({2, 8}, here) : Rand({2, 8}, here);
    ManualSeed(1234);
    const RandomOptions random = {.stream = RandomStream::kPerRank};
    EXPECT_THAT(LocalTensor(normal ? RandnLike(source, {}, random)
                                   : RandLike(source, {}, random)),
                TensorBitwiseEq(expected));
  }
}

// Ranks without shards, and with several

SHERD_DIST_TEST_F(ChunkedTensorTest, SomeRanksMayHaveNothing) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(Chunks(0, {2, 3}), {10, 20}));
  if (rank() < 2) {
    EXPECT_THAT(tensor.local_shards(), IsEmpty());
  } else {
    ASSERT_THAT(tensor.local_shards(), SizeIs(1));
    EXPECT_THAT(tensor.local_shards()[0].tensor.sizes(), ElementsAre(5, 20));
  }
  EXPECT_THAT(tensor.metadata().shards,
              ElementsAre(ShardMetadata{{0, 0}, {5, 20}, At(2)},
                          ShardMetadata{{5, 0}, {5, 20}, At(3)}));
}

SHERD_DIST_TEST_F(ChunkedTensorTest, PlacementsInASmallerGroupAreGlobalRanks) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().NewGroup({1, 2, 3}));
  if (rank() == 0) return;
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, {2, 3}), {10, 20}, {.group = part}));
  EXPECT_EQ(tensor.rank(), rank() - 1);
  if (rank() == 1) {
    EXPECT_THAT(tensor.local_shards(), IsEmpty());
  } else {
    ASSERT_THAT(tensor.local_shards(), SizeIs(1));
    EXPECT_THAT(tensor.local_shards()[0].tensor.sizes(), ElementsAre(5, 20));
  }
  EXPECT_THAT(tensor.metadata().shards,
              ElementsAre(ShardMetadata{{0, 0}, {5, 20}, At(2)},
                          ShardMetadata{{5, 0}, {5, 20}, At(3)}));
}

SHERD_DIST_TEST_F(ChunkedTensorTest, ARankMayHaveSeveralShards) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, {0, 1, 2, 3, 0, 1, 2, 3}), {16, 20}));
  ASSERT_THAT(tensor.local_shards(), SizeIs(2));
  for (const Shard& shard : tensor.local_shards()) {
    EXPECT_THAT(shard.tensor.sizes(), ElementsAre(2, 20));
    EXPECT_EQ(shard.tensor.device(), DeviceOf(rank()));
  }
  ASSERT_THAT(tensor.metadata().shards, SizeIs(8));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(tensor.metadata().shards[i],
              (ShardMetadata{{2 * i, 0}, {2, 20}, At(i % 4)}));
  }
}

SHERD_DIST_TEST_F(ChunkedTensorTest, FewerRowsThanRanksLeaveEmptyShards) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(Chunks(0), {2, 20}));
  ASSERT_THAT(tensor.local_shards(), SizeIs(1));
  EXPECT_THAT(tensor.local_shards()[0].tensor.sizes(),
              ElementsAre(rank() < 2 ? 1 : 0, 20));
  EXPECT_EQ(tensor.local_shards()[0].tensor.device(), DeviceOf(rank()));
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(tensor.metadata().shards[r],
              (ShardMetadata{{r, 0}, {r < 2 ? 1 : 0, 20}, At(r)}));
  }
}

SHERD_DIST_TEST_F(ChunkedTensorTest, SizesAreAskedByDimension) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor line,
                             ShardedTensor::Empty(Chunks(0), {10}));
  EXPECT_THAT(line.size(), ElementsAre(10));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(Chunks(0), {10, 20}));
  EXPECT_THAT(tensor.size(0), IsOkAndHolds(10));
  EXPECT_THAT(tensor.size(1), IsOkAndHolds(20));
  EXPECT_THAT(tensor.size(-1), IsOkAndHolds(20));
  EXPECT_EQ(tensor.dim(), 2);
  for (const int64_t dim : {-3, 2}) {
    EXPECT_THAT(tensor.size(dim), StatusIs(absl::StatusCode::kOutOfRange,
                                           "Dimension out of range"));
  }
}

// Gathering

SHERD_DIST_TEST_F(ChunkedTensorTest, IsGatheredFromOneShardPerRank) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Ones(Chunks(0), {10, 20}));
  Tensor out;
  if (rank() == 1) out = Tensor::Zeros({10, 20}, Here()).value();
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(1, out));
  EXPECT_EQ(whole.defined(), rank() == 1);
  if (rank() == 1) {
    EXPECT_THAT(out, TensorEq(Tensor::Ones({10, 20}, Here())));
  }
}

SHERD_DIST_TEST_F(ChunkedTensorTest, IsGatheredFromSeveralShardsOrNone) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, {0, 0, 1, 1, 2}), {10, 20}));
  FillPattern(tensor);
  Tensor out;
  if (rank() == 1) out = Tensor::Zeros({10, 20}, Here()).value();
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(1, out));
  EXPECT_EQ(whole.defined(), rank() == 1);
  if (rank() == 1) {
    EXPECT_TRUE(HasPattern(out, {0, 0}, {10, 20}));
  }
}

// Refused calls

SHERD_DIST_TEST_F(ChunkedTensorTest, AnInvalidLayoutIsRefused) {
  for (const int dim : {2, 3, 4, -3, -4, -5}) {
    EXPECT_THAT(ShardedTensor::Empty(Chunks(dim, {1}), {10, 20}),
                StatusIs(kInvalid, "Invalid sharding dim"));
  }
  EXPECT_THAT(ShardedTensor::Empty(Chunks(0, {5}), {10, 20}),
              StatusIs(kInvalid,
                       "Global rank 5 does not exist in input process group"));
  EXPECT_THAT(
      ShardedTensor::Empty(Chunks(0, {0}), {10, 20},
                           {.layout = Layout::kSparseCoo}),
      StatusIs(kInvalid, "Only torch.strided layout is currently supported"));
  EXPECT_THAT(
      ShardedTensor::Empty(Chunks(0, {0}), {10, 20},
                           {.memory_format = MemoryFormat::kChannelsLast}),
      StatusIs(
          kInvalid,
          "Only torch.contiguous_format memory_format is currently supported"));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto on_worker,
                             ChunkShardingSpec::Create(0, {"worker0/cpu"}));
  EXPECT_THAT(ShardedTensor::Empty(on_worker, {10, 20}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "RPC framework needs to be initialized"));
}

}  // namespace
}  // namespace sherd
