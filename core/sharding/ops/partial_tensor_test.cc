#include "sherd/core/sharding/partial_tensor.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RandomMesh;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RandomSize;
using ::sherd::testing::RandomSpec;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

std::shared_ptr<ProcessGroup> Group() { return DefaultGroup().value(); }

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

// Small whole numbers, which add and multiply without rounding in any order
// and any dtype; different for each rank and element.
Tensor Summand(absl::Span<const int64_t> size, DType dtype, int rank,
               ReduceOp op) {
  Tensor tensor = Tensor::Empty(size, {.dtype = kFloat64}).value();
  auto* at = tensor.mutable_data_as<double>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const int64_t mixed = (i * 7 + rank * 5 + i / 11) % 13;
    if (op == ReduceOp::kProduct) {
      at[i] = 1 + mixed % 2;
    } else {
      // Sums of up to five can be divided by five and less.
      at[i] = op == ReduceOp::kAvg ? 60.0 * (mixed % 3) : mixed;
    }
  }
  return tensor.To(dtype).value();
}

// The combined tensor of all ranks, computed by one.
Tensor Model(absl::Span<const int64_t> size, DType dtype, int ranks,
             ReduceOp op) {
  Tensor total = Summand(size, dtype, 0, op).To(kFloat64).value();
  auto* at = total.mutable_data_as<double>();
  for (int rank = 1; rank < ranks; ++rank) {
    const Tensor next = Summand(size, dtype, rank, op).To(kFloat64).value();
    const auto* x = next.data_as<double>();
    for (int64_t i = 0; i < total.numel(); ++i) {
      switch (op) {
        case ReduceOp::kProduct:
          at[i] *= x[i];
          break;
        case ReduceOp::kMin:
          at[i] = std::min(at[i], x[i]);
          break;
        case ReduceOp::kMax:
          at[i] = std::max(at[i], x[i]);
          break;
        default:
          at[i] += x[i];
      }
    }
  }
  if (op == ReduceOp::kAvg) {
    for (int64_t i = 0; i < total.numel(); ++i) at[i] /= ranks;
  }
  return total.To(dtype).value();
}

// Whether every local shard holds its box of `whole`.
void ExpectShardsOf(const ShardedTensor& tensor, const Tensor& whole,
                    const std::string& what) {
  for (const Shard& shard : tensor.local_shards()) {
    const absl::StatusOr<Tensor> box =
        whole.Narrow(shard.metadata.offsets, shard.metadata.sizes);
    EXPECT_THAT(shard.tensor, TensorEq(box)) << what << "\n" << shard.metadata;
  }
}

TEST(PartialTensorTest, ReducesIntoChunksUnevenAndEmptyOnes) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (const Dims& size : std::vector<Dims>{{7, 3}, {3, 8}, {0, 4}, {2}}) {
        for (int dim = 0; dim < static_cast<int>(size.size()); ++dim) {
          SHERD_ASSERT_OK_AND_ASSIGN(
              const PartialTensor partial,
              PartialTensor::Create(
                  Summand(size, kFloat32, group.rank(), ReduceOp::kSum)));
          SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                     partial.Reshard(Chunks(dim, ranks)));
          EXPECT_EQ(tensor.group(), Group());
          EXPECT_EQ(*tensor.spec(), *Chunks(dim, ranks));
          ExpectShardsOf(tensor, Model(size, kFloat32, ranks, ReduceOp::kSum),
                         FormatDims(size));
        }
      }
    });
  }
}

TEST(PartialTensorTest, ReducesEveryOperationAndDType) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const Dims size = {5, 6};
    const ShardingSpecPtr spec = Chunks(1, 3);
    for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
      const DType dtype = static_cast<DType>(number);
      // Their range or precision is too small.
      if (dtype == kBool || SizeOf(dtype) == 1) continue;
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
            ReduceOp::kMax}) {
        const Tensor summand = Summand(size, dtype, group.rank(), op);
        const absl::StatusOr<PartialTensor> partial =
            PartialTensor::Create(summand, op);
        if (!CheckReduction(op, dtype).ok()) {
          EXPECT_THAT(partial, StatusIs(kInvalid, Name(dtype)));
          continue;
        }
        ASSERT_THAT(partial, IsOk());
        const std::string what = partial->ToString();
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                   partial->Reshard(spec));
        const Tensor whole = Model(size, dtype, 3, op);
        ExpectShardsOf(tensor, whole, what);
        EXPECT_THAT(partial->AllReduce(), IsOkAndHolds(TensorEq(whole)))
            << what;
        // The summand is only read.
        EXPECT_THAT(partial->local(),
                    TensorEq(Summand(size, dtype, group.rank(), op)));
      }
    }
  });
}

TEST(PartialTensorTest, ReducesIntoAnySpecWithinAnyStagingBound) {
  const uint64_t seed = RandomSeed();
  for (const int ranks : {1, 2, 3, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      // The same on all ranks.
      std::mt19937_64 random(seed + static_cast<uint64_t>(ranks));
      const std::vector<int> all(group.world_ranks().begin(),
                                 group.world_ranks().end());
      for (int i = 0; i < 60; ++i) {
        const Dims size = RandomSize(4, 400, random);
        const ShardingSpecPtr spec = i % 3 == 0 ? RandomMesh(size, all, random)
                                                : RandomSpec(size, all, random);
        const int64_t staging = int64_t{8 * 4 * ranks} << (random() % 12);
        const bool turned = size.size() > 1 && random() % 3 == 0;
        const bool turned_here = turned && group.rank() % 2 == 0;
        const Tensor whole = Model(size, kFloat64, ranks, ReduceOp::kSum);
        Tensor summand = Summand(size, kFloat64, group.rank(), ReduceOp::kSum);
        if (turned_here) {
          // The same elements, stored by columns.
          summand = *summand.Transpose(0, 1)->Clone()->Transpose(0, 1);
        }
        SHERD_ASSERT_OK_AND_ASSIGN(const PartialTensor partial,
                                   PartialTensor::Create(summand));
        PartialStats stats;
        SHERD_ASSERT_OK_AND_ASSIGN(
            const ShardedTensor tensor,
            partial.Reshard(spec,
                            {.max_staging_bytes = staging, .stats = &stats}));
        ExpectShardsOf(tensor, whole,
                       FormatDims(size) + " to " + spec->ToString());
        EXPECT_LE(stats.staging_bytes, staging);
        // Every element is reduced once, whatever the number of replicas.
        std::vector<int64_t> moved = {stats.bytes_sent, stats.bytes_received};
        ASSERT_THAT(
            group.AllReduce<int64_t>(absl::MakeSpan(moved), ReduceOp::kSum),
            IsOk());
        EXPECT_EQ(moved[0], (ranks - 1) * whole.nbytes());
        EXPECT_EQ(moved[1], (ranks - 1) * whole.nbytes());
        EXPECT_THAT(partial.AllReduce(), IsOkAndHolds(TensorEq(whole)));
      }
    });
  }
}

TEST(PartialTensorTest, DividesTheReductionOfReplicasAmongTheirHolders) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    const Dims size = {64, 1024};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr spec,
        MeshShardingSpec::FromPlacements(
            {.shape = {4}, .placements = PlacementsOnRanks(4)},
            {MeshPlacement::Replicate()}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(
            Summand(size, kInt32, group.rank(), ReduceOp::kSum)));
    PartialStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               partial.Reshard(spec, {.stats = &stats}));
    ExpectShardsOf(tensor, Model(size, kInt32, 4, ReduceOp::kSum), "replicas");
    EXPECT_EQ(stats.bytes_received, 3 * (64 * 1024 * 4 / 4));
    EXPECT_EQ(stats.bytes_staged, 0);
  });
}

// Of floating-point numbers, whose sum depends on the order.
TEST(PartialTensorTest, AddsInTheOrderOfRanks) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    constexpr float kOfRank[] = {1, 1e8, -1e8};
    const float sum = kOfRank[0] + kOfRank[1] + kOfRank[2];
    ASSERT_NE(sum, kOfRank[2] + kOfRank[1] + kOfRank[0]);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(
            Tensor::Full({6}, kOfRank[group.rank()]).value()));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               partial.Reshard(Chunks(0, 3)));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, partial.AllReduce());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor model, Tensor::Full({6}, sum));
    ExpectShardsOf(tensor, model, "shards");
    EXPECT_THAT(whole, TensorEq(model));
  });
}

TEST(PartialTensorTest, SendsRowsWithoutAStagingCopy) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const Dims size = {300, 50};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(
            Summand(size, kFloat32, group.rank(), ReduceOp::kSum)));
    for (const int64_t bound : {5000, 1 << 20}) {
      PartialStats stats;
      const PartialOptions options = {.max_staging_bytes = bound,
                                      .stats = &stats};
      const int64_t shard = 300 * 50 * 4 / 3;
      ASSERT_THAT(partial.Reshard(Chunks(0, 3), options), IsOk());
      EXPECT_EQ(stats.bytes_staged, 0);
      EXPECT_LE(stats.staging_bytes, std::min<int64_t>(bound, 2 * shard));
      EXPECT_EQ(stats.bytes_received, 2 * shard);
      // A message has whole rows.
      EXPECT_EQ(stats.rounds, bound == 5000 ? 20 : 1);
      // Columns are packed, a little at a time.
      ASSERT_THAT(partial.Reshard(Chunks(1, 3), options), IsOk());
      EXPECT_GT(stats.bytes_staged, 0);
      EXPECT_LE(stats.staging_bytes, bound);
    }
  });
}

TEST(PartialTensorTest, WorksInSubgroupsAndForShardsOfSomethingLarger) {
  RunLocalRanks(4, [](ProcessGroup& world) {
    // Rows of a 2 x 2 mesh whose ranks are not in order: 0 and 2, 1 and 3.
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> row,
                               world.Split(world.rank() % 2, world.rank()));
    const Dims size = {5, 4};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(
            Summand(size, kInt64, row->rank(), ReduceOp::kSum), ReduceOp::kSum,
            row));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        ChunkShardingSpec::Create(
            0, PlacementsOn({row->world_ranks()[1], row->world_ranks()[0]})));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               partial.Reshard(spec));
    EXPECT_EQ(tensor.local_shards().size(), 1);
    EXPECT_EQ(tensor.local_shards()[0].metadata.offsets[0],
              row->rank() == 1 ? 0 : 3);
    ExpectShardsOf(tensor, Model(size, kInt64, 2, ReduceOp::kSum), "row");
  });
}

TEST(PartialTensorTest, IsRefusedOnAllRanksIfOneDiffers) {
  struct Case {
    const char* what;
    Dims size = {4, 6};
    DType dtype = kFloat32;
    ReduceOp op = ReduceOp::kSum;
    int dim = 0;
    int64_t staging = 1 << 20;
    absl::StatusCode code = kInvalid;
  };
  const Case good = {.what = ""};
  const Case cases[] = {
      {.what = "rank 1 passed size [4, 5]; ranks 0, 2 passed size ",
       .size = {4, 5}},
      {.what = "rank 1 passed dtype float64; ranks 0, 2 passed dtype ",
       .dtype = kFloat64},
      {.what = "rank 1 passed reduction max; ranks 0, 2 passed reduction ",
       .op = ReduceOp::kMax},
      {.what = "rank 1 passed result laid out by Chunk", .dim = 1},
      {.what = "rank 1 passed max_staging_bytes 2097152; ranks 0, 2 ",
       .staging = 2 << 20},
      {.what = "Invalid sharding dim", .dim = 2},
      {.what = "max_staging_bytes is 16, expected at least 32", .staging = 16},
      {.what = "Expecting ShardingSpec", .dim = -9},
  };
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Case& c : cases) {
      const Case& mine = group.rank() == 1 ? c : good;
      SHERD_ASSERT_OK_AND_ASSIGN(
          const PartialTensor partial,
          PartialTensor::Create(
              Summand(mine.size, mine.dtype, group.rank(), mine.op), mine.op));
      const ShardingSpecPtr spec =
          mine.dim == -9 ? nullptr : Chunks(mine.dim, 3);
      EXPECT_THAT(partial.Reshard(spec, {.max_staging_bytes = mine.staging}),
                  StatusIs(c.code, c.what));
      // It has neither a spec nor staging memory.
      const bool is_spec = c.dim != good.dim || c.staging != good.staging;
      EXPECT_THAT(partial.AllReduce().status(),
                  StatusIs(is_spec ? absl::StatusCode::kOk : c.code,
                           is_spec ? "" : c.what));
    }
    // The group is as usable as before.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(
            Summand({3}, kFloat32, group.rank(), ReduceOp::kSum)));
    EXPECT_THAT(partial.Reshard(Chunks(0, 3)), IsOk());
  });
}

TEST(PartialTensorTest, TheRankThatIsAloneWithItsArgumentsIsNamed) {
  for (const int odd : {0, 1, 2}) {
    RunLocalRanks(3, [odd](ProcessGroup& group) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const PartialTensor partial,
          PartialTensor::Create(
              Summand({6, 4}, kFloat32, group.rank(), ReduceOp::kSum)));
      const absl::Status status =
          partial.Reshard(Chunks(group.rank() == odd ? 1 : 0, 3)).status();
      EXPECT_THAT(
          status,
          StatusIs(kInvalid, absl::StrCat("partial_reshard: rank ", odd,
                                          " was called with other arguments")));
      const ErrorInfo info = GetErrorInfo(status);
      EXPECT_EQ(info.failed_rank, odd);
      EXPECT_EQ(info.group, group.name());
      EXPECT_EQ(info.operation, "partial_reshard");
    });
  }
}

TEST(PartialTensorTest, RefusesTensorsThatCannotBeReduced) {
  EXPECT_THAT(PartialTensor().Reshard(nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, "not created"));
  EXPECT_THAT(PartialTensor().AllReduce(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "not created"));
  EXPECT_EQ(PartialTensor().ToString(), "PartialTensor(undefined)");
  RunLocalRanks(2, [](ProcessGroup& group) {
    EXPECT_THAT(PartialTensor::Create(Tensor()),
                StatusIs(kInvalid, "undefined"));
    const Tensor meta =
        Tensor::Empty({2}, {.device = Device::Parse("meta").value()}).value();
    EXPECT_THAT(PartialTensor::Create(meta),
                StatusIs(absl::StatusCode::kFailedPrecondition, "meta"));
    EXPECT_THAT(
        PartialTensor::Create(Tensor::Ones({2}, {.dtype = kComplex64}).value(),
                              ReduceOp::kMax),
        StatusIs(kInvalid, "complex64"));
    const std::vector<int> first = {0};
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> alone,
                               group.NewGroup(first));
    if (group.rank() == 1) {
      EXPECT_THAT(PartialTensor::Create(Tensor::Ones({2}).value(),
                                        ReduceOp::kSum, alone),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
    }
  });
}

}  // namespace
}  // namespace sherd
