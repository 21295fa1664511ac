#include "sherd/core/sharding/sharded_tensor_transfer.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;

using GroupPtr = std::shared_ptr<ProcessGroup>;

ShardingSpecPtr ChunksOn(int dim, absl::Span<const int> ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOn(ranks)).value();
}

// Moves [7, 5] from rows on `from` to columns on `to`, of `world` ranks.
void ExpectTransfer(int world, const std::vector<int>& from,
                    const std::vector<int>& to) {
  RunLocalRanks(world, [&](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr source_group, all.NewGroup(from));
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr target_group, all.NewGroup(to));
    ShardedTensor source;
    if (source_group->is_member()) {
      source =
          ShardedTensor::Empty(
              ChunksOn(0, from), {7, 5},
              {.dtype = kInt64, .group = source_group, .requires_grad = true})
              .value();
      FillPattern(source);
    }
    // A rank outside the group need not know the layout.
    const ShardingSpecPtr spec =
        target_group->is_member() ? ChunksOn(1, to) : nullptr;
    ReshardStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor result,
                               TransferBetweenGroups(all, source, target_group,
                                                     spec, {.stats = &stats}));
    EXPECT_EQ(result.defined(), target_group->is_member());
    EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
    if (source.defined()) {
      EXPECT_TRUE(HasPattern(source));
    }
    if (!result.defined()) return;
    EXPECT_EQ(result.group(), target_group);
    EXPECT_EQ(*result.spec(), *spec);
    EXPECT_EQ(result.dtype(), kInt64);
    EXPECT_TRUE(result.requires_grad());
    EXPECT_TRUE(HasPattern(result));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, result.AllGather());
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {7, 5}));
  });
}

TEST(TransferTest, GoesFromAnyGroupToAnyOther) {
  ExpectTransfer(4, {0, 1}, {2, 3});
  ExpectTransfer(4, {2, 3}, {0, 1});
  // Overlapping, and with ranks in neither.
  ExpectTransfer(5, {1, 2}, {2, 4});
  ExpectTransfer(5, {0, 2, 4}, {2});
  ExpectTransfer(5, {3}, {0, 1, 3, 4});
  ExpectTransfer(3, {0, 1, 2}, {0, 1, 2});
  ExpectTransfer(1, {0}, {0});
}

TEST(TransferTest, TakesAViewAndANullGroupAndASubGroupAsParent) {
  RunLocalRanks(5, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr parent,
                               all.NewGroup({1, 2, 3, 4}));
    if (!parent->is_member()) {
      EXPECT_THAT(TransferBetweenGroups(*parent, {}, nullptr, nullptr),
                  StatusIs(kRuntime, "not a member"));
      return;
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr source_group,
                               parent->NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr target_group,
                               parent->NewGroup({3}));
    ShardedTensor view;
    if (source_group->is_member()) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor source,
          ShardedTensor::Empty(ChunksOn(0, {2, 1}), {6, 8},
                               {.group = source_group}));
      FillPattern(source);
      SHERD_ASSERT_OK_AND_ASSIGN(view, source.Narrow({1, 3}, {4, 4}));
    }
    const bool is_target = all.rank() == 4;
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor result,
        TransferBetweenGroups(*parent, view, is_target ? target_group : nullptr,
                              ChunksOn(0, {4, 4})));
    ASSERT_EQ(result.defined(), is_target);
    if (!is_target) return;
    EXPECT_THAT(result.local_shards(), SizeIs(2));
    EXPECT_TRUE(HasPattern(result, {1, 3}, {6, 8}));
  });
}

// A rank's arguments: tensors on ranks 0 and 1 of 4, to ranks 2 and 3.
struct Call {
  ShardedTensor source;
  GroupPtr target_group;
  ShardingSpecPtr spec = ChunksOn(1, {2, 3});
  ReshardOptions options;
};

void ExpectTransferError(
    const std::function<void(Call&, ProcessGroup& all)>& harm,
    absl::StatusCode code, const std::string& phrase,
    std::optional<int> error_rank) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(4);
  RunLocalRanks(4, [&](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr low, all.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr high, all.NewGroup({2, 3}));
    Call call;
    if (low->is_member()) {
      call.source =
          ShardedTensor::Empty(ChunksOn(0, {0, 1}), {6, 4}, {.group = low})
              .value();
      FillPattern(call.source);
    } else {
      call.target_group = high;
    }
    Call harmed = call;
    harm(harmed, all);
    statuses[all.rank()] =
        TransferBetweenGroups(all, harmed.source, harmed.target_group,
                              harmed.spec, harmed.options)
            .status();
    if (call.source.defined()) {
      EXPECT_TRUE(HasPattern(call.source));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor usable,
        TransferBetweenGroups(all, call.source, call.target_group, call.spec));
    if (usable.defined()) {
      EXPECT_TRUE(HasPattern(usable));
    }
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(code, phrase));
    EXPECT_EQ(ErrorRank(status), error_rank) << status;
  }
}

class EmptyAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("there is nothing");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "empty"; }
};

TEST(TransferTest, AWrongSourceIsTheSameErrorOnAllRanks) {
  ExpectTransferError([](Call& call, ProcessGroup&) { call.source = {}; },
                      kInvalid, "transfer: no rank has a source tensor",
                      std::nullopt);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() == 1) call.source = {};
      },
      kInvalid, "1 of the 2 ranks of the source group passed a tensor",
      std::nullopt);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() == 1) call.source.SetRequiresGrad(true);
      },
      kInvalid,
      "transfer: a rank has another source tensor: rank 1 passed source with "
      "requires_grad true; rank 0 passed source with requires_grad false",
      std::nullopt);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() != 2) return;
        const ShardMetadata only = {{0}, {2}, Placement("rank:2")};
        call.source =
            ShardedTensor::WithoutGroup({{Tensor::Zeros({2}).value(), only}},
                                        {.shards = {only}, .size = {2}})
                .value();
      },
      kRuntime, "transfer: rank 2: the source: the ShardedTensor has no", 2);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() > 1) return;
        call.source =
            ShardedTensor::Empty(
                ChunkShardingSpec::Create(0, {"rank:0/meta", "rank:1/meta"})
                    .value(),
                {6}, {.group = call.source.group()})
                .value();
      },
      kRuntime, "expected one in host memory", 0);
}

TEST(TransferTest, AWrongTargetIsTheSameErrorOnAllRanks) {
  ExpectTransferError(
      [](Call& call, ProcessGroup&) { call.target_group = nullptr; }, kInvalid,
      "transfer: no rank has a target layout", std::nullopt);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() == 3) call.target_group = nullptr;
      },
      kInvalid, "1 of the 2 ranks of the target group passed a layout",
      std::nullopt);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() == 3) call.spec = nullptr;
      },
      kInvalid, "transfer: rank 3: Expecting ShardingSpec but got null", 3);
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() == 3) call.spec = ChunksOn(0, {2, 3});
      },
      kInvalid, "transfer: a rank has another target layout: rank 3 passed ",
      std::nullopt);
  ExpectTransferError(
      [](Call& call, ProcessGroup&) {
        call.spec = ChunksOn(0, {0, 2});
      },
      kInvalid, "Global rank 0 does not exist in input process group", 2);
  ExpectTransferError(
      [](Call& call, ProcessGroup&) {
        call.spec = ChunksOn(2, {2, 3});
      },
      kInvalid, "transfer: rank 2: Invalid sharding dim", 2);
  static EmptyAllocator none;
  ExpectTransferError(
      [](Call& call, ProcessGroup& all) {
        if (all.rank() == 3) call.options.allocator = &none;
      },
      absl::StatusCode::kResourceExhausted,
      "transfer: rank 3: there is nothing", 3);
  // Groups of as many ranks, but not the same.
  RunLocalRanks(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr low, all.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr high, all.NewGroup({1, 2}));
    ShardedTensor source;
    if (low->is_member()) {
      source =
          ShardedTensor::Zeros(ChunksOn(0, {0}), {4}, {.group = low}).value();
    }
    const absl::Status status =
        TransferBetweenGroups(all, source,
                              all.rank() == 0   ? low
                              : all.rank() == 1 ? high
                                                : nullptr,
                              ChunksOn(0, {1}))
            .status();
    EXPECT_THAT(status, StatusIs(kInvalid,
                                 "transfer: a rank has another target group: "
                                 "rank 1 passed a group of the global ranks "
                                 "1, 2; rank 0 passed a group of the global "
                                 "ranks 0, 1"));
    EXPECT_EQ(ErrorRank(status), std::nullopt);
  });
  // A rank between two groups.
  RunLocalRanks(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr low, all.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(const GroupPtr high, all.NewGroup({1, 2}));
    if (!low->is_member()) return;
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor source,
        ShardedTensor::Zeros(ChunksOn(0, {0}), {4}, {.group = low}));
    EXPECT_THAT(
        TransferBetweenGroups(*low, source, high, ChunksOn(0, {2})),
        StatusIs(kInvalid,
                 "global rank 2 of the target group is not in the common"));
  });
}

}  // namespace
}  // namespace sherd
