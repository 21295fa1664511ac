// Tests specific to MPI; mpi_conformance_test has those of every backend.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::sherd::testing::WithoutComms;
using ::testing::HasSubstr;

ConstBytes Bytes(const std::vector<int>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                             values.size() * sizeof(int));
}

class MpiBackendTest : public sherd::testing::DistributedTest {
 protected:
  // The rank that misbehaves: the last one.
  int failed_rank() const { return world_size() - 1; }

  // Records that this rank has reached `step`.
  void Note(const std::string& step) {
    const std::string text = absl::StrCat(getpid());
    const absl::Span<const std::byte> bytes(
        reinterpret_cast<const std::byte*>(text.data()), text.size());
    ASSERT_THAT(
        WriteFileAtomically(FileSystem::Posix(), Path(step, rank()), bytes),
        IsOk());
  }

  // Waits until `other` has reached `step`; returns its process.
  pid_t Await(const std::string& step, int other) {
    const Deadline deadline = Deadline::After(absl::Seconds(30));
    while (!deadline.HasPassed()) {
      if (FileSystem::Posix().Exists(Path(step, other)).value_or(false)) {
        const auto text = ReadFile(FileSystem::Posix(), Path(step, other), 32);
        int pid = -1;
        EXPECT_TRUE(text.ok() && absl::SimpleAtoi(*text, &pid));
        return pid;
      }
      poll(nullptr, 0, 2);
    }
    ADD_FAILURE() << "rank " << other << " does not come to " << step;
    return -1;
  }

 private:
  std::string Path(const std::string& step, int of) const {
    return JoinPath(temp_dir(), absl::StrCat(step, ".", of));
  }
};

SHERD_DIST_TEST_F(MpiBackendTest, ReportsItsProperties) {
  const BackendInfo& info = group().backend();
  EXPECT_EQ(info.name, "mpi");
  EXPECT_TRUE(info.needs_launcher);
  EXPECT_TRUE(info.dies_together);
  EXPECT_THAT(info.library_version, HasSubstr("MPI"));
  if (world_size() == 1) return;
  EXPECT_EQ(group().PathOf(CollectiveOp::kAllReduce, DType::kFloat32),
            OperationPath::kNative);
  EXPECT_EQ(group().PathOf(CollectiveOp::kAllReduce, DType::kBFloat16),
            OperationPath::kEmulated);
}

SHERD_DIST_TEST_F(MpiBackendTest, RankAndSizeComeFromTheLauncher,
                  WithoutComms{}) {
  const auto group = Init({.backend = "mpi"});
  ASSERT_THAT(group, IsOk());
  EXPECT_EQ((*group)->rank(), rank());
  EXPECT_EQ((*group)->size(), world_size());
  EXPECT_THAT((*group)->Barrier(), IsOk());
  EXPECT_THAT((*group)->Destroy(), IsOk());
}

SHERD_DIST_TEST_F(MpiBackendTest, ATimedOutRankIsNamedAndAllRanksEnd) {
  if (world_size() == 1) return;
  SkipFinalBarrier();
  if (rank() == failed_rank()) {
    for (int r = 0; r < failed_rank(); ++r) Await("error", r);
    return;
  }
  const absl::Status status =
      group().Barrier({.timeout = absl::Milliseconds(300)});
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("rank ", failed_rank()))));
  EXPECT_EQ(ErrorRank(status), failed_rank());
  Note("error");
}

// The end without MPI_Finalize, which would wait for the rank that is stopped.
SHERD_DIST_TEST_F(MpiBackendTest, AStoppedRankDoesNotKeepTheOthersAtTheirEnd) {
  if (world_size() == 1) return;
  SkipFinalBarrier();
  ExpectRankDies(failed_rank(), SIGKILL);
  for (int r = 0; r < failed_rank(); ++r) ExpectRankDies(r, SIGTERM);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) {
    Note("stops");
    raise(SIGSTOP);
  }
  const pid_t stopped = Await("stops", failed_rank());
  EXPECT_THAT(group().Barrier({.timeout = absl::Milliseconds(300)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("rank ", failed_rank()))));
  Note("error");
  if (rank() == 0) {
    for (int r = 0; r < failed_rank(); ++r) Await("error", r);
    kill(stopped, SIGKILL);
  }
  // Until the launcher ends all.
  for (;;) pause();
}

SHERD_DIST_TEST_F(MpiBackendTest, OneKilledRankEndsAll) {
  ExpectRankDies(failed_rank(), SIGKILL);
  for (int r = 0; r < failed_rank(); ++r) ExpectRankDies(r, SIGTERM);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) raise(SIGKILL);
  for (;;) pause();
}

SHERD_DIST_TEST_F(MpiBackendTest, MessagesPassWhileCollectivesRun) {
  if (world_size() == 1) return;
  constexpr int kRounds = 50;
  const int next = (rank() + 1) % world_size();
  const int previous = (rank() + world_size() - 1) % world_size();
  const auto message = [](int from, int round) {
    return std::vector<int>(1 + round * 500, from * 1000 + round);
  };
  std::thread sender([&] {
    for (int i = 0; i < kRounds; ++i) {
      const std::vector<int> sent = message(rank(), i);
      EXPECT_THAT(group().Send(Bytes(sent), next, i), IsOk());
    }
  });
  std::thread receiver([&] {
    for (int i = 0; i < kRounds; ++i) {
      const std::vector<int> expected = message(previous, i);
      std::vector<int> received(expected.size());
      EXPECT_THAT(
          group().Recv(
              absl::MakeSpan(reinterpret_cast<std::byte*>(received.data()),
                             received.size() * sizeof(int)),
              previous, i),
          IsOk());
      EXPECT_EQ(received, expected);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    std::vector<int64_t> sum(1 + i * 300, rank() + i);
    EXPECT_THAT(group().AllReduce(absl::MakeSpan(sum), ReduceOp::kSum), IsOk());
    const int64_t expected =
        world_size() * (world_size() - 1) / 2 + world_size() * i;
    EXPECT_THAT(sum, ::testing::Each(expected));
  }
  sender.join();
  receiver.join();
}

// Overlapping groups, made by several threads in different orders.
SHERD_DIST_TEST_F(MpiBackendTest, ThreadsMakeAndUseGroupsAtOnce) {
  constexpr int kThreads = 4;
  std::vector<int> all;
  for (int r = 0; r < world_size(); ++r) all.push_back(r);
  std::vector<std::shared_ptr<ProcessGroup>> parents;
  for (int i = 0; i < kThreads; ++i) {
    auto parent = group().NewGroup(all);
    ASSERT_THAT(parent, IsOk());
    parents.push_back(*parent);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    // Of each, all ranks make one group at a time.
    ProcessGroup& parent = *parents[(rank() + i) % kThreads];
    threads.emplace_back([&parent, &all] {
      for (int k = 0; k < 5; ++k) {
        const auto made = parent.NewGroup(all);
        ASSERT_THAT(made, IsOk());
        std::vector<double> sum(100 + 10000 * k, parent.rank());
        EXPECT_THAT((*made)->AllReduce(absl::MakeSpan(sum), ReduceOp::kSum),
                    IsOk());
        EXPECT_EQ(sum.back(), parent.size() * (parent.size() - 1) / 2);
        EXPECT_THAT((*made)->Destroy(), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sherd
