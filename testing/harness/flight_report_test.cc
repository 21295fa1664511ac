#include "sherd/testing/harness/flight_report.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::sherd::internal::FlightDump;
using ::sherd::internal::FlightDumpToJson;
using ::sherd::internal::FlightEntry;
using ::sherd::internal::FlightGroup;
using ::sherd::internal::FlightState;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

class FlightReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(GetKnobOr(Knob::kTestTmpDir, "/tmp"),
                          "flights." + std::to_string(getpid()));
    ASSERT_THAT(FileSystem::Posix().CreateDirectories(directory_), IsOk());
  }
  void TearDown() override {
    EXPECT_THAT(FileSystem::Posix().RemoveAll(directory_), IsOk());
  }

  // `rank` of 2 made `calls` barriers; the last is in flight if `in_last`.
  void WriteDump(int rank, uint64_t calls, bool in_last) {
    FlightDump dump;
    dump.rank = rank;
    dump.pid = 100 + rank;
    dump.snapshot.monotonic_ns = 90 * kSecond;
    dump.snapshot.capacity = 64;
    FlightGroup group;
    group.id = 1;
    group.info = {
        .name = "default", .backend = "gloo", .rank = rank, .size = 2};
    dump.snapshot.groups = {group};
    for (uint64_t call = 1; call <= calls; ++call) {
      FlightEntry entry;
      entry.id = call;
      entry.group = 1;
      entry.sequence = call;
      entry.enqueued = static_cast<int64_t>(call) * kSecond;
      entry.started = entry.enqueued;
      const bool runs = in_last && call == calls;
      entry.state = runs ? FlightState::kStarted : FlightState::kCompleted;
      if (!runs) entry.ended = entry.enqueued + 1;
      dump.snapshot.entries.push_back(entry);
    }
    const std::string json = FlightDumpToJson(dump);
    ASSERT_THAT(
        WriteFileAtomically(
            FileSystem::Posix(),
            JoinPath(directory_,
                     "flight.rank-" + std::to_string(rank) + ".json"),
            absl::MakeConstSpan(reinterpret_cast<const std::byte*>(json.data()),
                                json.size())),
        IsOk());
  }

  std::string directory_;
};

TEST_F(FlightReportTest, NamesTheRanksMissingFromACall) {
  WriteDump(0, 4, /*in_last=*/true);
  WriteDump(1, 3, /*in_last=*/false);
  const std::optional<FlightSummary> summary = SummarizeFlights(directory_);
  ASSERT_TRUE(summary.has_value());
  EXPECT_THAT(summary->findings,
              ElementsAre(AllOf(
                  HasSubstr("group \"default\": rank 1 has not come to "
                            "barrier #4: rank 0 waits in it"),
                  HasSubstr("rank 1 is 1 call behind, its last is barrier #3 "
                            "(completed)"))));
  EXPECT_THAT(summary->text, HasSubstr("barrier #4  started for"));
}

TEST_F(FlightReportTest, WithoutDumpsThereIsNoSummary) {
  EXPECT_FALSE(SummarizeFlights(directory_).has_value());
  EXPECT_FALSE(SummarizeFlights("").has_value());
  EXPECT_FALSE(SummarizeFlights("/nowhere/at/all").has_value());
}

TEST_F(FlightReportTest, AProcessWithoutAGroupIsNotAskedAndLives) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) pause();
  }
  FlightRequests requests(directory_);
  requests.Ask(0, child);
  EXPECT_TRUE(requests.AllAnswered());
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL) << "not SIGUSR1";
}

TEST_F(FlightReportTest, AnAnswerIsANewFileOrAnotherOneOfTheSameName) {
  // A process that would answer: it handles the signal and has the thread.
  signal(SIGUSR1, [](int) {});
  pthread_setname_np(pthread_self(), "sherd-watchdog");
  WriteDump(1, 1, /*in_last=*/false);
  FlightRequests requests(directory_);
  requests.Ask(0, getpid());
  requests.Ask(1, getpid());
  EXPECT_FALSE(requests.AllAnswered());
  WriteDump(0, 1, /*in_last=*/false);
  EXPECT_FALSE(requests.AllAnswered()) << "the old file of rank 1 counts";
  WriteDump(1, 2, /*in_last=*/false);
  EXPECT_TRUE(requests.AllAnswered());
  requests.Ask(0, getpid());
  EXPECT_FALSE(requests.AllAnswered());
  requests.Forget(0);
  EXPECT_TRUE(requests.AllAnswered());
  signal(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace sherd::testing::internal
