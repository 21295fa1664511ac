#include "sherd/core/base/error_info.h"

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(ErrorInfoTest, SurvivesTheStatus) {
  const ErrorInfo info = {"default", "all_gather", 42, 3};
  const absl::Status status =
      WithErrorInfo(absl::UnavailableError("gone"), info);
  EXPECT_EQ(GetErrorInfo(status), info);
  EXPECT_EQ(status.message(), "gone");
}

TEST(ErrorInfoTest, LaterFieldsWinAndEmptyOnesKeep) {
  absl::Status status = WithRank(absl::InternalError("x"), 1);
  status = WithErrorInfo(status, {"g", "barrier", 7, std::nullopt});
  EXPECT_EQ(GetErrorInfo(status), (ErrorInfo{"g", "barrier", 7, 1}));
  EXPECT_EQ(BlamedRank(WithRank(status, 0)), 0);
}

TEST(ErrorInfoTest, OkCarriesNothing) {
  EXPECT_TRUE(WithRank(absl::OkStatus(), 1).ok());
  EXPECT_EQ(BlamedRank(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(BlamedRank(absl::InternalError("x")), std::nullopt);
}

TEST(ErrorInfoTest, AnnotateKeepsCodeAndInformation) {
  const absl::Status status =
      Annotate(WithRank(absl::DataLossError("bad"), 2), "file f");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "file f: bad");
  EXPECT_EQ(BlamedRank(status), 2);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "file f").ok());
}

}  // namespace
}  // namespace sherd
