#include "sherd/core/comm/store/store_session.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

// Another one with each call: a test may be repeated in a process, which
// remembers the sessions that it has entered in a file.
std::string FreshPath() {
  static int calls = 0;
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "/store_session_",
      absl::StrReplaceAll(test->name(), {{"/", "_"}}), "_", calls++);
  FileSystem::Posix().Remove(path).IgnoreError();
  return path;
}

using Session = std::unique_ptr<StoreSession>;

// Both kinds, behind one call.
enum class Where { kStore, kFile };

class StoreSessionTest : public ::testing::TestWithParam<Where> {
 protected:
  absl::StatusOr<Session> Enter(int rank) {
    return GetParam() == Where::kStore
               ? EnterStoreSession(store_, "g", rank, 2)
               : EnterFileSession(std::make_shared<FileStore>(path_), "g", rank,
                                  2);
  }

  const std::string path_ = FreshPath();
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_P(StoreSessionTest, RanksOfOneSessionShareKeys) {
  const auto a = Enter(0), b = Enter(1);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_THAT((*a)->store()->Set("k", "v"), IsOk());
  EXPECT_THAT((*b)->store()->Get("k", Now()), IsOkAndHolds("v"));
  (*a)->Leave();
  (*b)->Leave();
}

TEST_P(StoreSessionTest, TheNextSessionDoesNotSeeKeysOfTheLast) {
  for (int session = 0; session < 20; ++session) {
    const auto a = Enter(0);
    ASSERT_THAT(a, IsOk());
    EXPECT_THAT((*a)->store()->Contains("k"), IsOkAndHolds(false));
    EXPECT_THAT((*a)->store()->Set("k", absl::StrCat(session)), IsOk());
    (*a)->Leave();
    // A slower rank still finds its own session, although rank 0 has left it.
    const auto b = Enter(1);
    ASSERT_THAT(b, IsOk());
    EXPECT_THAT((*b)->store()->Get("k", Now()),
                IsOkAndHolds(absl::StrCat(session)));
    (*b)->Leave();
  }
}

TEST_P(StoreSessionTest, ASessionThatARankGaveUpIsSkippedByTheOthers) {
  auto early = Enter(0);
  ASSERT_THAT(early, IsOk());
  (*early)->GiveUp(absl::DeadlineExceededError("rank 1 did not come"));
  const auto again = Enter(0), late = Enter(1);
  ASSERT_THAT(again, IsOk());
  ASSERT_THAT(late, IsOk());
  EXPECT_THAT((*again)->store()->Set("k", "second"), IsOk());
  EXPECT_THAT((*late)->store()->Get("k", Now()), IsOkAndHolds("second"));
  (*again)->Leave();
  (*late)->Leave();
}

INSTANTIATE_TEST_SUITE_P(Both, StoreSessionTest,
                         ::testing::Values(Where::kStore, Where::kFile));

TEST(SessionInStoreTest, ARankThatIsThereIsNotEnteredTwice) {
  const std::shared_ptr<Store> store = std::make_shared<HashStore>();
  const auto session = EnterStoreSession(store, "g", 1, 2);
  ASSERT_THAT(session, IsOk());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status second = EnterStoreSession(store, "g", 1, 2).status();
    EXPECT_THAT(second, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 has joined already")));
    EXPECT_EQ(ErrorRank(second), 1);
  }
  EXPECT_THAT(EnterStoreSession(store, "another group", 1, 2), IsOk());
  (*session)->Leave();
  EXPECT_THAT(EnterStoreSession(store, "g", 1, 2), IsOk());
}

TEST(SessionInStoreTest, TheLastRankRemovesTheKeysOfItsSession) {
  const std::shared_ptr<Store> store = std::make_shared<HashStore>();
  auto a = EnterStoreSession(store, "g", 0, 2),
       b = EnterStoreSession(store, "g", 1, 2);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  ASSERT_THAT((*a)->store()->Set("k", "v"), IsOk());
  (*a)->Leave();
  EXPECT_THAT((*b)->store()->Contains("k"), IsOkAndHolds(true));
  (*b)->Leave();
  EXPECT_THAT((*b)->store()->Contains("k"), IsOkAndHolds(false));
}

TEST(SessionInFileTest, AFileOfAnotherRunIsAnErrorThatNamesIt) {
  const std::string path = FreshPath();
  // State left by a killed run: its rank 0 entered the first session.
  ASSERT_THAT(FileStore(path).Add("group/g/1/holder/0", 1), IsOk());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(
        EnterFileSession(std::make_shared<FileStore>(path), "g", 0, 2).status(),
        StatusIs(
            absl::StatusCode::kInvalidArgument,
            AllOf(HasSubstr(path), HasSubstr("left over from another run"))));
  }
  ASSERT_THAT(FileSystem::Posix().Remove(path), IsOk());
  EXPECT_THAT(EnterFileSession(std::make_shared<FileStore>(path), "g", 0, 2),
              IsOk());
}

TEST(SessionInFileTest, TheLastRankRemovesTheFile) {
  const std::string path = FreshPath();
  auto a = EnterFileSession(std::make_shared<FileStore>(path), "g", 0, 2);
  auto b = EnterFileSession(std::make_shared<FileStore>(path), "g", 1, 2);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  (*b)->Leave();
  EXPECT_THAT(FileSystem::Posix().Exists(path), IsOkAndHolds(true));
  (*a)->Leave();
  EXPECT_THAT(FileSystem::Posix().Exists(path), IsOkAndHolds(false));
}

TEST(SessionInFileTest, AMissingDirectoryIsReportedAtOnce) {
  EXPECT_THAT(
      EnterFileSession(std::make_shared<FileStore>("/no/such/place/f"), "g", 0,
                       2)
          .status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/place/f")));
}

}  // namespace
}  // namespace sherd::internal
