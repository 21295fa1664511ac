// A rank that is killed or frozen in the middle of a save or load, at a counted
// operation on files: every other one names it, and a checkpoint remains.

#include <csignal>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_files.h"
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

class CheckpointKillTest : public DistributedSaveFixture {
 protected:
  void SaveFirst() {
    ASSERT_THAT(SaveCheckpoint(path(), {{"t", MakeTensor(1)}}), IsOk());
    ASSERT_THAT(WaitForRanks("saved"), IsOk());
  }

  // The second save, in which `victim` dies at its `nth` `operation` on files
  // that match `subject`; `replaced` selects which of the two checkpoints must
  // exist afterwards.
  void DieWhileSaving(int victim, const std::string& operation, int64_t nth,
                      const std::string& subject = "*", bool replaced = false) {
    SaveFirst();
    ExpectRankDies(victim, SIGKILL);
    const KillRankAt death("file/" + operation, victim,
                           {.nth = nth, .subject = subject});
    ExpectSaveFails(victim, absl::StatusCode::kUnavailable, {});
    EXPECT_EQ(SeedOnDisk(), replaced ? 2 : 1);
  }

  void FreezeWhileSaving(int victim, const std::string& operation,
                         int64_t nth) {
    SaveFirst();
    ExpectRankFreezes(victim);
    const StopRankAt stop("file/" + operation, victim, {.nth = nth});
    ExpectSaveFails(victim, absl::StatusCode::kDeadlineExceeded,
                    {.timeout = kPatience});
    EXPECT_EQ(SeedOnDisk(), 1);
    EndFrozenRank(victim);
  }

  void DieWhileLoading(int victim, const std::string& operation, int64_t nth,
                       int64_t min_read_bytes) {
    SaveFirst();
    ExpectRankDies(victim, SIGKILL);
    const KillRankAt death("file/" + operation, victim, {.nth = nth});
    ExpectLoadFails(victim, absl::StatusCode::kUnavailable,
                    {.min_read_bytes = min_read_bytes});
  }

  void FreezeWhileLoading(int victim, const std::string& operation, int64_t nth,
                          int64_t min_read_bytes) {
    SaveFirst();
    ExpectRankFreezes(victim);
    const StopRankAt stop("file/" + operation, victim, {.nth = nth});
    ExpectLoadFails(victim, absl::StatusCode::kDeadlineExceeded,
                    {.min_read_bytes = min_read_bytes, .timeout = kPatience});
    EndFrozenRank(victim);
  }

 private:
  // With a frozen rank.
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  void ExpectSaveFails(int victim, absl::StatusCode code,
                       const SaveOptions& options) {
    const absl::Status status =
        SaveCheckpoint(path(), {{"t", MakeTensor(2)}}, nullptr, options);
    EXPECT_NE(rank(), victim) << "survived";
    EXPECT_THAT(status, StatusIs(code));
    EXPECT_EQ(FailedRank(status), victim) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("save \""));
    EXPECT_EQ(GetErrorInfo(status).operation, "save_checkpoint");
  }

  void ExpectLoadFails(int victim, absl::StatusCode code,
                       const LoadOptions& options) {
    auto columns =
        ChunkShardingSpec::Create(1, PlacementsOnRanks(world_size()));
    const auto loaded =
        LoadCheckpoint(path(), {{"t", *columns}}, nullptr, options);
    EXPECT_NE(rank(), victim) << "survived";
    EXPECT_THAT(loaded, StatusIs(code));
    EXPECT_EQ(FailedRank(loaded.status()), victim) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()), StartsWith("load \""));
    EXPECT_EQ(SeedOnDisk(), 1);
  }
};

SHERD_DIST_TEST_F(CheckpointKillTest, BeforeCreatingItsFile) {
  DieWhileSaving(1, "create", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, BeforeReservingSpace) {
  DieWhileSaving(2, "reserve", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, HalfWayThroughAWrite) {
  DieWhileSaving(1, "write", 2);
}
SHERD_DIST_TEST_F(CheckpointKillTest, BeforeSyncingItsFile) {
  DieWhileSaving(2, "sync", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, BeforeClosingItsFile) {
  DieWhileSaving(1, "close", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, BeforeMakingTheNameOfItsFileDurable) {
  DieWhileSaving(2, "sync_directory", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroBeforeMakingTheDirectoryDurable) {
  DieWhileSaving(0, "sync_directory", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroBeforeWritingAnything) {
  DieWhileSaving(0, "free_bytes", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroBeforeTakingTheLease) {
  DieWhileSaving(0, "rename_new", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroBeforeWritingTheManifest) {
  DieWhileSaving(0, "create", 1, "*/manifest.sherd.*");
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroBeforeSyncingTheManifest) {
  DieWhileSaving(0, "sync", 1, "*/manifest.sherd.*");
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroBeforeTheSwitch) {
  DieWhileSaving(0, "rename", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroJustAfterTheSwitch) {
  // After that for the data file.
  DieWhileSaving(0, "sync_directory", 2, path(), /*replaced=*/true);
}

SHERD_DIST_TEST_F(CheckpointKillTest, BeforeReadingTheManifest) {
  DieWhileLoading(1, "open_for_read", 1, 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, BeforeOpeningADataFile) {
  DieWhileLoading(0, "open_for_read", 2, 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, WhileReadingPieces) {
  // After those of the manifest; short pieces are read together.
  DieWhileLoading(2, "read", 4, 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, WhileReadingForAnExchange) {
  DieWhileLoading(1, "read", 2, 1 << 30);
}

SHERD_DIST_TEST_F(CheckpointKillTest, FrozenHalfWayThroughAWrite) {
  FreezeWhileSaving(1, "write", 2);
}
SHERD_DIST_TEST_F(CheckpointKillTest, FrozenBeforeSyncingItsFile) {
  FreezeWhileSaving(2, "sync", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, RankZeroFrozenBeforeTheSwitch) {
  FreezeWhileSaving(0, "rename", 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, FrozenBeforeReadingTheManifest) {
  FreezeWhileLoading(1, "open_for_read", 1, 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, FrozenWhileReadingPieces) {
  FreezeWhileLoading(2, "read", 4, 1);
}
SHERD_DIST_TEST_F(CheckpointKillTest, FrozenWhileReadingForAnExchange) {
  FreezeWhileLoading(1, "read", 2, 1 << 30);
}

SHERD_DIST_TEST_F(CheckpointKillTest, TheNextSaveRemovesWhatTheDeadLeft) {
  DieWhileSaving(1, "write", 2);
  // The survivors have no group any more; one of them goes on alone.
  if (rank() != 0) return;
  const auto before = CheckpointFiles().List(path());
  ASSERT_THAT(before, IsOk());
  EXPECT_GT(before->size(), static_cast<size_t>(world_size()) + 1)
      << "the dead rank left nothing";
  ASSERT_THAT(group().Destroy(), IsOk());
  auto alone = Init({.rank = 0,
                     .world_size = 1,
                     .init_method = init_method() + "_again",
                     .group_name = "alone"});
  ASSERT_THAT(alone, IsOk());
  auto spec = ChunkShardingSpec::Create(0, {"rank:0/cpu"});
  auto tensor = ShardedTensor::Zeros(*spec, kSize);
  ASSERT_THAT(tensor, IsOk());
  FillSample(*tensor, 2);
  ASSERT_THAT(SaveCheckpoint(path(), {{"t", *tensor}}), IsOk());
  const auto after = CheckpointFiles().List(path());
  ASSERT_THAT(after, IsOk());
  EXPECT_EQ(after->size(), 3u) << "data, manifest, and the mark";
  EXPECT_EQ(SeedOnDisk(), 2);
  EXPECT_THAT((*alone)->Destroy(), IsOk());
}

}  // namespace
}  // namespace sherd
