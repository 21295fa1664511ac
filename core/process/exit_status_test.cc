#include "sherd/core/process/exit_status.h"

#include <signal.h>
#include <sys/wait.h>

#include <optional>

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(ExitStatusTest, AProcessThatReturnedHasACode) {
  const ExitStatus status = ExitStatus::OfCode(3);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(status.ExitedWith(3));
  EXPECT_FALSE(status.ExitedWith(0));
  EXPECT_FALSE(status.KilledBy(3));
  EXPECT_EQ(status.code(), 3);
  EXPECT_EQ(status.signal(), std::nullopt);
  EXPECT_EQ(status.ShellCode(), 3);
  EXPECT_EQ(status.ToString(), "exited with code 3");
  EXPECT_EQ(status.ToPhrase(), "exit code 3");
  EXPECT_TRUE(ExitStatus::OfCode(0).ok());
}

TEST(ExitStatusTest, AProcessThatWasKilledHasASignal) {
  const ExitStatus status = ExitStatus::OfSignal(SIGSEGV);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(status.KilledBy(SIGSEGV));
  EXPECT_FALSE(status.ExitedWith(SIGSEGV));
  EXPECT_EQ(status.code(), std::nullopt);
  EXPECT_EQ(status.signal(), SIGSEGV);
  EXPECT_EQ(status.ShellCode(), 139);
  EXPECT_EQ(status.ToString(), "was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(status.ToPhrase(), "killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(ExitStatus(SIGSEGV | WCOREFLAG).ToPhrase(),
            "killed by signal 11 (Segmentation fault, core dumped)");
  EXPECT_EQ(ExitStatus::OfSignal(SIGRTMAX).ToPhrase(),
            "killed by signal 64 (real-time)");
}

}  // namespace
}  // namespace sherd
