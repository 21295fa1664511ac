#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor_scatterer.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Zeros(absl::Span<const int64_t> size) {
  return Tensor::Zeros(size).value();
}

class EmptyAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("there is nothing");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "empty"; }
};

TEST(ShardTensorTest, OtherRanksLearnSizeAndDtype) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Tensor whole;
    if (group.rank() == 2) whole = PatternTensor({5, 4}, kComplex64);
    ReshardStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(whole, Chunks(0, 3), 2, DefaultGroup().value(),
                    {.stats = &stats}));
    EXPECT_THAT(tensor.size(), ElementsAre(5, 4));
    EXPECT_EQ(tensor.dtype(), kComplex64);
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_EQ(stats.bytes_sent, group.rank() == 2 ? 4 * 4 * 8 : 0);
    EXPECT_EQ(stats.bytes_staged, 0);
    // Copies, not views.
    EXPECT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 2) {
      EXPECT_THAT(whole.Fill(0), IsOk());
    }
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(ShardTensorTest, ScattersAScalarAndEmptyTensors) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto on_one,
        EnumerableShardingSpec::Create({{.placement = "rank:1/cpu"}}));
    Tensor whole;
    if (group.rank() == 0) whole = PatternTensor({}, kFloat64);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor scalar,
                               ShardTensor(whole, on_one));
    EXPECT_EQ(scalar.dim(), 0);
    EXPECT_EQ(scalar.numel(), 1);
    EXPECT_THAT(scalar.local_shards(), SizeIs(group.rank()));
    EXPECT_TRUE(HasPattern(scalar));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor back, scalar.Gather(0));
    if (group.rank() == 0) {
      EXPECT_THAT(back, TensorBitwiseEq(whole));
    }

    if (group.rank() == 0) whole = PatternTensor({0, 3}, kFloat64);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor empty,
                               ShardTensor(whole, Chunks(1, 2)));
    EXPECT_THAT(empty.size(), ElementsAre(0, 3));
    EXPECT_THAT(empty.Reshard(Chunks(0, 2)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor nothing, empty.Gather(1));
    if (group.rank() == 1) {
      EXPECT_THAT(nothing.sizes(), ElementsAre(0, 3));
    }
  });
}

// The arguments of a rank.
struct ShardTensorCall {
  Tensor tensor;
  ShardingSpecPtr spec = Chunks(0, 3);
  int src_rank = 0;
};

// All three ranks pass valid arguments, but for the effect of `harm`.
void ExpectScatterError(
    const std::function<void(ShardTensorCall&, int rank)>& harm,
    absl::StatusCode code, const std::string& phrase, int error_rank) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(3);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const int rank = group.rank();
    Tensor whole;
    if (rank == 0) whole = PatternTensor({4, 4}, kFloat32);
    ShardTensorCall call = {.tensor = whole};
    harm(call, rank);
    statuses[rank] =
        ShardTensor(call.tensor, call.spec, call.src_rank).status();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor usable,
                               ShardTensor(whole, Chunks(0, 3)));
    EXPECT_TRUE(HasPattern(usable));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(code, phrase));
    EXPECT_EQ(ErrorRank(status), error_rank) << status;
  }
}

TEST(ShardTensorTest, AWrongSourceIsTheSameErrorOnAllRanks) {
  const auto tensor = [](const Tensor& tensor) {
    return [tensor](ShardTensorCall& call, int) { call.tensor = tensor; };
  };
  ExpectScatterError(tensor(Tensor()), kInvalid,
                     "rank 0: the tensor is undefined", 0);
  ExpectScatterError(tensor(Zeros({4, 3}).Transpose(0, 1).value()), kInvalid,
                     "is not a contiguous Tensor", 0);
  ExpectScatterError(
      tensor(Tensor::Empty({4}, {.device = {DeviceType::kMeta}}).value()),
      absl::StatusCode::kFailedPrecondition, "expected one in host memory", 0);
  const auto source = [](int on_rank, int src_rank) {
    return [on_rank, src_rank](ShardTensorCall& call, int rank) {
      if (rank == on_rank) call.src_rank = src_rank;
    };
  };
  ExpectScatterError(
      source(2, 1), kInvalid,
      "rank 2 has an argument that does not match with src_rank: "
      "rank 2 passed src_rank 1; ranks 0, 1 passed src_rank 0",
      2);
  ExpectScatterError(source(0, 1), kInvalid,
                     "rank 0 has an argument that does not match with src_rank",
                     0);
  ExpectScatterError(source(1, 3), kInvalid,
                     "rank 1: src_rank is 3, expected 0 to 2", 1);
  ExpectScatterError(source(0, -1), kInvalid,
                     "rank 0: src_rank is -1, expected 0 to 2", 0);
}

TEST(ShardTensorTest, AWrongSpecIsTheSameErrorOnAllRanks) {
  const auto spec_of_one = [](const ShardingSpecPtr& spec) {
    return [spec](ShardTensorCall& call, int rank) {
      if (rank == 1) call.spec = spec;
    };
  };
  ExpectScatterError(spec_of_one(Chunks(1, 3)), kInvalid,
                     "rank 1 has an argument that does not match with "
                     "sharding_spec: rank 1 passed ",
                     1);
  ExpectScatterError(spec_of_one(nullptr), kInvalid,
                     "rank 1: Expecting ShardingSpec but got null", 1);
  ExpectScatterError(
      [](ShardTensorCall& call, int) { call.spec = Chunks(2, 3); }, kInvalid,
      "Invalid sharding dim", 0);
}

TEST(ShardTensorTest, MemoryThatOneRankLacksIsTheSameErrorOnAllRanks) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Tensor whole;
    if (group.rank() == 0) whole = PatternTensor({4, 4}, kFloat32);
    EmptyAllocator none;
    ReshardOptions options;
    if (group.rank() == 1) options.allocator = &none;
    const absl::StatusOr<ShardedTensor> failed =
        ShardTensor(whole, Chunks(0, 3), 0, nullptr, options);
    EXPECT_THAT(failed, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "shard_tensor: rank 1: there is nothing"));
    EXPECT_EQ(ErrorRank(failed.status()), 1);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor usable,
                               ShardTensor(whole, Chunks(0, 3)));
    EXPECT_TRUE(HasPattern(usable));
  });
}

TEST(ShardTensorTest, SourceIsARankOfTheGroup) {
  RunLocalRanks(4, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 3}));
    const auto spec =
        ChunkShardingSpec::Create(1, {"rank:3", "rank:1", "rank:3"}).value();
    if (!group->is_member()) {
      EXPECT_THAT(
          ShardTensor(Tensor(), spec, 0, group),
          StatusIs(absl::StatusCode::kFailedPrecondition, "not a member"));
      return;
    }
    Tensor whole;
    if (all.rank() == 3) whole = PatternTensor({3, 7}, kInt16);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardTensor(whole, spec, 1, group));
    EXPECT_THAT(tensor.local_shards(), SizeIs(all.rank() == 3 ? 2 : 1));
    EXPECT_TRUE(HasPattern(tensor));
  });
}

// Distributes ones instead of the elements; fails on one rank on request.
class ScatteringSpec final : public ChunkShardingSpec, public TensorScatterer {
 public:
  ScatteringSpec(const ChunkShardingSpec& chunks, int fails_on)
      : ChunkShardingSpec(chunks), fails_on_(fails_on) {}

  absl::Status Scatter(const ScatterCall& call) const override {
    if (call.group.rank() == fails_on_) {
      return absl::DataLossError("not today");
    }
    for (size_t i = 0; i < call.shards.size(); ++i) {
      SHERD_RETURN_IF_ERROR(call.shards[i].Fill(1 + call.shard_indices[i]));
    }
    return absl::OkStatus();
  }

 private:
  const int fails_on_;
};

TEST(ShardTensorTest, ASpecMayScatterItself) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const auto chunks =
        ChunkShardingSpec::Create(0, {"rank:1", "rank:0"}).value();
    Tensor whole;
    if (group.rank() == 0) whole = PatternTensor({4}, kInt32);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(whole, std::make_shared<ScatteringSpec>(*chunks, -1)));
    EXPECT_THAT(tensor.local_tensor(),
                IsOkAndHolds(TensorEq(Tensor::Full(
                    {2}, group.rank() == 0 ? 2 : 1, {.dtype = kInt32}))));
    const absl::Status failed =
        ShardTensor(whole, std::make_shared<ScatteringSpec>(*chunks, 1))
            .status();
    EXPECT_THAT(failed, StatusIs(absl::StatusCode::kDataLoss,
                                 "shard_tensor: rank 1: not today"));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
