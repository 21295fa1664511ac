#include "sherd/core/base/fault_point.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

class FaultPointTest : public ::testing::Test {
 protected:
  void TearDown() override { SetFaultHandler(nullptr); }
};

TEST_F(FaultPointTest, EveryPointHasANameOfItsOwnAndADescription) {
  std::set<absl::string_view> names;
  for (const FaultPointInfo& info : AllFaultPoints()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_FALSE(info.where.empty()) << info.name;
    EXPECT_EQ(&GetFaultPointInfo(info.point), &info);
    // An operation that can be dropped can also fail.
    EXPECT_TRUE(info.can_fail || !info.can_be_lost) << info.name;
  }
}

TEST_F(FaultPointTest, WithoutAHandlerNothingHappens) {
  EXPECT_FALSE(FaultPointsAreArmed());
  bool lost = false;
  EXPECT_THAT(MaybeInjectFault({.point = FaultPoint::kStoreSet, .lost = &lost}),
              IsOk());
  EXPECT_FALSE(lost);
}

TEST_F(FaultPointTest, TheHandlerGetsThePassageAndDecidesItsOutcome) {
  std::vector<std::string> seen;
  SetFaultHandler([&seen](const FaultPassage& passage) {
    seen.push_back(std::string(GetFaultPointInfo(passage.point).name) + " " +
                   std::to_string(passage.rank) + " " +
                   std::string(passage.subject) + " " +
                   std::to_string(passage.bytes));
    if (passage.lost != nullptr) *passage.lost = true;
    return passage.point == FaultPoint::kFileRename
               ? absl::DataLossError("torn")
               : absl::OkStatus();
  });
  EXPECT_TRUE(FaultPointsAreArmed());
  bool lost = false;
  EXPECT_THAT(MaybeInjectFault({.point = FaultPoint::kStoreSet,
                                .rank = 3,
                                .subject = "a/key",
                                .bytes = 17,
                                .lost = &lost}),
              IsOk());
  EXPECT_TRUE(lost);
  EXPECT_THAT(
      MaybeInjectFault({.point = FaultPoint::kFileRename, .subject = "/a"}),
      StatusIs(absl::StatusCode::kDataLoss, "torn"));
  SetFaultHandler(nullptr);
  EXPECT_THAT(MaybeInjectFault({.point = FaultPoint::kFileRename}), IsOk());
  EXPECT_THAT(seen, ElementsAre("store/set 3 a/key 17", "file/rename -1 /a 0"));
}

TEST_F(FaultPointTest, AThreadInTheHandlerOutlivesIt) {
  absl::Notification entered, replaced;
  // The handler's captures must still exist when the thread continues.
  SetFaultHandler([&, text = std::string(100, 'x')](const FaultPassage&) {
    entered.Notify();
    replaced.WaitForNotification();
    return absl::AbortedError(text);
  });
  absl::Status status;
  std::thread thread(
      [&] { status = MaybeInjectFault({.point = FaultPoint::kAllocate}); });
  entered.WaitForNotification();
  SetFaultHandler(nullptr);
  EXPECT_THAT(MaybeInjectFault({.point = FaultPoint::kAllocate}), IsOk());
  replaced.Notify();
  thread.join();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kAborted, std::string(100, 'x')));
}

}  // namespace
}  // namespace sherd
