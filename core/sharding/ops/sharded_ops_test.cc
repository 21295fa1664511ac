#include "sherd/core/sharding/sharded_ops.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

// Every third element another whole number, none of them 0.
Tensor Whole(DType dtype, int start) {
  Tensor tensor = Tensor::Empty({7, 5}, {.dtype = kFloat64}).value();
  for (int i = 0; i < 35; ++i) {
    tensor.mutable_data_as<double>()[i] = (i + start) % 9 + 1;
  }
  return tensor.To(dtype).value();
}

// The shards of `whole`, on every rank from its own copy.
ShardedTensor Sharded(const ShardingSpecPtr& spec, const Tensor& whole) {
  ShardedTensor tensor =
      ShardedTensor::Empty(spec, whole.sizes(), {.dtype = whole.dtype()})
          .value();
  for (const Shard& shard : tensor.local_shards()) {
    Tensor to = shard.tensor;
    EXPECT_THAT(to.CopyFrom(*whole.Narrow(shard.metadata.offsets,
                                          shard.metadata.sizes)),
                IsOk());
  }
  return tensor;
}

void ExpectShardsOf(const absl::StatusOr<ShardedTensor>& tensor,
                    const absl::StatusOr<Tensor>& whole) {
  ASSERT_THAT(tensor, IsOk());
  ASSERT_THAT(whole, IsOk());
  for (const Shard& shard : tensor->local_shards()) {
    EXPECT_THAT(shard.tensor,
                TensorBitwiseEq(whole->Narrow(shard.metadata.offsets,
                                              shard.metadata.sizes)));
  }
}

// Rows, with empty ones and several per rank; columns; a mesh with replicas;
// everything on one rank.
std::vector<ShardingSpecPtr> Layouts(int ranks) {
  std::vector<Placement> several = PlacementsOnRanks(ranks);
  for (int i = 0; i < 8; ++i) several.push_back(Placement::OnRank(i % ranks));
  return {Chunks(0, ranks), Chunks(1, ranks),
          ChunkShardingSpec::Create(0, several).value(),
          ChunkShardingSpec::Create(1, {"rank:0/cpu"}).value(),
          MeshShardingSpec::FromPlacements(
              {.shape = {ranks}, .placements = PlacementsOnRanks(ranks)},
              {MeshPlacement::Replicate()})
              .value()};
}

TEST(ShardedOpsTest, EqualsPlainTensorsInEveryLayout) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (const ShardingSpecPtr& spec : Layouts(ranks)) {
        for (const DType dtype : {kFloat32, kBFloat16, kInt16, kComplex64}) {
          const Tensor x = Whole(dtype, 1);
          const Tensor y = Whole(dtype, 5);
          const ShardedTensor a = Sharded(spec, x);
          const ShardedTensor b = Sharded(spec, y);
          ExpectShardsOf(Apply(UnaryOp::kNeg, a), Apply(UnaryOp::kNeg, x));
          for (const BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub,
                                    BinaryOp::kMul, BinaryOp::kDiv}) {
            ExpectShardsOf(Apply(op, a, b), Apply(op, x, y));
            ExpectShardsOf(Apply(op, a, 3), Apply(op, x, 3));
            ExpectShardsOf(Apply(op, 3, a), Apply(op, 3, x));
            ShardedTensor c = Sharded(spec, x);
            EXPECT_THAT(ApplyInPlace(op, c, b), IsOk());
            ExpectShardsOf(c, Apply(op, x, y));
            EXPECT_THAT(ApplyInPlace(op, c, 2), IsOk());
            ExpectShardsOf(c, Apply(op, *Apply(op, x, y), 2));
          }
          // Operands stay as they are; results are like them.
          ExpectShardsOf(a, x);
          SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor sum,
                                     Apply(BinaryOp::kAdd, a, a));
          EXPECT_EQ(sum.metadata(), a.metadata());
          EXPECT_EQ(sum.group().get(), &group);
        }
      }
    });
  }
}

TEST(ShardedOpsTest, InPlaceIsSeenThroughEveryHandle) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const Tensor x = Whole(kFloat64, 0);
    ShardedTensor a = Sharded(Chunks(0, 2), x);
    const ShardedTensor same = a;
    ASSERT_THAT(ApplyInPlace(UnaryOp::kSquare, a), IsOk());
    ExpectShardsOf(same, Apply(UnaryOp::kSquare, x));
    // A view shares them too, and computes no more than it sees.
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor view, a.Narrow(1, 1, 2));
    ASSERT_THAT(ApplyInPlace(BinaryOp::kMul, view, 0), IsOk());
    Tensor expected = *Apply(UnaryOp::kSquare, x);
    ASSERT_THAT(expected.Narrow(1, 1, 2)->Fill(0), IsOk());
    ExpectShardsOf(same, expected);
  });
}

TEST(ShardedOpsTest, AnOverlappingViewIsReadAsItWasBefore) {
  RunLocalRanks(2, [](ProcessGroup&) {
    std::vector<Placement> owners;
    for (int i = 0; i < 7; ++i) owners.push_back(Placement::OnRank(i % 2));
    const auto spec = ChunkShardingSpec::Create(0, owners).value();
    const Tensor x = Whole(kFloat64, 0);
    const ShardedTensor tensor = Sharded(spec, x);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor low, tensor.Narrow(0, 2, 5));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor high,
                               tensor.Narrow(0, 0, 5));
    ASSERT_THAT(ApplyInPlace(BinaryOp::kAdd, low, high), IsOk());
    ExpectShardsOf(
        low, Apply(BinaryOp::kAdd, *x.Narrow(0, 2, 5), *x.Narrow(0, 0, 5)));
  });
}

TEST(ShardedOpsTest, ShardsThatShareMemoryAreNotWritten) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const Tensor row = Tensor::Full({1, 3}, 2.0f).value();
    std::vector<Shard> shards;
    for (const int64_t at : {2 * group.rank(), 2 * group.rank() + 1}) {
      shards.push_back(
          Shard::FromTensorAndOffsets(row, {at, 0}, group.rank()).value());
    }
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::FromLocalShards(shards, {4, 3}));
    for (const absl::Status& status :
         {ApplyInPlace(UnaryOp::kSquare, tensor),
          ApplyInPlace(BinaryOp::kAdd, tensor, 1),
          ApplyInPlace(BinaryOp::kAdd, tensor, tensor)}) {
      EXPECT_THAT(status, StatusIs(kInvalid, "share memory"));
    }
    EXPECT_THAT(row, TensorBitwiseEq(Tensor::Full({1, 3}, 2.0f)));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor sum,
                               Apply(BinaryOp::kAdd, tensor, 1));
    ExpectShardsOf(sum, Tensor::Full({4, 3}, 3.0f));
  });
}

TEST(ShardedOpsTest, RefusesOperandsThatDoNotGoTogether) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const std::vector<int> both = {0, 1};
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> other,
                               group.NewGroup(both));
    const ShardedTensor a = Sharded(Chunks(0, 2), Whole(kFloat32, 0));
    const ShardedTensor columns = Sharded(Chunks(1, 2), Whole(kFloat32, 0));
    const ShardedTensor doubles = Sharded(Chunks(0, 2), Whole(kFloat64, 0));
    const auto zeros = [&](const Dims& size, const ShardedTensorOptions& o) {
      return ShardedTensor::Zeros(Chunks(0, 2), size, o).value();
    };
    const struct {
      ShardedTensor b;
      absl::StatusCode code;
      const char* phrase;
    } cases[] = {
        {columns, kInvalid, "Reshard one"},
        {doubles, kInvalid, "float32 and float64"},
        {zeros({7, 4}, {}), kInvalid, "[7, 5] and [7, 4]"},
        {zeros({7, 5}, {.group = other}), kState,
         "All distributed tensors should use the same ProcessGroup"},
        {ShardedTensor(), kState, "not created"},
    };
    for (const auto& c : cases) {
      ShardedTensor target = Sharded(Chunks(0, 2), Whole(kFloat32, 0));
      EXPECT_THAT(Apply(BinaryOp::kAdd, a, c.b), StatusIs(c.code, c.phrase));
      EXPECT_THAT(ApplyInPlace(BinaryOp::kAdd, target, c.b),
                  StatusIs(c.code, c.phrase));
      ExpectShardsOf(target, Whole(kFloat32, 0));
    }
    EXPECT_THAT(Apply(UnaryOp::kNeg, ShardedTensor()),
                StatusIs(kState, "neg: the ShardedTensor was not created"));
  });
}

TEST(ShardedOpsTest, APlainOperandIsTheErrorOfTheReference) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const Tensor plain = Whole(kFloat32, 0);
    ShardedTensor a = Sharded(Chunks(0, 2), plain);
    for (const absl::Status& status :
         {Apply(BinaryOp::kAdd, a, plain).status(),
          Apply(BinaryOp::kAdd, plain, a).status(),
          ApplyInPlace(BinaryOp::kAdd, a, plain)}) {
      EXPECT_EQ(status.code(), kState);
      EXPECT_THAT(std::string(status.message()),
                  EndsWith("not supported for ShardedTensor!"));
    }
  });
}

TEST(ShardedOpsTest, RefusesDTypesAndScalarsOnRanksWithoutShardsToo) {
  RunLocalRanks(3, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor a,
        ShardedTensor::Ones(ChunkShardingSpec::Create(0, {"rank:1"}).value(),
                            {4}, {.dtype = kInt32}));
    EXPECT_THAT(Apply(UnaryOp::kExp, a), StatusIs(kInvalid, "exp"));
    EXPECT_THAT(Apply(BinaryOp::kAdd, a, 0.5), StatusIs(kInvalid, "0.5"));
    EXPECT_THAT(Apply(BinaryOp::kDiv, a, 0), StatusIs(kInvalid, "by zero"));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor bools,
        ShardedTensor::Ones(ChunkShardingSpec::Create(0, {"rank:1"}).value(),
                            {4}, {.dtype = kBool}));
    EXPECT_THAT(Apply(BinaryOp::kSub, bools, bools), StatusIs(kInvalid, "sub"));
  });
}

TEST(ShardedOpsTest, NamesTheShardWhoseElementsAreRefused) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor divisor,
        ShardedTensor::Ones(Chunks(0, 2), {4}, {.dtype = kInt32}));
    if (group.rank() == 1) {
      ASSERT_THAT(divisor.Fill(0), IsOk());
    }
    const absl::Status status =
        Apply(BinaryOp::kDiv, divisor, divisor).status();
    if (group.rank() == 0) {
      EXPECT_THAT(status, IsOk());
    } else {
      EXPECT_THAT(status, StatusIs(kInvalid, "offsets=[2]"));
    }
  });
}

TEST(ShardedOpsTest, ComputesNothingOnMeta) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor a,
        ShardedTensor::Empty(
            ChunkShardingSpec::Create(0, {"rank:0/meta", "rank:1/meta"})
                .value(),
            {4}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor b,
                               Apply(BinaryOp::kAdd, a, a));
    EXPECT_TRUE(b.is_meta());
    EXPECT_THAT(Apply(UnaryOp::kExp, a), IsOk());
  });
}

}  // namespace
}  // namespace sherd
