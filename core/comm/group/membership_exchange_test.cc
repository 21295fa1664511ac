#include "sherd/core/comm/group/membership_exchange.h"

#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/bootstrap/backend_agreement.h"
#include "sherd/core/comm/store/base_store.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Results = std::vector<absl::StatusOr<BackendAgreement>>;

// What a rank asks of Init.
struct Asked {
  int rank = 0;
  int world_size = 1;
  BackendRequest request = {.backend = "gloo",
                            .host = {"network 1", "machine 1"}};
  absl::Status error;
};

// The exchange as Init makes it.
absl::StatusOr<BackendAgreement> Meet(Store& store, const Asked& asked,
                                      Deadline deadline,
                                      std::vector<std::string> expected = {}) {
  Membership membership("test", asked.rank, asked.world_size, {}, 0);
  const absl::StatusOr<std::string> text =
      ExchangeMembership(store, expected, deadline, membership,
                         {.note = asked.request.ToText(),
                          .error = asked.error,
                          .settle = AgreeOnBackend});
  if (!text.ok()) return text.status();
  EXPECT_EQ(static_cast<int>(membership.processes().size()), asked.world_size);
  EXPECT_EQ(membership.process(asked.rank), DescribeOwnProcess());
  return BackendAgreement::Parse(*text);
}

Deadline Late() { return Deadline::After(absl::Seconds(60)); }

// One thread per rank; `change` makes a rank's requests different.
Results Exchange(int size, const std::function<void(Asked&)>& change) {
  HashStore store;
  Results results(size, absl::UnknownError("no result"));
  RunRankThreads(size, [&](int rank) {
    Asked asked = {.rank = rank, .world_size = size};
    change(asked);
    results[rank] = Meet(store, asked, Late());
  });
  return results;
}

// As DescribeOwnProcess() of a process that has ended.
std::string EndedProcess() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return DescribeProcess(
      {.pid = child, .start_time = ProcessIdentity::Own().start_time});
}

void ExpectOnAll(const Results& results, absl::StatusCode code,
                 const std::string& words, int failed_rank) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_THAT(results[rank], StatusIs(code, HasSubstr(words)));
    EXPECT_EQ(ErrorRank(results[rank].status()), failed_rank);
  }
}

TEST(MembershipExchangeTest, EqualRanksGoOnWithTheirBackend) {
  for (int size : {1, 2, 5}) {
    for (const auto& result : Exchange(size, [](Asked&) {})) {
      ASSERT_THAT(result, IsOk());
      EXPECT_EQ(result->backend, "gloo");
      EXPECT_TRUE(result->one_network);
      EXPECT_TRUE(result->one_host());
      EXPECT_EQ(result->elsewhere, -1);
      EXPECT_EQ(result->reason, "");
    }
  }
}

TEST(MembershipExchangeTest, ABackendForOneHostIsAnErrorAcrossHosts) {
  const auto with_hosts = [](int first_elsewhere) {
    return Exchange(4, [first_elsewhere](Asked& asked) {
      asked.request.backend = "shm";
      asked.request.one_host_only = true;
      if (asked.rank >= first_elsewhere)
        asked.request.host.network = "network 2";
    });
  };
  ExpectOnAll(with_hosts(2), absl::StatusCode::kFailedPrecondition,
              "shm works on one host only, but rank 2 is not", 2);
  for (const auto& result : with_hosts(4)) EXPECT_THAT(result, IsOk());
}

TEST(MembershipExchangeTest, AnotherBackendIsTheSameErrorOnAllRanks) {
  for (int odd : {0, 1, 3}) {
    const Results results = Exchange(4, [odd](Asked& asked) {
      if (asked.rank == odd) asked.request.backend = "mpi";
    });
    ExpectOnAll(results, absl::StatusCode::kInvalidArgument,
                absl::StrCat("backends differ: rank ", odd,
                             " asked for \"mpi\"; ranks "),
                odd);
    for (const auto& result : results) {
      EXPECT_EQ(result.status(), results[0].status());
    }
  }
}

TEST(MembershipExchangeTest, AnotherWorldSizeIsTheSameErrorOnAllRanks) {
  for (const int odd : {0, 2, 3}) {
    for (const int size : {3, 5}) {
      SCOPED_TRACE(absl::StrCat("rank ", odd, " has world size ", size));
      const Results results = Exchange(4, [odd, size](Asked& asked) {
        if (asked.rank == odd) asked.world_size = size;
      });
      for (int rank = 0; rank < 4; ++rank) {
        SCOPED_TRACE(rank);
        EXPECT_THAT(
            results[rank],
            StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr(absl::StrCat("world sizes differ: rank ", odd,
                                            " asked for ", size, "; ranks "))));
        EXPECT_THAT(results[rank].status().message(),
                    HasSubstr(" asked for 4: start all"));
        // A group of 3 has no rank 3.
        const bool known = rank != odd || odd < size;
        EXPECT_EQ(FailedRank(results[rank].status()),
                  known ? std::optional<int>(odd) : std::nullopt);
      }
    }
  }
}

TEST(MembershipExchangeTest, WorldSizesInADrawNameNoRank) {
  for (const auto& result : Exchange(2, [](Asked& asked) {
         if (asked.rank == 1) asked.world_size = 1;
       })) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 asked for 1; rank 0 asked "
                                           "for 2")));
    EXPECT_EQ(GetErrorInfo(result.status()).rank, std::nullopt);
  }
}

TEST(MembershipExchangeTest, ASurplusRankGetsAnErrorAndTheOthersContinue) {
  const Results results = Exchange(4, [](Asked& asked) {
    if (asked.rank < 3) asked.world_size = 3;
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(results[rank], IsOk());
  EXPECT_THAT(results[3],
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 3 asked for 4, the ranks 0 to 2 for "
                                 "3")));
  EXPECT_EQ(FailedRank(results[3].status()), 3);
}

TEST(MembershipExchangeTest, ALateRankGetsTheErrorOfWorldSizes) {
  HashStore store;
  const auto call = [&](int rank, int world_size) {
    return Meet(store, {.rank = rank, .world_size = world_size}, Late())
        .status();
  };
  std::vector<absl::Status> results(3);
  std::thread zero([&] { results[0] = call(0, 3); });
  std::thread one([&] { results[1] = call(1, 2); });
  // Rank 2 calls when rank 0 can see that sizes differ.
  ASSERT_THAT(store.Get("member/1", Late()), IsOk());
  results[2] = call(2, 3);
  zero.join();
  one.join();
  for (const absl::Status& status : results) {
    EXPECT_EQ(status, results[0]);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 asked for 2; ranks 0, 2 "
                                           "asked for 3")));
    EXPECT_EQ(FailedRank(status), 1);
  }
}

TEST(MembershipExchangeTest, AnErrorOfOneRankReachesAll) {
  for (int unable : {0, 2}) {
    ExpectOnAll(Exchange(3,
                         [unable](Asked& asked) {
                           if (asked.rank == unable) {
                             asked.error =
                                 absl::NotFoundError("no such backend");
                           }
                         }),
                absl::StatusCode::kNotFound, "no such backend", unable);
  }
}

TEST(MembershipExchangeTest, AnErrorIsReportedThoughOtherRanksAreMissing) {
  HashStore store;
  absl::Status zero;
  std::thread first([&] {
    zero = Meet(store, {.rank = 0, .world_size = 3}, Late()).status();
  });
  EXPECT_THAT(store.Get("member/0", Late()), IsOk());
  EXPECT_THAT(Meet(store,
                   {.rank = 2,
                    .world_size = 3,
                    .error = absl::NotFoundError("no such backend")},
                   Late()),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  first.join();
  EXPECT_THAT(zero,
              StatusIs(absl::StatusCode::kNotFound, "rank 2: no such backend"));
  EXPECT_EQ(ErrorRank(zero), 2);
  // A rank that comes later gets it too.
  EXPECT_EQ(Meet(store, {.rank = 1, .world_size = 3}, Late()).status(), zero);
}

TEST(MembershipExchangeTest, ARankThatCannotTakePartGivesTheOthersTimeToCome) {
  HashStore store;
  const absl::Time start = absl::Now();
  EXPECT_THAT(Meet(store,
                   {.rank = 1,
                    .world_size = 2,
                    .error = absl::NotFoundError("no such backend")},
                   Late()),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  EXPECT_GE(absl::Now() - start, kReadGrace);
  EXPECT_THAT(Meet(store, {.rank = 0, .world_size = 2}, Late()),
              StatusIs(absl::StatusCode::kNotFound, "rank 1: no such backend"));
}

TEST(MembershipExchangeTest, MissingRanksAreNamedByAllThatCame) {
  HashStore store;
  std::vector<absl::Status> results(4);
  const auto call = [&](int rank, Deadline deadline) {
    results[rank] =
        Meet(store, {.rank = rank, .world_size = 4}, deadline).status();
  };
  std::thread zero(call, 0, Late());
  EXPECT_THAT(store.Get("member/0", Late()), IsOk());
  // The first that gives up ends it for those that would wait longer, too.
  call(2, Deadline::After(absl::Milliseconds(20)));
  zero.join();
  // Late.
  call(1, Late());
  for (int rank : {0, 2, 1}) {
    EXPECT_THAT(results[rank],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("ranks 1, 3 of 4 did not join")));
    EXPECT_EQ(FailedRank(results[rank]), 1);
  }
}

TEST(MembershipExchangeTest, RankZeroGivesOtherRanksTimeToReadAnError) {
  HashStore store;
  // Rank 1 joined, asked for another backend, and does not read the summary.
  BackendRequest other;
  other.backend = "mpi";
  ASSERT_THAT(store.Add("joined/1", 1), IsOk());
  ASSERT_THAT(store.Set("member/1", absl::StrCat("2 ", DescribeOwnProcess(),
                                                 "\n", other.ToText())),
              IsOk());
  const absl::Time start = absl::Now();
  EXPECT_THAT(Meet(store, {.rank = 0, .world_size = 2}, Late()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("backends differ")));
  EXPECT_GE(absl::Now() - start, kReadGrace);
}

TEST(MembershipExchangeTest, ASecondProcessOfARankDoesNotDisturbTheOthers) {
  HashStore store;
  Results results(2, absl::UnknownError("no result"));
  const auto join = [&](int rank) {
    results[rank] = Meet(store, {.rank = rank, .world_size = 2}, Late());
  };
  std::thread one(join, 1);
  EXPECT_THAT(store.Get("member/1", Late()), IsOk());
  for (const absl::Status& error :
       {absl::OkStatus(), absl::NotFoundError("no such backend")}) {
    EXPECT_THAT(
        Meet(store, {.rank = 1, .world_size = 2, .error = error}, Late()),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("rank 1 has joined already")));
  }
  join(0);
  one.join();
  for (const auto& result : results) EXPECT_THAT(result, IsOk());
}

TEST(MembershipExchangeTest, ErrorsOfASurplusRankDoNotConcernTheOthers) {
  HashStore store;
  Results results(2, absl::UnknownError("no result"));
  const auto join = [&](int rank) {
    results[rank] = Meet(store, {.rank = rank, .world_size = 2}, Late());
  };
  std::thread zero(join, 0);
  EXPECT_THAT(store.Get("member/0", Late()), IsOk());
  EXPECT_THAT(Meet(store,
                   {.rank = 2,
                    .world_size = 4,
                    .error = absl::NotFoundError("no such backend")},
                   Late()),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  EXPECT_THAT(Meet(store, {.rank = 3, .world_size = 4},
                   Deadline::After(absl::Milliseconds(20))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 1, 2 of 4 did not join")));
  join(1);
  zero.join();
  for (const auto& result : results) EXPECT_THAT(result, IsOk());
}

TEST(MembershipExchangeTest, ADeathBetweenPublishingAndTheSummaryIsFound) {
  HashStore store;
  // Rank 0 of three, whose process the others do not know in advance.
  ASSERT_THAT(store.Set("member/0", absl::StrCat("3 ", EndedProcess(), "\n")),
              IsOk());
  std::vector<absl::Status> results(3);
  RunRankThreads(3, [&](int rank) {
    if (rank == 0) return;
    results[rank] =
        Meet(store, {.rank = rank, .world_size = 3}, Late()).status();
  });
  for (int rank : {1, 2}) {
    EXPECT_THAT(
        results[rank],
        StatusIs(absl::StatusCode::kUnavailable,
                 AllOf(HasSubstr("rank 0 died (process "),
                       HasSubstr("before it compared what the ranks"))));
    EXPECT_EQ(FailedRank(results[rank]), 0);
  }
}

TEST(MembershipExchangeTest, ADeathThatOneRankSeesEndsItForAll) {
  HashStore store;
  const std::string self = DescribeOwnProcess();
  // Rank 2 runs on the host of rank 1, and rank 0 cannot see it.
  const std::vector<std::vector<std::string>> expected = {
      {self, self, "another-host pid:[1] 1 1"}, {self, self, EndedProcess()}};
  std::vector<absl::Status> results(2);
  RunRankThreads(2, [&](int rank) {
    results[rank] =
        Meet(store, {.rank = rank, .world_size = 3}, Late(), expected[rank])
            .status();
  });
  for (const absl::Status& status : results) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 AllOf(HasSubstr("rank 2 died (process "),
                                       HasSubstr("before it joined"))));
    EXPECT_EQ(FailedRank(status), 2);
  }
}

// Counts the operations of one rank on a store of several.
class CountingStore final : public BaseStore {
 public:
  explicit CountingStore(Store& base) : base_(base) {}
  int count() const { return count_; }

  // What happens before the first Wait.
  std::function<void()> before_wait;
  // What Contains returns, unless OK.
  absl::Status contains_error;

 private:
  Store& Counted() { return ++count_, base_; }

  absl::Status DoSet(absl::string_view key, absl::string_view value) override {
    return Counted().Set(key, value);
  }
  absl::StatusOr<std::string> DoGet(absl::string_view key,
                                    Deadline deadline) override {
    return Counted().Get(key, deadline);
  }
  absl::StatusOr<int64_t> DoAdd(absl::string_view key,
                                int64_t amount) override {
    return Counted().Add(key, amount);
  }
  absl::StatusOr<std::string> DoCompareSet(absl::string_view key,
                                           absl::string_view expected,
                                           absl::string_view desired) override {
    return Counted().CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> DoDelete(absl::string_view key) override {
    return Counted().Delete(key);
  }
  absl::StatusOr<int64_t> DoDeletePrefix(absl::string_view prefix) override {
    return Counted().DeletePrefix(prefix);
  }
  absl::Status DoRetire(absl::string_view prefix, int members) override {
    return Counted().Retire(prefix, members);
  }
  absl::Status DoWait(absl::Span<const std::string> keys,
                      Deadline deadline) override {
    if (before_wait != nullptr) std::exchange(before_wait, nullptr)();
    return Counted().Wait(keys, deadline);
  }
  absl::StatusOr<std::vector<std::string>> DoMultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override {
    return Counted().MultiGet(keys, deadline);
  }
  absl::StatusOr<bool> DoContains(absl::string_view key) override {
    Store& base = Counted();
    if (!contains_error.ok()) return contains_error;
    return base.Contains(key);
  }

  Store& base_;
  int count_ = 0;
};

// The cost on the card of ExchangeMembership, where no rank waits.
TEST(MembershipExchangeTest, ARankMakesThreeOperationsOfTheStore) {
  constexpr int kSize = 9;
  HashStore store;
  for (int rank = 1; rank < kSize; ++rank) {
    ASSERT_THAT(store.Set(absl::StrCat("member/", rank),
                          absl::StrCat(kSize, " boot pid:[1] 1 1\n",
                                       BackendRequest().ToText())),
                IsOk());
  }
  CountingStore leader(store);
  EXPECT_THAT(
      Meet(leader, {.rank = 0, .world_size = kSize, .request = {}}, Late()),
      IsOk());
  EXPECT_EQ(leader.count(), kSize + 2);
  CountingStore follower(store);
  Membership membership("test", 5, kSize, {}, 0);
  EXPECT_THAT(ExchangeMembership(follower, {}, Late(), membership), IsOk());
  EXPECT_EQ(follower.count(), 3);
}

TEST(MembershipExchangeTest, ASurplusRankWithAnErrorMayJoinBeforeRankZero) {
  HashStore store;
  Results results(2, absl::UnknownError("no result"));
  const auto join = [&](int rank) {
    results[rank] = Meet(store, {.rank = rank, .world_size = 2}, Late());
  };
  CountingStore surplus(store);
  std::thread zero;
  surplus.before_wait = [&] {
    zero = std::thread(join, 0);
    EXPECT_THAT(store.Get("member/0", Late()), IsOk());
  };
  EXPECT_THAT(Meet(surplus,
                   {.rank = 2,
                    .world_size = 4,
                    .error = absl::NotFoundError("no such backend")},
                   Late()),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  join(1);
  zero.join();
  for (const auto& result : results) EXPECT_THAT(result, IsOk());
}

TEST(MembershipExchangeTest, AnErrorIsAFewOperationsWhereAllRanksJoined) {
  constexpr int kSize = 50;
  HashStore store;
  CountingStore first(store);
  first.before_wait = [&] {
    for (int rank = 1; rank < kSize; ++rank) {
      EXPECT_THAT(store.Set(absl::StrCat("joined/", rank), "1"), IsOk());
      EXPECT_THAT(store.Set(absl::StrCat("summary/read/", rank), ""), IsOk());
    }
  };
  EXPECT_THAT(Meet(first,
                   {.rank = 0,
                    .world_size = kSize,
                    .error = absl::NotFoundError("no such backend")},
                   Late()),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  // Joins, waits for the others, writes the error, has read it, finds that all
  // joined, and waits for their reading.
  EXPECT_EQ(first.count(), 6);
}

TEST(MembershipExchangeTest, NoRankWaitsForReadersOnAStoreThatDoesNotAnswer) {
  HashStore store;
  CountingStore first(store);
  first.contains_error = absl::DeadlineExceededError("no answer");
  EXPECT_THAT(Meet(first,
                   {.rank = 0,
                    .world_size = 50,
                    .error = absl::NotFoundError("no such backend")},
                   Late()),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  EXPECT_EQ(first.count(), 6);
}

TEST(MembershipExchangeTest, AnErrorNamesNoRankThatTheGroupDoesNotHave) {
  HashStore store;
  const std::string zero = absl::StrCat("2 ", DescribeOwnProcess(), "\n");
  ASSERT_THAT(store.Set("member/0", zero), IsOk());
  const absl::Status one =
      Meet(store, {.rank = 1, .world_size = 4}, Deadline::After({})).status();
  EXPECT_THAT(one, StatusIs(absl::StatusCode::kDeadlineExceeded,
                            HasSubstr("ranks 2, 3 of 4 did not join")));
  EXPECT_EQ(FailedRank(one), 2);
  // The same for rank 0, whose group has two ranks.
  const absl::Status error =
      Meet(store, {.rank = 0, .world_size = 2}, Late()).status();
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              std::string(one.message())));
  EXPECT_EQ(ErrorRank(error), std::nullopt);
  for (const int rank : {-2, 2, INT_MAX}) {
    HashStore other;
    ASSERT_THAT(other.Set("summary",
                          absl::StrCat("2\n4\n", rank, "\n", rank, "\nlate\n")),
                IsOk());
    const absl::Status late =
        Meet(other, {.rank = 1, .world_size = 2}, Late()).status();
    EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, "late"));
    EXPECT_EQ(ErrorRank(late), std::nullopt);
  }
}

TEST(MembershipExchangeTest, EntriesOfSomethingElseAreErrors) {
  for (const char* garbage :
       {"", "\n\n\n\n\n\n\n", "2", "2\nx\n\na\nb\nfive\n\n", "2 process\nnote",
        "GET / HTTP/1.0\r\n\r\n"}) {
    HashStore store;
    ASSERT_THAT(store.Set("member/1", garbage), IsOk());
    const absl::StatusOr<BackendAgreement> result =
        Meet(store, {.rank = 0, .world_size = 2}, Late());
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("the record of rank 1")));
    EXPECT_EQ(ErrorRank(result.status()), 1);
  }
  for (const char* garbage : {"all is well", "2\n0\n-1\n-1\n\n\nprocess",
                              "2\n0\n-1\n-1\n\\\n\na\nb"}) {
    HashStore store;
    ASSERT_THAT(store.Set("summary", garbage), IsOk());
    EXPECT_THAT(Meet(store, {.rank = 1, .world_size = 2}, Late()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the summary of rank 0")))
        << garbage;
  }
  // A result that rank 0, for which rank 1 is missing, did not write.
  HashStore store;
  ASSERT_THAT(store.Set("summary", "2\n0\n-1\n-1\n\n\na\nb"), IsOk());
  EXPECT_THAT(Meet(store, {.rank = 0, .world_size = 2}, Late()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the summary of rank 0")));
}

// What another program, or a fault, may have left in the store.
TEST(MembershipExchangeTest, AnyBytesOfASummaryAreReadOrRefused) {
  const auto seed = static_cast<uint64_t>(
      GetIntKnob(Knob::kTestSeed, 0, INT64_MAX)
          .value()
          .value_or(static_cast<int64_t>(std::random_device()())));
  std::cout << "SHERD_TEST_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  HashStore met;
  RunRankThreads(2, [&](int rank) {
    EXPECT_THAT(Meet(met, {.rank = rank, .world_size = 2}, Late()), IsOk());
  });
  const absl::StatusOr<std::string> good = met.Get("summary", Late());
  ASSERT_THAT(good, IsOk());
  for (int c = 0; c < 2000; ++c) {
    std::string text =
        good->substr(0, good->size() - random() % 2 * random() % good->size());
    for (uint64_t i = random() % 4; i > 0 && !text.empty(); --i) {
      constexpr absl::string_view kBytes = "\n\\ 019-x";
      text[random() % text.size()] = random() % 2 == 0
                                         ? kBytes[random() % kBytes.size()]
                                         : static_cast<char>(random());
    }
    HashStore store;
    ASSERT_THAT(store.Set("summary", text), IsOk());
    Membership membership("test", 1, 2, {}, 0);
    if (ExchangeMembership(store, {}, Late(), membership).ok()) {
      EXPECT_EQ(membership.processes().size(), 2u);
    }
  }
}

}  // namespace
}  // namespace sherd::internal
