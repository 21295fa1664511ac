#include "sherd/core/process/process_set.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/process/signal_receiver.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using Stage = ProcessSet::Stage;

SubprocessOptions Shell(const std::string& script) {
  return {.program = "/bin/sh",
          .arguments = {"sh", "-c", script},
          .environment = OwnEnvironment()};
}

// A program that nothing but a signal ends.
constexpr char kEndless[] = "exec sleep 100000";

ProcessSet::Reader Into(std::string& text) {
  return {.take = [&text](absl::string_view piece) {
    text.append(piece.data(), piece.size());
  }};
}

absl::Status StartShell(ProcessSet& set, const std::string& script) {
  return set.Start({.process = Shell(script)});
}

void AwaitText(ProcessSet& set, const std::string& text,
               const std::string& awaited) {
  while (!absl::StrContains(text, awaited)) set.Await();
}

void AwaitEnds(ProcessSet& set) {
  while (set.AnyRuns()) {
    set.Await();
    set.Advance();
  }
}

void AwaitReadable(int fd) {
  pollfd event = {fd, POLLIN, 0};
  while (poll(&event, 1, -1) < 0 && errno == EINTR) {
  }
}

TEST(ProcessSetTest, ReportsHowEachRankEnded) {
  ProcessSet set;
  for (int rank = 0; rank < 3; ++rank) {
    SubprocessOptions process = Shell("exit $WHICH");
    process.environment.push_back(absl::StrCat("WHICH=", rank));
    ASSERT_THAT(set.Start({.process = std::move(process)}), IsOk());
  }
  ASSERT_THAT(set.Fork([] { return 7; }), IsOk());
  EXPECT_EQ(set.size(), 4);
  std::vector<int> ended;
  while (set.AnyRuns()) {
    for (const int rank : set.Await()) ended.push_back(rank);
  }
  EXPECT_EQ(set.ended(), ended);
  EXPECT_THAT(ended, UnorderedElementsAre(0, 1, 2, 3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(set.status(rank)->ExitedWith(rank)) << rank;
    EXPECT_FALSE(set.was_signalled(rank)) << rank;
  }
  EXPECT_TRUE(set.status(3)->ExitedWith(7));
}

TEST(ProcessSetTest, ARankThatCannotBeStartedEndsTheOthers) {
  ProcessSet set;
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  set.Release(1);
  EXPECT_THAT(
      set.Start({.process = {.program = "./missing", .arguments = {"a"}}}),
      StatusIs(absl::StatusCode::kNotFound,
               StartsWith("cannot start ./missing: No such file")));
  EXPECT_EQ(set.size(), 2);
  ASSERT_TRUE(set.status(0) && set.status(1));
  EXPECT_TRUE(set.status(0)->KilledBy(SIGKILL));
  EXPECT_TRUE(set.status(1)->KilledBy(SIGKILL));
}

TEST(ProcessSetTest, OutputOfAllRanksComesWhole) {
  constexpr int kRanks = 3;
  constexpr int kLines = 200'000;
  std::string expected;
  for (int i = 1; i <= kLines; ++i) absl::StrAppend(&expected, i, "\n");
  std::string outputs[kRanks], errors[kRanks];
  int ends = 0;
  ProcessSet set;
  for (int rank = 0; rank < kRanks; ++rank) {
    ProcessSet::Reader reader = Into(outputs[rank]);
    reader.take = [&ends, append = reader.take](absl::string_view piece) {
      ends += piece.empty() ? 1 : 0;
      append(piece);
    };
    ASSERT_THAT(set.Start({.process = Shell(absl::StrCat(
                               "seq ", kLines, "; echo end >&2; exit ", rank)),
                           .output = reader,
                           .errors = Into(errors[rank])}),
                IsOk());
  }
  AwaitEnds(set);
  // That of a rank has been read when its end is known.
  EXPECT_FALSE(set.HasOpenStreams());
  EXPECT_EQ(ends, kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(outputs[rank] == expected)
        << rank << ": " << outputs[rank].size() << " bytes of "
        << expected.size();
    EXPECT_EQ(errors[rank], "end\n");
  }
}

TEST(ProcessSetTest, ARanksLastOutputArrivesBeforeItsEnd) {
  ProcessSet set;
  std::string text;
  ASSERT_THAT(
      set.Start({.process = Shell("echo last words"), .output = Into(text)}),
      IsOk());
  AwaitReadable(set.process(0).exit_fd());
  EXPECT_THAT(set.CollectEnds(), ElementsAre(0));
  EXPECT_EQ(text, "last words\n");
}

TEST(ProcessSetTest, BothStreamsMayShareAReader) {
  ProcessSet set;
  std::string text;
  ASSERT_THAT(set.Start({.process = Shell("echo out; echo err >&2"),
                         .output = Into(text)}),
              IsOk());
  AwaitEnds(set);
  EXPECT_EQ(text, "out\nerr\n");
}

TEST(ProcessSetTest, OtherPipesAreReadBeforeTheOutput) {
  Pipe pipe = MakePipe().value();
  std::string all;
  ProcessSet set;
  ProcessSet::Launch launch = {
      .process = Shell(absl::StrCat("echo output; echo pipe >&",
                                    pipe.write.get(), "; kill -STOP $$")),
      .output = Into(all)};
  launch.process.inherited_fds = {pipe.write.get()};
  launch.streams.push_back({std::move(pipe.read), Into(all)});
  ASSERT_THAT(set.Start(std::move(launch)), IsOk());
  pipe.write.Reset();
  while (StateOf(ProcessIdentity::Of(set.process(0).pid())) !=
         ProcessState::kStopped) {
    sched_yield();
  }
  set.Await();
  EXPECT_EQ(all, "pipe\noutput\n");
}

TEST(ProcessSetTest, ARankWaitsForAReaderWithoutRoom) {
  constexpr size_t kBytes = 1'000'000;
  bool has_room = false;
  size_t taken = 0;
  ProcessSet set;
  ASSERT_THAT(
      set.Start(
          {.process =
               Shell(absl::StrCat("head -c ", kBytes, " /dev/zero; exit 3")),
           .output = ProcessSet::Reader{
               .take = [&](absl::string_view piece) { taken += piece.size(); },
               .has_room = [&] { return has_room; }}}),
      IsOk());
  ASSERT_THAT(StartShell(set, "exit 1"), IsOk());
  while (!set.status(1)) set.Await();
  EXPECT_TRUE(set.Runs(0)) << "a pipe takes less than it writes";
  EXPECT_EQ(taken, 0u);
  has_room = true;
  AwaitEnds(set);
  EXPECT_TRUE(set.status(0)->ExitedWith(3));
  EXPECT_EQ(taken, kBytes);
}

TEST(ProcessSetTest, AfterTheFirstFailureTheOthersAreTerminated) {
  ProcessSet set;
  set.BeginRun({.grace = absl::ZeroDuration(), .terminate = absl::Hours(1)});
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  ASSERT_THAT(StartShell(set, "exit 3"), IsOk());
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  while (set.Await().empty()) {
  }
  EXPECT_THAT(set.ended(), ElementsAre(1));
  EXPECT_TRUE(set.status(1)->ExitedWith(3));
  set.Advance();
  EXPECT_EQ(set.stage(), Stage::kRunning) << "its deadline has not passed";
  set.Enter(Stage::kGrace);
  AwaitEnds(set);
  EXPECT_EQ(set.stage(), Stage::kTerminate);
  EXPECT_EQ(set.ended()[0], 1);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(set.status(rank)->KilledBy(SIGTERM)) << rank;
    EXPECT_TRUE(set.was_signalled(rank)) << rank;
  }
  EXPECT_FALSE(set.was_signalled(1));
}

TEST(ProcessSetTest, AProcessThatIgnoresTheSignalIsKilled) {
  ProcessSet set;
  std::string text;
  ASSERT_THAT(set.Start({.process = Shell("trap '' TERM; echo ready; "
                                          "while :; do sleep 100000; done"),
                         .output = Into(text)}),
              IsOk());
  set.BeginRun({.terminate = absl::Milliseconds(20)});
  AwaitText(set, text, "ready");
  set.Enter(Stage::kTerminate);
  AwaitEnds(set);
  EXPECT_EQ(set.stage(), Stage::kKill);
  EXPECT_TRUE(set.status(0)->KilledBy(SIGKILL));
}

TEST(ProcessSetTest, AStoppedProcessIsContinuedToEnd) {
  ProcessSet set;
  std::string text;
  ASSERT_THAT(set.Start({.process = Shell("trap 'exit 5' TERM; echo ready; "
                                          "kill -STOP $$; sleep 100000"),
                         .output = Into(text)}),
              IsOk());
  set.BeginRun({.terminate = absl::Hours(1)});
  AwaitText(set, text, "ready");
  while (StateOf(ProcessIdentity::Of(set.process(0).pid())) !=
         ProcessState::kStopped) {
    sched_yield();
  }
  set.Enter(Stage::kTerminate);
  AwaitEnds(set);
  EXPECT_TRUE(set.status(0)->ExitedWith(5));
}

TEST(ProcessSetTest, AtTheDeadlineRanksDumpBeforeTheyAreTerminated) {
  ProcessSet set;
  std::string text;
  ASSERT_THAT(
      set.Start({.process = Shell("trap 'echo dump' USR1; trap 'exit 4' TERM; "
                                  "echo ready; "
                                  "while :; do sleep 100000 & wait; done"),
                 .output = Into(text)}),
      IsOk());
  AwaitText(set, text, "ready");
  int asked = 0;
  set.BeginRun({.deadline = Deadline::After(absl::Milliseconds(1)),
                .dump = absl::Hours(1),
                .terminate = absl::Hours(1),
                .ask_for_dumps =
                    [&] {
                      ++asked;
                      set.process(0).Signal(SIGUSR1);
                    },
                .have_dumped =
                    [&] {
                      EXPECT_EQ(set.stage(), Stage::kDump);
                      return absl::StrContains(text, "dump");
                    }});
  AwaitEnds(set);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(set.stage(), Stage::kTerminate);
  EXPECT_TRUE(set.status(0)->ExitedWith(4));
  EXPECT_EQ(text, "ready\ndump\n");
}

TEST(ProcessSetTest, ASignalReachesAllThatRun) {
  ProcessSet set;
  std::string text[2];
  for (std::string& one : text) {
    ASSERT_THAT(
        set.Start({.process = Shell("trap 'exit 6' USR2; echo ready; "
                                    "while :; do sleep 100000 & wait; done"),
                   .output = Into(one)}),
        IsOk());
  }
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  for (const std::string& one : text) AwaitText(set, one, "ready");
  set.Release(2);
  set.SignalAll(SIGUSR2);
  AwaitEnds(set);
  EXPECT_TRUE(set.status(0)->ExitedWith(6));
  EXPECT_TRUE(set.status(1)->ExitedWith(6));
  EXPECT_FALSE(set.was_signalled(0)) << "it does not end programs";
  EXPECT_THAT(set.CollectEnds(), IsEmpty());
  // Until the next run.
  set.BeginRun({});
  EXPECT_TRUE(set.Runs(2));
  set.SignalAll(SIGTERM);
  AwaitEnds(set);
  EXPECT_TRUE(set.status(2)->KilledBy(SIGTERM));
  EXPECT_TRUE(set.was_signalled(2));
}

TEST(ProcessSetTest, OutputOfAReleasedRankWaitsForTheNextRun) {
  ProcessSet set;
  std::string text;
  ASSERT_THAT(set.Start({.process = Shell("echo late"), .output = Into(text)}),
              IsOk());
  set.Release(0);
  AwaitReadable(set.process(0).exit_fd());
  EXPECT_THAT(set.CollectEnds(), ElementsAre(0));
  EXPECT_EQ(text, "");
  EXPECT_TRUE(set.HasOpenStreams(0));
  set.BeginRun({});
  EXPECT_FALSE(set.AnyRuns());
  set.ReadRest(0);
  EXPECT_EQ(text, "late\n");
  EXPECT_FALSE(set.HasOpenStreams(0));
}

TEST(ProcessSetTest, OfThoseFoundAtOnceTheKilledComeFirst) {
  ProcessSet set;
  for (const char* script : {"exit 1", "kill -SEGV $$", "exit 0"}) {
    ASSERT_THAT(StartShell(set, script), IsOk());
  }
  for (int rank = 0; rank < 3; ++rank) {
    AwaitReadable(set.process(rank).exit_fd());
  }
  EXPECT_THAT(set.Await(), ElementsAre(1, 0, 2));
  EXPECT_THAT(set.ended(), ElementsAre(1, 0, 2));
}

TEST(ProcessSetTest, OtherDescriptorsEndAWait) {
  ProcessSet set;
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  const Pipe quiet = MakePipe().value();
  const Pipe pipe = MakePipe().value();
  ASSERT_EQ(write(pipe.write.get(), "x", 1), 1);
  pollfd others[] = {{quiet.read.get(), POLLIN, 0},
                     {pipe.read.get(), POLLIN, 0}};
  EXPECT_THAT(set.Await(absl::MakeSpan(others)), IsEmpty());
  EXPECT_EQ(others[0].revents, 0);
  EXPECT_NE(others[1].revents, 0);
}

TEST(ProcessSetTest, AReceiverOfSigchldNeedsNoOtherDescriptors) {
  const auto signals = SignalReceiver::Create({SIGCHLD});
  ASSERT_THAT(signals, IsOk());
  ProcessSet set({.caller_receives_sigchld = true});
  ASSERT_THAT(StartShell(set, "exit 2"), IsOk());
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  std::vector<int> ended;
  while (ended.empty()) {
    pollfd signal = {(*signals)->fd(), POLLIN, 0};
    EXPECT_THAT(set.Await(absl::MakeSpan(&signal, 1)), IsEmpty());
    ASSERT_NE(signal.revents, 0);
    EXPECT_EQ((*signals)->Next(), SIGCHLD);
    for (const int rank : set.CollectEnds()) ended.push_back(rank);
  }
  EXPECT_THAT(ended, ElementsAre(0));
  set.KillAll();
  EXPECT_TRUE(set.status(1)->KilledBy(SIGKILL));
}

// A process that only a question shows to have ended.
class Reported final : public ProcessSet::Process {
 public:
  explicit Reported(int questions) : questions_(questions) {}

  pid_t pid() const override { return -1; }
  int exit_fd() const override { return -1; }
  const std::optional<ExitStatus>& Poll() override {
    if (--questions_ == 0) status_ = ExitStatus::OfCode(9);
    return status_;
  }
  void Signal(int) override {}
  void SignalGroup(int) override {}

 private:
  int questions_;
  std::optional<ExitStatus> status_;
};

TEST(ProcessSetTest, ProcessesWithoutDescriptorsAreAskedAgainAndAgain) {
  ProcessSet set;
  ASSERT_THAT(set.Add(std::make_unique<Reported>(3), {}), IsOk());
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  while (!set.status(0)) set.Await();
  EXPECT_TRUE(set.status(0)->ExitedWith(9));
  EXPECT_TRUE(set.Runs(1));
}

TEST(ProcessSetTest, AStageIsOverAsOfTheLastWait) {
  ProcessSet set;
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  set.BeginRun({.deadline = Deadline::After(-absl::Seconds(1)),
                .dump = absl::Hours(1),
                .have_dumped = [] { return false; }});
  EXPECT_FALSE(set.StageIsOver());
  set.Advance();
  EXPECT_EQ(set.stage(), Stage::kRunning);
  set.Await();
  EXPECT_TRUE(set.StageIsOver());
  set.Advance();
  EXPECT_EQ(set.stage(), Stage::kDump);
  EXPECT_FALSE(set.StageIsOver());
}

TEST(ProcessSetTest, WithOneStreamOfARankTheOthersAreReadToo) {
  Pipe first = MakePipe().value();
  Pipe second = MakePipe().value();
  ASSERT_EQ(write(first.write.get(), "1", 1), 1);
  std::string text;
  std::vector<ProcessSet::Stream> streams;
  streams.push_back(
      {std::move(first.read), {.take = [&](absl::string_view piece) {
         absl::StrAppend(&text, piece);
         EXPECT_EQ(write(second.write.get(), "2", 1), 1);
       }}});
  streams.push_back({std::move(second.read), Into(text)});
  ProcessSet set;
  ASSERT_THAT(set.Add(std::make_unique<Reported>(-1), std::move(streams)),
              IsOk());
  set.Await();
  EXPECT_EQ(text, "12");
}

TEST(ProcessSetTest, AProcessThatNeverStartsIsNotAwaited) {
  ProcessSet set;
  ASSERT_THAT(set.Add(std::make_unique<Reported>(-1), {}), IsOk());
  ASSERT_THAT(StartShell(set, kEndless), IsOk());
  set.KillAll();
  EXPECT_TRUE(set.Runs(0));
  EXPECT_TRUE(set.status(1)->KilledBy(SIGKILL));
}

TEST(ProcessSetTest, NoProcessOutlivesTheSet) {
  ProcessIdentity rank, descendant;
  {
    ProcessSet set;
    std::string text;
    ASSERT_THAT(set.Start({.process = Shell("sleep 100000 & echo $!; wait"),
                           .output = Into(text)}),
                IsOk());
    AwaitText(set, text, "\n");
    rank = ProcessIdentity::Of(set.process(0).pid());
    descendant = ProcessIdentity::Of(std::stoi(text));
    ASSERT_NE(StateOf(rank), ProcessState::kEnded);
  }
  EXPECT_EQ(StateOf(rank), ProcessState::kEnded);
  while (StateOf(descendant) != ProcessState::kEnded) sched_yield();
}

TEST(SignalReceiverTest, TakesSignalsAndGivesBackTheirHandling) {
  sigset_t before, during, after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  ASSERT_FALSE(sigismember(&before, SIGTERM));
  {
    const auto signals = SignalReceiver::Create({SIGTERM, SIGUSR1});
    ASSERT_THAT(signals, IsOk());
    EXPECT_EQ((*signals)->Next(), 0);
    EXPECT_FALSE(sigismember(&(*signals)->former_mask(), SIGTERM));
    pthread_sigmask(SIG_BLOCK, nullptr, &during);
    EXPECT_TRUE(sigismember(&during, SIGTERM));
    kill(getpid(), SIGUSR1);
    AwaitReadable((*signals)->fd());
    EXPECT_EQ((*signals)->Next(), SIGUSR1);
    EXPECT_EQ((*signals)->Next(), 0);
    // Nobody takes it: it ends with the receiver, and does not end the program.
    kill(getpid(), SIGTERM);
  }
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_FALSE(sigismember(&after, SIGTERM));
}

}  // namespace
}  // namespace sherd
