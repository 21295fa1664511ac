#include "sherd/core/sharding/tensor_scatterer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/threaded_test.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

// Chunks of rows whose tensors are handed out upside down: row i of the global
// tensor is row n - 1 - i of the one that was passed to ShardTensor.
class UpsideDownRows : public ChunkShardingSpec, public TensorScatterer {
 public:
  // Called on every rank before it takes its rows.
  using Hook = std::function<absl::Status(const ScatterCall&)>;

  explicit UpsideDownRows(const ChunkShardingSpec& rows, Hook hook = nullptr)
      : ChunkShardingSpec(rows), hook_(std::move(hook)) {}

  std::string ToString() const override {
    return "UpsideDown" + ChunkShardingSpec::ToString();
  }

  absl::Status Scatter(const ScatterCall& call) const override {
    if (hook_ != nullptr) SHERD_RETURN_IF_ERROR(hook_(call));
    // To all, for an example: a rank needs no more than its own rows.
    const Dims& size = call.metadata.size;
    Tensor whole = call.tensor;
    if (call.group.rank() != call.src_rank) {
      SHERD_ASSIGN_OR_RETURN(
          whole,
          Tensor::Empty(size, {.dtype = call.metadata.properties.dtype}));
    }
    const size_t bytes =
        static_cast<size_t>(whole.numel()) * whole.element_size();
    SHERD_RETURN_IF_ERROR(call.group.Broadcast(
        MutableBytes(static_cast<std::byte*>(whole.data()), bytes),
        call.src_rank));
    for (size_t i = 0; i < call.shards.size(); ++i) {
      const ShardMetadata& shard =
          call.metadata.shards[static_cast<size_t>(call.shard_indices[i])];
      for (int64_t row = 0; row < shard.sizes[0]; ++row) {
        SHERD_ASSIGN_OR_RETURN(
            const Tensor from,
            whole.Narrow(0, size[0] - 1 - shard.offsets[0] - row, 1));
        SHERD_ASSIGN_OR_RETURN(Tensor to, call.shards[i].Narrow(0, row, 1));
        SHERD_RETURN_IF_ERROR(to.CopyFrom(from));
      }
    }
    return absl::OkStatus();
  }

 private:
  const Hook hook_;
};

Tensor Counting(const Dims& size) {
  Tensor tensor = Tensor::Empty(size, {.dtype = kInt64}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    static_cast<int64_t*>(tensor.data())[i] = i;
  }
  return tensor;
}

class TensorScattererTest : public sherd::testing::ThreadedDistributedTest {
 protected:
  int world_size() const override { return 3; }

  ShardingSpecPtr UpsideDown(UpsideDownRows::Hook hook = nullptr) {
    // Two chunks for rank 2, none for rank 1.
    const auto rows = ChunkShardingSpec::Create(0, PlacementsOn({2, 0, 2}));
    return std::make_shared<UpsideDownRows>(**rows, std::move(hook));
  }

  // The argument that only the source has to pass.
  Tensor Source(int src_rank) {
    return rank() == src_rank ? Counting({7, 2}) : Tensor();
  }
};

SHERD_DIST_TEST_F(TensorScattererTest, ScattersByItsOwnRule) {
  const int src_rank = 1;
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardTensor(Source(src_rank), UpsideDown(), src_rank));
  EXPECT_EQ(tensor.local_shards().size(), rank() == 2 ? 2u : rank() == 0);
  EXPECT_EQ(tensor.dtype(), kInt64);
  EXPECT_NE(dynamic_cast<const UpsideDownRows*>(tensor.spec().get()), nullptr);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
  for (int64_t row = 0; row < 7; ++row) {
    for (int64_t column = 0; column < 2; ++column) {
      EXPECT_EQ(whole.At<int64_t>({row, column}).value(),
                2 * (6 - row) + column);
    }
  }
}

SHERD_DIST_TEST_F(TensorScattererTest, IsAskedForTensorsOnly) {
  // Reshard uses the metadata alone.
  const auto rows = ChunkShardingSpec::Create(0, PlacementsOnRanks(3));
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardTensor(Source(0), *rows, 0));
  ASSERT_THAT(tensor.Reshard(UpsideDown([](const ScatterCall&) {
    return absl::InternalError("never called");
  })),
              IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
  EXPECT_EQ(whole.At<int64_t>({5, 1}).value(), 11);
}

SHERD_DIST_TEST_F(TensorScattererTest, AnErrorOfOneRankIsTheErrorOfAll) {
  // After its part of the exchange, which it may not leave out.
  class FailsAfterwards : public UpsideDownRows {
   public:
    using UpsideDownRows::UpsideDownRows;
    absl::Status Scatter(const ScatterCall& call) const override {
      SHERD_RETURN_IF_ERROR(UpsideDownRows::Scatter(call));
      if (call.group.rank() != 1) return absl::OkStatus();
      return absl::DataLossError("rows are not to be had");
    }
  };
  const auto rows = ChunkShardingSpec::Create(0, PlacementsOn({2, 0, 2}));
  const absl::Status status =
      ShardTensor(Source(0), std::make_shared<FailsAfterwards>(**rows), 0)
          .status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, "rows are not to be had"));
  EXPECT_EQ(ErrorRank(status), 1);
  // The group is of use still.
  EXPECT_THAT(ShardTensor(Source(0), UpsideDown(), 0), IsOk());
}

SHERD_DIST_TEST_F(TensorScattererTest, IsNotCalledBeforeTheRanksAgree) {
  const auto never = [](const ScatterCall&) {
    ADD_FAILURE() << "called";
    return absl::OkStatus();
  };
  // The source is undefined.
  EXPECT_THAT(ShardTensor(Tensor(), UpsideDown(never), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "undefined"));
  // One rank has another spec.
  const ShardingSpecPtr other =
      ChunkShardingSpec::Create(0, PlacementsOn({2, 0, 2})).value();
  EXPECT_THAT(
      ShardTensor(Source(0), rank() == 2 ? other : UpsideDown(never), 0),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "does not match with sharding_spec"));
}

}  // namespace
}  // namespace sherd
