// A rank that is killed or frozen while a series removes steps, copies one to
// its second directory, or saves an increment.

#include <csignal>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/distributed_save_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::KillRankAt;
using sherd::testing::StatusIs;
using sherd::testing::StopRankAt;

class SeriesKillTest : public DistributedSaveFixture {
 protected:
  std::string second() const {
    return CheckpointPlace(JoinPath(temp_dir(), "second"));
  }

  absl::StatusOr<CheckpointSeries> Open(const SeriesOptions& options) {
    return CheckpointSeries::Open(path(), nullptr, options);
  }

  absl::Status Save(CheckpointSeries& series, int64_t step) {
    SHERD_RETURN_IF_ERROR(
        series.Save(step, {{"t", MakeTensor(static_cast<int>(step))}}));
    return series.Flush();
  }

  void SaveFirst(CheckpointSeries& series) {
    ASSERT_THAT(Save(series, 1), IsOk());
    ASSERT_THAT(WaitForRanks("saved"), IsOk());
  }

  void ExpectNamed(const absl::Status& status, int victim,
                   absl::StatusCode code) {
    EXPECT_NE(rank(), victim) << "survived";
    EXPECT_THAT(status, StatusIs(code));
    EXPECT_EQ(FailedRank(status), victim) << status;
  }

  static void ExpectWhole(const std::string& directory, int64_t step) {
    EXPECT_THAT(VerifyCheckpoint(JoinPath(directory, StepManifestName(step))),
                IsOk());
  }

  // The second save, in which `victim` dies.
  void Die(const SeriesOptions& options, int victim, const std::string& point,
           const testing::FaultOptions& fault) {
    auto series = Open(options);
    ASSERT_THAT(series, IsOk());
    SaveFirst(*series);
    ExpectRankDies(victim, SIGKILL);
    const KillRankAt death(point, victim, fault);
    ExpectNamed(Save(*series, 2), victim, absl::StatusCode::kUnavailable);
  }
};

SHERD_DIST_TEST_F(SeriesKillTest, RankZeroDiesBeforeItRemovesAManifest) {
  Die({.keep_last = 1}, 0, "file/remove", {.subject = "*/step-*"});
  ExpectWhole(path(), 1);
  ExpectWhole(path(), 2);
}

SHERD_DIST_TEST_F(SeriesKillTest, RankZeroDiesBeforeItRemovesADataFile) {
  Die({.keep_last = 1}, 0, "file/remove", {.subject = "*/shard-*"});
  ExpectWhole(path(), 2);
}

SHERD_DIST_TEST_F(SeriesKillTest, DiesHalfWayThroughACopy) {
  Die({.copy_to = second()}, 2, "file/write",
      {.subject = JoinPath(second(), "*")});
  ExpectWhole(path(), 2);
  ExpectWhole(second(), 1);
}

SHERD_DIST_TEST_F(SeriesKillTest, RankZeroDiesBeforeItPlacesACopy) {
  Die({.copy_to = second()}, 0, "file/rename_new",
      {.subject = JoinPath(second(), "step-*")});
  ExpectWhole(path(), 2);
  ExpectWhole(second(), 1);
}

SHERD_DIST_TEST_F(SeriesKillTest, DiesBeforeItsListOfUnchangedPieces) {
  Die({.incremental = true}, 1, "comm/before_post", {.nth = 2});
  ExpectWhole(path(), 1);
}

SHERD_DIST_TEST_F(SeriesKillTest, IsFrozenHalfWayThroughACopy) {
  constexpr int kVictim = 2;
  auto series =
      Open({.save = {.timeout = absl::Seconds(2)}, .copy_to = second()});
  ASSERT_THAT(series, IsOk());
  SaveFirst(*series);
  ExpectRankFreezes(kVictim);
  const StopRankAt stop("file/write", kVictim,
                        {.subject = JoinPath(second(), "*")});
  ExpectNamed(Save(*series, 2), kVictim, absl::StatusCode::kDeadlineExceeded);
  ExpectWhole(path(), 2);
  ExpectWhole(second(), 1);
  EndFrozenRank(kVictim);
}

}  // namespace
}  // namespace sherd
