// A rank that dies or is frozen while the writers of all ranks work: the
// handles of the survivors name it, and the former checkpoint remains.

#include <csignal>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/kits/distributed_save_fixture.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::KillRankAt;
using sherd::testing::StatusIs;
using sherd::testing::StopRankAt;
using ::testing::StartsWith;

class AsyncKillTest : public DistributedSaveFixture {
 protected:
  // The writers exist from here on.
  void SaveFirst() {
    auto save = SaveCheckpointAsync(path(), {{"t", MakeTensor(1)}});
    ASSERT_THAT(save, IsOk());
    ASSERT_THAT(save->Durable(), IsOk());
    ASSERT_THAT(WaitForRanks("saved"), IsOk());
  }

  // The second save, on the ranks that survive it.
  void ExpectNamed(int victim, absl::StatusCode code,
                   const AsyncSaveOptions& options = {}) {
    ShardedTensor tensor = MakeTensor(2);
    auto save = SaveCheckpointAsync(path(), {{"t", tensor}}, nullptr, options);
    ASSERT_THAT(save, IsOk());
    if (options.staging_budget == 0) {
      EXPECT_THAT(save->Copied(), IsOk());
    } else {
      save->Copied().IgnoreError();
    }
    const absl::Status status = save->Durable();
    EXPECT_NE(rank(), victim) << "survived";
    EXPECT_THAT(status, StatusIs(code));
    EXPECT_EQ(FailedRank(status), victim) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("save \""));
    EXPECT_EQ(GetErrorInfo(status).operation, "save_checkpoint");
    // The others' are still there, until Flush.
    EXPECT_THAT(FlushSaves(), IsOk());
    EXPECT_EQ(SeedOnDisk(), 1);
  }

  void Die(int victim, const std::string& operation, int64_t nth,
           const AsyncSaveOptions& options = {}) {
    SaveFirst();
    ExpectRankDies(victim, SIGKILL);
    const KillRankAt death("file/" + operation, victim, {.nth = nth});
    ExpectNamed(victim, absl::StatusCode::kUnavailable, options);
  }
};

SHERD_DIST_TEST_F(AsyncKillTest, DiesBeforeCreatingItsFile) {
  Die(1, "create", 1);
}
SHERD_DIST_TEST_F(AsyncKillTest, DiesHalfWayThroughAWrite) {
  Die(2, "write", 2);
}
SHERD_DIST_TEST_F(AsyncKillTest, DiesWhileOthersWaitForTheirCopies) {
  Die(1, "write", 1, {.staging_budget = 1});
}
SHERD_DIST_TEST_F(AsyncKillTest, RankZeroDiesBeforeTheSwitch) {
  Die(0, "rename", 1);
}

SHERD_DIST_TEST_F(AsyncKillTest, IsFrozenInTheMiddleOfItsFile) {
  constexpr int kVictim = 1;
  SaveFirst();
  ExpectRankFreezes(kVictim);
  const StopRankAt stop("file/write", kVictim, {.nth = 2});
  ExpectNamed(kVictim, absl::StatusCode::kDeadlineExceeded,
              {.save = {.timeout = absl::Seconds(2)}});
  EndFrozenRank(kVictim);
}

}  // namespace
}  // namespace sherd
