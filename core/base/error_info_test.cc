#include "sherd/core/base/error_info.h"

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(ErrorInfoTest, SurvivesTheStatus) {
  const ErrorInfo info = {"a group of 3", "all_gather", 42, 3, 2};
  const absl::Status status =
      WithErrorInfo(absl::UnavailableError("gone"), info);
  EXPECT_EQ(GetErrorInfo(status), info);
  EXPECT_EQ(status.message(), "gone");
}

TEST(ErrorInfoTest, LaterFieldsWinAndEmptyOnesKeep) {
  absl::Status status = WithRank(absl::InternalError("x"), 1);
  status =
      WithErrorInfo(status, {"g", "barrier", 7, std::nullopt, std::nullopt});
  EXPECT_EQ(GetErrorInfo(status),
            (ErrorInfo{"g", "barrier", 7, 1, std::nullopt}));
  EXPECT_EQ(ErrorRank(WithRank(status, 0)), 0);
}

TEST(ErrorInfoTest, OkCarriesNothing) {
  EXPECT_TRUE(WithRank(absl::OkStatus(), 1).ok());
  EXPECT_EQ(ErrorRank(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(ErrorRank(absl::InternalError("x")), std::nullopt);
}

TEST(ErrorInfoTest, DistinguishesTheReportingRankFromTheFailedOne) {
  const absl::Status full_disk = WithRank(absl::ResourceExhaustedError("x"), 1);
  EXPECT_EQ(ErrorRank(full_disk), 1);
  EXPECT_EQ(FailedRank(full_disk), std::nullopt);
  EXPECT_FALSE(IsRankFailure(full_disk));

  const absl::Status died = WithFailedRank(absl::UnavailableError("x"), 2);
  EXPECT_EQ(ErrorRank(died), 2);
  EXPECT_EQ(FailedRank(died), 2);
  EXPECT_TRUE(IsRankFailure(died));
}

TEST(ErrorInfoTest, PrintsAsOneReadableLine) {
  ErrorInfo info;
  info.group = "default";
  info.operation = "to";
  info.sequence = 12;
  info.rank = 1;
  info.failed_rank = 1;
  EXPECT_EQ(WithErrorInfo(absl::UnavailableError("gone"), info).ToString(),
            "UNAVAILABLE: gone [sherd/error-info='operation=to sequence=12 "
            "rank=1 failed_rank=1 group=default']");
}

TEST(ErrorInfoTest, AnnotateKeepsCodeAndInformation) {
  const absl::Status status =
      Annotate(WithRank(absl::DataLossError("bad"), 2), "file f");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "file f: bad");
  EXPECT_EQ(ErrorRank(status), 2);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "file f").ok());
}

}  // namespace
}  // namespace sherd
