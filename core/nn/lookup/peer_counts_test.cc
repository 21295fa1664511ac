#include "sherd/core/nn/lookup/peer_counts.h"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/nn/lookup/lookup_plan.h"
#include "sherd/core/nn/lookup/max_norm.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::IsOk;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;

constexpr absl::StatusCode kGarbled = absl::StatusCode::kDataLoss;
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(PeerCountsTest, LengthsOfMessages) {
  EXPECT_THAT(CheckMessageLengths(1, {0, 8, 1 << 20, kMaxMessageBytes}),
              IsOk());
  for (const uint64_t length :
       {uint64_t{1}, uint64_t{12}, kMaxMessageBytes + 8, uint64_t{1} << 63,
        ~uint64_t{0}, ~uint64_t{7}}) {
    EXPECT_THAT(
        CheckMessageLengths(1, {0, length}),
        AllOf(StatusIs(kGarbled, "rank 1 sent the length"), HasErrorRank(1)))
        << length;
  }
}

TEST(PeerCountsTest, NumbersOfIds) {
  EXPECT_THAT(CheckIdCounts({0, 10, 3}, 10), IsOk());
  for (const int64_t count : {int64_t{-1}, int64_t{11}, kLeast, kMost}) {
    EXPECT_THAT(
        CheckIdCounts({0, 10, count}, 10),
        AllOf(StatusIs(kGarbled, "rank 2 sent the number"), HasErrorRank(2)))
        << count;
  }
}

TEST(PeerCountsTest, Ids) {
  EXPECT_THAT(CheckIds(0, {}, 0), IsOk());
  EXPECT_THAT(CheckIds(0, {0, 1, 9}, 10), IsOk());
  const std::vector<std::vector<int64_t>> garbled = {
      {-1}, {10}, {3, 3}, {3, 2}, {0, kMost}, {kLeast}, {kMost, 1}};
  for (const std::vector<int64_t>& ids : garbled) {
    EXPECT_THAT(
        CheckIds(2, ids, 10),
        AllOf(StatusIs(kGarbled, "rank 2 sent the id"), HasErrorRank(2)));
  }
}

TEST(PeerCountsTest, RandomIdsAreRefusedOrAddressRows) {
  std::mt19937_64 random(RandomSeed());
  int64_t accepted = 0;
  const int64_t cases = CaseCount(20000);
  for (int64_t i = 0; i < cases; ++i) {
    const auto rows = static_cast<int64_t>(random() % 20);
    std::vector<int64_t> ids;
    int64_t next = 0;
    for (uint64_t n = random() % 4; n > 0; --n) {
      next += static_cast<int64_t>(random() % 6);
      ids.push_back(random() % 16 == 0 ? static_cast<int64_t>(random()) : next);
      ++next;
    }
    if (!CheckIds(0, ids, rows).ok()) continue;
    ++accepted;
    for (size_t k = 0; k < ids.size(); ++k) {
      EXPECT_TRUE(ids[k] >= 0 && ids[k] < rows);
      EXPECT_TRUE(k == 0 || ids[k - 1] < ids[k]);
    }
  }
  EXPECT_GT(accepted, cases / 10);
  EXPECT_LT(accepted, cases);
}

// Rank 1 takes part in the collectives of max_norm by hand.
TEST(PeerCountsTest, MaxNormRefusesWhatAPeerSends) {
  const Tensor ids = Tensor::FromSpan<int64_t>({2, 5}, {1, 2}).value();
  const struct {
    int64_t count;
    std::vector<int64_t> ids;
    std::string phrase;
  } kCases[] = {{int64_t{1} << 61, {}, "the number"},
                {-1, {}, "the number"},
                {2, {4, 7}, "the id 7"},
                {2, {-8, 4}, "the id -8"},
                {2, {4, 4}, "the id 4"}};
  for (const auto& c : kCases) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      if (group.rank() == 1) {
        std::vector<int64_t> counts(3);
        ASSERT_THAT(group.AllGather<int64_t>(absl::MakeConstSpan(&c.count, 1),
                                             absl::MakeSpan(counts)),
                    IsOk());
        if (c.ids.empty()) return;
        std::vector<int64_t> all(6);
        std::vector<MutableBytes> recvs;
        for (size_t r = 0; r < 3; ++r) {
          recvs.emplace_back(reinterpret_cast<std::byte*>(&all[2 * r]), 16);
        }
        ASSERT_THAT(
            group.AllGatherV(
                ConstBytes(reinterpret_cast<const std::byte*>(c.ids.data()),
                           16),
                recvs),
            IsOk());
        return;
      }
      const Tensor whole = Tensor::Full({6, 4}, 3.0F).value();
      const ShardedTensor shards = ShardsOf(
          whole, ChunkShardingSpec::Create(0, PlacementsOnRanks(3)).value());
      PlannedTable table;
      ASSERT_THAT(table.Set(shards, group.rank()), IsOk());
      table.options.max_norm = 1;
      ASSERT_THAT(table.bags.Set(kFloat32, 6, {ids}, table.options), IsOk());
      EXPECT_THAT(Renormalize(table, &group, {}, /*direct=*/true),
                  AllOf(StatusIs(kGarbled, c.phrase), HasErrorRank(1)));
      for (const Shard& shard : shards.local_shards()) {
        EXPECT_EQ(shard.tensor.data_as<float>()[0], 3.0F);
      }
    });
  }
}

// Rank 1 takes part in the agreement by hand, and announces more than there is.
TEST(PeerCountsTest, AnAnnouncedLengthTakesNoMemoryBeforeItArrives) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const ShardedTensor shards =
        ShardsOf(Tensor::Full({6, 4}, 3.0F).value(),
                 ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value());
    const Tensor ids = Tensor::FromSpan<int64_t>({2, 5}, {1, 2}).value();
    const std::vector<TableLookUp> lookups = {{shards, {ids}}};
    if (group.rank() == 0) {
      const absl::Status status = LookUp(lookups, {.direct = false}).status();
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << status;
      return;
    }
    LookUpPlan plan(&group);
    bool planned = false;
    ASSERT_THAT(plan.Set(lookups, planned), IsOk());
    const uint64_t fingerprint =
        Fingerprint()
            .Add(int64_t{0})
            .Add(static_cast<int64_t>(plan.FingerprintOfCall()))
            .value();
    const std::array<uint64_t, 4> note = {0, 0, uint64_t{1} << 39, 0};
    EXPECT_THAT(AgreeAndGather(group, LookUpOp::kName, absl::OkStatus(),
                               {fingerprint}, note),
                IsOk());
  });
}

TEST(PeerCountsTest, RowsBeyondTheMemoryOfAPeerAreRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(CheckRows(1, 3, 8, 16, 40), IsOk());
  // Of one row the distance does not matter.
  EXPECT_THAT(CheckRows(1, 1, 8, 1 << 20, 8), IsOk());
  EXPECT_THAT(CheckRows(1, 3, 8, 0, 8), IsOk());
  for (const int64_t stride : {int64_t{17}, int64_t{-16}, kMost, kMost / 2}) {
    EXPECT_THAT(
        CheckRows(1, 3, 8, stride, 40),
        AllOf(StatusIs(kGarbled, "rank 1 sent the distance"), HasErrorRank(1)));
  }
  EXPECT_THAT(CheckRows(1, 1, 8, 8, 7), StatusIs(kGarbled, "in 7 bytes"));
}

// Rank 1 takes part in the exchange by hand.
TEST(PeerCountsTest, AWrongDistanceOfRowsMakesAPeerUnreadable) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const ShardedTensor shards =
        ShardsOf(Tensor::Full({6, 4}, 3.0F).value(),
                 ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value());
    const Tensor ids = Tensor::FromSpan<int64_t>({2, 5}, {1, 2}).value();
    if (group.rank() == 0) {
      LookUpPlan plan(&group);
      bool planned = false;
      ASSERT_THAT(plan.Set({{shards, {ids}}}, planned), IsOk());
      absl::Status mapped;
      ASSERT_THAT(plan.ExchangeAddresses(group, {}, mapped), IsOk());
      EXPECT_THAT(mapped, AllOf(StatusIs(kGarbled, "the distance 32 of 3 rows"),
                                HasErrorRank(1)));
      EXPECT_THAT(group.Barrier(), IsOk());
      return;
    }
    const std::optional<MemoryHandle> handle =
        group.peer_memory()->Export(shards.local_shards()[0].tensor.data(), 48);
    ASSERT_TRUE(handle.has_value());
    // A shard: its handle, the distance of its rows, and that it is in reach.
    std::vector<uint64_t> own(handle->words.begin(), handle->words.end());
    own.push_back(32);
    own.push_back(1);
    std::vector<uint64_t> other(own.size());
    const std::vector<MutableBytes> recvs = {
        MutableBytes(reinterpret_cast<std::byte*>(other.data()),
                     other.size() * sizeof(uint64_t)),
        MutableBytes(reinterpret_cast<std::byte*>(own.data()),
                     own.size() * sizeof(uint64_t))};
    ASSERT_THAT(group.AllGatherV(recvs[1], recvs), IsOk());
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd::internal
