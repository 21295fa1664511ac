// Two jobs of two processes each that save to one directory: ranks 0 and 1, and
// ranks 2 and 3. Job 0 dies or is frozen in the middle of its save, and job 1
// takes over.

#include <signal.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/kits/distributed_save_fixture.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::KillRankAt;
using sherd::testing::StatusIs;
using sherd::testing::StopRankAt;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The rank that holds the lease of job 0, and dies or is stopped.
constexpr int kHolder = 0;

class CheckpointJobsTest : public DistributedSaveFixture {
 protected:
  int job() const { return rank() / 2; }

  void RunBody(const std::function<void()>& body) {
    auto split = group().Split(job(), rank());
    ASSERT_THAT(split, IsOk());
    job_ = *std::move(split);
    ASSERT_THAT(
        store().Set(absl::StrCat("pid/", rank()), absl::StrCat(getpid())),
        IsOk());
    if (job() == 0) {
      ASSERT_THAT(Save(1), IsOk());
    }
    ASSERT_THAT(WaitForRanks("saved"), IsOk());
    body();
  }

  // Saves the tensor of `seed` from the ranks of this job.
  absl::Status Save(int seed, absl::Duration lease = absl::Hours(1)) {
    auto spec = MeshShardingSpec::FromPlacements(
        {{2}, PlacementsOn({2 * job(), 2 * job() + 1})},
        {MeshPlacement::Shard(0)});
    EXPECT_THAT(spec, IsOk());
    auto tensor = ShardedTensor::Zeros(*spec, kSize, {.group = job_});
    EXPECT_THAT(tensor, IsOk());
    FillSample(*tensor, seed);
    return SaveCheckpoint(path(), {{"t", *tensor}}, job_,
                          {.lease_duration = lease});
  }

  size_t NumFiles() {
    const auto names = CheckpointFiles().List(path());
    EXPECT_THAT(names, IsOk());
    return names->size();
  }

  int64_t PidOf(int rank) {
    const auto text = store().Get(absl::StrCat("pid/", rank),
                                  Deadline::After(absl::Minutes(1)));
    EXPECT_THAT(text, IsOk());
    int64_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(*text, &pid));
    return pid;
  }

  // Until the holder is in `state`.
  void WaitForHolder(ProcessState state) {
    const ProcessIdentity holder = ProcessIdentity::Of(PidOf(kHolder));
    while (StateOf(holder) != state) absl::SleepFor(absl::Milliseconds(1));
  }

  // Job 0 is stopped at a point. Job 1 takes over, and wakes it in the middle
  // of its own save.
  void Freeze(const std::string& point, const std::string& subject) {
    const StopRankAt stop(point, kHolder,
                          {.rank = kHolder, .subject = subject});
    if (job() == 0) {
      // Long enough that it is not over before the holder is stopped.
      const absl::Status status = Save(2, absl::Seconds(2));
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                                   HasSubstr("this save has lost")));
      EXPECT_FALSE(IsRankFailure(status)) << status;
      EXPECT_THAT(job_->Barrier(), IsOk()) << "the group stays usable";
      EXPECT_THAT(store().Set("woken", "1"), IsOk());
    } else {
      const CallAt wake("file/reserve", [&] { Wake(); }, {.rank = 2});
      WaitForHolder(ProcessState::kStopped);
      absl::Status status;
      do {
        status = Save(3);
      } while (absl::IsAborted(status));
      EXPECT_THAT(status, IsOk());
    }
    ASSERT_THAT(WaitForRanks("over"), IsOk());
    EXPECT_EQ(SeedOnDisk(), 3);
    EXPECT_EQ(NumFiles(), 4u) << "two of data, one manifest, the mark";
  }

  // Lets job 0 end its save.
  void Wake() {
    EXPECT_EQ(SeedOnDisk(), 1);
    EXPECT_EQ(kill(static_cast<pid_t>(PidOf(kHolder)), SIGCONT), 0);
    EXPECT_THAT(store().Get("woken", Deadline::After(absl::Minutes(1))),
                IsOk());
    EXPECT_EQ(SeedOnDisk(), 1) << "the old checkpoint remains";
  }

  std::shared_ptr<ProcessGroup> job_;
};

SHERD_DIST_TEST_F(CheckpointJobsTest, TheSecondIsRefusedWithTheNameOfTheFirst) {
  RunBody([&] {
    const CallAt at(
        "file/reserve",
        [&] {
          EXPECT_THAT(store().Set("holds", "1"), IsOk());
          EXPECT_THAT(store().Get("refused", Deadline::After(absl::Minutes(1))),
                      IsOk());
        },
        {.rank = kHolder});
    if (job() == 0) {
      EXPECT_THAT(Save(2), IsOk());
    } else {
      EXPECT_THAT(store().Get("holds", Deadline::After(absl::Minutes(1))),
                  IsOk());
      const auto held =
          StatusIs(absl::StatusCode::kAborted,
                   AllOf(HasSubstr(absl::StrCat("held by process ",
                                                PidOf(kHolder), " of host ")),
                         HasSubstr("wait until it is done")));
      EXPECT_THAT(Save(3), held);
      EXPECT_THAT(Save(3, absl::Milliseconds(1)), held);
      EXPECT_EQ(SeedOnDisk(), 1) << "readers ignore the lease";
      EXPECT_THAT(job_->Barrier(), IsOk());
      EXPECT_THAT(store().Set("refused", "1"), IsOk());
    }
    ASSERT_THAT(WaitForRanks("over"), IsOk());
    EXPECT_EQ(SeedOnDisk(), 2);
    EXPECT_EQ(NumFiles(), 4u);
  });
}

SHERD_DIST_TEST_F(CheckpointJobsTest, ADeadHoldersLeaseIsTakenOverAtOnce) {
  RunBody([&] {
    ExpectRankDies(kHolder, SIGKILL);
    const KillRankAt death("file/reserve", kHolder, {.rank = kHolder});
    if (job() == 0) {
      const absl::Status status = Save(2);
      EXPECT_EQ(FailedRank(status), kHolder) << status;
      return;
    }
    WaitForHolder(ProcessState::kEnded);
    EXPECT_THAT(CheckpointFiles().Exists(JoinPath(path(), kLeaseFileName)),
                IsOkAndHolds(true));
    EXPECT_EQ(SeedOnDisk(), 1);
    EXPECT_THAT(Save(3), IsOk());
    EXPECT_EQ(SeedOnDisk(), 3);
    EXPECT_THAT(CheckpointFiles().Exists(JoinPath(path(), kLeaseFileName)),
                IsOkAndHolds(false));
  });
}

SHERD_DIST_TEST_F(CheckpointJobsTest, AFrozenHolderFailsAtItsCheck) {
  RunBody([&] { Freeze("file/create", "*/manifest.sherd.*"); });
}

SHERD_DIST_TEST_F(CheckpointJobsTest, AFrozenHolderFailsAtItsRename) {
  RunBody([&] { Freeze("file/rename", "*/manifest.sherd"); });
}

}  // namespace
}  // namespace sherd
