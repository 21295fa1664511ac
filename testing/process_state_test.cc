#include "sherd/testing/process_state.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "gtest/gtest.h"

namespace sherd::testing::internal {
namespace {

TEST(ProcessStateTest, KnowsTheSignalsThatAProcessHandles) {
  signal(SIGUSR2, [](int) {});
  signal(SIGRTMAX - 1, [](int) {});
  const std::optional<ProcessState> state = ReadProcessState(getpid());
  signal(SIGUSR2, SIG_DFL);
  signal(SIGRTMAX - 1, SIG_DFL);
  ASSERT_TRUE(state.has_value());
  EXPECT_TRUE(state->Catches(SIGUSR2));
  EXPECT_TRUE(state->Catches(SIGRTMAX - 1));
  EXPECT_FALSE(state->Catches(SIGTERM));
  EXPECT_FALSE(state->is_stopped);
  EXPECT_FALSE(ReadProcessState(getpid())->Catches(SIGUSR2));
}

TEST(ProcessStateTest, KnowsAStoppedProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const std::optional<ProcessState> state = ReadProcessState(child);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(state.has_value());
  EXPECT_TRUE(state->is_stopped);
  EXPECT_FALSE(ReadProcessState(child).has_value()) << "it is gone";
  EXPECT_FALSE(HasThread(child, "anything"));
}

TEST(ProcessStateTest, WhatIsNoStatusIsNothing) {
  EXPECT_FALSE(ParseProcessStatus("").has_value());
  EXPECT_FALSE(ParseProcessStatus("State:\tR (running)\n").has_value());
  EXPECT_FALSE(ParseProcessStatus("SigCgt:\t0000000000000000\n").has_value());
  EXPECT_FALSE(
      ParseProcessStatus("State:\tR (running)\nSigCgt:\txyz\n").has_value());
}

TEST(ProcessStateTest, KnowsThreadsByTheirNames) {
  EXPECT_FALSE(HasThread(getpid(), "test-thread"));
  pthread_setname_np(pthread_self(), "test-thread");
  EXPECT_TRUE(HasThread(getpid(), "test-thread"));
  EXPECT_FALSE(HasThread(getpid(), "test"));
}

}  // namespace
}  // namespace sherd::testing::internal
