#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
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
using ::sherd::testing::ExpectSameError;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(GatherTest, FillsTheCallersTensor) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(1, 2), {3, 5}, {.dtype = kFloat16}));
    FillPattern(tensor);
    // Part of a larger tensor, whose other elements stay.
    Tensor larger, out;
    if (group.rank() == 1) {
      larger = Tensor::Ones({5, 9}, {.dtype = kFloat16}).value();
      out = larger.Narrow({1, 2}, {3, 5}).value();
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor result, tensor.Gather(1, out));
    EXPECT_EQ(result.defined(), group.rank() == 1);
    if (group.rank() != 1) return;
    EXPECT_EQ(result.data(), out.data());
    EXPECT_TRUE(HasPattern(out, {0, 0}, {3, 5}));
    const Tensor row = larger.Select(0, 0).value();
    EXPECT_TRUE(row.Equal(Tensor::Ones({9}, {.dtype = kFloat16}).value()));
    EXPECT_TRUE(larger.Select(1, 7).value().Equal(larger.Select(1, 8).value()));
  });
}

TEST(GatherTest, ErrorsAreTheSameOnAllRanks) {
  ExpectSameError(
      3, [](ShardedTensor& t, int) { return t.Gather(3).status(); }, kInvalid,
      "gather: rank 0: dst_rank is 3, expected 0 to 2", 0);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Gather(rank == 2 ? -1 : 0).status();
      },
      kInvalid, "gather: rank 2: dst_rank is -1", 2);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Gather(rank == 2 ? 1 : 0).status();
      },
      kInvalid,
      "gather: rank 2 was called with other arguments: rank 2 passed dst_rank "
      "1; ranks 0, 1 passed dst_rank 0",
      2);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int) {
        return t.Gather(1, Tensor::Zeros({6, 4}).value()).status();
      },
      kInvalid, "must NOT be specified on non-destination ranks", 0);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Gather(0, Tensor(), {.max_staging_bytes = rank == 1 ? 1 : 999})
            .status();
      },
      kInvalid, "gather: rank 1: max_staging_bytes is 1", 1);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t
            .Gather(0, Tensor(), {.max_staging_bytes = rank == 1 ? 998 : 999})
            .status();
      },
      kInvalid, "rank 1 was called with other arguments", 1);
}

TEST(GatherTest, AWrongResultTensorIsTheSameErrorOnAllRanks) {
  const auto gather_into = [](Tensor out) {
    return [out](ShardedTensor& tensor, int rank) {
      return tensor.Gather(1, rank == 1 ? out : Tensor()).status();
    };
  };
  ExpectSameError(3, gather_into(Tensor::Zeros({6, 5}).value()), kInvalid,
                  "has size [6, 5], but should be [6, 4]", 1);
  ExpectSameError(
      3, gather_into(Tensor::Zeros({6, 4}, {.dtype = kFloat64}).value()),
      kInvalid, "has dtype float64, but should be float32", 1);
  ExpectSameError(
      3,
      gather_into(
          Tensor::Empty({6, 4}, {.device = {DeviceType::kMeta}}).value()),
      absl::StatusCode::kFailedPrecondition, "expected one in host memory", 1);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        Tensor out;
        if (rank == 1) {
          const Tensor row = Tensor::Zeros({1, 4}).value();
          out = Tensor::FromStorageStrided(row.storage(), 0, {6, 4}, {0, 1},
                                           kFloat32)
                    .value();
        }
        return t.Gather(1, out).status();
      },
      kInvalid, "`out` Tensor: elements of destination", 1);
  // One rank: its shard is the whole, and so is a view of it.
  ExpectSameError(
      1,
      [](ShardedTensor& t, int) {
        return t.Gather(0, t.local_tensor().value()).status();
      },
      kInvalid,
      "`out` Tensor: the memory of source and destination shards overlaps", 0);
}

TEST(AllGatherTest, LeavesTheWholeTensorOnEveryRank) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        ChunkShardingSpec::Create(0, {"rank:2", "rank:0", "rank:2"}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(spec, {7, 3}, {.dtype = kInt64}));
    FillPattern(tensor);
    // One rank has where to put it.
    Tensor out;
    if (group.rank() == 1) {
      out = Tensor::Zeros({3, 7}, {.dtype = kInt64})
                .value()
                .Transpose(0, 1)
                .value();
    }
    ReshardStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole,
                               tensor.AllGather(out, {.stats = &stats}));
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {7, 3}));
    if (group.rank() == 1) {
      EXPECT_EQ(whole.data(), out.data());
    }
    EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
  });
}

TEST(AllGatherTest, ErrorsAreTheSameOnAllRanks) {
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.AllGather(rank == 2 ? Tensor::Zeros({4, 6}).value() : Tensor())
            .status();
      },
      kInvalid,
      "all_gather: rank 2: `out` Tensor has size [4, 6], but should be [6, 4]",
      2);
  ExpectSameError(
      2,
      [](ShardedTensor& t, int rank) {
        ReshardOptions options;
        options.direct = rank == 0;
        return t.AllGather(Tensor(), options).status();
      },
      kInvalid,
      "all_gather: a rank was called with other arguments: rank 1 passed "
      "direct false; rank 0 passed direct true",
      std::nullopt);
}

TEST(ReshardTest, ErrorsAreTheSameOnAllRanks) {
  const auto bad = [](const ShardingSpecPtr& spec) {
    return [spec](ShardedTensor& t, int rank) {
      return t.Reshard(rank == 1 ? spec : Chunks(1, 3));
    };
  };
  ExpectSameError(3, bad(nullptr), kInvalid,
                  "reshard: rank 1: Expecting ShardingSpec", 1);
  ExpectSameError(3, bad(Chunks(2, 3)), kInvalid,
                  "reshard: rank 1: Invalid sharding dim", 1);
  ExpectSameError(3, bad(Chunks(0, 4)), kInvalid,
                  "Global rank 3 does not exist in input process group", 1);
  ExpectSameError(3, bad(Chunks(0, 3)), kInvalid,
                  "reshard: rank 1 was called with other arguments", 1);
  ExpectSameError(3,
                  bad(EnumerableShardingSpec::Create(
                          {{{0, 0}, {5, 4}, Placement("rank:0")}})
                          .value()),
                  kInvalid, "does not match tensor volume", 1);
  ExpectSameError(
      3, bad(ChunkShardingSpec::Create(0, {"rank:0/cuda:0", "rank:1"}).value()),
      kInvalid, "rank 1 was called with other arguments", 1);
  // Ranks whose tensors are not the same one.
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0, 2), {6 + group.rank(), 4}));
    EXPECT_THAT(tensor.Reshard(Chunks(1, 2)),
                StatusIs(kInvalid,
                         "rank 1 passed source of size [7, 4]; rank 0 passed "
                         "source of size [6, 4]"));
  });
}

TEST(ReshardTest, TheSameLayoutKeepsTheShards) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Zeros(Chunks(1, 2), {3, 4}));
    const void* const data = tensor.local_shards()[0].tensor.data();
    ReshardStats stats;
    // Another spec for the same boxes.
    ASSERT_THAT(tensor.Reshard(Chunks(-1, 2), {.stats = &stats}), IsOk());
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(), data);
    EXPECT_EQ(*tensor.spec(), *Chunks(-1, 2));
    EXPECT_EQ(stats.bytes_received + stats.bytes_sent + stats.bytes_local, 0);
  });
}

TEST(ReshardTest, ABoxThatStaysOnItsRankStaysInPlace) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 3), {6, 4}));
    FillPattern(tensor);
    const void* const data = tensor.local_shards()[0].tensor.data();
    // Ranks 0 and 2 change places.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto turned,
        ChunkShardingSpec::Create(0, {"rank:2", "rank:1", "rank:0"}));
    ReshardStats stats;
    ASSERT_THAT(tensor.Reshard(turned, {.stats = &stats}), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    if (group.rank() == 1) {
      EXPECT_EQ(tensor.local_shards()[0].tensor.data(), data);
      EXPECT_EQ(stats.bytes_in_place, 2 * 4 * 4);
      EXPECT_EQ(stats.bytes_local, 2 * 4 * 4);
    }
    // Not while another handle holds it.
    const ShardedTensor copy = tensor;
    ASSERT_THAT(tensor.Reshard(Chunks(0, 3), {.stats = &stats}), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_EQ(stats.bytes_in_place, 0);
    EXPECT_NE(tensor.local_shards()[0].tensor.data(),
              copy.local_shards()[0].tensor.data());
    const Tensor held = tensor.local_shards()[0].tensor;
    ASSERT_THAT(tensor.Reshard(turned, {.stats = &stats}), IsOk());
    EXPECT_EQ(stats.bytes_in_place, 0);
    EXPECT_TRUE(HasPattern(copy));
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(ReshardedTest, GivesANewTensorWithMemoryOfItsOwn) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(0, 2), {5, 4}, {.requires_grad = true}));
    FillPattern(tensor);
    for (const ShardingSpecPtr& target :
         {Chunks(1, 2), Chunks(0, 2), Chunks(0, 1)}) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor moved,
                                 tensor.Resharded(target));
      EXPECT_EQ(*moved.spec(), *target);
      EXPECT_TRUE(moved.requires_grad());
      EXPECT_TRUE(HasPattern(moved));
      EXPECT_TRUE(HasPattern(tensor));
      if (!moved.local_shards().empty()) {
        EXPECT_NE(moved.local_shards()[0].tensor.data(),
                  tensor.local_shards()[0].tensor.data());
      }
    }
  });
}

TEST(ReshardedTest, ErrorsAreTheSameOnAllRanks) {
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Resharded(rank == 1 ? nullptr : Chunks(1, 3)).status();
      },
      kInvalid, "resharded: rank 1: Expecting ShardingSpec", 1);
}

TEST(ReshardTest, GivesRanksNothingOrSeveralShards) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 3), {5, 4}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto target,
        ChunkShardingSpec::Create(1, {"rank:1", "rank:2", "rank:1"}));
    ASSERT_THAT(tensor.Reshard(target), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    const size_t expected[] = {0, 2, 1};
    EXPECT_THAT(tensor.local_shards(), SizeIs(expected[group.rank()]));
    // Chunks of 2, 2 and nothing.
    EXPECT_EQ(tensor.metadata().shards[2].sizes[1], 0);
    EXPECT_EQ(tensor.metadata().shards[2].offsets[1], 4);
  });
}

TEST(ReshardTest, ACopyKeepsItsShards) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 2), {4, 4}));
    FillPattern(tensor);
    const ShardedTensor copy = tensor;
    EXPECT_EQ(copy.local_shards()[0].tensor.data(),
              tensor.local_shards()[0].tensor.data());
    ASSERT_THAT(tensor.Reshard(Chunks(1, 2)), IsOk());
    EXPECT_EQ(*copy.spec(), *Chunks(0, 2));
    EXPECT_TRUE(HasPattern(copy));
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(ReshardIntoTest, WritesIntoTheShardsThatAreThere) {
  RunLocalRanks(3, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor from,
                               ShardedTensor::Empty(Chunks(0, 3), {6, 7}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor into,
                               ShardedTensor::Zeros(Chunks(1, 3), {6, 7}));
    const void* const data = into.local_shards()[0].tensor.data();
    for (uint64_t salt = 0; salt < 5; ++salt) {
      FillPattern(from, salt);
      ASSERT_THAT(from.ReshardInto(into), IsOk());
      EXPECT_TRUE(HasPattern(into, salt));
    }
    EXPECT_EQ(into.local_shards()[0].tensor.data(), data);
  });
}

// The ranges of the two sides overlap, their elements do not.
TEST(ReshardIntoTest, FillsOtherColumnsOfTheSameShards) {
  RunLocalRanks(3, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 3), {6, 8}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor left,
                               tensor.Narrow(1, 0, 4));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor right, tensor.Narrow(1, 4, 4));
    ASSERT_THAT(left.ReshardInto(right), IsOk());
    EXPECT_TRUE(HasPattern(left, {0, 0}, {6, 8}));
    EXPECT_TRUE(HasPattern(right, {0, 0}, {6, 8}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor middle, tensor.Narrow(1, 3, 4));
    EXPECT_THAT(left.ReshardInto(middle), StatusIs(kInvalid, "overlaps"));
  });
}

TEST(ReshardIntoTest, ErrorsAreTheSameOnAllRanks) {
  const auto into = [](absl::Span<const int64_t> size, DType dtype) {
    return [size = Dims(size.begin(), size.end()), dtype](ShardedTensor& t,
                                                          int) {
      ShardedTensor dst =
          ShardedTensor::Zeros(Chunks(0, 3), size, {.dtype = dtype}).value();
      return t.ReshardInto(dst);
    };
  };
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        ShardedTensor dst;
        if (rank != 1) dst = ShardedTensor::Zeros(t.spec(), t.size()).value();
        return t.ReshardInto(dst);
      },
      absl::StatusCode::kFailedPrecondition,
      "reshard_into: rank 1: the destination: the ShardedTensor was not "
      "created",
      1);
  ExpectSameError(3, into({6, 5}, kFloat32), kInvalid,
                  "the destination has size [6, 5] and dtype float32", 0);
  ExpectSameError(3, into({6, 4}, kInt32), kInvalid,
                  "the destination has size [6, 4] and dtype int32", 0);
  ExpectSameError(
      3, [](ShardedTensor& t, int) { return t.ReshardInto(t); }, kInvalid,
      "the memory of source and destination shards overlaps", 0);
  // Only rank 2 passes its own shards under another layout.
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        ShardedTensor dst =
            rank == 2 ? t : ShardedTensor::Zeros(t.spec(), t.size()).value();
        return t.ReshardInto(dst);
      },
      kInvalid, "reshard_into: rank 2: the memory of source and destination",
      2);
  // Two shards in one piece of memory, on rank 1 only.
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        std::vector<Shard> shards;
        Tensor row = Tensor::Zeros({1, 4}).value();
        for (const int64_t at : {2 * rank, 2 * rank + 1}) {
          if (rank != 1) row = Tensor::Zeros({1, 4}).value();
          shards.push_back(
              Shard::FromTensorAndOffsets(row, {at, 0}, rank).value());
        }
        ShardedTensor dst =
            ShardedTensor::FromLocalShards(shards, {6, 4}).value();
        return t.ReshardInto(dst);
      },
      kInvalid, "reshard_into: rank 1: destinations ", 1);
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor from,
                               ShardedTensor::Zeros(Chunks(0, 2), {4}));
    const float constants[2] = {};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto storage,
        Storage::BorrowReadOnly(constants, sizeof(constants)));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               Tensor::FromStorage(storage, 0, {2}, kFloat32));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Shard shard,
        Shard::FromTensorAndOffsets(tensor, {2 * group.rank()}, group.rank()));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor read_only,
                               ShardedTensor::FromLocalShards({shard}, {4}));
    EXPECT_THAT(from.ReshardInto(read_only),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "may not be written to"));
  });
}

// Memory

class EmptyAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("there is nothing");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "empty"; }
};

TEST(MemoryTest, LackOfMemoryOnOneRankIsTheSameErrorOnAllRanks) {
  constexpr absl::StatusCode kNoMemory = absl::StatusCode::kResourceExhausted;
  static EmptyAllocator none;
  const auto options = [](int rank, int without) {
    ReshardOptions options;
    if (rank == without) options.allocator = &none;
    return options;
  };
  ExpectSameError(
      3,
      [&](ShardedTensor& t, int rank) {
        return t.Reshard(Chunks(1, 2), options(rank, 1));
      },
      kNoMemory, "reshard: rank 1: there is nothing", 1);
  ExpectSameError(
      3,
      [&](ShardedTensor& t, int rank) {
        return t.Resharded(Chunks(1, 3), options(rank, 1)).status();
      },
      kNoMemory, "resharded: rank 1: there is nothing", 1);
  ExpectSameError(
      3,
      [&](ShardedTensor& t, int rank) {
        return t.Gather(1, Tensor(), options(rank, 1)).status();
      },
      kNoMemory, "gather: rank 1: there is nothing", 1);
  ExpectSameError(
      3,
      [&](ShardedTensor& t, int rank) {
        return t.AllGather(Tensor(), options(rank, 0)).status();
      },
      kNoMemory, "all_gather: rank 0: there is nothing", 0);
}

// Several groups

TEST(SubGroupTest, MovesDataInEachGroupByItself) {
  RunLocalRanks(5, [](ProcessGroup& all) {
    // Ranks 4 2 0 and 3 1, in this order.
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group,
                               all.Split(all.rank() % 2, -all.rank()));
    const absl::Span<const int> ranks = group->world_ranks();
    const std::vector<int> backwards(ranks.rbegin(), ranks.rend());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto rows, ChunkShardingSpec::Create(0, PlacementsOn(backwards)));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto columns, ChunkShardingSpec::Create(-1, PlacementsOn(ranks)));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Empty(rows, {7, 8}, {.dtype = kInt16, .group = group}));
    FillPattern(tensor);
    ASSERT_THAT(tensor.Reshard(columns), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_EQ(tensor.local_shards()[0].metadata.placement->rank(), all.rank());
    const int last = group->size() - 1;
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(last));
    EXPECT_EQ(whole.defined(), group->rank() == last);
    if (whole.defined()) {
      EXPECT_TRUE(HasPattern(whole, {0, 0}, {7, 8}));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor everywhere, tensor.AllGather());
    EXPECT_TRUE(HasPattern(everywhere, {0, 0}, {7, 8}));
  });
}

TEST(SubGroupTest, AGroupOfOneRankMovesWithinItself) {
  RunLocalRanks(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.Split(all.rank(), 0));
    const std::string me = "rank:" + std::to_string(all.rank());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto rows,
        ChunkShardingSpec::Create(0, std::vector<std::string>{me, me, me}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto columns,
        ChunkShardingSpec::Create(1, std::vector<std::string>{me, me}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Empty(rows, {5, 6}, {.group = group}));
    FillPattern(tensor);
    ReshardStats stats;
    ASSERT_THAT(tensor.Reshard(columns, {.stats = &stats}), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_EQ(stats.bytes_sent, 0);
    EXPECT_EQ(stats.bytes_local, 5 * 6 * 4);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {5, 6}));
    EXPECT_THAT(tensor.Gather(1), StatusIs(kInvalid, "expected 0 to 0"));
  });
}

TEST(SubGroupTest, AProcessOutsideGetsAnError) {
  RunLocalRanks(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({0, 1}));
    if (group->is_member()) return;
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0, 2), {4}, {.group = group}));
    constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
    constexpr char kOutside[] = "this process is not a member of group";
    EXPECT_THAT(tensor.Reshard(Chunks(0, 1)), StatusIs(kRuntime, kOutside));
    EXPECT_THAT(tensor.Resharded(Chunks(0, 1)), StatusIs(kRuntime, kOutside));
    EXPECT_THAT(tensor.ReshardInto(tensor), StatusIs(kRuntime, kOutside));
    EXPECT_THAT(tensor.AllGather(), StatusIs(kRuntime, kOutside));
    EXPECT_THAT(tensor.Clone(), StatusIs(kRuntime, kOutside));
    EXPECT_THAT(tensor.CopyFrom(tensor), StatusIs(kRuntime, kOutside));
    EXPECT_THAT(tensor.To(kInt8), StatusIs(kRuntime, kOutside));
  });
}

}  // namespace
}  // namespace sherd
