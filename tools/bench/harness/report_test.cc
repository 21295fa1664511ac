#include "sherd/tools/bench/harness/report.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

BenchResult Result(const char* peer, double median) {
  return {.case_name = "gather",
          .peer = peer,
          .world = 4,
          .bytes = 64 << 20,
          .steady = {.median = median, .min = 0.001, .max = 0.75, .n = 15},
          .first_call = 1.5};
}

TEST(JsonLineTest, HasTheNamedFieldsAndNoOthers) {
  const std::string line = JsonLine(Result("sherd-gloo", 0.0123456789));
  ASSERT_THAT(line, EndsWith("}\n"));
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json.size(), 9u);
  EXPECT_EQ(json["case"], "gather");
  EXPECT_EQ(json["peer"], "sherd-gloo");
  EXPECT_EQ(json["world"], 4);
  EXPECT_EQ(json["bytes"], 67108864);
  EXPECT_NEAR(json["seconds_median"], 0.0123456789, 1e-10);
  EXPECT_EQ(json["seconds_min"], 0.001);
  EXPECT_EQ(json["seconds_max"], 0.75);
  EXPECT_EQ(json["n"], 15);
  EXPECT_EQ(json["seconds_first"], 1.5);
}

TEST(JsonLineTest, OfAMoveReportsWhatWasMovedAndWhatMemoryItTook) {
  BenchResult result = Result("openmpi", 0.5);
  result.way = "alltoallw, ucx";
  result.bytes_moved = 48 << 20;
  result.lower_bound_bytes = 32 << 20;
  result.extra_bytes = 96 << 20;
  result.extra_bytes_of_one_rank = 25 << 20;
  const auto json = nlohmann::json::parse(JsonLine(result));
  EXPECT_EQ(json.size(), 14u);
  EXPECT_EQ(json["way"], "alltoallw, ucx");
  EXPECT_EQ(json["bytes_moved"], 48 << 20);
  EXPECT_EQ(json["lower_bound_bytes"], 32 << 20);
  EXPECT_EQ(json["extra_bytes"], 96 << 20);
  EXPECT_EQ(json["extra_bytes_of_one_rank"], 25 << 20);
}

TEST(TableRowsTest, AMoveIsComparedWithTheLowerBoundAndWithItsTensor) {
  BenchResult result = Result("openmpi", 0.5);
  result.way = "alltoallw, ucx";
  result.bytes_moved = 48 << 20;
  result.lower_bound_bytes = 32 << 20;
  result.extra_bytes = 80 << 20;
  EXPECT_THAT(TableRows({result}),
              EndsWith(" 1.50   1.25  (alltoallw, ucx)\n"));
  EXPECT_THAT(TableRows({result, Result("limit", 0.25)}),
              HasSubstr("  2.00x limit (alltoallw, ucx)\n"));
  EXPECT_THAT(TableRows({Result("limit", 0.25)}), EndsWith("  -      -  \n"));
}

TEST(TableRowsTest, ComparesEachPeerWithThoseBelowIt) {
  const std::vector<BenchResult> results = {Result("sherd-gloo", 0.030),
                                            Result("gloo", 0.020),
                                            Result("limit", 0.005)};
  const std::vector<std::string> rows =
      absl::StrSplit(TableRows(results), '\n');
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_THAT(rows[0], AllOf(HasSubstr(" 64 MiB  sherd-gloo "),
                             HasSubstr("30.0 ms   1.00 ms    750 ms   15"),
                             EndsWith("  1.50x gloo, 6.00x limit")));
  EXPECT_THAT(rows[1], EndsWith("  4.00x limit"));
  EXPECT_THAT(rows[2], Not(HasSubstr("x ")));
  EXPECT_EQ(rows[3], "");
}

TEST(TableRowsTest, ACaseMayComparePeersByTheCpuTimeOfAllRanks) {
  BenchResult own = Result("sherd-shm", 0.030);
  own.cpu_seconds = 0.060;
  BenchResult other = Result("limit", 0.010);
  other.cpu_seconds = 0.040;
  const auto json = nlohmann::json::parse(JsonLine(own));
  EXPECT_EQ(json["cpu_seconds_median"], 0.06);
  EXPECT_THAT(TableRows({own, other}), HasSubstr("  3.00x limit\n"));
  own.compares_cpu = other.compares_cpu = true;
  EXPECT_THAT(TableRows({own, other}), AllOf(HasSubstr("   15   60.0 ms "),
                                             HasSubstr("  cpu 1.50x limit\n"),
                                             HasSubstr("   15   40.0 ms ")));
  // Where it is not known, there is nothing to compare.
  other.cpu_seconds = {};
  EXPECT_THAT(TableRows({own, other}), Not(HasSubstr("x limit")));
}

TEST(TableRowsTest, ColumnsStandBelowTheirTitles) {
  const std::string title = TableTitle();
  const std::string row = TableRows({Result("limit", 0.005)});
  EXPECT_EQ(title.find("peer"), row.find("limit"));
  EXPECT_EQ(title.find("median") + 6, row.find("5.00 ms") + 7);
}

TEST(FormatTest, TimesHaveThreeDigits) {
  EXPECT_EQ(FormatTime(17.04e-6), "17.0 us");
  EXPECT_EQ(FormatTime(999.4e-6), "999 us");
  EXPECT_EQ(FormatTime(999.6e-6), "1.00 ms");
  EXPECT_EQ(FormatTime(0.25), "250 ms");
  EXPECT_EQ(FormatTime(12.345), "12.3 s");
}

TEST(FormatTest, SizesAreInTheLargestUnitThatIsExact) {
  EXPECT_EQ(FormatSize(0), "0");
  EXPECT_EQ(FormatSize(1000), "1000 B");
  EXPECT_EQ(FormatSize(1536 << 10), "1536 KiB");
  EXPECT_EQ(FormatSize(int64_t{2048} << 30), "2048 GiB");
}

}  // namespace
}  // namespace sherd
