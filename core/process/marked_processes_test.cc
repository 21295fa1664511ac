#include "sherd/core/process/marked_processes.h"

#include <signal.h>
#include <unistd.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Mark() { return absl::StrCat("SHERD_TEST_MARK=", getpid()); }

absl::StatusOr<Subprocess> StartMarked(const std::string& script) {
  return Subprocess::Start({.program = "/bin/sh",
                            .arguments = {"sh", "-c", script},
                            .environment = {Mark(), "SCRIPT=" + script}});
}

// Between two programs it has no environment for a moment.
TEST(MarkedProcessesTest, AProcessThatRunsOneProgramAfterAnotherIsFound) {
  auto process = StartMarked("exec /bin/sh -c \"$SCRIPT\"");
  ASSERT_THAT(process, IsOk());
  for (int i = 0; i < 500; ++i) {
    ASSERT_THAT(FindMarkedProcesses(Mark()), ElementsAre(process->pid())) << i;
  }
  process->Signal(SIGKILL);
  process->Wait();
  EXPECT_THAT(FindMarkedProcesses(Mark()), IsEmpty());
}

TEST(MarkedProcessesTest, NoneIsLeftOfAFamilyThatGrows) {
  auto process = StartMarked(
      "for i in 1 2 3 4 5 6; do setsid sleep 1000 & done; "
      "exec /bin/sh -c \"$SCRIPT\"");
  ASSERT_THAT(process, IsOk());
  while (FindMarkedProcesses(Mark()).size() < 20) continue;
  KillMarkedProcesses(Mark());
  process->Wait();
  EXPECT_THAT(FindMarkedProcesses(Mark()), IsEmpty());
}

}  // namespace
}  // namespace sherd
