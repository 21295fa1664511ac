#include "sherd/core/comm/store/watched_store.h"

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

class WatchedStoreTest : public ::testing::Test {
 protected:
  HashStore base_;
  // Results of the checks for a failed rank, by check.
  std::function<std::optional<int>()> find_failed_rank_ = [] {
    return std::nullopt;
  };
  WatchedStore store_{base_, [this] { return find_failed_rank_(); }};
};

TEST_F(WatchedStoreTest, WaitsAsTheBaseDoesWhileNoRankHasFailed) {
  std::atomic<int> looks = 0;
  find_failed_rank_ = [&]() -> std::optional<int> {
    if (++looks == 2) {
      EXPECT_THAT(base_.Set("key", "value"), IsOk());
    }
    return std::nullopt;
  };
  EXPECT_THAT(store_.Get("key", Deadline::Infinite()), IsOkAndHolds("value"));
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(store_.failed_rank(), std::nullopt);
}

TEST_F(WatchedStoreTest, EndsEveryWaitOnceARankHasFailed) {
  find_failed_rank_ = [] { return 3; };
  const auto failure =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 3 failed"));
  EXPECT_THAT(store_.Get("key", Deadline::Infinite()), failure);
  EXPECT_THAT(store_.Wait({"key"}, Deadline::Infinite()), failure);
  const auto values =
      store_.MultiGet(std::vector<std::string>{"key"}, Deadline::Infinite());
  EXPECT_THAT(values, failure);
  EXPECT_EQ(ErrorRank(values.status()), 3);
  EXPECT_EQ(store_.failed_rank(), 3);
}

TEST_F(WatchedStoreTest, ReturnsAValueWrittenBeforeTheRankFailed) {
  find_failed_rank_ = [&] {
    EXPECT_THAT(base_.Set("key", "value"), IsOk());
    return 3;
  };
  EXPECT_THAT(store_.Get("key", Deadline::Infinite()), IsOkAndHolds("value"));
  EXPECT_THAT(store_.Wait({"key"}, Deadline::Infinite()), IsOk());
  EXPECT_EQ(store_.failed_rank(), std::nullopt);
}

TEST_F(WatchedStoreTest, AReadWithoutWaitingMakesNoCheck) {
  find_failed_rank_ = [] {
    ADD_FAILURE() << "asked";
    return 3;
  };
  EXPECT_THAT(store_.Get("key", Deadline::After(absl::ZeroDuration())),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(WatchedStoreTest, PassesAllOtherOperationsOn) {
  EXPECT_THAT(store_.Set("a/key", "1"), IsOk());
  EXPECT_THAT(store_.Add("a/key", 2), IsOkAndHolds(3));
  EXPECT_THAT(store_.CompareSet("a/key", "3", "4"), IsOkAndHolds("4"));
  EXPECT_THAT(store_.Contains("a/key"), IsOkAndHolds(true));
  EXPECT_THAT(base_.Get("a/key", Deadline::Infinite()), IsOkAndHolds("4"));
  EXPECT_THAT(store_.Delete("a/key"), IsOkAndHolds(true));
  EXPECT_THAT(base_.Set("a/other", ""), IsOk());
  EXPECT_THAT(store_.DeletePrefix("a"), IsOkAndHolds(1));
  EXPECT_THAT(base_.Set("b/key", ""), IsOk());
  EXPECT_THAT(store_.Retire("b", 1), IsOk());
  EXPECT_THAT(base_.Contains("b/key"), IsOkAndHolds(false));
}

}  // namespace
}  // namespace sherd::internal
