#include "sherd/core/process/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

SubprocessOptions Shell(const std::string& script) {
  return {.program = "/bin/sh",
          .arguments = {"sh", "-c", script},
          .environment = OwnEnvironment()};
}

std::string ReadAll(const UniqueFd& fd) {
  std::string text;
  char buffer[512];
  for (;;) {
    const ssize_t size = read(fd.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(buffer, static_cast<size_t>(size));
  }
}

// The output of the program and its group, which fits in a pipe.
std::string OutputOf(SubprocessOptions options) {
  Pipe pipe = MakePipe().value();
  options.output_fd = pipe.write.get();
  auto process = Subprocess::Start(options);
  EXPECT_THAT(process, IsOk());
  pipe.write.Reset();
  process->Wait();
  return ReadAll(pipe.read);
}

void AwaitReadable(int fd) {
  pollfd event = {fd, POLLIN, 0};
  while (poll(&event, 1, -1) < 0 && errno == EINTR) {
  }
}

void AwaitEndOf(const ProcessIdentity& process) {
  while (StateOf(process) != ProcessState::kEnded) usleep(1000);
}

TEST(SubprocessTest, ReportsHowTheProgramEnded) {
  auto returned = Subprocess::Start(Shell("exit 7"));
  ASSERT_THAT(returned, IsOk());
  EXPECT_TRUE(returned->Wait().ExitedWith(7));
  EXPECT_TRUE(returned->Poll()->ExitedWith(7));
  auto killed = Subprocess::Start(Shell("kill -SEGV $$"));
  ASSERT_THAT(killed, IsOk());
  EXPECT_TRUE(killed->Wait().KilledBy(SIGSEGV));
}

TEST(SubprocessTest, PollDoesNotWait) {
  auto process = Subprocess::Start(Shell("read never"));
  auto waiting = Subprocess::Start(Shell("kill -STOP $$"));
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(waiting, IsOk());
  EXPECT_EQ(waiting->Poll(), std::nullopt);
  waiting->SignalGroup(SIGTERM);
  waiting->SignalGroup(SIGCONT);
  AwaitReadable(waiting->exit_fd());
  ASSERT_TRUE(waiting->Poll().has_value());
  EXPECT_TRUE(waiting->Poll()->KilledBy(SIGTERM));
  EXPECT_TRUE(process->Wait().ExitedWith(1)) << "standard input is empty";
}

// Where SIGCHLD is ignored the system reaps children itself.
TEST(SubprocessTest, AnEndThatIsNotKnownIsNotSuccess) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  auto waited = Subprocess::Start(Shell("exit 0"));
  auto polled = Subprocess::Start(Shell("exit 0"));
  ASSERT_THAT(waited, IsOk());
  ASSERT_THAT(polled, IsOk());
  EXPECT_TRUE(waited->Wait().ExitedWith(255));
  while (!polled->Poll()) sched_yield();
  EXPECT_TRUE(polled->Poll()->ExitedWith(255));
  signal(SIGCHLD, before);
}

TEST(SubprocessTest, AProgramThatCannotRunIsAnErrorOfStart) {
  EXPECT_THAT(
      Subprocess::Start({.program = "no-such-program", .arguments = {"a"}}),
      StatusIs(absl::StatusCode::kNotFound,
               "cannot start no-such-program: no such program in PATH; for one "
               "in this folder, say ./no-such-program"));
  EXPECT_THAT(Subprocess::Start({.program = "./missing", .arguments = {"a"}}),
              StatusIs(absl::StatusCode::kNotFound,
                       StartsWith("cannot start ./missing: No such file")));
  EXPECT_THAT(Subprocess::Start({.program = "/", .arguments = {"a"}}),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       StartsWith("cannot start /: Permission denied")));
}

TEST(SubprocessTest, TheEnvironmentIsThatOfTheOptions) {
  EXPECT_EQ(OutputOf({.program = "/usr/bin/env",
                      .arguments = {"env"},
                      .environment = {"A=1", "B=x y"}}),
            "A=1\nB=x y\n");
  ASSERT_EQ(setenv("SUBPROCESS_TEST", "old", 1), 0);
  const std::vector<std::string> merged =
      OwnEnvironment({"SUBPROCESS_TEST=new", "SUBPROCESS_TEST_2=a=b"});
  EXPECT_THAT(merged,
              IsSupersetOf({"SUBPROCESS_TEST=new", "SUBPROCESS_TEST_2=a=b"}));
  EXPECT_THAT(merged, Not(Contains("SUBPROCESS_TEST=old")));
  EXPECT_THAT(OwnEnvironment(), Contains("SUBPROCESS_TEST=old"));
}

TEST(SubprocessTest, OutputAndErrorsGoWhereTheyAreSent) {
  EXPECT_EQ(OutputOf(Shell("echo out; echo err >&2")), "out\nerr\n");
  Pipe errors = MakePipe().value();
  SubprocessOptions options = Shell("echo out; echo err >&2");
  options.error_fd = errors.write.get();
  EXPECT_EQ(OutputOf(options), "out\n");
  errors.write.Reset();
  EXPECT_EQ(ReadAll(errors.read), "err\n");
}

TEST(SubprocessTest, OnlyNamedDescriptorsAreInherited) {
  const Pipe named = MakePipe().value();
  const Pipe other = MakePipe().value();
  const auto script = [](int fd) {
    return "test -e /proc/self/fd/" + std::to_string(fd);
  };
  SubprocessOptions options = Shell(script(named.write.get()));
  options.inherited_fds = {named.write.get()};
  EXPECT_TRUE(Subprocess::Start(options)->Wait().ok());
  options = Shell(script(other.write.get()));
  options.inherited_fds = {named.write.get()};
  EXPECT_FALSE(Subprocess::Start(options)->Wait().ok());
}

TEST(SubprocessTest, SignalsAreAsAProgramExpectsThem) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(OutputOf(Shell("kill -PIPE $$; echo is ignored")), "");
  SubprocessOptions options = {
      .program = "grep", .arguments = {"grep", "SigBlk", "/proc/self/status"}};
  EXPECT_EQ(OutputOf(options), "SigBlk:\t0000000000000000\n");
  options.blocked_signals = blocked;
  EXPECT_EQ(OutputOf(options), "SigBlk:\t0000000000004000\n");
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST(SubprocessTest, TheRestOfTheGroupEndsWithTheProcess) {
  // The child of the shell holds the pipe for ever.
  EXPECT_EQ(OutputOf(Shell("sleep 1000 & echo done")), "done\n");
}

TEST(SubprocessTest, TheEndOfTheObjectIsTheEndOfTheProcess) {
  ProcessIdentity identity;
  {
    const auto process = Subprocess::Start(Shell("sleep 1000; true"));
    ASSERT_THAT(process, IsOk());
    EXPECT_EQ(getpgid(process->pid()), process->pid());
    identity = ProcessIdentity::Of(process->pid());
  }
  EXPECT_EQ(StateOf(identity), ProcessState::kEnded);
}

TEST(SubprocessTest, WithoutAGroupItGetsTheSignalsOfOurs) {
  SubprocessOptions options = Shell("read never");
  options.own_group = false;
  auto process = Subprocess::Start(options);
  ASSERT_THAT(process, IsOk());
  EXPECT_EQ(getpgid(process->pid()), getpgrp());
  EXPECT_TRUE(process->Wait().ExitedWith(1));
}

TEST(SubprocessTest, ForkRunsTheBodyInACopy) {
  int number = 3;
  auto copy = Subprocess::Fork([&] {
    number += 4;
    return number;
  });
  ASSERT_THAT(copy, IsOk());
  EXPECT_TRUE(copy->Wait().ExitedWith(7));
  EXPECT_EQ(number, 3);
}

// A process that starts `sleep` as `start` does, writes its number into a pipe,
// and is killed: the process it started must end.
TEST(SubprocessTest, NoProcessOutlivesAKilledParent) {
  const Pipe pipe = MakePipe().value();
  auto parent = Subprocess::Fork([&] {
    auto program = Subprocess::Start(Shell("sleep 1000"));
    auto copy = Subprocess::Fork([] {
      for (;;) pause();
      return 0;
    });
    const pid_t pids[] = {program->pid(), copy->pid()};
    if (write(pipe.write.get(), pids, sizeof(pids)) != sizeof(pids)) return 1;
    for (;;) pause();
  });
  ASSERT_THAT(parent, IsOk());
  pid_t pids[2] = {};
  ASSERT_EQ(read(pipe.read.get(), pids, sizeof(pids)),
            static_cast<ssize_t>(sizeof(pids)));
  const ProcessIdentity program = ProcessIdentity::Of(pids[0]);
  const ProcessIdentity copy = ProcessIdentity::Of(pids[1]);
  EXPECT_NE(StateOf(program), ProcessState::kEnded);
  parent->Signal(SIGKILL);
  EXPECT_TRUE(parent->Wait().KilledBy(SIGKILL));
  AwaitEndOf(program);
  AwaitEndOf(copy);
}

TEST(SubprocessTest, AChildOfAParentThatHasEndedIsNotified) {
  auto child = Subprocess::Fork([] { return DieWithParent(1) ? 0 : 5; });
  ASSERT_THAT(child, IsOk());
  EXPECT_TRUE(child->Wait().ExitedWith(5));
}

}  // namespace
}  // namespace sherd
