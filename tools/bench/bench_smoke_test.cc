// Runs the program itself, as a user does: every case once with a few bytes.

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/bench/cases.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code = -1;
  std::string text;
};

constexpr char kBothStreams[] = "2>&1";
constexpr char kErrorsOnly[] = "2>&1 >/dev/null";

// Runs the shell command `environment` bench `arguments`.
Outcome RunBench(const std::string& arguments,
                 const std::string& environment = "",
                 const char* redirection = kBothStreams) {
  const std::string command = absl::StrCat(environment, " tools/bench/bench ",
                                           arguments, " ", redirection);
  std::FILE* const pipe = popen(command.c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof(buffer), pipe)) {
    outcome.text += buffer;
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

TEST(BenchSmokeTest, EveryCaseAndPeerGivesACheckedResultInTableAndJson) {
  const std::string directory = ::testing::TempDir();
  const Outcome outcome =
      RunBench("--world=2 --bytes=8,4096 --json=results.jsonl",
               absl::StrCat("BUILD_WORKING_DIRECTORY=", directory,
                            " TMPDIR=", directory));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;

  std::set<std::tuple<std::string, std::string, int>> measured;
  std::ifstream file(directory + "/results.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["world"], 2);
    EXPECT_THAT(json["bytes"], AnyOf(0, 8, 4096));
    EXPECT_GT(json["seconds_min"], 0.0);
    EXPECT_LE(json["seconds_min"], json["seconds_median"]);
    EXPECT_LE(json["seconds_median"], json["seconds_max"]);
    EXPECT_GE(json["n"], 5);
    EXPECT_TRUE(
        measured.emplace(json["case"], json["peer"], json["bytes"]).second)
        << line;
  }
  for (const BenchCase& bench_case : AllBenchCases()) {
    for (const BenchPeer& peer : bench_case.peers) {
      // Each has one size at least that suits it.
      const size_t sizes = measured.count({bench_case.name, peer.name, 0}) +
                           measured.count({bench_case.name, peer.name, 8}) +
                           measured.count({bench_case.name, peer.name, 4096});
      EXPECT_GE(sizes, 1u) << bench_case.name << " " << peer.name;
    }
    EXPECT_THAT(outcome.text, HasSubstr("\n" + bench_case.name + " "));
  }
}

TEST(BenchSmokeTest, ASkipGoesToStandardErrorAndIsNoResult) {
  const Outcome outcome =
      RunBench("--cases=grid --peers=limit --world=3 --bytes=4096",
               /*environment=*/"", kErrorsOnly);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.text,
            "skipped: reshard_0_to_grid, 3 ranks, 4 KiB: a grid of 2 x W/2 "
            "needs an even world, not 3\n");
}

TEST(BenchSmokeTest, ListNamesCasesAndPeersAndRunsNothing) {
  const Outcome outcome = RunBench("--list");
  EXPECT_EQ(outcome.exit_code, 0);
  for (const BenchCase& bench_case : AllBenchCases()) {
    EXPECT_THAT(outcome.text, HasSubstr(bench_case.name + " "));
  }
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("\n  limit "), HasSubstr("\n  fork-gloo "),
                    Not(HasSubstr("median"))));
}

TEST(BenchSmokeTest, BadOptionsAreSaidPlainlyAndExitWithTwo) {
  const std::map<std::string, std::string> messages = {
      {"--wrold=2", "--wrold=2"},
      {"--world=0", "expected numbers from 1 to 16"},
      {"--bytes=few", "--bytes: \"few\""},
      {"'--cases=('", "not a regular expression"},
      {"--cases=shard_it", "no case has such a name"},
      {"--json=/no/such/place/x", "/no/such/place/x"},
      {"--bench-rank 0 0", "not that of a bench"},
  };
  for (const auto& [arguments, message] : messages) {
    const Outcome outcome = RunBench(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.text, HasSubstr(message)) << arguments;
  }
}

}  // namespace
}  // namespace sherd
