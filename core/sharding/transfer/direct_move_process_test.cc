#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/direct_move.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::CountPassages;
using ::sherd::testing::FailAt;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::KillRankAt;
using ::sherd::testing::StatusIs;
using ::sherd::testing::StopRankAt;

// Ranks that are processes and reach each other's shards.
class DirectMoveProcessTest : public sherd::testing::DistributedTest {
 protected:
  int world_size() const override { return 3; }

  ShardingSpecPtr Chunks(int dim) const {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(3)).value();
  }

  ShardedTensor Source() const {
    const ShardedTensor tensor =
        ShardedTensor::Empty(Chunks(0), {64, 60}).value();
    FillPattern(tensor);
    return tensor;
  }

  // Gathering is pushed to rank 0, everything else pulled.
  absl::Status Move(const ShardedTensor& source, bool push,
                    const ReshardOptions& options) {
    if (push) {
      const absl::StatusOr<Tensor> whole = source.Gather(0, Tensor(), options);
      if (whole.ok() && rank() == 0) {
        EXPECT_TRUE(HasPattern(*whole, {0, 0}, {64, 60}));
      }
      return whole.status();
    }
    ShardedTensor moved = source;
    const absl::Status status = moved.Reshard(Chunks(1), options);
    if (status.ok()) {
      EXPECT_TRUE(HasPattern(moved));
    }
    return status;
  }
};

SHERD_DIST_TEST_F(DirectMoveProcessTest, CopiesOnceWithoutStagingMemory) {
  const ShardedTensor source = Source();
  for (const bool push : {false, true}) {
    ReshardStats stats;
    CountPassages messages("comm/after_completion", {.rank = rank()});
    ASSERT_THAT(Move(source, push, {.stats = &stats}), IsOk());
    EXPECT_EQ(stats.strategy,
              push ? TransferStrategy::kPushed : TransferStrategy::kPulled);
    EXPECT_EQ(stats.staging_bytes, 0);
    EXPECT_EQ(stats.bytes_staged, 0);
    EXPECT_EQ(stats.rounds, 0);
    EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
    EXPECT_EQ(messages.count(), 2);
  }
}

SHERD_DIST_TEST_F(DirectMoveProcessTest, MessagesDoWhatCannotBeMapped) {
  const ShardedTensor source = Source();
  for (const bool push : {false, true}) {
    FailAt fault("sharding/import", absl::ResourceExhaustedError("no space"),
                 {.rank = 1});
    ReshardStats stats;
    ASSERT_THAT(Move(source, push, {.stats = &stats}), IsOk());
    EXPECT_EQ(stats.strategy, TransferStrategy::kMessages);
    EXPECT_TRUE(HasPattern(source));
  }
}

struct Death {
  std::string point;
  bool push = false;
};

class DyingCopierTest : public DirectMoveProcessTest,
                        public ::testing::WithParamInterface<Death> {};

SHERD_DIST_TEST_P(DyingCopierTest, IsNamedAndTheSourceStays) {
  const ShardedTensor source = Source();
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  ExpectRankDies(1, SIGKILL);
  KillRankAt fault(GetParam().point, 1);
  const absl::Status status = Move(source, GetParam().push, {});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ErrorRank(status), 1) << status;
  EXPECT_TRUE(HasPattern(source));
}

INSTANTIATE_TEST_SUITE_P(Points, DyingCopierTest,
                         ::testing::Values(Death{"sharding/import", false},
                                           Death{"sharding/after_copy", false},
                                           Death{"sharding/import", true},
                                           Death{"sharding/after_copy", true}),
                         [](const ::testing::TestParamInfo<Death>& info) {
                           return absl::StrCat(
                               info.param.push ? "Pushes" : "Pulls",
                               info.index);
                         });

// The others give up waiting for a rank that is stopped before it copies. When
// it continues, it must not accept the data that it reads then.
SHERD_DIST_TEST_F(DirectMoveProcessTest, AStoppedRankIsNamedAndCallsTooLate) {
  const ShardedTensor source = Source();
  if (rank() == 1) {
    ASSERT_THAT(store().Set("pid", absl::StrCat(getpid())), IsOk());
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  StopRankAt fault("sharding/before_copy", 1);
  const absl::Status status = Move(
      source, /*push=*/false, {.timeout = absl::Seconds(rank() == 1 ? 50 : 2)});
  EXPECT_TRUE(HasPattern(source));
  EXPECT_FALSE(status.ok());
  if (rank() == 1) return;
  EXPECT_EQ(ErrorRank(status), 1) << status;
  if (rank() == 2) {
    ASSERT_THAT(store().Set("rank 2 has named it", ""), IsOk());
    return;
  }
  // A rank that continues is no longer the failed rank.
  ASSERT_THAT(
      store().Wait({"rank 2 has named it"}, Deadline::After(absl::Seconds(30))),
      IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string pid,
      store().Get("pid", Deadline::After(absl::Seconds(10))));
  int stopped = 0;
  ASSERT_TRUE(absl::SimpleAtoi(pid, &stopped));
  const ProcessIdentity rank_1 = ProcessIdentity::Of(stopped);
  while (StateOf(rank_1) != ProcessState::kStopped) std::this_thread::yield();
  EXPECT_EQ(kill(stopped, SIGCONT), 0);
}

}  // namespace
}  // namespace sherd
