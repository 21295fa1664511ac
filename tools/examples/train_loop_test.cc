#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Functions of the shell, for the job that saves to $D:
//   job RANKS STEPS [OPTION…]  trains; in the background with EXEC=exec
//   pids                       of its ranks
//   last                       the newest step that was saved, or nothing
//   holder                     the process that holds the lease, or nothing
constexpr char kFunctions[] = R"sh(
job() {
  ranks=$1 steps=$2; shift 2
  $EXEC tools/sherd/sherd run -n $ranks --no-prefix -- \
    tools/examples/train_loop --dir="$D" --steps=$steps "$@"
}
pids() {
  for p in /proc/[0-9]*; do
    case "$(readlink $p/exe)" in
      */train_loop) tr '\0' '\n' < $p/cmdline | grep -qxF -- "--dir=$D" &&
        echo ${p#/proc/};;
    esac
  done 2> /dev/null
}
last() {
  ls "$D" 2> /dev/null | sed -n 's/^step-0*\([0-9]*\)\.sherd$/\1/p' | tail -1
}
holder() {
  sed -n 's/^process .* \([0-9]*\) [0-9]*$/\1/p' "$D/lease.sherd" 2> /dev/null
}
)sh";

class TrainLoopTest : public ::testing::Test {
 protected:
  ShellResult Script(const std::string& script) {
    return Shell(absl::StrCat("D=", Quoted(folder_ + "/steps"),
                              "; F=", Quoted(folder_), kFunctions, script));
  }

  // Runs a job on four ranks that would never end, kills it, the launcher
  // first, as soon as `moment` holds, and returns the last step that it saved.
  int64_t KillWhen(const std::string& moment) {
    const ShellResult killed = Script(
        absl::StrCat("EXEC=exec job 4 1000000000 --every=1 --async > "
                     "\"$F/log\" 2>&1 & run=$!; until ",
                     moment,
                     "; do kill -0 $run || { cat \"$F/log\"; exit 1; }; done; "
                     "kill -KILL $run; wait $run 2> /dev/null; "
                     "while [ -n \"$(pids)\" ]; do sleep 0.01; done; last"));
    int64_t step = 0;
    EXPECT_TRUE(absl::SimpleAtoi(absl::StripSuffix(killed.output, "\n"), &step))
        << killed.output;
    return step;
  }

  // A job that nothing interrupts, in a directory of its own.
  ShellResult TrainWhole(int64_t steps) {
    return Script(absl::StrCat("D=$F/whole; rm -rf \"$D\"; job 4 ", steps,
                               " --every=", steps, " --out=\"$F/whole.out\""));
  }

  const std::string folder_ = ShellTestFolder();
};

TEST_F(TrainLoopTest, TheResultDependsOnNothingButTheSteps) {
  const ShellResult whole = TrainWhole(20);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_THAT(whole.output,
              AllOf(HasSubstr("from step 0\n"), HasSubstr("step 20: loss "),
                    HasSubstr("rank 0 drew 20 numbers")));
  for (const char* job : {"1 20", "3 20 --every=3 --keep-last=1",
                          "5 20 --every=7 --async --keep-last=0"}) {
    const ShellResult other = Script(
        absl::StrCat("rm -rf \"$D\"; job ", job,
                     " --out=\"$F/out\" && cmp \"$F/out\" \"$F/whole.out\""));
    EXPECT_EQ(other.exit_code, 0) << job << "\n" << other.output;
  }
}

// Each time it is started on other ranks, fewer and more than before.
TEST_F(TrainLoopTest, KilledAtAnyMomentItGoesOnToTheSameBits) {
  int64_t step = 0;
  int ranks = 3;
  for (const char* moment :
       {"[ -n \"$(last)\" ]", "[ -n \"$(last)\" ] && [ -n \"$(holder)\" ]",
        "ls \"$D\" | grep -q '^step.*9.sherd$'"}) {
    SCOPED_TRACE(moment);
    step = KillWhen(moment);
    const int64_t steps = step + 6;
    const ShellResult resumed = Script(
        absl::StrCat("job ", ranks, " ", steps,
                     " --async --out=\"$F/out\" && tools/sherd/sherd verify "
                     "\"$D\""));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
    // What the weights do not show: one number of its own for each step.
    EXPECT_THAT(
        resumed.output,
        AllOf(HasSubstr(absl::StrCat("from step ", step, "\n")),
              HasSubstr(absl::StrCat("rank 0 drew ", steps, " numbers"))));
    const ShellResult whole = TrainWhole(steps);
    ASSERT_EQ(whole.exit_code, 0) << whole.output;
    EXPECT_EQ(Script("cmp \"$F/out\" \"$F/whole.out\"").output, "");
    ranks += 2;
  }
}

// The first job is stopped while it saves, so that it is not over.
TEST_F(TrainLoopTest, TheSecondJobInADirectoryNamesTheFirst) {
  const ShellResult second = Script(
      "EXEC=exec job 3 1000000000 --every=1 > \"$F/log\" 2>&1 & run=$!; "
      "until "
      "  until pid=$(holder); [ -n \"$pid\" ] && [ -n \"$(last)\" ]; do kill "
      "-0 $run || exit 3; done;"
      "  kill -STOP $pid; "
      "  while grep -h ^State: /proc/$pid/task/*/status | grep -qv 'T ('; do "
      "    :; done; "
      "  [ \"$(holder)\" = $pid ]; "
      "do kill -CONT $pid; done; "
      "job 2 1000000000 --every=1 --async; code=$?; "
      "echo \"the first is $pid.\"; "
      "kill -KILL $run; while [ -n \"$(pids)\" ]; do sleep 0.01; done; "
      "exit $code");
  EXPECT_EQ(second.exit_code, 1) << second.output;
  std::string pid;
  const size_t at = second.output.find("the first is ");
  ASSERT_NE(at, std::string::npos) << second.output;
  pid = second.output.substr(at + 13);
  pid.resize(pid.find('.'));
  EXPECT_THAT(second.output, HasSubstr(absl::StrCat("process ", pid)));
  const ShellResult verified = Script("tools/sherd/sherd verify \"$D\"");
  EXPECT_EQ(verified.exit_code, 0) << verified.output;
}

TEST_F(TrainLoopTest, ItsFilesAreVerifiedAloneAndALostStepIsRecovered) {
  ASSERT_EQ(Script("job 4 12 --every=3 --async").exit_code, 0);
  EXPECT_EQ(Script("ls \"$D\"/step-*.sherd | wc -l").output, "3\n");
  EXPECT_EQ(Script("ls \"$D\" | grep -c lease").output, "0\n");
  const ShellResult files = Script(
      "for f in \"$D\"/shard-*; do tools/sherd/sherd verify \"$f\" || "
      "exit 1; done");
  EXPECT_EQ(files.exit_code, 0) << files.output;
  const ShellResult recovered = Script(
      "rm \"$D\"/step-*12.sherd && [ $(last) = 9 ] && "
      "tools/sherd/sherd recover \"$D\" && [ $(last) = 12 ] && "
      "tools/sherd/sherd verify \"$D\" && job 3 12 --out=\"$F/out\"");
  EXPECT_EQ(recovered.exit_code, 0) << recovered.output;
  EXPECT_THAT(recovered.output, HasSubstr("from step 12\n"));
  ASSERT_EQ(TrainWhole(12).exit_code, 0);
  EXPECT_EQ(Script("cmp \"$F/out\" \"$F/whole.out\"").output, "");
}

}  // namespace
}  // namespace sherd
