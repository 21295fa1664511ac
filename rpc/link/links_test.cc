#include "sherd/rpc/link/links.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/socket.h"
#include "sherd/rpc/link/mailbox_fixture.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Text that identifies a message among those from one worker to another.
std::string Numbered(int from, int to, bool bulk, int number) {
  return absl::StrCat(from, ">", to, bulk ? " bulk " : " ", number);
}

std::string TailOf(absl::string_view control, size_t size) {
  std::string tail(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    tail[i] = static_cast<char>(control[i % control.size()] + i / 251);
  }
  return tail;
}

class LinksTest : public ::testing::Test {
 protected:
  std::vector<TestWorker> Start(
      int world_size, const std::function<void(LinkOptions&)>& edit = nullptr) {
    std::vector<TestWorker> workers = StartWorkers(store_, world_size, edit);
    for (TestWorker& worker : workers) EXPECT_THAT(worker.links, IsOk());
    return workers;
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

class LinksOverTest
    : public LinksTest,
      public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(LinksOverTest, AllPairsExchangeMessagesInOrder) {
  constexpr int kWorkers = 4;
  constexpr int kMessages = 40;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::vector<TestWorker> workers =
      Start(kWorkers, [&](LinkOptions& o) { o.transports = GetParam(); });
  std::vector<std::thread> threads;
  std::atomic<int> sent{0};
  for (int from = 0; from < kWorkers; ++from) {
    for (int to = 0; to < kWorkers; ++to) {
      if (to == from) continue;
      threads.emplace_back([&, from, to] {
        std::mt19937 random(seed + static_cast<unsigned>(from * 16 + to));
        std::map<bool, int> numbers;
        for (int i = 0; i < kMessages; ++i) {
          const bool bulk = random() % 4 == 0;
          const size_t size =
              random() % 3 == 0 ? 0 : random() % (size_t{1} << (random() % 22));
          const auto tail = std::make_shared<std::string>();
          WireMessage message;
          message.control = Numbered(from, to, bulk, numbers[bulk]++);
          *tail = TailOf(message.control, size);
          message.tail = {Bytes(*tail).subspan(0, size / 2),
                          Bytes(*tail).subspan(size / 2)};
          message.on_sent = [tail, &sent](const absl::Status& status) {
            if (status.ok()) ++sent;
          };
          message.bulk = bulk;
          EXPECT_THAT(workers[from]->Send(to, std::move(message)), IsOk());
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (int to = 0; to < kWorkers; ++to) {
    const std::vector<LinkMailbox::Mail> mails =
        workers[to].mailbox->WaitForMail((kWorkers - 1) * kMessages);
    EXPECT_THAT(mails, SizeIs((kWorkers - 1) * kMessages));
    std::map<std::pair<int, bool>, int> next;
    for (const LinkMailbox::Mail& mail : mails) {
      const bool bulk = absl::StrContains(mail.control, "bulk");
      EXPECT_EQ(mail.control, Numbered(mail.from, to, bulk,
                                       next[std::pair(mail.from, bulk)]++));
      EXPECT_EQ(mail.tail, TailOf(mail.control, mail.tail.size()));
    }
  }
  EXPECT_THAT(GoodbyeToAll(workers, absl::Seconds(60)), Each(IsOk()));
  EXPECT_EQ(sent, kWorkers * (kWorkers - 1) * kMessages);
  for (TestWorker& worker : workers) {
    EXPECT_THAT(worker.mailbox->losses(), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, LinksOverTest,
                         ::testing::Values(std::vector<std::string>{},
                                           std::vector<std::string>{"unix"},
                                           std::vector<std::string>{"tcp"}),
                         [](const auto& info) {
                           return info.param.empty() ? "any"
                                                     : info.param.front();
                         });

TEST_F(LinksTest, ListensOnlyWhereConnectionsAreExpected) {
  std::vector<TestWorker> both = Start(2);
  EXPECT_THAT(both[0]->Addresses(), ElementsAre(StartsWith("@sherd-rpc-")));
  EXPECT_NE(both[0]->Addresses(), both[1]->Addresses());
  EXPECT_THAT(both[1]->names(), ElementsAre("worker0", "worker1"));
  GoodbyeToAll(both, absl::Seconds(60));
  both.clear();
  std::vector<TestWorker> tcp =
      Start(2, [](LinkOptions& o) { o.transports = {"tcp"}; });
  EXPECT_THAT(tcp[0]->Addresses(), ElementsAre(StartsWith("127.0.0.1:")));
  tcp.clear();
  std::vector<TestWorker> alone = Start(1);
  EXPECT_THAT(alone[0]->Addresses(), IsEmpty());
  EXPECT_THAT(alone[0]->Goodbye(Deadline::Infinite()), IsOk());
}

TEST_F(LinksTest, ConnectsFromBothSidesAtOnceLeaveOne) {
  constexpr int kWorkers = 5;
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    std::vector<TestWorker> workers = Start(kWorkers, [&](LinkOptions& o) {
      o.transports = {round % 2 == 0 ? "unix" : "tcp"};
    });
    std::latch ready(kWorkers);
    std::vector<std::thread> threads;
    for (int from = 0; from < kWorkers; ++from) {
      threads.emplace_back([&, from] {
        ready.arrive_and_wait();
        for (int i = 0; i < 3; ++i) {
          for (int to = 0; to < kWorkers; ++to) {
            if (to == from) continue;
            EXPECT_THAT(workers[from]->Send(
                            to, {.control = Numbered(from, to, false, i)}),
                        IsOk());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int to = 0; to < kWorkers; ++to) {
      const std::vector<LinkMailbox::Mail> mails =
          workers[to].mailbox->WaitForMail(3 * (kWorkers - 1));
      ASSERT_THAT(mails, SizeIs(3 * (kWorkers - 1)));
      std::map<int, int> next;
      for (const LinkMailbox::Mail& mail : mails) {
        EXPECT_EQ(mail.control,
                  Numbered(mail.from, to, false, next[mail.from]++));
      }
    }
    EXPECT_THAT(GoodbyeToAll(workers, absl::Seconds(60)), Each(IsOk()));
    for (TestWorker& worker : workers) {
      EXPECT_THAT(worker.mailbox->losses(), IsEmpty());
      EXPECT_EQ(worker.mailbox->num_mails(), size_t{3 * (kWorkers - 1)});
    }
  }
}

TEST_F(LinksTest, AWorkerThatEndsWithoutAGoodbyeIsLostOnceAndByName) {
  std::vector<TestWorker> workers = Start(4);
  // Worker 1 is connected with the lost one, worker 3 is not.
  ASSERT_THAT(workers[1]->Send(2, {.control = "hello"}), IsOk());
  ASSERT_THAT(workers[2].mailbox->WaitForMail(1), SizeIs(1));
  workers[2].links = absl::UnknownError("gone");
  for (const int rank : {0, 1, 3}) {
    SCOPED_TRACE(rank);
    const absl::Status why = workers[rank].mailbox->WaitForLoss(2);
    EXPECT_THAT(why, StatusIs(absl::StatusCode::kUnavailable,
                              StartsWith("worker2 (rank 2) is lost: ")));
    EXPECT_EQ(FailedRank(why), 2);
    bool was_called = false;
    EXPECT_EQ(
        workers[rank]->Send(
            2, {.control = "again",
                .on_sent = [&](const absl::Status&) { was_called = true; }}),
        why);
    EXPECT_FALSE(was_called);
  }
  EXPECT_THAT(workers[3]->Send(1, {.control = "still here"}), IsOk());
  EXPECT_THAT(workers[1].mailbox->WaitForMail(1), SizeIs(1));
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(workers[rank]->Goodbye(Deadline::After(absl::Seconds(60))),
                IsOk());
    EXPECT_THAT(workers[rank].mailbox->losses(), ElementsAre(Pair(2, 1)));
  }
}

TEST_F(LinksTest, TheNextRankReportsLossesOnceRankZeroHasEnded) {
  for (const bool dies : {false, true}) {
    SCOPED_TRACE(dies);
    std::vector<TestWorker> workers = Start(4);
    // Worker 1 is connected with all, workers 2 and 3 not with one another.
    for (const int to : {2, 3}) {
      ASSERT_THAT(workers[1]->Send(to, {.control = "hello"}), IsOk());
      ASSERT_THAT(workers[to].mailbox->WaitForMail(1), SizeIs(1));
    }
    if (!dies) {
      EXPECT_THAT(workers[0]->Goodbye(Deadline::After(absl::Seconds(60))),
                  IsOk());
    }
    workers[0].links = absl::UnknownError("gone");
    for (const int rank : {1, 2}) {
      LinkMailbox& mailbox = *workers[rank].mailbox;
      EXPECT_THAT(dies ? mailbox.WaitForLoss(0) : mailbox.WaitForGoodbye(0),
                  StatusIs(absl::StatusCode::kUnavailable));
    }
    workers[3].links = absl::UnknownError("gone");
    for (const int rank : {1, 2}) {
      const absl::Status why = workers[rank].mailbox->WaitForLoss(3);
      EXPECT_THAT(why, StatusIs(absl::StatusCode::kUnavailable,
                                StartsWith("worker3 (rank 3) is lost: ")));
      EXPECT_EQ(FailedRank(why), 3);
    }
    for (const int rank : {1, 2}) {
      EXPECT_THAT(workers[rank]->Goodbye(Deadline::After(absl::Seconds(60))),
                  IsOk());
    }
  }
}

TEST_F(LinksTest, AGoodbyeFlushesAndIsNotALoss) {
  std::vector<TestWorker> workers = Start(4);
  const std::string large(size_t{48} << 20, 'x');
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(
        workers[1]->Send(2, {.control = "large", .tail = {Bytes(large)}}),
        IsOk());
  }
  EXPECT_THAT(workers[1]->Goodbye(Deadline::After(absl::Seconds(60))), IsOk());
  EXPECT_THAT(workers[1]->Goodbye(Deadline::After(absl::Seconds(60))), IsOk());
  EXPECT_THAT(workers[1]->Send(2, {.control = "more"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker1 (rank 1) has said goodbye")));
  EXPECT_THAT(workers[2].mailbox->WaitForMail(2), SizeIs(2));
  for (const int rank : {0, 2}) {
    const absl::Status why = workers[rank].mailbox->WaitForGoodbye(1);
    EXPECT_THAT(why, StatusIs(absl::StatusCode::kUnavailable,
                              "worker1 (rank 1) has said goodbye"));
    EXPECT_EQ(workers[rank]->Send(1, {.control = "?"}), why);
  }
  // Worker 3 finds out when it looks for it.
  absl::Notification answered;
  absl::Status answer;
  EXPECT_THAT(workers[3]->Send(1, {.control = "?",
                                   .on_sent =
                                       [&](const absl::Status& status) {
                                         answer = status;
                                         answered.Notify();
                                       }}),
              IsOk());
  answered.WaitForNotification();
  EXPECT_THAT(answer, StatusIs(absl::StatusCode::kUnavailable,
                               "worker1 (rank 1) has said goodbye"));
  workers[1].links = absl::UnknownError("gone");
  for (const int rank : {0, 2, 3}) {
    EXPECT_THAT(workers[rank]->Goodbye(Deadline::After(absl::Seconds(60))),
                IsOk());
    EXPECT_THAT(workers[rank].mailbox->losses(), IsEmpty());
  }
}

TEST_F(LinksTest, GoodbyesOfAllAtOnceLoseNothing) {
  for (int round = 0; round < 20; ++round) {
    std::vector<TestWorker> workers = Start(3, [&](LinkOptions& o) {
      o.transports = {round % 2 == 0 ? "unix" : "tcp"};
    });
    for (int to = 0; to < 2; ++to) {
      ASSERT_THAT(workers[2]->Send(to, {.control = "x", .bulk = true}), IsOk());
    }
    for (int to = 0; to < 2; ++to) workers[to].mailbox->WaitForMail(1);
    EXPECT_THAT(GoodbyeToAll(workers, absl::Seconds(60)), Each(IsOk()));
    for (TestWorker& worker : workers) {
      EXPECT_THAT(worker.mailbox->losses(), IsEmpty());
    }
  }
}

// A handler that keeps its loop from running.
class Stuck final : public LinkMailbox {
 public:
  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
      int, absl::string_view, uint64_t, uint64_t*) override {
    is_stuck_.Notify();
    go_on_.WaitForNotification();
    return std::vector<absl::Span<std::byte>>();
  }

  absl::Notification is_stuck_;
  absl::Notification go_on_;
};

TEST_F(LinksTest, ASilentWorkerIsLost) {
  Stuck stuck;
  const auto options = [&](int rank) {
    LinkOptions options = OptionsOn(store_, rank, 3);
    options.heartbeat = absl::Milliseconds(20);
    options.patience = absl::Milliseconds(600);
    return options;
  };
  LinkMailbox mailboxes[2];
  absl::StatusOr<std::unique_ptr<Links>> links[3];
  RunRankThreads(3, [&](int rank) {
    links[rank] = Links::Start(
        options(rank),
        rank == 2 ? static_cast<Wire::Handler*>(&stuck) : &mailboxes[rank]);
  });
  ASSERT_THAT(links[0], IsOk());
  ASSERT_THAT(links[1], IsOk());
  ASSERT_THAT(links[2], IsOk());
  ASSERT_THAT((*links[0])->Send(2, {.control = "stop"}), IsOk());
  stuck.is_stuck_.WaitForNotification();
  EXPECT_THAT(mailboxes[0].WaitForLoss(2),
              StatusIs(absl::StatusCode::kUnavailable,
                       "worker2 (rank 2) is lost: it sent nothing for 600ms"));
  EXPECT_THAT(mailboxes[1].WaitForLoss(2),
              StatusIs(absl::StatusCode::kUnavailable,
                       "worker2 (rank 2) is lost: it sent nothing for 600ms"));
  stuck.go_on_.Notify();
}

TEST_F(LinksTest, AWorkerThatDoesNotAnswerIsLost) {
  Stuck stuck;
  std::vector<TestWorker> workers(3);
  RunRankThreads(3, [&](int rank) {
    LinkOptions options = OptionsOn(store_, rank, 3);
    // Only worker 1 has little patience.
    if (rank == 1) options.patience = options.heartbeat = absl::Seconds(1);
    workers[rank].links =
        Links::Start(options, rank == 2 ? static_cast<Wire::Handler*>(&stuck)
                                        : workers[rank].mailbox.get());
  });
  ASSERT_THAT(workers[0]->Send(2, {.control = "stop"}), IsOk());
  stuck.is_stuck_.WaitForNotification();
  absl::Status sent;
  absl::Notification done;
  ASSERT_THAT(workers[1]->Send(2, {.control = "hello",
                                   .on_sent =
                                       [&](const absl::Status& status) {
                                         sent = status;
                                         done.Notify();
                                       }}),
              IsOk());
  EXPECT_THAT(workers[1].mailbox->WaitForLoss(2),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(StartsWith("worker2 (rank 2) is lost: "),
                             HasSubstr("does not answer"))));
  done.WaitForNotification();
  EXPECT_EQ(FailedRank(sent), 2);
  stuck.go_on_.Notify();
}

// A stranger's end of a connection.
class Stranger {
 public:
  Stranger(Links& links, const std::string& secret) {
    const std::string address = links.Addresses().front();
    const absl::StatusOr<HostPort> tcp = ParseHostPort(address);
    socket_ = Dial({.host = tcp.ok() ? tcp->host : address,
                    .port = tcp.ok() ? tcp->port : 0,
                    .protocol = kLinkProtocol,
                    .secret = secret,
                    .deadline = Deadline::After(absl::Seconds(60))});
  }

  const absl::Status& status() const { return socket_.status(); }

  void Send(absl::string_view bytes) {
    (void)SendFully(socket_->get(), bytes, Deadline::After(absl::Seconds(60)));
  }
  void SendFrame(const std::string& head, uint64_t tail_bytes = 0) {
    Send(absl::StrCat(TailFrameHeader(head.size(), tail_bytes), head));
  }

  // The answer to a hello, or the error.
  absl::StatusOr<rpc::LinkMessage> Receive() {
    const Deadline deadline = Deadline::After(absl::Seconds(60));
    char header[kTailFrameHeaderBytes];
    absl::Status status =
        ReceiveFully(socket_->get(), header, sizeof(header), deadline);
    if (!status.ok()) return status;
    uint32_t size;
    std::memcpy(&size, header, sizeof(size));
    std::string head(size, '\0');
    status = ReceiveFully(socket_->get(), head.data(), size, deadline);
    if (!status.ok()) return status;
    return ParseLinkHead(head, 0);
  }

 private:
  absl::StatusOr<UniqueFd> socket_ = absl::UnknownError("");
};

class StrangerTest : public LinksOverTest {
 protected:
  void SetUp() override {
    workers_ = Start(3, [](LinkOptions& o) {
      o.transports = GetParam();
      o.secret = "of the test";
    });
  }

  // All workers still reach one another, and none is lost.
  void TearDown() override {
    ASSERT_THAT(workers_[2]->Send(1, {.control = "still open"}), IsOk());
    EXPECT_THAT(workers_[1].mailbox->WaitForMail(1), SizeIs(1));
    EXPECT_THAT(GoodbyeToAll(workers_, absl::Seconds(60)), Each(IsOk()));
    for (TestWorker& worker : workers_) {
      EXPECT_THAT(worker.mailbox->losses(), IsEmpty());
    }
  }

  // The hello that worker 2 would send to worker 1.
  rpc::LinkMessage Hello() {
    const Directory& directory = workers_[2]->directory();
    rpc::LinkMessage message;
    message.mutable_hello()->set_rank(2);
    message.mutable_hello()->set_name(directory.self().name);
    message.mutable_hello()->set_nonce(directory.self().nonce);
    message.mutable_hello()->set_to_rank(1);
    message.mutable_hello()->set_to_nonce(directory.worker(1).nonce);
    return message;
  }

  std::vector<TestWorker> workers_;
};

TEST_P(StrangerTest, AWrongSecretIsRefused) {
  EXPECT_THAT(Stranger(**workers_[1].links, "of another").status(),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Stranger(**workers_[1].links, "").status(),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_P(StrangerTest, AHelloThatDoesNotFitTheDirectoryIsRefused) {
  using Edit = std::function<void(rpc::LinkMessage::Hello&)>;
  const std::vector<Edit> edits = {
      [](auto& hello) { hello.set_rank(1); },
      [](auto& hello) { hello.set_rank(0); },
      [](auto& hello) { hello.set_rank(3); },
      [](auto& hello) { hello.set_rank(-1); },
      [](auto& hello) { hello.set_name("worker0"); },
      [](auto& hello) { hello.clear_name(); },
      [](auto& hello) { hello.mutable_nonce()->back() ^= 1; },
      [](auto& hello) { hello.clear_nonce(); },
      [](auto& hello) { hello.set_to_rank(0); },
      [](auto& hello) { hello.mutable_to_nonce()->back() ^= 1; },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    SCOPED_TRACE(i);
    rpc::LinkMessage hello = Hello();
    edits[i](*hello.mutable_hello());
    Stranger stranger(**workers_[1].links, "of the test");
    ASSERT_THAT(stranger.status(), IsOk());
    stranger.SendFrame(LinkHead(hello));
    const absl::StatusOr<rpc::LinkMessage> reply = stranger.Receive();
    ASSERT_THAT(reply, IsOk());
    EXPECT_EQ(reply->hello_reply().outcome(),
              rpc::LinkMessage::HelloReply::REFUSED);
    EXPECT_THAT(reply->hello_reply().why(), HasSubstr("worker1 (rank 1)"));
    EXPECT_THAT(reply->hello_reply().nonce(), IsEmpty());
    EXPECT_THAT(stranger.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  }
}

TEST_P(StrangerTest, NonsenseInPlaceOfAHelloClosesThatConnection) {
  rpc::LinkMessage heartbeat;
  heartbeat.mutable_heartbeat();
  const std::vector<std::pair<std::string, uint64_t>> heads = {
      {"", 0},
      {"H hello", 0},
      {"L\xff\xff\xff", 0},
      {LinkHead(heartbeat), 0},
      {LinkHead(Hello()), 7},
      {LinkHead(Hello()), uint64_t{1} << 60},
      {std::string(5 << 20, 'L'), 0}};
  for (size_t i = 0; i < heads.size(); ++i) {
    SCOPED_TRACE(i);
    Stranger stranger(**workers_[1].links, "of the test");
    ASSERT_THAT(stranger.status(), IsOk());
    stranger.SendFrame(heads[i].first, heads[i].second);
    EXPECT_THAT(stranger.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  }
}

TEST_P(StrangerTest, SilenceAndRandomBytesHarmNoWorker) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string address = workers_[1]->Addresses().front();
  const absl::StatusOr<HostPort> tcp = ParseHostPort(address);
  absl::StatusOr<std::vector<SocketAddress>> where = SocketAddress::Resolve(
      tcp.ok() ? tcp->host : address, tcp.ok() ? tcp->port : 0);
  ASSERT_THAT(where, IsOk());
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) {
    absl::StatusOr<UniqueFd> socket =
        ConnectSocket(where->front(), Deadline::After(absl::Seconds(60)));
    ASSERT_THAT(socket, IsOk());
    std::string noise(random() % 600, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2 == 0) (void)SendFully(socket->get(), noise, Deadline::Infinite());
    if (i % 4 < 2) silent.push_back(*std::move(socket));
    if (i % 4 == 3) {
      Stranger stranger(**workers_[1].links, "of the test");
      ASSERT_THAT(stranger.status(), IsOk());
      stranger.Send(noise);
    }
  }
  // Silent strangers stay connected while the workers continue.
  ASSERT_THAT(workers_[0]->Send(2, {.control = "meanwhile"}), IsOk());
  EXPECT_THAT(workers_[2].mailbox->WaitForMail(1), SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(Transports, StrangerTest,
                         ::testing::Values(std::vector<std::string>{"unix"},
                                           std::vector<std::string>{"tcp"}),
                         [](const auto& info) { return info.param.front(); });

TEST_F(LinksTest, AWorkerWithAnotherSecretIsRefused) {
  std::vector<TestWorker> workers =
      StartWorkers(store_, 2, [](LinkOptions& options) {
        options.secret = options.rank == 0 ? "one" : "another";
        options.deadline = Deadline::After(absl::Seconds(3));
      });
  EXPECT_THAT(workers[1].links,
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("worker0 (rank 0) is lost: ")));
  EXPECT_THAT(workers[0].links,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("worker1 (rank 1) did not connect")));
}

TEST_F(LinksTest, AnErrorOfTheHandlerEndsTheConnection) {
  class Picky final : public LinkMailbox {
    absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
        int, absl::string_view, uint64_t, uint64_t*) override {
      return absl::InvalidArgumentError("not like this");
    }
  };
  Picky picky;
  TestWorker other;
  std::thread thread([&] {
    other.links = Links::Start(OptionsOn(store_, 1, 2), other.mailbox.get());
  });
  absl::StatusOr<std::unique_ptr<Links>> links =
      Links::Start(OptionsOn(store_, 0, 2), &picky);
  thread.join();
  ASSERT_THAT(links, IsOk());
  ASSERT_THAT(other->Send(0, {.control = "like this"}), IsOk());
  EXPECT_THAT(picky.WaitForLoss(1),
              StatusIs(absl::StatusCode::kUnavailable,
                       "worker1 (rank 1) is lost: not like this"));
  EXPECT_THAT(other.mailbox->WaitForLoss(0),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(LinksTest, AMalformedMessageIsRefused) {
  std::vector<TestWorker> workers = Start(2);
  for (const int to : {-1, 0, 2}) {
    EXPECT_THAT(workers[0]->Send(to, {.control = "x"}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(
      workers[0]->Send(
          1, {.control = std::string(Wire::kMaxControlBytes + 1, 'x')}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("worker1")));
  EXPECT_THAT(workers[0]->Send(
                  1, {.control = std::string(Wire::kMaxControlBytes, 'x')}),
              IsOk());
  EXPECT_THAT(workers[1].mailbox->WaitForMail(1), SizeIs(1));
}

TEST_F(LinksTest, AStoreServesSeveralGenerations) {
  for (int life = 0; life < 12; ++life) {
    SCOPED_TRACE(life);
    std::vector<TestWorker> workers = Start(3);
    ASSERT_THAT(workers[1]->Send(2, {.control = absl::StrCat(life)}), IsOk());
    EXPECT_EQ(workers[2].mailbox->WaitForMail(1).front().control,
              absl::StrCat(life));
    // Some end with a goodbye, and some without.
    if (life % 3 != 2) GoodbyeToAll(workers, absl::Seconds(60));
  }
}

TEST_F(LinksTest, WithoutDescriptorsTheOthersContinueAndItRecovers) {
  std::vector<TestWorker> workers = Start(3, [](LinkOptions& o) {
    o.transports = {"unix"};
    o.heartbeat = absl::Milliseconds(100);
    o.patience = absl::Seconds(2);
  });
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  absl::Notification failed;
  absl::Status why;
  EXPECT_THAT(workers[1]->Send(2, {.control = "now",
                                   .on_sent =
                                       [&](const absl::Status& status) {
                                         why = status;
                                         failed.Notify();
                                       }}),
              IsOk());
  EXPECT_THAT(workers[0]->Send(2, {.control = "over a connection"}), IsOk());
  EXPECT_THAT(workers[2].mailbox->WaitForMail(1), SizeIs(1));
  failed.WaitForNotification();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kResourceExhausted,
                            HasSubstr("worker2 (rank 2)")));
  EXPECT_EQ(ErrorRank(why), 2);
  EXPECT_THAT(workers[1]->Send(2, {.control = "later"}), IsOk());
  EXPECT_EQ(workers[2].mailbox->WaitForMail(2).back().control, "later");
  for (TestWorker& worker : workers) {
    EXPECT_THAT(worker.mailbox->losses(), IsEmpty());
  }
}

}  // namespace
}  // namespace sherd::internal
