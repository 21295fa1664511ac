#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_statistics.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/tensor_matchers.h"

// The operations over processes and real backends; their values are those of
// the tests with threads.

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;

class OperationsProcessTest : public sherd::testing::PersistentDistributedTest {
 protected:
  ShardingSpecPtr Chunks(int dim) {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(world_size()))
        .value();
  }
};

SHERD_DIST_TEST_F(OperationsProcessTest, AgreeOnAnswersAndErrors) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor a,
      ShardedTensor::Full(Chunks(0), {11, 4}, 0.1, {.dtype = kFloat64}));
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor b, Apply(BinaryOp::kMul, a, 2));
  EXPECT_THAT(Equal(a, a), IsOkAndHolds(true));
  EXPECT_THAT(Equal(a, b), IsOkAndHolds(false));
  EXPECT_THAT(AllClose(a, b, {.atol = 0.2}), IsOkAndHolds(true));
  ASSERT_THAT(b.Reshard(Chunks(1)), IsOk());
  ASSERT_THAT(ApplyInPlace(BinaryOp::kSub, b, 0.1), IsOk());
  EXPECT_THAT(Equal(a, b), IsOkAndHolds(false));
  EXPECT_THAT(Equal(a, b, {.layouts = CompareLayouts::kNotAtAll}),
              IsOkAndHolds(true));
  // 44 times the double next to 0.1, rounded once.
  EXPECT_THAT(Sum(a), IsOkAndHolds(TensorEq(Tensor::Scalar(4.4))));
  EXPECT_THAT(Max(b), IsOkAndHolds(TensorEq(Tensor::Scalar(0.1))));
  EXPECT_THAT(Norm(a, rank() == 1 ? -1 : 2),
              StatusIs(absl::StatusCode::kInvalidArgument, "rank 1"));
  EXPECT_THAT(Norm(a, 1), IsOkAndHolds(4.4));
}

SHERD_DIST_TEST_F(OperationsProcessTest, ReducePartialTensors) {
  const Dims size = {13, 50};
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        Tensor local, Tensor::Full(size, rank() + 1, {.dtype = kFloat16}));
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor row, local.Select(0, rank()));
    ASSERT_THAT(row.Fill(100), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const PartialTensor partial,
                               PartialTensor::Create(local, op));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, partial.AllReduce());
    for (const int dim : {0, 1}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor tensor,
          partial.Reshard(Chunks(dim), {.max_staging_bytes = 1000}));
      for (const Shard& shard : tensor.local_shards()) {
        EXPECT_THAT(shard.tensor, TensorEq(whole.Narrow(shard.metadata.offsets,
                                                        shard.metadata.sizes)))
            << op;
      }
    }
    const float n = static_cast<float>(world_size());
    const float sum = n * (n + 1) / 2;
    const float last = op == ReduceOp::kMax   ? n
                       : op == ReduceOp::kSum ? sum
                                              : sum / n;
    EXPECT_THAT(whole.At<Float16>({12, 7}), IsOkAndHolds(Float16(last)));
    EXPECT_THAT(partial.Reshard(Chunks(rank() == 1 ? 1 : 0)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 1 was called with other arguments: rank 1 "
                         "passed result laid out by ChunkShardingSpec(dim=1"));
  }
}

}  // namespace
}  // namespace sherd
