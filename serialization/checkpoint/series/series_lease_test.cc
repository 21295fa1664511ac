// A series whose lease another holds, or takes over.

#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Lt;
using ::testing::SizeIs;

class SeriesLeaseTest : public SeriesFixture {
 protected:
  std::vector<std::string> Files() const {
    const auto names = CheckpointFiles().List(path_);
    EXPECT_THAT(names, IsOk());
    return *names;
  }

  void LoseLease() const { RemovePlaced(JoinPath(path_, kLeaseFileName)); }
};

TEST_F(SeriesLeaseTest, AnotherHolderOfTheLeaseIsNamedAndNothingGoes) {
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto lease,
      CheckpointLease::Take(CheckpointFiles(), path_, "0123456789abcdef"));
  EXPECT_THAT(Save(1, {3}, {.keep_last = 1}),
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(StepsIn(path_), (std::set<int64_t>{1, 2}));
}

// The lease is lost after the switch: what this save knows may be wrong.
TEST_F(SeriesLeaseTest, AHolderThatLostTheLeaseRemovesNothing) {
  ASSERT_THAT(Save(1, {1}), IsOk());
  {
    const CallAt lose("file/sync_directory", [this] { LoseLease(); },
                      // The first is for the data file.
                      {.nth = 2, .subject = path_});
    EXPECT_THAT(Save(1, {2}, {.keep_last = 1}), IsOk());
  }
  ExpectExactly(path_, 1, {1, 2});
}

// As by a process that was stopped for long while it removed old steps.
TEST_F(SeriesLeaseTest, AHolderThatLosesTheLeaseMeanwhileRemovesNoMore) {
  ASSERT_THAT(Save(1, {1, 2, 3}), IsOk());
  const auto lose = [this] { LoseLease(); };
  {
    const CallAt fault("file/remove", lose, {.subject = ManifestOf(1)});
    EXPECT_THAT(Save(1, {4}, {.keep_last = 1}), IsOk());
  }
  EXPECT_EQ(StepsIn(path_), (std::set<int64_t>{2, 3, 4}));
  {
    const CallAt fault("file/remove", lose, {.subject = ManifestOf(4)});
    RunLocalRanks(1, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                                 CheckpointSeries::Open(path_));
      EXPECT_THAT(series.RemoveAfter(2),
                  StatusIs(absl::StatusCode::kAborted, "lost"));
    });
  }
  EXPECT_EQ(StepsIn(path_), (std::set<int64_t>{2, 3}));
  // The files of steps 1 and 4 are left, and the mark.
  EXPECT_THAT(Files(), SizeIs(2 + 4 + 1));
  ASSERT_THAT(Save(1, {5}), IsOk());
  ExpectExactly(path_, 1, {2, 3, 5});
}

TEST_F(SeriesLeaseTest, AHolderThatLosesTheLeaseMeanwhileLeavesMostFiles) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1}), IsOk());
  for (int rank = 0; rank < 64; ++rank) {
    std::ofstream(JoinPath(path_, DataFileName(rank, 64, "0123456789abcdef")))
        << "x";
  }
  {
    const CallAt lose("file/remove", [this] { LoseLease(); },
                      {.nth = 3, .subject = "*-of-00064*"});
    EXPECT_THAT(Save(1, {2}), StatusIs(absl::StatusCode::kAborted, "lost"));
  }
  EXPECT_THAT(Files(), SizeIs(AllOf(Ge(2u + 64 - 32), Lt(2u + 64))));
  ASSERT_THAT(Save(1, {2}), IsOk());
  ExpectExactly(path_, 1, {1, 2});
}

}  // namespace
}  // namespace sherd
