#include "sherd/core/base/limit_error.h"

#include <cerrno>

#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"

namespace sherd {
namespace {

TEST(LimitErrorTest, IsToldFromAShortageThatPasses) {
  const absl::Status limit = LimitError("too long");
  EXPECT_EQ(limit.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(IsLimitError(limit));
  EXPECT_TRUE(IsLimitError(WithRank(Annotate(limit, "file f"), 1)));
  EXPECT_FALSE(IsLimitError(absl::ResourceExhaustedError("too long")));
  EXPECT_FALSE(IsLimitError(ErrnoStatus(EMFILE, "open", "f")));
  EXPECT_FALSE(IsLimitError(absl::OkStatus()));
}

}  // namespace
}  // namespace sherd
