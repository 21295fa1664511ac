#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Ping(const std::string& run, const std::string& options) {
  return absl::StrCat("tools/sherd/sherd run -n 3 --no-prefix ", run,
                      " tools/examples/ping ", options);
}

TEST(PingTest, AllCallAllAndShutDown) {
  for (const char* options : {"--seconds=1.2", "--seconds=1.2 --idle"}) {
    const ShellResult result = Shell(Ping("", options));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (const char* worker : {"worker0", "worker1", "worker2"}) {
      EXPECT_THAT(result.output,
                  AllOf(ContainsRegex(absl::StrCat(worker, ": listening on @")),
                        ContainsRegex(absl::StrCat(worker, ": [0-9]+ calls")),
                        HasSubstr(absl::StrCat(worker, ": shut down"))));
    }
    EXPECT_THAT(result.output, Not(HasSubstr("lost")));
  }
}

// Worker 1 is killed once all have called all.
TEST(PingTest, ALostWorkerIsNamedAndTheOthersContinue) {
  const std::string out = absl::StrCat(::testing::TempDir(), "/ping_out");
  const ShellResult result = Shell(
      absl::StrCat(Ping("--on-failure=continue", "--seconds=6"), " > ", out,
                   " 2>&1 & run=$!; "
                   "for w in 0 1 2; do until grep -q \"worker$w: .* calls\" ",
                   out,
                   "; do sleep 0.05; done; done; "
                   "for p in /proc/[0-9]*; do "
                   "  case \"$(readlink $p/exe)\" in */ping) "
                   "    tr '\\0' '\\n' < $p/environ | grep -qx RANK=1 && "
                   "      kill -KILL ${p#/proc/};; "
                   "  esac; "
                   "done; "
                   "wait $run; code=$?; cat ",
                   out, "; exit $code"));
  EXPECT_NE(result.exit_code, 0) << result.output;
  for (const char* worker : {"worker0", "worker2"}) {
    EXPECT_THAT(result.output,
                AllOf(ContainsRegex(absl::StrCat(worker, ": lost worker1: .+")),
                      HasSubstr(absl::StrCat(worker, ": shut down"))));
  }
  EXPECT_THAT(result.output, Not(HasSubstr("worker1: shut down")));
}

}  // namespace
}  // namespace sherd
