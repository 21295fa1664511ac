#include "sherd/tools/bench/harness/program_report.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ProgramReport> Read(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/report";
  std::ofstream(path) << text;
  return ReadProgramReport(path, {.case_name = "x", .world = 2, .calls = 3});
}

TEST(ProgramReportTest, HasAllCallsAndTheMemoryOfAllRanks) {
  const auto report =
      Read("call 0.5\ncall 2.5e-05\ncall 3\nextra 4096\nextra -10\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(report->seconds, ElementsAre(0.5, 2.5e-5, 3.0));
  EXPECT_THAT(report->extra_bytes, ElementsAre(4096, -10));
}

TEST(ProgramReportTest, MayHaveTheCpuTimeOfAllCalls) {
  const auto report =
      Read("call 1\ncall 1\ncall 1\ncpu 4\ncpu 0\ncpu 2.5\nextra 1\nextra 1\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(report->cpu_seconds, ElementsAre(4.0, 0.0, 2.5));
}

TEST(ProgramReportTest, ReportsErrors) {
  EXPECT_THAT(Read("wrong rank 1: 7 elements differ\n"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("rank 1: 7 elements differ")));
  EXPECT_THAT(
      Read("failed import torch: no such module\n"),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("no such module")));
}

TEST(ProgramReportTest, RefusesAnythingButAReportOfTheTask) {
  EXPECT_THAT(ReadProgramReport("/no/such/report", {}),
              StatusIs(absl::StatusCode::kNotFound));
  for (const char* text :
       {"", "call 1\ncall 1\nextra 1\nextra 1\n",
        "call 1\ncall 1\ncall 1\nextra 1\n",
        "call 1\ncall -1\ncall 1\nextra 1\nextra 1\n",
        "call 1\ncall 1\ncall 1\nextra 1\nextra many\n",
        "call 1\ncall 1\ncall 1\ncpu 1\ncpu 1\nextra 1\nextra 1\n",
        "call 1\ncall 1\ncall 1\ncpu -1\nextra 1\nextra 1\n", "hello\n"}) {
    EXPECT_THAT(Read(text), StatusIs(absl::StatusCode::kInternal)) << text;
  }
}

}  // namespace
}  // namespace sherd
