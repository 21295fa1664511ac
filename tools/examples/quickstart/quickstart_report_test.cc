#include "sherd/tools/examples/quickstart/quickstart_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

QuickstartReport Sample() {
  return {.model = "/models/a b.safetensors",
          .save_ranks = 4,
          .load_ranks = 3,
          .tensors = {{"small", "uint8 [2]", 2, "rows", "columns", "uneven", 1,
                       1, 0.001},
                      {"big", "float32 [1000, 1000]", 4000000, "columns",
                       "grid", "one rank empty", 3000000, 2000000, 0.002},
                      {"scalar", "int64 []", 8, "one rank", "one rank",
                       "one rank", 0, 0, 0.0005}},
          .phases = {{"save", 4000010, 0.5}, {"load", 4000010, 0.25}}};
}

TEST(QuickstartReportTest, SurvivesJson) {
  EXPECT_THAT(ParseReport(ReportToJson(Sample()), "x"), IsOkAndHolds(Sample()));
}

TEST(QuickstartReportTest, RefusesTextThatIsNotAReport) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"tensors": [], "phases": 3})",
        R"({"tensors": [1], "phases": []})", "\xff\xfe"}) {
    EXPECT_THAT(
        ParseReport(text, "save.json"),
        StatusIs(absl::StatusCode::kDataLoss, "save.json: not a report"))
        << text;
  }
}

TEST(QuickstartReportTest, FieldsOfAnotherKindCountAsAbsent) {
  const auto report = ParseReport(
      R"({"model": 3, "tensors": [{"name": [], "bytes": "x"}], "phases": []})",
      "x");
  QuickstartReport expected;
  expected.tensors.resize(1);
  EXPECT_THAT(report, IsOkAndHolds(expected));
}

TEST(QuickstartReportTest, ShowsEveryTensorOfAShortModel) {
  const std::string text = FormatReport(Sample(), 3);
  EXPECT_THAT(text, HasSubstr("\nbig            float32 [1000, 1000]  4.00 MB  "
                              "columns → grid → one rank empty    "
                              "3.00 MB / 2.00 MB   1.50   0.0020  2.000\n"));
  EXPECT_THAT(text, HasSubstr("\nall 3 tensors"));
  EXPECT_THAT(text, HasSubstr("\nsave  4.00 MB   0.5000  0.008\n"));
  EXPECT_THAT(text, Not(HasSubstr("smaller")));
}

TEST(QuickstartReportTest, SummarisesTheSmallTensorsOfALongModel) {
  const std::string text = FormatReport(Sample(), 1);
  EXPECT_THAT(text, HasSubstr("\nbig "));
  EXPECT_THAT(text, Not(HasSubstr("\nscalar ")));
  EXPECT_THAT(text, HasSubstr("\n… 2 smaller tensors"));
  EXPECT_THAT(text, HasSubstr("\nall 3 tensors"));
}

}  // namespace
}  // namespace sherd
