#include "sherd/testing/harness/exit_codes.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::testing {
namespace {

using ::testing::HasSubstr;

TEST(ExitCodesTest, TheTableIsOrderedByCodeWithoutHoles) {
  int code = 72;
  for (const SkipInfo& info : AllSkips()) {
    EXPECT_EQ(static_cast<int>(info.reason), code);
    EXPECT_EQ(SkipText(info.reason), info.text);
    EXPECT_EQ(SkipReasonFromExitCode(code), info.reason);
    ++code;
  }
  EXPECT_EQ(code, 90);
}

TEST(ExitCodesTest, OtherCodesAreNotSkips) {
  for (int code : {-1, 0, 1, kRankFailed, 71, 90, 139}) {
    EXPECT_EQ(SkipReasonFromExitCode(code), std::nullopt) << code;
  }
}

TEST(ExitCodesTest, AGpuCountHasTheReferencesCode) {
  const int expected[] = {75, 77, 80, 81, 82, 83, 84, 85, 86, 86};
  for (int gpus = 1; gpus <= 10; ++gpus) {
    const SkipReason reason = FewerGpusThan(gpus);
    EXPECT_EQ(static_cast<int>(reason), expected[gpus - 1]);
    if (gpus > 8) continue;
    EXPECT_THAT(std::string(SkipText(reason)),
                HasSubstr(absl::StrCat("at least ", gpus, " CUDA")));
  }
}

}  // namespace
}  // namespace sherd::testing
