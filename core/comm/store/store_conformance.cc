#include "sherd/core/comm/store/store_conformance.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "sherd/core/base/deadline.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Not;

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }
Deadline Soon() { return Deadline::After(absl::Milliseconds(20)); }
Deadline Late() { return Deadline::After(absl::Seconds(60)); }

TEST_P(StoreConformanceTest, GetReturnsTheValueOfSet) {
  const std::string value("a\0b\n", 4);
  ASSERT_THAT(store_->Set("key", value), IsOk());
  EXPECT_THAT(store_->Get("key", Now()), IsOkAndHolds(value));
  ASSERT_THAT(store_->Set("key", ""), IsOk());
  EXPECT_THAT(store_->Get("key", Now()), IsOkAndHolds(""));
}

TEST_P(StoreConformanceTest, KeysAreBytes) {
  const std::string key("\0\xff key\n/", 8);
  ASSERT_THAT(store_->Set(key, "v"), IsOk());
  EXPECT_THAT(store_->Get(key, Now()), IsOkAndHolds("v"));
  EXPECT_THAT(store_->Contains(std::string("\0", 1)), IsOkAndHolds(false));
}

TEST_P(StoreConformanceTest, HoldsTheLargestKeyAndValue) {
  // Room for the prefix that a decorator adds.
  const std::string key(4096 - 16, 'k');
  std::string value(16 << 20, '\0');
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] = static_cast<char>(i * 31 >> 3);
  }
  ASSERT_THAT(store_->Set(key, value), IsOk());
  const absl::StatusOr<std::string> read = store_->Get(key, Late());
  ASSERT_THAT(read, IsOk());
  EXPECT_TRUE(*read == value);
}

TEST_P(StoreConformanceTest, TwoRanksShareOneStore) {
  const std::shared_ptr<Store> other = open_();
  ASSERT_THAT(store_->Set("k", "1"), IsOk());
  EXPECT_THAT(other->Get("k", Now()), IsOkAndHolds("1"));
  ASSERT_THAT(other->Set("k", "2"), IsOk());
  EXPECT_THAT(store_->Get("k", Now()), IsOkAndHolds("2"));
}

TEST_P(StoreConformanceTest, GetWaitsForAnotherRank) {
  const std::shared_ptr<Store> other = open_();
  std::thread writer([&] { EXPECT_THAT(other->Set("late", "x"), IsOk()); });
  EXPECT_THAT(store_->Get("late", Late()), IsOkAndHolds("x"));
  writer.join();
}

// A mutation that forgets to wake the others leaves this one waiting.
TEST_P(StoreConformanceTest, EveryKindOfCreationEndsAWait) {
  const std::vector<std::function<absl::Status(const std::string&)>> creations =
      {[&](const std::string& key) { return store_->Set(key, "v"); },
       [&](const std::string& key) { return store_->Add(key, 1).status(); },
       [&](const std::string& key) {
         return store_->CompareSet(key, "", "v").status();
       },
       [&](const std::string& key) {
         // Leaves its count there.
         return store_->Retire(key.substr(0, key.find('/')), 2);
       }};
  for (size_t i = 0; i < creations.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string key = absl::StrCat("created", i, "/retired");
    std::thread waiter(
        [&] { EXPECT_THAT(store_->Wait({key}, Late()), IsOk()); });
    EXPECT_THAT(creations[i](key), IsOk());
    waiter.join();
  }
}

TEST_P(StoreConformanceTest, WaitsForAllKeysInWhateverOrderTheyCome) {
  const std::vector<std::string> keys = {"a", "b", "c", "b"};
  std::thread waiter([&] {
    EXPECT_THAT(store_->MultiGet(keys, Late()),
                IsOkAndHolds(ElementsAre("1", "2", "3", "2")));
  });
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"c", "3"}, {"a", "1"}, {"b", "2"}}) {
    EXPECT_THAT(store_->Set(key, value), IsOk());
  }
  waiter.join();
}

TEST_P(StoreConformanceTest, AKeyThatWasRemovedAgainIsMissing) {
  ASSERT_THAT(store_->Set("a", "1"), IsOk());
  absl::Notification done;
  std::thread waiter([&] {
    EXPECT_THAT(store_->Wait({"a", "b", "c"}, Late()), IsOk());
    EXPECT_TRUE(done.HasBeenNotified());
  });
  EXPECT_THAT(store_->Set("b", "2"), IsOk());
  EXPECT_THAT(store_->Delete("a"), IsOkAndHolds(true));
  EXPECT_THAT(store_->Set("c", "3"), IsOk());
  EXPECT_THAT(store_->Wait({"b", "c"}, Now()), IsOk());
  EXPECT_THAT(store_->Wait({"a", "b", "c"}, Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  done.Notify();
  EXPECT_THAT(store_->Set("a", "4"), IsOk());
  waiter.join();
}

TEST_P(StoreConformanceTest, MultiGetReturnsValuesInTheOrderOfTheKeys) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_THAT(store_->Set(absl::StrCat("k", i), absl::StrCat("v", i * 7)),
                IsOk());
  }
  EXPECT_THAT(store_->MultiGet({"k3", "k19", "k0"}, Now()),
              IsOkAndHolds(ElementsAre("v21", "v133", "v0")));
  EXPECT_THAT(store_->MultiGet({}, Now()), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(store_->Wait({}, Now()), IsOk());
}

TEST_P(StoreConformanceTest, MultiGetRefusesMoreThanItsLimit) {
  const std::string value(16 << 20, 'v');
  ASSERT_THAT(store_->Set("k", value), IsOk());
  EXPECT_THAT(store_->MultiGet({"k", "k", "k", "k", "k"}, Late()),
              StatusIs(absl::StatusCode::kResourceExhausted, "67108864"));
  EXPECT_THAT(store_->Contains("k"), IsOkAndHolds(true));
}

TEST_P(StoreConformanceTest, ATimeoutNamesOperationAndMissingKeysOnly) {
  ASSERT_THAT(store_->Set("here", "1"), IsOk());
  const auto missing = [](const char* operation, const char* key) {
    return StatusIs(
        absl::StatusCode::kDeadlineExceeded,
        AllOf(HasSubstr(operation), HasSubstr(key), Not(HasSubstr("here,"))));
  };
  EXPECT_THAT(store_->Get("gone", Soon()), missing("Get", "gone"));
  EXPECT_THAT(store_->Wait({"here", "gone"}, Soon()), missing("Wait", "gone"));
  EXPECT_THAT(store_->MultiGet({"here", "gone"}, Soon()),
              missing("MultiGet", "gone"));
}

TEST_P(StoreConformanceTest, ATimeoutIsNeverEarlyAndHardlyLate) {
  for (const int millis : {0, 30, 130, 310}) {
    // A busy machine may make one try late, but not each of several; a store
    // that counts in whole seconds is always late.
    absl::Duration shortest = absl::InfiniteDuration();
    for (int i = 0; i < 5; ++i) {
      const auto started = Deadline::Clock::now();
      EXPECT_THAT(
          store_->Get("gone", Deadline::After(absl::Milliseconds(millis))),
          StatusIs(absl::StatusCode::kDeadlineExceeded));
      const absl::Duration took =
          absl::FromChrono(Deadline::Clock::now() - started);
      EXPECT_THAT(took, Ge(absl::Milliseconds(millis)));
      shortest = std::min(shortest, took);
      if (took < absl::Milliseconds(millis + 50)) break;
    }
    EXPECT_THAT(shortest, Lt(absl::Milliseconds(millis + 50)));
  }
}

TEST_P(StoreConformanceTest, AWaitThatTimedOutHarmsNoLaterOne) {
  EXPECT_THAT(store_->Get("k", Soon()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_THAT(store_->Set("k", "v"), IsOk());
  EXPECT_THAT(store_->Get("k", Now()), IsOkAndHolds("v"));
}

TEST_P(StoreConformanceTest, ACallThatWaitsKeepsNoOtherWaiting) {
  absl::Notification ended;
  std::thread waiter([&] {
    EXPECT_THAT(store_->Wait({"release"}, Late()), IsOk());
    ended.Notify();
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(store_->Add("n", 1), IsOkAndHolds(i + 1));
    EXPECT_THAT(store_->Get("n", Now()), IsOkAndHolds(absl::StrCat(i + 1)));
  }
  EXPECT_FALSE(ended.HasBeenNotified());
  EXPECT_THAT(store_->Set("release", ""), IsOk());
  waiter.join();
}

TEST_P(StoreConformanceTest, AddCountsInDecimalText) {
  EXPECT_THAT(store_->Add("n", 3), IsOkAndHolds(3));
  EXPECT_THAT(store_->Add("n", -5), IsOkAndHolds(-2));
  EXPECT_THAT(store_->Get("n", Now()), IsOkAndHolds("-2"));
  ASSERT_THAT(store_->Set("n", "7"), IsOk());
  EXPECT_THAT(store_->Add("n", 1), IsOkAndHolds(8));
}

TEST_P(StoreConformanceTest, AddRefusesTextAndOverflowAndLeavesTheValue) {
  ASSERT_THAT(store_->Set("t", "seven"), IsOk());
  EXPECT_THAT(store_->Add("t", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("t\" cannot be added to")));
  EXPECT_THAT(store_->Get("t", Now()), IsOkAndHolds("seven"));
  ASSERT_THAT(store_->Add("max", INT64_MAX), IsOk());
  EXPECT_THAT(store_->Add("max", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, "overflows"));
  EXPECT_THAT(store_->Add("max", 0), IsOkAndHolds(INT64_MAX));
}

TEST_P(StoreConformanceTest, CompareSetFollowsItsTable) {
  // Present and equal.
  ASSERT_THAT(store_->Set("k", "a"), IsOk());
  EXPECT_THAT(store_->CompareSet("k", "a", "b"), IsOkAndHolds("b"));
  EXPECT_THAT(store_->Get("k", Now()), IsOkAndHolds("b"));
  // Present and different.
  EXPECT_THAT(store_->CompareSet("k", "a", "c"), IsOkAndHolds("b"));
  EXPECT_THAT(store_->CompareSet("k", "", "c"), IsOkAndHolds("b"));
  EXPECT_THAT(store_->Get("k", Now()), IsOkAndHolds("b"));
  // Missing, and nothing expected.
  EXPECT_THAT(store_->CompareSet("new", "", "d"), IsOkAndHolds("d"));
  EXPECT_THAT(store_->Get("new", Now()), IsOkAndHolds("d"));
  // Missing, and something expected: nothing is created.
  EXPECT_THAT(store_->CompareSet("gone", "a", "b"), IsOkAndHolds("a"));
  EXPECT_THAT(store_->Contains("gone"), IsOkAndHolds(false));
  // Present but empty.
  ASSERT_THAT(store_->Set("empty", ""), IsOk());
  EXPECT_THAT(store_->CompareSet("empty", "a", "b"), IsOkAndHolds(""));
  EXPECT_THAT(store_->CompareSet("empty", "", "e"), IsOkAndHolds("e"));
  EXPECT_THAT(store_->Get("empty", Now()), IsOkAndHolds("e"));
}

TEST_P(StoreConformanceTest, OneOfManyWinsACompareSet) {
  constexpr int kThreads = 8;
  std::vector<std::string> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &seen] {
      const absl::StatusOr<std::string> value =
          store_->CompareSet("leader", "", absl::StrCat(t));
      EXPECT_THAT(value, IsOk());
      if (value.ok()) seen[t] = *value;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const absl::StatusOr<std::string> leader = store_->Get("leader", Now());
  ASSERT_THAT(leader, IsOk());
  EXPECT_THAT(seen, ::testing::Each(*leader));
}

TEST_P(StoreConformanceTest, DeleteReturnsWhetherTheKeyExisted) {
  ASSERT_THAT(store_->Set("k", "v"), IsOk());
  EXPECT_THAT(store_->Contains("k"), IsOkAndHolds(true));
  EXPECT_THAT(store_->Delete("k"), IsOkAndHolds(true));
  EXPECT_THAT(store_->Delete("k"), IsOkAndHolds(false));
  EXPECT_THAT(store_->Contains("k"), IsOkAndHolds(false));
  EXPECT_THAT(store_->Get("k", Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_P(StoreConformanceTest, APrefixEndsAtItsSlash) {
  for (const char* key : {"a", "a/b", "a/c/d", "ab", "a0", "a.", "b/a/b"}) {
    ASSERT_THAT(store_->Set(key, key), IsOk());
  }
  EXPECT_THAT(store_->DeletePrefix("a"), IsOkAndHolds(2));
  EXPECT_THAT(store_->Contains("a/b"), IsOkAndHolds(false));
  EXPECT_THAT(store_->Contains("a/c/d"), IsOkAndHolds(false));
  EXPECT_THAT(store_->Wait({"a", "ab", "a0", "a.", "b/a/b"}, Now()), IsOk());
  EXPECT_THAT(store_->DeletePrefix("a"), IsOkAndHolds(0));
}

TEST_P(StoreConformanceTest, TheLastToRetireRemovesTheKeys) {
  const std::shared_ptr<Store> other = open_();
  ASSERT_THAT(store_->Set("g/1", "v"), IsOk());
  ASSERT_THAT(store_->Set("g2/1", "w"), IsOk());
  ASSERT_THAT(store_->Retire("g", 3), IsOk());
  ASSERT_THAT(other->Retire("g", 3), IsOk());
  EXPECT_THAT(other->Get("g/1", Now()), IsOkAndHolds("v"));
  ASSERT_THAT(store_->Retire("g", 3), IsOk());
  EXPECT_THAT(other->Contains("g/1"), IsOkAndHolds(false));
  EXPECT_THAT(other->Contains("g/retired"), IsOkAndHolds(false));
  EXPECT_THAT(other->Get("g2/1", Now()), IsOkAndHolds("w"));
}

TEST_P(StoreConformanceTest, RetiringNeedsAMember) {
  for (const int members : {0, -1}) {
    EXPECT_THAT(store_->Retire("g", members),
                StatusIs(absl::StatusCode::kInvalidArgument, "at least 1"));
  }
  EXPECT_THAT(store_->Contains("g/retired"), IsOkAndHolds(false));
}

// How a group uses a store: a number for each session, keys below it, and the
// last member of a session cleans up, perhaps after the next session has begun.
TEST_P(StoreConformanceTest, ServesOneGenerationOfAGroupAfterAnother) {
  constexpr int kRanks = 3;
  RunRankThreads(kRanks, [this](int rank) {
    const std::shared_ptr<Store> store = open_();
    for (int session = 1; session <= 20; ++session) {
      const std::string counter = absl::StrCat("sessions/", rank);
      EXPECT_THAT(store->Add(counter, 1), IsOkAndHolds(session));
      const std::string prefix = absl::StrCat("session/", session);
      std::vector<std::string> keys;
      for (int r = 0; r < kRanks; ++r) {
        keys.push_back(absl::StrCat(prefix, "/", r));
      }
      EXPECT_THAT(store->Set(keys[rank], absl::StrCat(session * 10 + rank)),
                  IsOk());
      EXPECT_THAT(store->MultiGet(keys, Late()),
                  IsOkAndHolds(ElementsAre(absl::StrCat(session * 10),
                                           absl::StrCat(session * 10 + 1),
                                           absl::StrCat(session * 10 + 2))));
      EXPECT_THAT(store->Retire(prefix, kRanks), IsOk());
    }
  });
  EXPECT_THAT(store_->DeletePrefix("session"), IsOkAndHolds(0));
}

TEST_P(StoreConformanceTest, RefusesKeysAndValuesOverTheLimit) {
  const std::string long_key(5000, 'k');
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  for (const std::string& key : {std::string(), long_key}) {
    SCOPED_TRACE(key.size());
    EXPECT_THAT(store_->Set(key, "v"), refused);
    EXPECT_THAT(store_->Add(key, 1), refused);
    EXPECT_THAT(store_->CompareSet(key, "", "v"), refused);
  }
  EXPECT_THAT(store_->Get(long_key, Late()), refused);
  EXPECT_THAT(store_->Wait({"a", long_key}, Late()), refused);
  EXPECT_THAT(store_->MultiGet({"a", long_key}, Late()), refused);
  EXPECT_THAT(store_->Retire(long_key, 2), refused);
  const std::string long_value((16 << 20) + 1, 'v');
  EXPECT_THAT(store_->Set("k", long_value),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"k\"")));
  EXPECT_THAT(store_->CompareSet("k", "", long_value), refused);
  EXPECT_THAT(store_->Contains("k"), IsOkAndHolds(false));
}

TEST_P(StoreConformanceTest, EightWritersLoseNoAdd) {
  constexpr int kWriters = 8;
  constexpr int kAdds = 1000;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    // Half of them with a connection of their own.
    writers.emplace_back([store = w % 2 == 0 ? store_ : open_()] {
      for (int i = 0; i < kAdds; ++i) {
        ASSERT_THAT(store->Add("sum", 1), IsOk());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_THAT(store_->Add("sum", 0), IsOkAndHolds(kWriters * kAdds));
}

}  // namespace
}  // namespace sherd::testing
