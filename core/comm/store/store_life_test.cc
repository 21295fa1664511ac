#include "sherd/core/comm/store/store_life.h"

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

std::string FreshPath() {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/store_life_",
                   absl::StrReplaceAll(test->name(), {{"/", "_"}}));
  FileSystem::Posix().Remove(path).IgnoreError();
  return path;
}

using Life = std::unique_ptr<StoreLife>;

// Both kinds, behind one call.
enum class Where { kStore, kFile };

class StoreLifeTest : public ::testing::TestWithParam<Where> {
 protected:
  absl::StatusOr<Life> Enter(int rank) {
    return GetParam() == Where::kStore
               ? EnterLife(store_, "g", rank, 2)
               : EnterLifeInFile(std::make_shared<FileStore>(path_), "g", rank,
                                 2);
  }

  const std::string path_ = FreshPath();
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_P(StoreLifeTest, RanksOfOneLifeShareKeys) {
  const auto a = Enter(0), b = Enter(1);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_THAT((*a)->store()->Set("k", "v"), IsOk());
  EXPECT_THAT((*b)->store()->Get("k", Now()), IsOkAndHolds("v"));
  (*a)->Leave();
  (*b)->Leave();
}

TEST_P(StoreLifeTest, TheNextLifeSeesNothingOfTheLast) {
  for (int life = 0; life < 20; ++life) {
    const auto a = Enter(0);
    ASSERT_THAT(a, IsOk());
    EXPECT_THAT((*a)->store()->Contains("k"), IsOkAndHolds(false));
    EXPECT_THAT((*a)->store()->Set("k", absl::StrCat(life)), IsOk());
    (*a)->Leave();
    // A slower rank still finds its own life, although rank 0 left it.
    const auto b = Enter(1);
    ASSERT_THAT(b, IsOk());
    EXPECT_THAT((*b)->store()->Get("k", Now()),
                IsOkAndHolds(absl::StrCat(life)));
    (*b)->Leave();
  }
}

TEST_P(StoreLifeTest, ALifeThatARankGaveUpIsSkippedByTheOthers) {
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

INSTANTIATE_TEST_SUITE_P(Both, StoreLifeTest,
                         ::testing::Values(Where::kStore, Where::kFile));

TEST(LifeInStoreTest, ARankThatIsThereIsNotEnteredTwice) {
  const std::shared_ptr<Store> store = std::make_shared<HashStore>();
  const auto life = EnterLife(store, "g", 1, 2);
  ASSERT_THAT(life, IsOk());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status second = EnterLife(store, "g", 1, 2).status();
    EXPECT_THAT(second, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 has joined already")));
    EXPECT_EQ(ErrorRank(second), 1);
  }
  EXPECT_THAT(EnterLife(store, "another group", 1, 2), IsOk());
  (*life)->Leave();
  EXPECT_THAT(EnterLife(store, "g", 1, 2), IsOk());
}

TEST(LifeInStoreTest, TheLastRankRemovesTheKeysOfItsLife) {
  const std::shared_ptr<Store> store = std::make_shared<HashStore>();
  auto a = EnterLife(store, "g", 0, 2), b = EnterLife(store, "g", 1, 2);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  ASSERT_THAT((*a)->store()->Set("k", "v"), IsOk());
  (*a)->Leave();
  EXPECT_THAT((*b)->store()->Contains("k"), IsOkAndHolds(true));
  (*b)->Leave();
  EXPECT_THAT((*b)->store()->Contains("k"), IsOkAndHolds(false));
}

TEST(LifeInFileTest, AFileOfAnotherRunIsAnErrorThatSaysSo) {
  const std::string path = FreshPath();
  // What a run leaves that was killed: its rank 0 entered the first life.
  ASSERT_THAT(FileStore(path).Add("group/g/1/holder/0", 1), IsOk());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(
        EnterLifeInFile(std::make_shared<FileStore>(path), "g", 0, 2).status(),
        StatusIs(
            absl::StatusCode::kInvalidArgument,
            AllOf(HasSubstr(path), HasSubstr("left over from another run"))));
  }
  ASSERT_THAT(FileSystem::Posix().Remove(path), IsOk());
  EXPECT_THAT(EnterLifeInFile(std::make_shared<FileStore>(path), "g", 0, 2),
              IsOk());
}

TEST(LifeInFileTest, TheLastRankRemovesTheFile) {
  const std::string path = FreshPath();
  auto a = EnterLifeInFile(std::make_shared<FileStore>(path), "g", 0, 2);
  auto b = EnterLifeInFile(std::make_shared<FileStore>(path), "g", 1, 2);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  (*b)->Leave();
  EXPECT_TRUE(FileSystem::Posix().Exists(path));
  (*a)->Leave();
  EXPECT_FALSE(FileSystem::Posix().Exists(path));
}

TEST(LifeInFileTest, AMissingDirectoryIsSaidAtOnce) {
  EXPECT_THAT(
      EnterLifeInFile(std::make_shared<FileStore>("/no/such/place/f"), "g", 0,
                      2)
          .status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/place/f")));
}

}  // namespace
}  // namespace sherd::internal
