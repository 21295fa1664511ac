#include "sherd/core/comm/group/membership_exchange.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

using Results = std::vector<absl::StatusOr<MembershipSummary>>;

MemberRecord Record(int rank, int size) {
  return {.rank = rank,
          .world_size = size,
          .backend = "gloo",
          .host = {"network 1", "machine 1"}};
}

// One thread per rank; `change` makes a rank's record different.
Results Exchange(int size, const std::function<void(MemberRecord&)>& change,
                 absl::Duration timeout = absl::Seconds(60)) {
  HashStore store;
  Results results(size, absl::UnknownError("no result"));
  RunRankThreads(size, [&](int rank) {
    MemberRecord record = Record(rank, size);
    change(record);
    results[rank] =
        ExchangeMemberRecords(store, record, Deadline::After(timeout));
  });
  return results;
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
    for (const auto& result : Exchange(size, [](MemberRecord&) {})) {
      ASSERT_THAT(result, IsOk());
      EXPECT_EQ(result->backend, "gloo");
      EXPECT_TRUE(result->one_network);
      EXPECT_TRUE(result->one_host);
      EXPECT_EQ(result->elsewhere, -1);
      EXPECT_EQ(result->reason, "");
    }
  }
}

TEST(MembershipExchangeTest, DistinguishesHosts) {
  for (const auto& result : Exchange(4, [](MemberRecord& record) {
         if (record.rank >= 2) record.host = {"network 2", "machine 2"};
       })) {
    ASSERT_THAT(result, IsOk());
    EXPECT_FALSE(result->one_network);
    EXPECT_FALSE(result->one_host);
    EXPECT_EQ(result->elsewhere, 2);
  }
}

TEST(MembershipExchangeTest, ContainersThatShareANetworkAreNotOneHost) {
  for (const auto& result : Exchange(3, [](MemberRecord& record) {
         if (record.rank == 1) record.host.machine = "another container";
       })) {
    ASSERT_THAT(result, IsOk());
    EXPECT_TRUE(result->one_network);
    EXPECT_FALSE(result->one_host);
    EXPECT_EQ(result->elsewhere, 1);
  }
}

TEST(MembershipExchangeTest, AutoIsSharedMemoryWhereAllRanksCan) {
  for (const auto& result :
       Exchange(3, [](MemberRecord& record) { record.backend = "auto"; })) {
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->backend, "shm");
    EXPECT_EQ(result->reason, "");
  }
}

TEST(MembershipExchangeTest, AutoIsGlooWhereOneRankCannotWithTheReason) {
  for (const auto& result : Exchange(3, [](MemberRecord& record) {
         record.backend = "auto";
         if (record.rank == 1)
           record.shm_obstacle = "memfd_create\nis not there";
       })) {
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->backend, "gloo");
    EXPECT_EQ(result->reason, "on rank 1: memfd_create is not there");
  }
}

TEST(MembershipExchangeTest, AutoIsGlooAcrossHostsWithTheReason) {
  for (const auto& result : Exchange(3, [](MemberRecord& record) {
         record.backend = "auto";
         if (record.rank == 2) record.host.network = "network 2";
       })) {
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->backend, "gloo");
    EXPECT_EQ(result->reason, "rank 2 is not on the host of rank 0");
  }
}

TEST(MembershipExchangeTest, ABackendForOneHostIsAnErrorAcrossHosts) {
  const auto with_hosts = [](int first_elsewhere) {
    return Exchange(4, [first_elsewhere](MemberRecord& record) {
      record.backend = "shm";
      record.one_host_only = true;
      if (record.rank >= first_elsewhere) record.host.network = "network 2";
    });
  };
  ExpectOnAll(with_hosts(2), absl::StatusCode::kFailedPrecondition,
              "shm works on one host only, but rank 2 is not", 2);
  for (const auto& result : with_hosts(4)) EXPECT_THAT(result, IsOk());
}

TEST(MembershipExchangeTest, AnotherBackendIsTheSameErrorOnAllRanks) {
  for (int odd : {0, 1, 3}) {
    const Results results = Exchange(4, [odd](MemberRecord& record) {
      if (record.rank == odd) record.backend = "mpi";
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

TEST(MembershipExchangeTest, AnotherBackendForDevicesIsTheSameErrorOnAllRanks) {
  for (const char* other : {"", "rccl"}) {
    const Results results = Exchange(3, [other](MemberRecord& record) {
      record.device_backend = record.rank == 1 ? other : "nccl";
    });
    ExpectOnAll(results, absl::StatusCode::kInvalidArgument,
                "ranks 0, 2 asked for \"cpu:gloo,cuda:nccl\"", 1);
    ExpectOnAll(results, absl::StatusCode::kInvalidArgument,
                *other == '\0' ? "rank 1 asked for \"gloo\""
                               : "rank 1 asked for \"cpu:gloo,cuda:rccl\"",
                1);
  }
}

TEST(MembershipExchangeTest, AnotherWorldSizeIsTheSameErrorOnAllRanks) {
  for (const int odd : {0, 2, 3}) {
    for (const int size : {3, 5}) {
      SCOPED_TRACE(absl::StrCat("rank ", odd, " has world size ", size));
      const Results results = Exchange(4, [odd, size](MemberRecord& record) {
        if (record.rank == odd) record.world_size = size;
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
        EXPECT_EQ(FailedRank(results[rank].status()), odd);
      }
    }
  }
}

TEST(MembershipExchangeTest, WorldSizesInADrawNameNoRank) {
  for (const auto& result : Exchange(2, [](MemberRecord& record) {
         if (record.rank == 1) record.world_size = 1;
       })) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 asked for 1; rank 0 asked "
                                           "for 2")));
    EXPECT_EQ(GetErrorInfo(result.status()).rank, std::nullopt);
  }
}

TEST(MembershipExchangeTest, ASurplusRankGetsAnErrorAndTheOthersContinue) {
  const Results results = Exchange(4, [](MemberRecord& record) {
    if (record.rank < 3) record.world_size = 3;
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
    return ExchangeMemberRecords(store, Record(rank, world_size),
                                 Deadline::After(absl::Seconds(60)))
        .status();
  };
  std::vector<absl::Status> results(3);
  std::thread zero([&] { results[0] = call(0, 3); });
  std::thread one([&] { results[1] = call(1, 2); });
  // Rank 2 calls when rank 0 can see that sizes differ.
  ASSERT_THAT(store.Get("records/1", Deadline::After(absl::Seconds(60))),
              IsOk());
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
                         [unable](MemberRecord& record) {
                           if (record.rank == unable) {
                             record.error =
                                 absl::NotFoundError("no such backend");
                           }
                         }),
                absl::StatusCode::kNotFound, "no such backend", unable);
  }
}

TEST(MembershipExchangeTest, ARankThatCannotTakePartGivesRankZeroTimeToCome) {
  constexpr absl::Duration kTime = absl::Milliseconds(50);
  HashStore store;
  MemberRecord record = Record(1, 2);
  record.error = absl::NotFoundError("no such backend");
  const absl::Time start = absl::Now();
  EXPECT_THAT(ExchangeMemberRecords(store, record, Deadline::After(kTime)),
              StatusIs(absl::StatusCode::kNotFound, "no such backend"));
  EXPECT_GE(absl::Now() - start, kTime);
  EXPECT_THAT(ExchangeMemberRecords(store, Record(0, 2),
                                    Deadline::After(absl::Seconds(60))),
              StatusIs(absl::StatusCode::kNotFound, "rank 1: no such backend"));
}

TEST(MembershipExchangeTest, MissingRanksAreNamedByAllThatCame) {
  HashStore store;
  std::vector<absl::Status> results(4);
  RunRankThreads(4, [&](int rank) {
    if (rank % 2 == 1) return;
    results[rank] =
        ExchangeMemberRecords(store, Record(rank, 4),
                              Deadline::After(absl::Milliseconds(200)))
            .status();
  });
  for (int rank : {0, 2}) {
    EXPECT_THAT(results[rank],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("ranks 1, 3 of 4 did not join")));
    EXPECT_EQ(ErrorRank(results[rank]), 1);
  }
}

TEST(MembershipExchangeTest, EntriesOfSomethingElseAreErrors) {
  for (const char* garbage :
       {"", "\n\n\n\n\n\n\n", "2", "2\nx\n\na\nb\nfive\n\n",
        "GET / HTTP/1.0\r\n\r\n"}) {
    HashStore store;
    ASSERT_THAT(store.Set("records/1", garbage), IsOk());
    // So that rank 0 does not wait for it to read the error.
    ASSERT_THAT(store.Set("records/read/1", ""), IsOk());
    const absl::StatusOr<MembershipSummary> result = ExchangeMemberRecords(
        store, Record(0, 2), Deadline::After(absl::Milliseconds(100)));
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("the record of rank 1")));
    EXPECT_EQ(ErrorRank(result.status()), 1);
  }
  HashStore store;
  ASSERT_THAT(store.Set("records/summary", "all is well"), IsOk());
  EXPECT_THAT(ExchangeMemberRecords(store, Record(1, 2),
                                    Deadline::After(absl::Seconds(60))),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the summary of rank 0")));
}

}  // namespace
}  // namespace sherd::internal
