// Runs the program itself, as a user does: every case once with a few bytes.

#include <sys/stat.h>
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

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/bench/cases/cases.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code = -1;
  std::string text;
};

constexpr char kEmulator[] = "testing/emulated_gpu/libsherd_emulated_gpu.so";

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

// By case, peer and bytes.
using Results = std::set<std::tuple<std::string, std::string, int>>;

// Cases of a million shards, or of 10 000 tensors, which take minutes without
// optimisation; save_plan_test, load_plan_test and load_test run what they
// measure.
bool TakesMinutes(const std::string& name) {
  return absl::StrContains(name, "_many") ||
         absl::StartsWith(name, "checkpoint_plan_");
}

// Runs bench in a directory of the test and reads its file.
Results Measure(const std::string& arguments, Outcome& outcome,
                const std::string& environment = "") {
  const std::string directory = ::testing::TempDir();
  outcome = RunBench(arguments + " --calls=3 --json=results.jsonl",
                     absl::StrCat("BUILD_WORKING_DIRECTORY=", directory,
                                  " TMPDIR=", directory, " ", environment));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  Results results;
  std::ifstream file(directory + "/results.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_GT(json["seconds_min"], 0.0);
    EXPECT_LE(json["seconds_min"], json["seconds_median"]);
    EXPECT_LE(json["seconds_median"], json["seconds_max"]);
    EXPECT_EQ(json["n"], 3);
    if (json.contains("bytes_moved")) {
      EXPECT_EQ(json["bytes_moved"], json["lower_bound_bytes"]) << line;
    }
    EXPECT_TRUE(
        results.emplace(json["case"], json["peer"], json["bytes"]).second)
        << line;
  }
  return results;
}

TEST(BenchSmokeTest, EveryCaseAndPeerGivesACheckedResultInTableAndJson) {
  Outcome outcome;
  Results measured = Measure("--world=2 --bytes=8,4096", outcome);
  // These know one rank only.
  Outcome alone;
  measured.merge(
      Measure("--cases='^(plan|validate)_' --world=1 --bytes=4096", alone));
  // And these one GPU.
  Outcome emulated;
  measured.merge(Measure("--cases=^gpu_ --world=1 --bytes=8,4096", emulated,
                         absl::StrCat("SHERD_CUDA_LIBRARY=", kEmulator,
                                      " SHERD_NCCL_LIBRARY=", kEmulator,
                                      " SHERD_EMULATED_GPUS=1")));
  const std::string said =
      absl::StrCat(outcome.text, alone.text, emulated.text);
  for (const BenchCase& bench_case : AllBenchCases()) {
    if (TakesMinutes(bench_case.name)) continue;
    // As where files are memory, and none can be out of the page cache.
    if (bench_case.check != nullptr &&
        absl::IsFailedPrecondition(
            bench_case.check(2, 4096, ::testing::TempDir()))) {
      EXPECT_THAT(said, HasSubstr("skipped: " + bench_case.name + ", "));
      continue;
    }
    for (const BenchPeer& peer : bench_case.peers) {
      if (peer.check != nullptr &&
          !peer.check(2, 4096, ::testing::TempDir()).ok()) {
        EXPECT_THAT(said, HasSubstr("skipped: " + peer.name + ": "));
        continue;
      }
      // Each has one size at least that suits it.
      const size_t sizes = measured.count({bench_case.name, peer.name, 0}) +
                           measured.count({bench_case.name, peer.name, 8}) +
                           measured.count({bench_case.name, peer.name, 4096});
      EXPECT_GE(sizes, 1u) << bench_case.name << " " << peer.name;
    }
    EXPECT_THAT(said, HasSubstr("\n" + bench_case.name + " "));
  }
}

TEST(BenchSmokeTest, ASkipGoesToStandardErrorAndIsNotAResult) {
  const Outcome outcome =
      RunBench("--cases=_to_grid --peers=limit --world=3 --bytes=4096",
               /*environment=*/"", kErrorsOnly);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.text,
            "skipped: reshard_0_to_grid, 3 ranks, 4 KiB: a grid of 2 x W/2 "
            "needs an even world, not 3\n");
}

// Writes a program that stands in for a Python with PyTorch: it claims to be
// one, and its measurement runs `body`, which can use $report.
std::string FakePython(const std::string& body) {
  const std::string path = ::testing::TempDir() + "/python";
  std::ofstream(path) << "#!/bin/sh\n"
                         "[ \"$1\" = -c ] && exit 0\n"
                         "for a; do case $a in --report=*) "
                         "report=${a#--report=};; esac; done\n"
                      << body << "\n";
  chmod(path.c_str(), 0755);
  return path;
}

constexpr char kOneTorchCall[] =
    "--cases=^gather$ --peers=torch-dtensor --world=2 --bytes=4096 --calls=1 "
    "--python=";

TEST(BenchSmokeTest, AProgramMeasuresAndReports) {
  const Outcome outcome = RunBench(
      kOneTorchCall +
      FakePython("printf 'call 0.25\\ncall 0.5\\nextra 8192\\nextra 0\\n' "
                 "> $report"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("torch-dtensor    500 ms"));
  EXPECT_THAT(outcome.text, HasSubstr(" 250 ms      -   2.00"));
}

TEST(BenchSmokeTest, AProgramThatFailsIsSkippedButNoWrongResultPasses) {
  Outcome outcome = RunBench(
      kOneTorchCall + FakePython("echo failed rank 1: no memory > $report"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("skipped: gather, 2 ranks, 4 KiB: "));
  EXPECT_THAT(outcome.text, HasSubstr("rank 1: no memory"));
  outcome = RunBench(kOneTorchCall +
                     FakePython("echo wrong rank 0: 3 differ > $report"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("FAILED: gather, 2 ranks, 4 KiB: "));
  EXPECT_THAT(outcome.text, HasSubstr("rank 0: 3 differ"));
}

TEST(BenchSmokeTest, WithoutPyTorchItsPeersAreSkipped) {
  const Outcome outcome = RunBench(
      "--cases=^gather$ --peers=torch-dtensor --world=2 --bytes=4096 "
      "--python=/no/such/python",
      /*environment=*/"", kErrorsOnly);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.text,
            "skipped: torch-dtensor: /no/such/python has no torch: name one "
            "that has with --python\n");
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
      {"--world=0", "expected numbers from 1 to 256"},
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
