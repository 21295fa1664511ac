#include "sherd/rpc/link/directory.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/group/membership_exchange.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/rpc/link/mailbox_fixture.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(WorkerNameTest, NamesHaveFewCharactersAndABoundedLength) {
  for (const std::string& name :
       {std::string("w"), std::string("Trainer-1"), std::string("ps:0_a"),
        std::string(127, 'x')}) {
    EXPECT_THAT(CheckWorkerName(name), IsOk()) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a/b"),
        std::string("a\n"), std::string("w\xc3\xb6rker"), std::string(1, '\0'),
        std::string(128, 'x')}) {
    EXPECT_THAT(CheckWorkerName(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("RPC worker name")))
        << name;
  }
  EXPECT_THAT(CheckWorkerName("a\n\x1b"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "RPC worker name \"a\\n\\x1b\": expected"));
}

TEST(TransportsTest, SocketsAreUnixAndTcp) {
  EXPECT_EQ(Transports::Parse({})->ToText(), "unix, tcp");
  EXPECT_EQ(Transports::Parse({"tcp", "unix"})->ToText(), "unix, tcp");
  EXPECT_EQ(Transports::Parse({"tcp"})->ToText(), "tcp");
  for (const std::vector<std::string>& names :
       std::vector<std::vector<std::string>>{
           {"shm"}, {""}, {"tcp", "tcp"}, {"unix", "uv"}}) {
    EXPECT_THAT(Transports::Parse(names),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected unix, tcp or both")));
  }
}

class DirectoryTest : public ::testing::Test {
 protected:
  // Meets as all of `workers`, at once.
  std::vector<absl::StatusOr<std::unique_ptr<Directory>>> Meet(
      const std::vector<Directory::Worker>& workers) {
    std::vector<absl::StatusOr<std::unique_ptr<Directory>>> met(workers.size());
    const auto size = static_cast<int>(workers.size());
    RunRankThreads(size, [&](int rank) {
      met[rank] = Directory::Meet(store_, rank, size, workers[rank], Late());
    });
    return met;
  }

  // The result of one of two ranks, where the other, `rank`, is of another
  // program and publishes `note`.
  static absl::StatusOr<std::unique_ptr<Directory>> MeetBeside(
      int rank, const std::string& note) {
    const std::shared_ptr<Store> store = std::make_shared<HashStore>();
    absl::StatusOr<std::unique_ptr<Directory>> met;
    RunRankThreads(2, [&](int self) {
      if (self != rank) {
        met = Directory::Meet(store, self, 2, Named("w"), Late());
        return;
      }
      Membership membership("rpc", self, 2, {}, 2);
      ExchangeMembership(*store, /*expected=*/{}, Late(), membership,
                         {.note = note})
          .IgnoreError();
    });
    return met;
  }

  static Directory::Worker Named(const std::string& name) {
    return {.name = name,
            .nonce = "nonce of " + name,
            .network = "here",
            .note = "note\nof " + name};
  }
  static Deadline Late() { return Deadline::After(absl::Seconds(60)); }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(DirectoryTest, EveryWorkerLearnsOfAll) {
  const auto met = Meet({Named("ps"), Named("trainer:0"), Named("trainer:1")});
  for (const auto& directory : met) {
    ASSERT_THAT(directory, IsOk());
    EXPECT_THAT((*directory)->names(),
                ElementsAre("ps", "trainer:0", "trainer:1"));
    EXPECT_EQ((*directory)->worker(1).nonce, "nonce of trainer:0");
    EXPECT_EQ((*directory)->worker(2).note, "note\nof trainer:1");
    EXPECT_EQ((*directory)->Label(2), "trainer:1 (rank 2)");
    EXPECT_TRUE((*directory)->one_network());
    EXPECT_TRUE((*directory)->SharesProcess(1));
    EXPECT_EQ((*directory)->StateOfWorker(1), ProcessState::kRunning);
    EXPECT_EQ((*directory)->EndOfWorker(1), "");
  }
  RunRankThreads(3, [&](int rank) {
    EXPECT_THAT(
        (*met[rank])
            ->ExchangeAddresses(
                {"@u" + std::to_string(rank), 0},
                rank == 1 ? HostPort{} : HostPort{"::1", 80 + rank}, Late()),
        IsOk());
  });
  for (const auto& directory : met) {
    EXPECT_EQ((*directory)->worker(1).unix_address.host, "@u1");
    EXPECT_EQ((*directory)->worker(1).tcp_address.host, "");
    EXPECT_EQ((*directory)->worker(2).tcp_address.host, "::1");
    EXPECT_EQ((*directory)->worker(2).tcp_address.port, 82);
  }
}

TEST_F(DirectoryTest, TwoWorkersOfOneNameAreRefusedEverywhere) {
  for (const auto& directory : Meet({Named("a"), Named("b"), Named("a")})) {
    EXPECT_THAT(directory, StatusIs(absl::StatusCode::kAlreadyExists,
                                    AllOf(HasSubstr("name a is not unique"),
                                          HasSubstr("ranks 0 and 2"))));
    EXPECT_EQ(ErrorRank(directory.status()), 2);
  }
}

TEST_F(DirectoryTest, WorkersWithoutACommonTransportAreRefusedEverywhere) {
  Directory::Worker unix_only = Named("u");
  unix_only.transports.tcp = false;
  Directory::Worker tcp_only = Named("t");
  tcp_only.transports.unix_sockets = false;
  for (const auto& directory : Meet({Named("any"), unix_only, tcp_only})) {
    EXPECT_THAT(directory,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("u (rank 1) and t (rank 2)"),
                               HasSubstr("on one host"))));
  }
}

TEST_F(DirectoryTest, WorkersOfTwoHostsUseTcp) {
  Directory::Worker far = Named("far");
  far.network = "there";
  const auto met = Meet({Named("near"), Named("nearer"), far});
  ASSERT_THAT(met[0], IsOk());
  EXPECT_EQ((*met[0])->RouteBetween(0, 1), Directory::Route::kUnix);
  EXPECT_EQ((*met[0])->RouteBetween(0, 2), Directory::Route::kTcp);
  EXPECT_FALSE((*met[0])->one_network());
}

TEST_F(DirectoryTest, UnixSocketsAloneDoNotReachAnotherHost) {
  Directory::Worker far = Named("far");
  far.network = "there";
  far.transports.tcp = false;
  for (const auto& directory : Meet({Named("near"), far})) {
    EXPECT_THAT(directory, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("on two hosts")));
  }
}

TEST_F(DirectoryTest, NamesTheMissingRanks) {
  const auto met = Directory::Meet(store_, 1, 4, Named("w"),
                                   Deadline::After(absl::Milliseconds(20)));
  EXPECT_THAT(met, StatusIs(absl::StatusCode::kDeadlineExceeded,
                            HasSubstr("ranks 0, 2, 3 of 4 did not join")));
  EXPECT_EQ(FailedRank(met.status()), 0);
}

TEST_F(DirectoryTest, AWorkerThatFailsDuringTheStartIsNamedAtOnce) {
  const auto met = Meet({Named("a"), Named("b")});
  ASSERT_THAT(met[0], IsOk());
  ASSERT_THAT(met[1], IsOk());
  (*met[1])->ReportFailure(absl::ResourceExhaustedError("no descriptors"));
  EXPECT_THAT(
      (*met[0])->ExchangeAddresses({}, {}, Late()),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("rank 1"), HasSubstr("no descriptors"))));
}

TEST_F(DirectoryTest, AWorkerRecordsThatItLeaves) {
  const auto met = Meet({Named("a"), Named("b")});
  ASSERT_THAT(met[0], IsOk());
  EXPECT_FALSE((*met[0])->HasLeft(1));
  (*met[1])->ReportLeaving();
  EXPECT_TRUE((*met[0])->HasLeft(1));
}

TEST_F(DirectoryTest, ARecordOfAnotherProgramIsRefused) {
  for (const std::string note :
       {"", "name", "name\n00\nhere\nunix", "name\n00\nhere\ncarrier pigeons\n",
        "na me\n00\nhere\nunix\n"}) {
    EXPECT_THAT(MeetBeside(0, note),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("what rank 0 wrote at the rendezvous")))
        << note;
    EXPECT_THAT(MeetBeside(1, note),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("what rank 1 wrote at the rendezvous")))
        << note;
  }
}

TEST_F(DirectoryTest, ARecordThatIsNotHexadecimalNamesTheWorker) {
  const auto meet = [](const std::string& record) {
    return MeetBeside(0, record);
  };
  EXPECT_THAT(meet("ps\n0aF9\nhere\nunix\n"), IsOk());
  for (const std::string text : {"0", "0g", "no", "0 ", "\xff\xff"}) {
    EXPECT_THAT(meet("ps\n" + text + "\nhere\nunix\n"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("what rank 0 wrote"),
                               HasSubstr("worker ps: expected its nonce"))))
        << text;
    EXPECT_THAT(meet("ps\n00\nhere\nunix\n" + text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("worker ps: expected its note")))
        << text;
  }
}

TEST_F(DirectoryTest, AStartThatFailsFailsForAll) {
  std::vector<TestWorker> workers =
      StartWorkers(store_, 3, [](LinkOptions& options) {
        if (options.rank == 2) options.name = "worker0";
      });
  for (const TestWorker& worker : workers) {
    EXPECT_THAT(worker.links, StatusIs(absl::StatusCode::kAlreadyExists));
  }
  // The next session of the same store works.
  workers = StartWorkers(store_, 3);
  for (const TestWorker& worker : workers) EXPECT_THAT(worker.links, IsOk());
  EXPECT_THAT(GoodbyeToAll(workers, absl::Seconds(60)),
              ::testing::Each(IsOk()));
}

TEST_F(DirectoryTest, AnErrorOfOneWorkerOnceAllHaveMetReachesTheOthers) {
  const std::vector<TestWorker> workers =
      StartWorkers(store_, 3, [](LinkOptions& options) {
        if (options.rank != 1) return;
        options.on_met = [](const Directory&) {
          return absl::ResourceExhaustedError("no devices");
        };
      });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(workers[rank].links,
                StatusIs(rank == 1 ? absl::StatusCode::kResourceExhausted
                                   : absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 1"), HasSubstr("no devices"))));
  }
}

TEST_F(DirectoryTest, AWorkerThatCannotReadTheOthersReportsIt) {
  // Rank 0, of another program, has compared the records.
  ASSERT_THAT(store_->Set("member/0", "2 boot pid:[1] 1 1\n"), IsOk());
  ASSERT_THAT(store_->Set("summary",
                          "2\n0\n-1\n-1\n\n\n"
                          "boot pid:[1] 1 1\nboot pid:[1] 2 1"),
              IsOk());
  EXPECT_THAT(Directory::Meet(store_, 1, 2, Named("b"), Late()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("what rank 0 wrote")));
  EXPECT_THAT(store_->Get("failure/1", Late()),
              IsOkAndHolds(HasSubstr("what rank 0 wrote")));
}

TEST_F(DirectoryTest, AStartWithoutAllWorkersNamesTheMissing) {
  LinkOptions options = OptionsOn(store_, 1, 3);
  options.deadline = Deadline::After(absl::Milliseconds(50));
  LinkMailbox mailbox;
  EXPECT_THAT(Links::Start(options, &mailbox),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 0, 2 of 3 did not join in time")));
}

TEST_F(DirectoryTest, BadOptionsAreRefused) {
  LinkMailbox mailbox;
  const std::vector<std::function<void(LinkOptions&)>> edits = {
      [](LinkOptions& o) { o.rank = 2; },
      [](LinkOptions& o) { o.rank = -1; },
      [](LinkOptions& o) { o.world_size = 0; },
      [](LinkOptions& o) { o.heartbeat = absl::ZeroDuration(); },
      [](LinkOptions& o) { o.patience = absl::Milliseconds(1); },
      [](LinkOptions& o) { o.transports = {"pigeon"}; },
      [](LinkOptions& o) { o.name = "a name"; },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    SCOPED_TRACE(i);
    const std::shared_ptr<Store> store = std::make_shared<HashStore>();
    LinkOptions options = OptionsOn(store, 0, 1);
    edits[i](options);
    EXPECT_THAT(Links::Start(options, &mailbox),
                StatusIs(absl::StatusCode::kInvalidArgument));
    // The rank has left the store.
    const absl::StatusOr<std::unique_ptr<Links>> links =
        Links::Start(OptionsOn(store, 0, 1), &mailbox);
    ASSERT_THAT(links, IsOk());
    EXPECT_THAT((*links)->Goodbye(Late()), IsOk());
  }
}

TEST_F(DirectoryTest, ABadOptionOfOneWorkerIsReportedToAllAndLeavesNothing) {
  const std::vector<std::function<void(LinkOptions&)>> edits = {
      [](LinkOptions& o) { o.heartbeat = absl::ZeroDuration(); },
      [](LinkOptions& o) { o.transports = {"pigeon"}; },
      [](LinkOptions& o) { o.name = "a name"; },
      [](LinkOptions& o) { o.error = absl::InvalidArgumentError("no secret"); },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    for (int bad = 0; bad < 3; ++bad) {
      SCOPED_TRACE(absl::StrCat("option ", i, " of rank ", bad));
      // All enter the session before one gives it up.
      std::vector<LinkOptions> options;
      for (int rank = 0; rank < 3; ++rank) {
        options.push_back(OptionsOn(store_, rank, 3));
      }
      edits[i](options[bad]);
      std::vector<TestWorker> workers(3);
      RunRankThreads(3, [&](int rank) {
        workers[rank].links =
            Links::Start(options[rank], workers[rank].mailbox.get());
      });
      for (const TestWorker& worker : workers) {
        EXPECT_THAT(worker.links, StatusIs(absl::StatusCode::kInvalidArgument));
        EXPECT_EQ(ErrorRank(worker.links.status()), bad);
      }
    }
  }
  // The store serves the next attempt.
  std::vector<TestWorker> workers = StartWorkers(store_, 3);
  for (const TestWorker& worker : workers) {
    EXPECT_THAT(worker.links, IsOk());
  }
  EXPECT_THAT(GoodbyeToAll(workers, absl::Seconds(60)),
              ::testing::Each(IsOk()));
}

TEST_F(DirectoryTest, TransportsAreSocketsAndPathsOfMemory) {
  const auto all = Transports::Parse({});
  ASSERT_THAT(all, IsOk());
  EXPECT_TRUE(all->unix_sockets && all->tcp && all->memory.thread &&
              all->memory.shm && all->memory.cma);
  const auto some = Transports::Parse({"cma", "tcp"});
  ASSERT_THAT(some, IsOk());
  EXPECT_EQ(some->ToText(), "tcp");
  EXPECT_EQ(some->memory, MemoryPathSet{.cma = true});
  const std::vector<std::string> wrong[] = {
      {"shm"}, {"unix", "unix"}, {"unix", "Shm"}, {""}};
  for (const std::vector<std::string>& names : wrong) {
    EXPECT_THAT(Transports::Parse(names),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected unix, tcp or both")));
  }
}

TEST_F(DirectoryTest, TheKnobChoosesTransports) {
  ASSERT_EQ(setenv("SHERD_RPC_TRANSPORTS", "tcp", 1), 0);
  std::vector<TestWorker> workers = StartWorkers(store_, 2);
  ASSERT_THAT(workers[0].links, IsOk());
  EXPECT_THAT(workers[0]->Addresses(),
              ElementsAre(::testing::StartsWith("127.0.0.1:")));
  GoodbyeToAll(workers, absl::Seconds(60));
  ASSERT_EQ(setenv("SHERD_RPC_TRANSPORTS", "tcp,", 1), 0);
  LinkMailbox mailbox;
  EXPECT_THAT(
      Links::Start(OptionsOn(std::make_shared<HashStore>(), 0, 1), &mailbox),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("SHERD_RPC_TRANSPORTS")));
  unsetenv("SHERD_RPC_TRANSPORTS");
}

}  // namespace
}  // namespace sherd::internal
