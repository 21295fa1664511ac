#include "sherd/core/comm/store.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/file_store.h"
#include "sherd/core/comm/hash_store.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::TempDir;

Deadline Soon() { return Deadline::After(absl::Milliseconds(20)); }
Deadline Late() { return Deadline::After(absl::Seconds(30)); }

std::string FreshPath() {
  static int counter = 0;
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(info->test_suite_name(), "_", info->name(),
                                  "_", ++counter, ".store");
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  std::string path = absl::StrCat(TempDir(), "/", name);
  std::remove(path.c_str());
  return path;
}

struct StoreKind {
  const char* name;
  std::function<std::shared_ptr<Store>()> make;
};

// What every store must do.
class StoreTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  const std::shared_ptr<Store> store_ = GetParam().make();
};

TEST_P(StoreTest, GetReturnsWhatSetWrote) {
  const std::string value("a\0b\n", 4);
  ASSERT_THAT(store_->Set("key", value), IsOk());
  EXPECT_THAT(store_->Get("key", Soon()), IsOkAndHolds(value));
  ASSERT_THAT(store_->Set("key", ""), IsOk());
  EXPECT_THAT(store_->Get("key", Soon()), IsOkAndHolds(""));
}

TEST_P(StoreTest, GetOfAMissingKeyNamesItAtTheDeadline) {
  EXPECT_THAT(
      store_->Get("absent", Soon()),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("absent")));
}

TEST_P(StoreTest, GetWaitsForAnotherThread) {
  std::thread writer([this] { EXPECT_THAT(store_->Set("late", "x"), IsOk()); });
  EXPECT_THAT(store_->Get("late", Late()), IsOkAndHolds("x"));
  writer.join();
}

TEST_P(StoreTest, WaitEndsWithAKeyThatAddCreated) {
  std::thread writer([this] { EXPECT_THAT(store_->Add("n", 1), IsOk()); });
  EXPECT_THAT(store_->Wait({"n"}, Late()), IsOk());
  writer.join();
}

TEST_P(StoreTest, WaitNamesOnlyTheMissingKeys) {
  ASSERT_THAT(store_->Set("here", "1"), IsOk());
  const absl::Status status = store_->Wait({"here", "gone"}, Soon());
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("gone")));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("here,")));
}

TEST_P(StoreTest, AddCountsInDecimalText) {
  EXPECT_THAT(store_->Add("n", 3), IsOkAndHolds(3));
  EXPECT_THAT(store_->Add("n", -5), IsOkAndHolds(-2));
  EXPECT_THAT(store_->Get("n", Soon()), IsOkAndHolds("-2"));
  ASSERT_THAT(store_->Set("n", "7"), IsOk());
  EXPECT_THAT(store_->Add("n", 1), IsOkAndHolds(8));
}

TEST_P(StoreTest, AddRefusesTextAndOverflowAndLeavesTheValue) {
  ASSERT_THAT(store_->Set("t", "seven"), IsOk());
  EXPECT_THAT(store_->Add("t", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store_->Get("t", Soon()), IsOkAndHolds("seven"));
  EXPECT_THAT(store_->Add("max", INT64_MAX), IsOk());
  EXPECT_THAT(
      store_->Add("max", 1),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("overflows")));
}

TEST_P(StoreTest, DeleteSaysWhetherTheKeyWasThere) {
  ASSERT_THAT(store_->Set("k", "v"), IsOk());
  EXPECT_THAT(store_->Delete("k"), IsOkAndHolds(true));
  EXPECT_THAT(store_->Delete("k"), IsOkAndHolds(false));
  EXPECT_THAT(store_->Contains("k"), IsOkAndHolds(false));
}

TEST_P(StoreTest, RefusesKeysAndValuesOverTheLimit) {
  EXPECT_THAT(store_->Set("", "v"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store_->Set(std::string(5000, 'k'), "v"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store_->Set("k", std::string((16 << 20) + 1, 'v')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("k")));
}

TEST_P(StoreTest, ConcurrentAddsAllCount) {
  constexpr int kThreads = 8;
  constexpr int kAdds = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < kAdds; ++i) {
        EXPECT_THAT(store_->Add("sum", 1), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(store_->Add("sum", 0), IsOkAndHolds(kThreads * kAdds));
}

INSTANTIATE_TEST_SUITE_P(
    AllStores, StoreTest,
    ::testing::Values(
        StoreKind{"Hash", [] { return std::make_shared<HashStore>(); }},
        StoreKind{"File",
                  [] { return std::make_shared<FileStore>(FreshPath()); }},
        StoreKind{"Prefix",
                  [] {
                    return std::make_shared<PrefixStore>(
                        "p", std::make_shared<HashStore>());
                  }}),
    [](const auto& info) { return info.param.name; });

TEST(PrefixStoreTest, KeepsNamespacesApart) {
  const auto base = std::make_shared<HashStore>();
  PrefixStore a("a", base), b("b", base);
  ASSERT_THAT(a.Set("k", "1"), IsOk());
  ASSERT_THAT(b.Set("k", "2"), IsOk());
  EXPECT_THAT(a.Get("k", Soon()), IsOkAndHolds("1"));
  EXPECT_THAT(base->Get("b/k", Soon()), IsOkAndHolds("2"));
}

}  // namespace
}  // namespace sherd
