// Tests of Launch that run the program itself, since a launcher changes the
// signal handling of its process and collects all of its children.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/marked_processes.h"
#include "sherd/tools/sherd/run/run_command.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kSherd[] = "tools/sherd/sherd";

// A running "sherd" whose output is read by this process.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    arguments.insert(arguments.begin(), kSherd);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      execv(kSherd, argv.data());
      _exit(99);
    }
    close(out[1]);
    close(err[1]);
    streams_[0].fd = UniqueFd(out[0]);
    streams_[1].fd = UniqueFd(err[0]);
  }
  ~Program() {
    if (!exited_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  const std::string& output() const { return streams_[0].text; }
  const std::string& errors() const { return streams_[1].text; }

  // Reads until standard output contains `text` `count` times.
  void AwaitLines(const std::string& text, int count) {
    while (CountOf(text) < count && ReadSome()) {
    }
    EXPECT_GE(CountOf(text), count) << output() << errors();
  }

  // Reads to the end of both streams; the exit code, or minus the signal.
  int Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    exited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  void CloseOutput() { streams_[0].fd.Reset(); }

 private:
  struct Stream {
    UniqueFd fd;
    std::string text;
  };

  int CountOf(const std::string& text) const {
    int count = 0;
    for (size_t at = output().find(text); at != std::string::npos;
         at = output().find(text, at + 1)) {
      ++count;
    }
    return count;
  }

  bool ReadSome() {
    std::array<pollfd, 2> fds = {pollfd{streams_[0].fd.get(), POLLIN, 0},
                                 pollfd{streams_[1].fd.get(), POLLIN, 0}};
    if (fds[0].fd < 0 && fds[1].fd < 0) return false;
    poll(fds.data(), fds.size(), -1);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      std::array<char, 65536> buffer;
      const ssize_t n = read(fds[i].fd, buffer.data(), buffer.size());
      if (n <= 0) {
        streams_[i].fd.Reset();
      } else {
        streams_[i].text.append(buffer.data(), n);
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  bool exited_ = false;
  std::array<Stream, 2> streams_;
};

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  std::sort(lines.begin(), lines.end());
  return lines;
}

// The entry of the ranks' environment that names their rendezvous, from a line
// "[0] SHERD_INIT_METHOD=…" of the output.
std::string MarkIn(const std::string& output) {
  const size_t begin = output.find("SHERD_INIT_METHOD=");
  EXPECT_NE(begin, std::string::npos) << output;
  if (begin == std::string::npos) return "SHERD_INIT_METHOD=";
  return output.substr(begin, output.find('\n', begin) - begin);
}

// Polls for an effect of another process that cannot be waited for.
bool EventuallyTrue(const std::function<bool()>& condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    poll(nullptr, 0, 10);
  }
  return false;
}

TEST(LauncherTest, RanksFindTheirPlaceInTheEnvironment) {
  Program run({"run", "-n", "3", "--", "sh", "-c",
               "echo $RANK $WORLD_SIZE $LOCAL_RANK ${SHERD_INIT_METHOD%%:*}"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(
      SortedLines(run.output()),
      ElementsAre("[0] 0 3 0 file", "[1] 1 3 1 file", "[2] 2 3 2 file"));
  EXPECT_EQ(run.errors(), "");
}

TEST(LauncherTest, TheMeetingPlaceIsSharedFreshAndRemoved) {
  std::set<std::string> places;
  for (int i = 0; i < 2; ++i) {
    Program run({"run", "-n", "2", "sh", "-c",
                 "p=${SHERD_INIT_METHOD#file://}; test ! -e $p && "
                 "test -d ${p%/init} && echo $p"});
    EXPECT_EQ(run.Wait(), 0) << run.errors();
    std::set<std::string> seen;
    for (const std::string& line : SortedLines(run.output())) {
      seen.insert(line.substr(4));
    }
    ASSERT_EQ(seen.size(), 1u) << run.output();
    EXPECT_NE(access(seen.begin()->c_str(), F_OK), 0);
    const std::string folder =
        seen.begin()->substr(0, seen.begin()->size() - 5);
    EXPECT_NE(access(folder.c_str(), F_OK), 0) << folder;
    places.insert(*seen.begin());
  }
  EXPECT_EQ(places.size(), 2u);
}

TEST(LauncherTest, StreamsStayApartAndUnterminatedLinesEnd) {
  Program run({"run", "-n", "2", "sh", "-c",
               "echo out $RANK; echo err $RANK >&2; printf rest"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(SortedLines(run.output()),
              ElementsAre("[0] out 0", "[0] rest", "[1] out 1", "[1] rest"));
  EXPECT_THAT(SortedLines(run.errors()), ElementsAre("[0] err 0", "[1] err 1"));
}

TEST(LauncherTest, LongLinesOfAllRanksArriveWhole) {
  Program run({"run", "-n", "3", "sh", "-c",
               "head -c 3000000 /dev/zero | tr '\\0' $RANK; echo; "
               "head -c 300000 /dev/zero | tr '\\0' $RANK >&2"});
  EXPECT_EQ(run.Wait(), 0);
  std::vector<std::string> expected, expected_errors;
  for (char rank : {'0', '1', '2'}) {
    const std::string prefix = absl::StrCat("[", std::string(1, rank), "] ");
    expected.push_back(prefix + std::string(3000000, rank));
    expected_errors.push_back(prefix + std::string(300000, rank));
  }
  EXPECT_TRUE(SortedLines(run.output()) == expected);
  EXPECT_TRUE(SortedLines(run.errors()) == expected_errors);
}

TEST(LauncherTest, WithoutPrefixRanksWriteThemselves) {
  Program run({"run", "-n", "2", "--no-prefix", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(SortedLines(run.output()), ElementsAre("0", "1"));
}

TEST(LauncherTest, StandardInputIsEmpty) {
  Program run({"run", "-n", "1", "wc", "-c"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_EQ(run.output(), "[0] 0\n");
}

TEST(LauncherTest, ArgumentsReachTheProgramAsTheyAre) {
  Program run({"run", "--ranks=1", "--no-prefix", "--", "printf", "%s|", "-n",
               "5", "--", "a b", "", "--timeout"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_EQ(run.output(), "-n|5|--|a b||--timeout|");
}

TEST(LauncherTest, AFailingRankStopsTheOthersAndGivesTheExitCode) {
  Program run({"run", "-n", "3", "--grace", "0.1", "sh", "-c",
               "test $RANK = 1 && exit 7; exec sleep 1000"});
  EXPECT_EQ(run.Wait(), 7);
  EXPECT_THAT(
      run.errors(),
      AllOf(StartsWith("sherd run: rank 1 of 3 failed first: exit code 7"),
            HasSubstr("ranks 0, 2: killed by signal 15 (Terminated)")));
}

TEST(LauncherTest, ASignalledRankGives128PlusItsSignal) {
  Program run({"run", "-n", "2", "--grace=100ms", "sh", "-c",
               "test $RANK = 0 && kill -SEGV $$; exec sleep 1000"});
  EXPECT_EQ(run.Wait(), 128 + SIGSEGV);
  EXPECT_THAT(run.errors(),
              HasSubstr("rank 0 of 2 failed first: killed by signal 11 "
                        "(Segmentation fault"));
}

// A folder that the ranks of a test share.
constexpr char kFolder[] =
    "folder=${SHERD_INIT_METHOD#file://}; folder=${folder%/init}; ";

TEST(LauncherTest, ARankThatIgnoresSigtermIsKilled) {
  Program run({"run", "-n", "2", "--grace", "0.1", "sh", "-c",
               std::string(kFolder) +
                   "if test $RANK = 0; then until test -e $folder/deaf; do "
                   "sleep 0.01; done; exit 3; fi; "
                   "trap '' TERM; touch $folder/deaf; "
                   "while true; do sleep 1000; done"});
  EXPECT_EQ(run.Wait(), 3);
  EXPECT_THAT(run.errors(), HasSubstr("rank 1: killed by signal 9 (Killed)"));
}

TEST(LauncherTest, OtherRanksHaveTheGraceToReportTheFailure) {
  Program run(
      {"run", "-n", "2", "--grace", "60", "sh", "-c",
       std::string(kFolder) +
           "if test $RANK = 0; then echo $$ > $folder/new; "
           "mv $folder/new $folder/pid; exit 3; fi; "
           "until test -e $folder/pid; do sleep 0.01; done; "
           "while kill -0 $(cat $folder/pid) 2> /dev/null; do sleep 0.01; "
           "done; exit 4"});
  EXPECT_EQ(run.Wait(), 3);
  EXPECT_THAT(run.errors(), HasSubstr("rank 1: exit code 4"));
}

TEST(LauncherTest, ATimeoutNamesTheRanksThatWereLeft) {
  Program run({"run", "-n", "3", "--timeout", "1.5", "sh", "-c",
               "test $RANK = 1 && exit 0; exec sleep 1000"});
  EXPECT_EQ(run.Wait(), 124);
  EXPECT_THAT(run.errors(),
              HasSubstr("timeout: ranks 0, 2 of 3 had not ended after 1.5s"));
}

TEST(LauncherTest, SignalsArePassedOn) {
  for (const auto& [signal, name] : std::vector<std::pair<int, std::string>>{
           {SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}}) {
    Program run({"run", "-n", "2", "sh", "-c",
                 "trap 'echo got " + name + "; exit 5' " + name +
                     "; echo ready; while true; do sleep 0.05; done"});
    run.AwaitLines("ready\n", 2);
    kill(run.pid(), signal);
    EXPECT_EQ(run.Wait(), 5) << name;
    run.AwaitLines("got " + name + "\n", 2);
  }
}

TEST(LauncherTest, ASecondSignalKillsAtOnce) {
  Program run({"run", "-n", "1", "--grace", "600", "sh", "-c",
               "trap 'echo first' INT; echo ready; "
               "while true; do sleep 0.05; done"});
  run.AwaitLines("ready\n", 1);
  kill(run.pid(), SIGINT);
  run.AwaitLines("first\n", 1);
  kill(run.pid(), SIGINT);
  EXPECT_EQ(run.Wait(), 128 + SIGKILL);
}

TEST(LauncherTest, SignalsForTheProgramDoNotEndTheRun) {
  Program run({"run", "-n", "1", "sh", "-c",
               "trap 'echo got; exit 0' USR1; echo ready; "
               "while true; do sleep 0.05; done"});
  run.AwaitLines("ready\n", 1);
  kill(run.pid(), SIGUSR1);
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(run.output(), HasSubstr("[0] got\n"));
}

// In every session and process group, with and without output to the pipe.
constexpr char kFamily[] =
    "echo SHERD_INIT_METHOD=$SHERD_INIT_METHOD; sleep 1000 & "
    "setsid sleep 1000 & setsid sleep 1000 > /dev/null 2>&1 & ";

TEST(LauncherTest, AKilledLauncherLeavesNoProcessAndNoDirectory) {
  Program run(
      {"run", "-n", "2", "sh", "-c", std::string(kFamily) + "echo up; wait"});
  run.AwaitLines("up\n", 2);
  const std::string mark = MarkIn(run.output());
  EXPECT_GE(FindMarkedProcesses(mark).size(), 6u);
  kill(run.pid(), SIGKILL);
  EXPECT_EQ(run.Wait(), -SIGKILL);
  std::string folder = mark.substr(mark.find("///") + 2);
  folder.resize(folder.rfind('/'));
  EXPECT_TRUE(EventuallyTrue([&] {
    return FindMarkedProcesses(mark).empty() &&
           access(folder.c_str(), F_OK) != 0;
  })) << folder;
}

TEST(LauncherTest, ProcessesThatRanksLeaveBehindEndWithTheRun) {
  Program run({"run", "-n", "2", "sh", "-c", std::string(kFamily) + "exit 0"});
  EXPECT_EQ(run.Wait(), 0) << run.errors();
  EXPECT_THAT(FindMarkedProcesses(MarkIn(run.output())), IsEmpty());
}

TEST(LauncherTest, RanksEndWhenTheirOutputIsNotRead) {
  Program run({"run", "-n", "2", "yes"});
  run.AwaitLines("] y\n", 3);
  run.CloseOutput();
  EXPECT_EQ(run.Wait(), 128 + SIGPIPE);
  EXPECT_THAT(run.errors(), HasSubstr("the reader of the output went away"));
}

TEST(LauncherTest, AProgramThatCannotBeStartedIsNamed) {
  Program missing({"run", "-n", "2", "no-such-program"});
  EXPECT_EQ(missing.Wait(), 127);
  EXPECT_THAT(
      missing.errors(),
      HasSubstr("cannot start no-such-program: no such program in PATH"));
  Program directory({"run", "-n", "2", "/"});
  EXPECT_EQ(directory.Wait(), 126);
  EXPECT_THAT(directory.errors(), HasSubstr("cannot start /: Permission"));
}

TEST(LauncherTest, BadArgumentsAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", "true"}, "--ranks is required"},
      {{"run", "-n", "0", "true"}, "not in range 1 to 4096"},
      {{"run", "-n", "4097", "true"}, "not in range 1 to 4096"},
      {{"run", "-n", "two", "true"}, "two"},
      {{"run", "-n", "2"}, "no program to run"},
      {{"run", "-n", "2", "--"}, "no program to run"},
      {{"run", "-n", "2", "--timeout", "0", "true"}, "--timeout"},
      {{"run", "-n", "2", "--timeout", "soon", "true"},
       "is not a duration above zero"},
      {{"run", "-n", "2", "--grace=-1s", "true"},
       "is not a duration of 0 or more"},
      {{"run", "-n", "2", "--colour", "true"}, "--colour"},
      {{"jog"}, "\"jog\" is not a command, expected one of run, info, inspect"},
      {{}, "Usage: sherd"},
  };
  for (const auto& [arguments, message] : cases) {
    Program run(arguments);
    EXPECT_EQ(run.Wait(), 2) << message;
    EXPECT_THAT(run.errors(), HasSubstr(message));
    EXPECT_EQ(run.output(), "");
  }
}

TEST(LauncherTest, NestedRunsHaveRanksOfTheirOwn) {
  Program run({"run", "-n", "2", kSherd, "run", "-n", "2", "sh", "-c",
               "echo $RANK of $WORLD_SIZE"});
  EXPECT_EQ(run.Wait(), 0) << run.errors();
  EXPECT_THAT(SortedLines(run.output()),
              ElementsAre("[0] [0] 0 of 2", "[0] [1] 1 of 2", "[1] [0] 0 of 2",
                          "[1] [1] 1 of 2"));
}

TEST(TakeProgramTest, FindsWhereTheProgramBegins) {
  struct Case {
    std::vector<std::string> arguments;
    std::vector<std::string> options;
    std::vector<std::string> program;
  };
  const std::vector<Case> cases = {
      {{"run", "-n", "4", "p", "-x"}, {"run", "-n", "4"}, {"p", "-x"}},
      {{"run", "--ranks=4", "--", "p"}, {"run", "--ranks=4"}, {"p"}},
      {{"run", "-n", "4", "--no-prefix", "--timeout", "3", "p", "--", "q"},
       {"run", "-n", "4", "--no-prefix", "--timeout", "3"},
       {"p", "--", "q"}},
      {{"run", "-n", "4", "--", "--odd"}, {"run", "-n", "4"}, {"--odd"}},
      {{"run", "-n"}, {"run", "-n"}, {}},
      {{"inspect", "a", "--", "b"}, {"inspect", "a", "--", "b"}, {}},
      {{}, {}, {}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> arguments = c.arguments;
    EXPECT_EQ(TakeProgram(arguments), c.program);
    EXPECT_EQ(arguments, c.options);
  }
}

}  // namespace
}  // namespace sherd
