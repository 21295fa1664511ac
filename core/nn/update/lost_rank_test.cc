// A rank that is killed or stopped in a lookup or an update: every other one
// names it, and so does the next call.

#include <csignal>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::KillRankAt;
using ::sherd::testing::StatusIs;
using ::sherd::testing::StopRankAt;
using ::testing::StartsWith;

constexpr int kVictim = 2;

struct Loss {
  bool updates;
  bool direct;
  // Where the victim is lost, and in which collective of the call.
  std::string point;
  int64_t nth;

  friend std::ostream& operator<<(std::ostream& out, const Loss& loss) {
    return out << (loss.updates ? "Update" : "LookUp")
               << (loss.direct ? " direct" : " by messages") << ", at passage "
               << loss.nth << " of " << loss.point;
  }
};

class LostRankTest : public sherd::testing::DistributedTest,
                     public ::testing::WithParamInterface<Loss> {
 protected:
  // A call that ends well: later ones have its plan.
  void CallFirst() {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto rows,
        ChunkShardingSpec::Create(0, PlacementsOnRanks(world_size())));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto columns,
        ChunkShardingSpec::Create(1, PlacementsOnRanks(world_size())));
    SHERD_ASSERT_OK_AND_ASSIGN(by_rows_, ShardedTensor::Ones(rows, {10, 4}));
    SHERD_ASSERT_OK_AND_ASSIGN(by_columns_,
                               ShardedTensor::Ones(columns, {10, 8}));
    ASSERT_THAT(Call(), IsOk());
    ASSERT_THAT(WaitForRanks("first"), IsOk());
  }

  absl::Status Call() {
    const Tensor ids =
        Tensor::FromSpan<int64_t>({0, 9, rank(), 5}, {2, 2}).value();
    const std::vector<TableLookUp> lookups = {{by_rows_, {ids}},
                                              {by_columns_, {ids}}};
    if (!GetParam().updates) {
      return LookUp(lookups,
                    {.timeout = patience_, .direct = GetParam().direct})
          .status();
    }
    return Update(lookups,
                  {Tensor::Ones({2, 4}).value(), Tensor::Ones({2, 8}).value()},
                  {.timeout = patience_, .direct = GetParam().direct});
  }

  // Of a call; unset, that of the group.
  std::optional<absl::Duration> patience_;

 private:
  ShardedTensor by_rows_;
  ShardedTensor by_columns_;
};

SHERD_DIST_TEST_P(LostRankTest, IsNamed) {
  CallFirst();
  ExpectRankDies(kVictim, SIGKILL);
  const KillRankAt death(GetParam().point, kVictim, {.nth = GetParam().nth});
  const absl::Status status = Call();
  EXPECT_NE(rank(), kVictim) << "survived";
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(FailedRank(status), kVictim) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith(GetParam().updates ? "update" : "look_up"));
  const absl::Status next = Call();
  EXPECT_FALSE(next.ok());
  EXPECT_EQ(FailedRank(next), kVictim) << next;
}

SHERD_DIST_TEST_P(LostRankTest, IsNamedWhereItIsFrozen) {
  CallFirst();
  ExpectRankFreezes(kVictim);
  patience_ = absl::Seconds(2);
  const StopRankAt stop(GetParam().point, kVictim, {.nth = GetParam().nth});
  const absl::Status status = Call();
  EXPECT_NE(rank(), kVictim) << "went on";
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(FailedRank(status), kVictim) << status;
  const absl::Status next = Call();
  EXPECT_FALSE(next.ok());
  EXPECT_EQ(FailedRank(next), kVictim) << next;
  EndFrozenRank(kVictim);
}

INSTANTIATE_TEST_SUITE_P(
    Points, LostRankTest,
    ::testing::Values(Loss{false, true, "comm/before_post", 1},
                      Loss{false, true, "comm/after_completion", 1},
                      Loss{false, false, "comm/before_post", 2},
                      Loss{false, false, "comm/before_post", 3},
                      Loss{true, true, "comm/before_post", 1},
                      Loss{true, true, "comm/after_completion", 1},
                      Loss{true, false, "comm/before_post", 1},
                      Loss{true, false, "comm/before_post", 2}),
    [](const ::testing::TestParamInfo<Loss>& info) {
      return absl::StrCat(info.param.updates ? "Update" : "LookUp",
                          info.param.direct ? "Direct" : "Messages",
                          info.index);
    });

}  // namespace
}  // namespace sherd
