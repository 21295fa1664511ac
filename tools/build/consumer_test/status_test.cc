#include "absl/status/status.h"

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"

namespace {

absl::StatusOr<int> Half(int number) {
  if (number % 2 != 0) return absl::InvalidArgumentError("odd");
  return number / 2;
}

absl::StatusOr<int> Quarter(int number) {
  SHERD_ASSIGN_OR_RETURN(int half, Half(number));
  return Half(half);
}

TEST(StatusMacrosTest, AValueIsAssignedInAnotherWorkspace) {
  ASSERT_TRUE(Quarter(12).ok());
  EXPECT_EQ(*Quarter(12), 3);
}

TEST(StatusMacrosTest, AnErrorIsReturnedInAnotherWorkspace) {
  EXPECT_EQ(Quarter(7).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Quarter(6).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
