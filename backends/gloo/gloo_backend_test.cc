#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::sherd::testing::WithComms;
using ::sherd::testing::WithoutComms;
using ::testing::HasSubstr;

class GlooBackendTest : public sherd::testing::DistributedTest {
 protected:
  // The rank that misbehaves in failure tests: the last one.
  int failed_rank() const { return world_size() - 1; }

  // The error that all ranks but the failed rank must return.
  void ExpectLost(const absl::Status& status) const {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr(absl::StrCat("rank ", failed_rank(), ":"))));
    EXPECT_EQ(ErrorRank(status), failed_rank());
  }
};

SHERD_DIST_TEST_F(GlooBackendTest, EveryRankNamesTheKilledRank) {
  if (world_size() == 1) return;
  ExpectRankDies(failed_rank(), SIGKILL);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) raise(SIGKILL);
  std::vector<std::byte> all(1024 * world_size());
  const absl::Status status =
      group().AllGather(absl::MakeConstSpan(all).subspan(1024 * rank(), 1024),
                        absl::MakeSpan(all));
  ExpectLost(status);
  EXPECT_THAT(status.message(), HasSubstr("died"));
  EXPECT_THAT(group().Barrier(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

SHERD_DIST_TEST_F(GlooBackendTest, ARankKilledInTheMiddleOfALargeTransfer) {
  if (world_size() == 1) return;
  ExpectRankDies(failed_rank(), SIGKILL);
  // Far more than sockets buffer: the failed rank, which takes no part, dies
  // while the other ranks' messages are half sent.
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<std::byte> out(kBytes), in(kBytes);
  std::vector<ConstBytes> sends(world_size());
  std::vector<MutableBytes> recvs(world_size());
  if (rank() == failed_rank()) {
    for (int r = 0; r < failed_rank(); ++r) {
      ASSERT_THAT(group().store().Wait({absl::StrCat("started", r)},
                                       Deadline::After(absl::Seconds(60))),
                  IsOk());
    }
    raise(SIGKILL);
  }
  sends[failed_rank()] = out;
  recvs[failed_rank()] = absl::MakeSpan(in);
  Work work = group().AllToAllVAsync(sends, recvs);
  ASSERT_THAT(group().store().Set(absl::StrCat("started", rank()), ""), IsOk());
  ExpectLost(work.Wait());
}

SHERD_DIST_TEST_F(GlooBackendTest, RunningOperationsEndWhenARankIsKilled) {
  if (world_size() == 1) return;
  ExpectRankDies(failed_rank(), SIGKILL);
  // Far more than sockets buffer, in a group per operation.
  constexpr size_t kBytes = size_t{8} << 20;
  std::vector<std::byte> in(kBytes * world_size()), out(kBytes * world_size());
  const ConstBytes own = absl::MakeConstSpan(in).first(kBytes);
  const MutableBytes result = absl::MakeSpan(out).first(kBytes);
  std::vector<std::function<Work(ProcessGroup&)>> calls = {
      [&](ProcessGroup& g) {
        return g.AllReduceAsync(own, result, DType::kFloat32, ReduceOp::kSum);
      },
      [&](ProcessGroup& g) {
        return g.ReduceAsync(own, MutableBytes(), DType::kFloat32,
                             ReduceOp::kSum, failed_rank());
      },
      [&](ProcessGroup& g) {
        return g.ReduceScatterAsync(in, result, DType::kFloat32,
                                    ReduceOp::kSum);
      },
      [&](ProcessGroup& g) {
        return g.GatherAsync(own, MutableBytes(), failed_rank());
      },
      [&](ProcessGroup& g) {
        return g.ScatterAsync(ConstBytes(), result, failed_rank());
      },
      [&](ProcessGroup& g) { return g.SendAsync(own, failed_rank()); },
      [&](ProcessGroup& g) { return g.RecvAsync(result, failed_rank()); }};
  std::vector<int> all_ranks(world_size());
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (size_t i = 0; i < calls.size(); ++i) {
    auto made = group().NewGroup(all_ranks);
    ASSERT_THAT(made, IsOk());
    groups.push_back(*std::move(made));
  }
  if (rank() == failed_rank()) {
    for (int r = 0; r < failed_rank(); ++r) {
      ASSERT_THAT(group().store().Wait({absl::StrCat("started", r)},
                                       Deadline::After(absl::Seconds(60))),
                  IsOk());
    }
    raise(SIGKILL);
  }
  std::vector<Work> works;
  for (size_t i = 0; i < calls.size(); ++i) {
    works.push_back(calls[i](*groups[i]));
  }
  ASSERT_THAT(group().store().Set(absl::StrCat("started", rank()), ""), IsOk());
  for (Work& work : works) ExpectLost(work.Wait());
}

SHERD_DIST_TEST_F(GlooBackendTest, RanksThatWaitForOthersNameTheFirstCause) {
  if (world_size() == 1) return;
  ExpectRankDies(failed_rank(), SIGKILL);
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  // In the tree of a broadcast most ranks wait for a rank in between.
  if (rank() == failed_rank()) raise(SIGKILL);
  std::byte token[1] = {};
  ExpectLost(group().Broadcast(absl::MakeSpan(token), failed_rank()));
}

SHERD_DIST_TEST_F(GlooBackendTest, EveryRankNamesTheStoppedRank,
                  (WithComms{.timeout = absl::Seconds(2)})) {
  if (world_size() == 1) return;
  ExpectRankDies(failed_rank(), SIGKILL);
  ASSERT_THAT(
      group().store().Set(absl::StrCat("pid", rank()), absl::StrCat(getpid())),
      IsOk());
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) raise(SIGSTOP);
  const absl::Status status = group().Barrier();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr(absl::StrCat("rank ", failed_rank(),
                                                      ": is stopped"))));
  EXPECT_EQ(ErrorRank(status), failed_rank());
  // All ranks have their error before the first one ends the stopped rank.
  ASSERT_THAT(group().store().Set(absl::StrCat("judged", rank()), ""), IsOk());
  if (rank() != 0) return;
  for (int r = 0; r < failed_rank(); ++r) {
    ASSERT_THAT(group().store().Wait({absl::StrCat("judged", r)},
                                     Deadline::After(absl::Seconds(30))),
                IsOk());
  }
  const auto pid = group().store().Get(absl::StrCat("pid", failed_rank()),
                                       Deadline::After(absl::Seconds(1)));
  ASSERT_THAT(pid, IsOk());
  kill(std::stoi(*pid), SIGKILL);
}

SHERD_DIST_TEST_F(GlooBackendTest, EveryRankNamesTheRankThatLeft) {
  if (world_size() == 1) return;
  SkipFinalBarrier();
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) {
    EXPECT_THAT(group().Destroy(), IsOk());
    return;
  }
  const absl::Status status = group().Barrier();
  ExpectLost(status);
  EXPECT_THAT(status.message(), HasSubstr("left the group"));
}

SHERD_DIST_TEST_F(GlooBackendTest, AbortEndsAWaitOnThisRankAndOnTheOthers) {
  if (world_size() == 1) return;
  SkipFinalBarrier();
  ASSERT_THAT(group().Barrier(), IsOk());
  std::byte token[1] = {};
  // No rank sends anything, so only the abort can end these. They are messages,
  // because collectives that differ would fail as such.
  if (rank() == failed_rank()) {
    Work work = group().RecvAsync(absl::MakeSpan(token), 0);
    group().Abort(absl::CancelledError("stop"));
    EXPECT_FALSE(work.Wait().ok());
    return;
  }
  const absl::Status status =
      group().Recv(absl::MakeSpan(token), failed_rank());
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stop")));
  EXPECT_EQ(ErrorRank(status), failed_rank());
}

SHERD_DIST_TEST_F(GlooBackendTest, DifferentWorldSizesAreAnErrorThatSaysSo,
                  WithoutComms{}) {
  if (world_size() == 1) return;
  const auto group =
      Init({.rank = rank(),
            .world_size = rank() == 0 ? world_size() + 1 : world_size(),
            .timeout = absl::Seconds(5)});
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group, StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("world sizes differ")));
}

SHERD_DIST_TEST_F(GlooBackendTest, GroupsFollowEachOtherOnOneFile,
                  WithoutComms{}) {
  for (int life = 0; life < 3; ++life) {
    const auto group = Init({.timeout = absl::Seconds(60)});
    ASSERT_THAT(group, IsOk());
    ASSERT_THAT((*group)->Barrier(), IsOk());
    ASSERT_THAT((*group)->Destroy(), IsOk());
  }
}

}  // namespace
}  // namespace sherd
