// The conformance suite on plugins of which one is good and the others have a
// fault planted (testdata/planted_plugin.cc).

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Relative to the working directory of a test.
constexpr char kSuite[] = "testing/conformance_planted";

// More than a run takes, even where a sanitizer slows it down and others share
// the cores. A plugin that hangs must not make the suite hang.
constexpr absl::Duration kPatience = absl::Seconds(100);

struct SuiteRun {
  bool ended = false;
  int code = -1;
  std::string output;
};

std::vector<std::string> Environment(const std::string& backend,
                                     absl::Duration timeout) {
  std::vector<std::string> environment;
  for (std::string& variable : OwnEnvironment()) {
    if (!absl::StartsWith(variable, "TEST_") &&
        !absl::StartsWith(variable, "GTEST_") &&
        !absl::StartsWith(variable, "TESTBRIDGE_") &&
        !absl::StartsWith(variable, "XML_OUTPUT_FILE=")) {
      environment.push_back(std::move(variable));
    }
  }
  environment.push_back("SHERD_TEST_BACKEND=" + backend);
  environment.push_back("SHERD_TEST_WORLD_SIZE=3");
  environment.push_back("SHERD_PLUGIN_PATH=testing");
  environment.push_back("SHERD_TIMEOUT=" + absl::FormatDuration(timeout));
  return environment;
}

// Runs the suite, or the case `only`, on the plugin of that name.
SuiteRun RunSuite(const std::string& backend, absl::Duration timeout,
                  absl::string_view only = "") {
  SuiteRun run;
  Pipe pipe = MakePipe().value();
  Subprocess process =
      Subprocess::Start(
          {.program = kSuite,
           .arguments = {kSuite, absl::StrCat("--gtest_filter=*.", only, "*")},
           .environment = Environment(backend, timeout),
           .output_fd = pipe.write.get()})
          .value();
  pipe.write.Reset();
  const Deadline deadline = Deadline::After(kPatience);
  char buffer[1 << 16];
  for (;;) {
    pollfd fd = {pipe.read.get(), POLLIN, 0};
    const int ready =
        poll(&fd, 1,
             static_cast<int>(absl::ToInt64Milliseconds(deadline.Remaining())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return run;
    const ssize_t size = read(pipe.read.get(), buffer, sizeof(buffer));
    if (size <= 0) break;
    run.output.append(buffer, static_cast<size_t>(size));
  }
  run.ended = true;
  run.code = process.Wait().code().value_or(-1);
  return run;
}

TEST(ConformanceTest, AGoodPluginPasses) {
  const SuiteRun run = RunSuite("planted_none", absl::Seconds(60));
  EXPECT_TRUE(run.ended) << run.output;
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("[  PASSED  ]"),
                    HasSubstr("PlantedConformance.MovesOn3Ranks"),
                    HasSubstr("PlantedConformance.MismatchedCallsOn3Ranks"),
                    Not(HasSubstr("SKIPPED"))));
}

struct Planted {
  const char* plugin;
  // The test that fails, and how it names the fault.
  const char* test;
  const char* fault;
};

class PlantedFaultTest : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedFaultTest, IsFoundAndNamed) {
  const SuiteRun run =
      RunSuite(GetParam().plugin, absl::Seconds(4), GetParam().test);
  ASSERT_TRUE(run.ended) << "the suite hangs\n" << run.output;
  EXPECT_EQ(run.code, 1) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr(absl::StrCat("[  FAILED  ] PlantedConformance.",
                                           GetParam().test, "On3Ranks")),
                    HasSubstr(GetParam().fault)));
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedFaultTest,
    ::testing::Values(
        Planted{"planted_wrong_tail", "AllReductions",
                "wrong result: element 1002 of 1003 is"},
        Planted{"planted_lies", "AllReductions",
                "PathOf lies: the operation is refused"},
        Planted{"planted_loses_a_completion", "Moves",
                "the call did not end: a message or a completion was lost"},
        Planted{"planted_throws", "Moves", "the plugin throws"},
        Planted{"planted_writes_past_the_end", "Moves",
                "a write past the end: byte"},
        Planted{"planted_ignores_abort", "Aborts", "abort is ignored"},
        Planted{"planted_leaks", "ManyGroups",
                "200 groups that were made and destroyed leave"},
        Planted{"planted_trusts_handles", "ForgedHandles",
                "importing a handle of zeros: expected INVALID_ARGUMENT"}),
    [](const auto& info) {
      return std::string(absl::string_view(info.param.plugin).substr(8));
    });

TEST(ConformanceTest, AMissingPluginIsReportedPlainly) {
  const SuiteRun run = RunSuite("planted_nowhere", absl::Seconds(4), "Paths");
  EXPECT_TRUE(run.ended);
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.output, HasSubstr("Backend planted_nowhere not supported!"));
}

}  // namespace
}  // namespace sherd::testing::internal
