#include "sherd/core/comm/collective/operation_label.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"

namespace sherd {
namespace {

absl::Status InnerError() {
  ErrorInfo info;
  info.group = "default";
  info.operation = "all_to_all_v";
  info.sequence = 200;
  return WithFailedRank(
      WithErrorInfo(absl::UnavailableError("all_to_all_v #200: rank 2: died"),
                    info),
      2);
}

TEST(InOperationTest, ThePublicOperationComesFirstAndTheInnerOneStays) {
  const absl::Status status = InOperation("reshard", InnerError(), "other");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "reshard: all_to_all_v #200: rank 2: died");
  const ErrorInfo info = GetErrorInfo(status);
  EXPECT_EQ(info.operation, "reshard");
  EXPECT_EQ(info.sequence, 200u);
  EXPECT_EQ(info.failed_rank, 2);
  EXPECT_EQ(info.group, "default") << "what is known stays";
}

TEST(InOperationTest, OfOperationsWithinOneAnotherTheOuterOneIsNamed) {
  const std::string path = "load \"ckpt\"";
  const absl::Status inner = InOperation(
      {"load_checkpoint", "load \"ckpt\": tensor \"w\""}, InnerError());
  EXPECT_EQ(InOperation({"load_checkpoint", path}, inner), inner)
      << "it begins with that already";
  const absl::StatusOr<int> outer = InOperation(
      "restore", absl::StatusOr<int>(InOperation("reshard", InnerError())));
  EXPECT_EQ(outer.status().message(),
            "restore: reshard: all_to_all_v #200: rank 2: died");
  EXPECT_EQ(GetErrorInfo(outer.status()).operation, "restore");
}

TEST(InOperationTest, FillsInTheGroupAndLeavesSuccessAlone) {
  EXPECT_EQ(
      GetErrorInfo(InOperation("sum", absl::InternalError("x"), "evens")).group,
      "evens");
  EXPECT_TRUE(InOperation("sum", absl::OkStatus()).ok());
  EXPECT_EQ(*InOperation("sum", absl::StatusOr<int>(3)), 3);
}

}  // namespace
}  // namespace sherd
