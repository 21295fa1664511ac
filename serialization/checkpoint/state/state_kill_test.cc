// A rank that is killed or frozen in the collectives of a save or load of a
// state, and of a save that compares replicas.

#include <csignal>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint.h"
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
using ::testing::AnyOf;

constexpr char kCollective[] = "comm/before_post";

class StateKillTest : public DistributedSaveFixture {
 protected:
  static constexpr int kVictim = 1;
  // With a frozen rank; far below the group's timeout.
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  // Each rank has a name of its own, of this seed: states are exchanged.
  StateDict MakeState(int seed) {
    StateDict state;
    EXPECT_THAT(state.Set("t", MakeTensor(seed)), IsOk());
    EXPECT_THAT(state.Set(absl::StrCat("own", seed, "_", rank()), rank()),
                IsOk());
    return state;
  }

  void SaveFirst() {
    ASSERT_THAT(SaveCheckpoint(path(), MakeState(1)), IsOk());
    ASSERT_THAT(WaitForRanks("saved"), IsOk());
  }

  void ExpectNamed(const absl::Status& status, absl::StatusCode code) {
    EXPECT_NE(rank(), kVictim) << "survived";
    EXPECT_THAT(status, StatusIs(code));
    EXPECT_EQ(FailedRank(status), kVictim) << status;
  }

  // In collective number `nth` of the second save.
  void DieWhileSaving(int64_t nth) {
    SaveFirst();
    ExpectRankDies(kVictim, SIGKILL);
    const KillRankAt death(kCollective, kVictim, {.nth = nth});
    ExpectNamed(SaveCheckpoint(path(), MakeState(2)),
                absl::StatusCode::kUnavailable);
    // The last ones are votes on what rank 0 has done.
    EXPECT_THAT(SeedOnDisk(), AnyOf(1, 2));
  }

  void FreezeWhileSaving(int64_t nth) {
    SaveFirst();
    ExpectRankFreezes(kVictim);
    const StopRankAt stop(kCollective, kVictim, {.nth = nth});
    ExpectNamed(
        SaveCheckpoint(path(), MakeState(2), nullptr, {.timeout = kPatience}),
        absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(SeedOnDisk(), 1);
    EndFrozenRank(kVictim);
  }

  absl::Status LoadFirst(const LoadOptions& options) {
    StateDict state = MakeState(1);
    return LoadCheckpointInto(path(), state, nullptr, options);
  }

  void DieWhileLoading(int64_t nth) {
    SaveFirst();
    ExpectRankDies(kVictim, SIGKILL);
    const KillRankAt death(kCollective, kVictim, {.nth = nth});
    LoadReport report;
    ExpectNamed(LoadFirst({.report = &report}), absl::StatusCode::kUnavailable);
    EXPECT_EQ(SeedOnDisk(), 1);
  }

  void FreezeWhileLoading(int64_t nth) {
    SaveFirst();
    ExpectRankFreezes(kVictim);
    const StopRankAt stop(kCollective, kVictim, {.nth = nth});
    LoadReport report;
    ExpectNamed(LoadFirst({.report = &report, .timeout = kPatience}),
                absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(SeedOnDisk(), 1);
    EndFrozenRank(kVictim);
  }
};

// The notes of all ranks; whether each has its description, their lengths, and
// the descriptions; and those of the save.
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeItsNote) { DieWhileSaving(1); }
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeItsVote) { DieWhileSaving(2); }
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeItsLength) { DieWhileSaving(3); }
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeItsState) { DieWhileSaving(4); }
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeItIsReady) { DieWhileSaving(5); }
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeItsReport) { DieWhileSaving(6); }
SHERD_DIST_TEST_F(StateKillTest, DiesBeforeTheLastVote) { DieWhileSaving(7); }
SHERD_DIST_TEST_F(StateKillTest, IsFrozenBeforeItsNote) {
  FreezeWhileSaving(1);
}
SHERD_DIST_TEST_F(StateKillTest, IsFrozenBeforeItsVote) {
  FreezeWhileSaving(2);
}
SHERD_DIST_TEST_F(StateKillTest, IsFrozenBeforeItsState) {
  FreezeWhileSaving(4);
}

// The states are those that were saved. The notes; two votes of the load of the
// tensors; and on reports the vote, their lengths, and they themselves.
SHERD_DIST_TEST_F(StateKillTest, DiesInALoadBeforeItsNote) {
  DieWhileLoading(1);
}
SHERD_DIST_TEST_F(StateKillTest, DiesInALoadBeforeTheVoteOnItsReads) {
  DieWhileLoading(3);
}
SHERD_DIST_TEST_F(StateKillTest, DiesInALoadBeforeItsVoteOnReports) {
  DieWhileLoading(4);
}
SHERD_DIST_TEST_F(StateKillTest, DiesInALoadBeforeItsReport) {
  DieWhileLoading(6);
}
SHERD_DIST_TEST_F(StateKillTest, IsFrozenInALoadBeforeItsVoteOnReports) {
  FreezeWhileLoading(4);
}
SHERD_DIST_TEST_F(StateKillTest, IsFrozenInALoadBeforeItsReport) {
  FreezeWhileLoading(6);
}

SHERD_DIST_TEST_F(StateKillTest, DiesWhileReplicasAreCompared) {
  auto spec = MeshShardingSpec::Create(
      {{world_size()}, PlacementsOnRanks(world_size())}, {});
  ASSERT_THAT(spec, IsOk());
  const auto make = [&](int seed) {
    auto tensor = ShardedTensor::Zeros(*spec, kSize);
    EXPECT_THAT(tensor, IsOk());
    FillSample(*tensor, seed);
    return *std::move(tensor);
  };
  const SaveOptions options = {.check_replicas = true};
  ASSERT_THAT(SaveCheckpoint(path(), {{"t", make(1)}}, nullptr, options),
              IsOk());
  ASSERT_THAT(WaitForRanks("saved"), IsOk());
  ExpectRankDies(kVictim, SIGKILL);
  // The second one ends the step in which CRCs are computed.
  const KillRankAt death(kCollective, kVictim, {.nth = 3});
  ExpectNamed(SaveCheckpoint(path(), {{"t", make(2)}}, nullptr, options),
              absl::StatusCode::kUnavailable);
  EXPECT_EQ(SeedOnDisk(), 1);
}

}  // namespace
}  // namespace sherd
