#include "sherd/core/process/process_status.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(ProcessStatusTest, KnowsTheSignalsThatAProcessHandles) {
  signal(SIGUSR2, [](int) {});
  signal(SIGRTMAX - 1, [](int) {});
  const std::optional<ProcessStatus> status = ReadProcessStatus(getpid());
  signal(SIGUSR2, SIG_DFL);
  signal(SIGRTMAX - 1, SIG_DFL);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(status->Catches(SIGUSR2));
  EXPECT_TRUE(status->Catches(SIGRTMAX - 1));
  EXPECT_FALSE(status->Catches(SIGTERM));
  EXPECT_EQ(status->state, ProcessState::kRunning);
  EXPECT_FALSE(ReadProcessStatus(getpid())->Catches(SIGUSR2));
}

TEST(ProcessStatusTest, KnowsAStoppedProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int wait_status = 0;
  ASSERT_EQ(waitpid(child, &wait_status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(wait_status));
  const std::optional<ProcessStatus> status = ReadProcessStatus(child);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->state, ProcessState::kStopped);
  EXPECT_FALSE(ReadProcessStatus(child).has_value()) << "it is gone";
  EXPECT_FALSE(HasThread(child, "anything"));
}

TEST(ProcessStatusTest, MalformedStatusIsNullopt) {
  EXPECT_FALSE(ParseProcessStatus("").has_value());
  EXPECT_FALSE(ParseProcessStatus("State:\tR (running)\n").has_value());
  EXPECT_FALSE(ParseProcessStatus("SigCgt:\t0000000000000000\n").has_value());
  EXPECT_FALSE(
      ParseProcessStatus("State:\tR (running)\nSigCgt:\txyz\n").has_value());
}

TEST(ProcessStatusTest, FindsTheFieldsOfStatBehindAnyName) {
  const auto stat = [](const std::string& name, const std::string& state,
                       const std::string& start) {
    return absl::StrCat("12 (", name, ") ", state,
                        " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 ", start,
                        " 99 100\n");
  };
  const std::pair<std::string, ProcessState> kStates[] = {
      {"R", ProcessState::kRunning}, {"S", ProcessState::kRunning},
      {"D", ProcessState::kRunning}, {"T", ProcessState::kStopped},
      {"t", ProcessState::kTraced},  {"Z", ProcessState::kEnded},
      {"X", ProcessState::kEnded}};
  for (const std::string name : {"a", "a b", "a) Z (b", ") Z 1 2 3"}) {
    for (const auto& [letter, state] : kStates) {
      const auto found = ParseProcessStat(stat(name, letter, "4711"));
      ASSERT_TRUE(found.has_value()) << name;
      EXPECT_EQ(found->state, state) << name << letter;
      EXPECT_EQ(found->start_time, 4711u) << name;
    }
  }
  EXPECT_FALSE(ParseProcessStat("").has_value());
  EXPECT_FALSE(ParseProcessStat("12 (a)").has_value());
  EXPECT_FALSE(ParseProcessStat("12 (a) R 1 2 3").has_value());
  EXPECT_FALSE(ParseProcessStat(stat("a", "R", "soon")).has_value());
}

TEST(ProcessStatusTest, KnowsWhetherThereIsAnEnvironment) {
  const auto has_environment = [](const std::string& memory,
                                  const std::string& code,
                                  const std::string& where) {
    std::string stat = absl::StrCat(
        "12 (a) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 ", memory,
        " 24 25 ", code);
    for (int field = 27; field <= 49; ++field) absl::StrAppend(&stat, " 1");
    const auto found = ParseProcessStat(absl::StrCat(stat, " ", where, " 0\n"));
    return found.has_value() && found->has_environment;
  };
  EXPECT_TRUE(has_environment("4096", "93980", "140737485 140737486"));
  EXPECT_FALSE(has_environment("4096", "93980", "140737486 140737486"));
  EXPECT_TRUE(has_environment("4096", "0", "0 0")) << "it begins a program";
  EXPECT_TRUE(has_environment("4096", "0", "140737486 140737486"));
  EXPECT_FALSE(has_environment("4096", "1", "0 0")) << "it may not be seen";
  EXPECT_FALSE(has_environment("0", "0", "0 0")) << "it ends";
  EXPECT_TRUE(ReadProcessStat(getpid())->has_environment);
}

TEST(ProcessStatusTest, DistinguishesAStopFromTheHoldOfATracer) {
  const auto state = [](const std::string& text) {
    const auto found = ParseProcessStatus(
        absl::StrCat("Name:\ta\nState:\t", text, "\nSigCgt:\t0\n"));
    return found.has_value() ? found->state : ProcessState::kUnknown;
  };
  EXPECT_EQ(state("S (sleeping)"), ProcessState::kRunning);
  EXPECT_EQ(state("T (stopped)"), ProcessState::kStopped);
  EXPECT_EQ(state("t (tracing stop)"), ProcessState::kTraced);
  EXPECT_EQ(state("Z (zombie)"), ProcessState::kEnded);
}

TEST(ProcessStatusTest, KnowsThreadsByTheirNames) {
  EXPECT_FALSE(HasThread(getpid(), "test-thread"));
  pthread_setname_np(pthread_self(), "test-thread");
  EXPECT_TRUE(HasThread(getpid(), "test-thread"));
  EXPECT_FALSE(HasThread(getpid(), "test"));
}

}  // namespace
}  // namespace sherd
