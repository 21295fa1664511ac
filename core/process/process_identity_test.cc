#include "sherd/core/process/process_identity.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "sherd/core/process/process_handle.h"

namespace sherd {
namespace {

ProcessDescription OwnDescription() {
  return ProcessDescription::Parse(DescribeOwnProcess())
      .value_or(ProcessDescription{});
}

TEST(ProcessIdentityTest, KnowsRunningEndedAndForeignProcesses) {
  const ProcessDescription own = OwnDescription();
  EXPECT_EQ(StateOf(own.ToText()), ProcessState::kRunning);
  EXPECT_EQ(own.process.pid, getpid());
  EXPECT_EQ(own.process, ProcessIdentity::Own());

  ProcessDescription reused = own;
  reused.process.start_time = 1;
  EXPECT_EQ(StateOf(reused.ToText()), ProcessState::kEnded);

  ProcessDescription elsewhere = own;
  elsewhere.boot_id = "another-host";
  EXPECT_EQ(StateOf(elsewhere.ToText()), ProcessState::kUnknown);
  EXPECT_FALSE(own.IsBeside(elsewhere));

  ProcessDescription contained = own;
  contained.pid_namespace = "pid:[1]";
  EXPECT_EQ(StateOf(contained.ToText()), ProcessState::kUnknown);
  EXPECT_FALSE(own.IsBeside(contained));
  EXPECT_TRUE(own.IsBeside(reused));

  ProcessDescription unknown = own;
  unknown.process.start_time = 0;
  EXPECT_EQ(StateOf(unknown.ToText()), ProcessState::kUnknown);
  EXPECT_EQ(StateOf("garbage"), ProcessState::kUnknown);
}

TEST(ProcessIdentityTest, OnlyDescriptionsOfProcessesAreParsed) {
  for (const char* text :
       {"", "garbage", "boot ns 1", "boot ns 1 ", "boot ns x 2", "boot ns 1 x",
        "boot ns 1 2 3", "boot ns 1 -2", "boot  ns 1 2"}) {
    EXPECT_EQ(ProcessDescription::Parse(text), std::nullopt) << text;
  }
  EXPECT_NE(ProcessDescription::Parse("boot ns 1 2"), std::nullopt);
  // As without /proc.
  EXPECT_NE(ProcessDescription::Parse("  1 0"), std::nullopt);
}

TEST(ProcessIdentityTest, AHandleReportsTheEndOfAProcessBeforeItIsReaped) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) pause();
  }
  const ProcessIdentity identity = ProcessIdentity::Of(child);
  EXPECT_NE(identity.start_time, 0u);
  ProcessHandle first;
  first.Watch(identity);
  ProcessHandle second;
  second.Watch(identity);
  EXPECT_FALSE(first.HasEnded());
  EXPECT_FALSE(second.HasEnded());
  EXPECT_NE(StateOf(identity), ProcessState::kEnded);

  EXPECT_EQ(kill(child, SIGKILL), 0);
  siginfo_t info;
  EXPECT_EQ(waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(first.HasEnded());
  EXPECT_TRUE(second.HasEnded());
  EXPECT_EQ(StateOf(identity), ProcessState::kEnded);

  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(first.HasEnded());
  EXPECT_EQ(StateOf(identity), ProcessState::kEnded);
  EXPECT_EQ(ProcessIdentity::Of(child).start_time, 0u);
}

TEST(ProcessIdentityTest, AHandleIsNotMisledByAReusedNumber) {
  ProcessHandle handle;
  handle.Watch({.pid = getpid(), .start_time = 1});
  EXPECT_TRUE(handle.HasEnded());
  ProcessHandle own;
  own.Watch(ProcessIdentity::Own());
  EXPECT_FALSE(own.HasEnded());
}

}  // namespace
}  // namespace sherd
