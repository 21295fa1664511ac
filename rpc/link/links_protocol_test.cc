// A worker whose every step the test takes, and how real ones react to it.

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/bootstrap/host_address.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/handshake.h"
#include "sherd/core/net/socket.h"
#include "sherd/rpc/link/mailbox_fixture.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using rpc::LinkMessage;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(60);

// One connection of it.
class Line {
 public:
  Line() = default;
  explicit Line(UniqueFd socket) : socket_(std::move(socket)) {}

  void Send(const LinkMessage& message) {
    const std::string head = LinkHead(message);
    EXPECT_THAT(SendFully(socket_.get(),
                          absl::StrCat(TailFrameHeader(head.size(), 0), head),
                          Deadline::After(kLong)),
                IsOk());
  }
  // The head of the next frame, and the length of its tail; "" at the end.
  std::string ReceiveHead(uint64_t* tail_bytes = nullptr) {
    const std::string header = ReceiveBytes(kTailFrameHeaderBytes);
    if (header.empty()) return "";
    uint32_t head_bytes;
    std::memcpy(&head_bytes, header.data(), sizeof(head_bytes));
    if (tail_bytes != nullptr) {
      std::memcpy(tail_bytes, header.data() + sizeof(head_bytes),
                  sizeof(*tail_bytes));
    }
    return ReceiveBytes(head_bytes);
  }
  // The next message between links, but for heartbeats.
  LinkMessage Receive() {
    for (;;) {
      const std::string head = ReceiveHead();
      const absl::StatusOr<LinkMessage> message = ParseLinkHead(head, 0);
      EXPECT_THAT(message, IsOk()) << head;
      if (!message.ok()) return LinkMessage();
      if (!message->has_heartbeat()) return *message;
    }
  }
  std::string ReceiveBytes(size_t size) {
    std::string bytes(size, '\0');
    const bool is_whole =
        ReceiveFully(socket_.get(), bytes.data(), size, Deadline::After(kLong))
            .ok();
    return is_whole ? bytes : "";
  }
  void Close() { socket_.Reset(); }

 private:
  UniqueFd socket_;
};

// The identity of a worker that a test makes by hand.
class HandMadeWorker {
 public:
  // Meets the others.
  HandMadeWorker(const std::shared_ptr<Store>& store, int rank, int world_size,
                 bool uses_unix)
      : options_(OptionsOn(store, rank, world_size)) {
    const SocketAddress address =
        uses_unix ? *SocketAddress::FromUnixName(absl::StrCat(
                        "@sherd-test-", rank, "-", getpid(), "-", ++made_))
                  : *SocketAddress::FromNumeric("127.0.0.1", 0);
    listener_ = *Listen(address);
    HostPort where = {.host = address.ToString()};
    if (!uses_unix) {
      where = *ParseHostPort(SocketAddress::Local(listener_.get())->ToString());
    }
    directory_ = *Directory::Meet(
        options_.session->store(), rank, world_size,
        {.name = absl::StrCat("worker", rank),
         .nonce = NewNonce(),
         .network = OwnHostIdentity().network,
         .transports = {.unix_sockets = uses_unix, .tcp = !uses_unix}},
        options_.deadline);
    EXPECT_THAT(directory_->ExchangeAddresses(uses_unix ? where : HostPort(),
                                              uses_unix ? HostPort() : where,
                                              options_.deadline),
                IsOk());
  }

  // A connection to worker `to` that has shaken hands and not said hello.
  Line DialTo(int to) const {
    const Directory::Worker& worker = directory_->worker(to);
    const HostPort& where = worker.unix_address.host.empty()
                                ? worker.tcp_address
                                : worker.unix_address;
    absl::StatusOr<UniqueFd> socket = Dial({.host = where.host,
                                            .port = where.port,
                                            .protocol = kLinkProtocol,
                                            .deadline = options_.deadline});
    EXPECT_THAT(socket, IsOk());
    return socket.ok() ? Line(*std::move(socket)) : Line();
  }
  LinkMessage HelloTo(int to, bool bulk = false) const {
    LinkMessage message;
    LinkMessage::Hello& hello = *message.mutable_hello();
    hello.set_rank(directory_->rank());
    hello.set_name(directory_->self().name);
    hello.set_nonce(directory_->self().nonce);
    hello.set_to_rank(to);
    hello.set_to_nonce(directory_->worker(to).nonce);
    hello.set_bulk(bulk);
    return message;
  }
  Line LinkTo(int to, bool bulk = false) const {
    Line line = DialTo(to);
    line.Send(HelloTo(to, bulk));
    EXPECT_EQ(line.Receive().hello_reply().outcome(),
              LinkMessage::HelloReply::ACCEPTED);
    return line;
  }

  // A connection that another worker makes, after the handshake, and its hello.
  Line Accept(LinkMessage* hello) const {
    UniqueFd socket(accept(listener_.get(), nullptr, nullptr));
    while (!socket.is_open()) {
      absl::SleepFor(absl::Milliseconds(1));
      socket = UniqueFd(accept(listener_.get(), nullptr, nullptr));
    }
    Line line(UniqueFd(dup(socket.get())));
    ServerHandshake handshake(kLinkProtocol, "", NewNonce());
    for (const bool is_first : {true, false}) {
      const std::string header = line.ReceiveBytes(kFrameHeaderBytes);
      uint32_t size = 0;
      std::memcpy(&size, header.data(), header.size());
      const std::string frame = line.ReceiveBytes(size);
      const absl::StatusOr<std::string> answer =
          is_first ? handshake.AnswerHello(frame)
                   : handshake.AnswerProof(frame);
      EXPECT_THAT(answer, IsOk());
      EXPECT_THAT(
          SendFully(socket.get(), EncodeFrame(*answer), Deadline::After(kLong)),
          IsOk());
    }
    *hello = line.Receive();
    return line;
  }
  LinkMessage Accepted() const {
    LinkMessage message;
    message.mutable_hello_reply()->set_outcome(
        LinkMessage::HelloReply::ACCEPTED);
    message.mutable_hello_reply()->set_nonce(directory_->self().nonce);
    return message;
  }
  // Returns once worker `to` no longer listens.
  void WaitUntilItListensNoMore(int to) const {
    const SocketAddress address =
        *SocketAddress::FromUnixName(directory_->worker(to).unix_address.host);
    while (ConnectSocket(address, Deadline::After(kLong)).ok()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 private:
  static inline std::atomic<int> made_{0};

  const LinkOptions options_;
  UniqueFd listener_;
  std::unique_ptr<Directory> directory_;
};

LinkMessage AGoodbye() {
  LinkMessage message;
  message.mutable_goodbye();
  return message;
}

// Real workers of the lower ranks, and one made by hand.
class LinksProtocolTest : public ::testing::Test {
 protected:
  // The last rank is made by hand, and linked with rank 0.
  void Start(int world_size, bool uses_unix,
             const std::function<void(LinkOptions&)>& edit = nullptr) {
    real_.resize(world_size - 1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size - 1; ++rank) {
      threads.emplace_back([&, rank] {
        LinkOptions options = OptionsOn(store_, rank, world_size);
        options.transports = {uses_unix ? "unix" : "tcp"};
        if (edit) edit(options);
        real_[rank].links = Links::Start(options, real_[rank].mailbox.get());
      });
    }
    made_ = std::make_unique<HandMadeWorker>(store_, world_size - 1, world_size,
                                             uses_unix);
    to_zero_ = made_->LinkTo(0);
    for (std::thread& thread : threads) thread.join();
    for (TestWorker& worker : real_) ASSERT_THAT(worker.links, IsOk());
  }

  // Starts Goodbye of a worker, whose result can be read later.
  void SayGoodbye(int rank, absl::Duration timeout) {
    goodbye_ = std::thread([this, rank, timeout] {
      goodbye_status_ = real_[rank]->Goodbye(Deadline::After(timeout));
    });
  }
  absl::Status GoodbyeStatus() {
    goodbye_.join();
    return goodbye_status_;
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  std::vector<TestWorker> real_;
  std::unique_ptr<HandMadeWorker> made_;
  Line to_zero_;

 private:
  std::thread goodbye_;
  absl::Status goodbye_status_;
};

TEST_F(LinksProtocolTest, AGoodbyeGoesOnAConnectionThatIsBeingMadeToo) {
  Start(3, /*uses_unix=*/false);
  ASSERT_THAT(real_[1]->Send(2, {.control = "x", .bulk = true}), IsOk());
  LinkMessage hellos[2];
  Line lines[2] = {made_->Accept(&hellos[0]), made_->Accept(&hellos[1])};
  const int bulk = hellos[0].hello().bulk() ? 0 : 1;
  ASSERT_NE(hellos[0].hello().bulk(), hellos[1].hello().bulk());
  lines[bulk].Send(made_->Accepted());
  EXPECT_EQ(lines[bulk].ReceiveHead(), "Hx");
  SayGoodbye(1, kLong);
  EXPECT_TRUE(lines[bulk].Receive().has_goodbye());
  // A worker that accepts it takes an end without a goodbye for a loss.
  lines[1 - bulk].Send(made_->Accepted());
  EXPECT_TRUE(lines[1 - bulk].Receive().has_goodbye());
  for (Line& line : lines) line.Close();
  EXPECT_THAT(GoodbyeStatus(), IsOk());
  EXPECT_THAT(real_[1].mailbox->losses(), IsEmpty());
}

TEST_F(LinksProtocolTest, AMessageWithoutItsConnectionUsesTheBulkOne) {
  Start(3, /*uses_unix=*/false, [](LinkOptions& options) {
    if (options.rank == 0) return;
    options.heartbeat = absl::Milliseconds(100);
    options.patience = absl::Seconds(2);
  });
  Line bulk = made_->LinkTo(1, /*bulk=*/true);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::atomic<int> sent{0};
  for (const char* const text : {"an answer", "another"}) {
    EXPECT_THAT(real_[1]->Send(2, {.control = text,
                                   .on_sent =
                                       [&](const absl::Status& status) {
                                         EXPECT_THAT(status, IsOk());
                                         ++sent;
                                       }}),
                IsOk());
  }
  const Deadline deadline = Deadline::After(kLong);
  while (sent < 2 && !deadline.HasPassed()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(sent, 2);
  EXPECT_EQ(bulk.ReceiveHead(), "Han answer");
  EXPECT_EQ(bulk.ReceiveHead(), "Hanother");
  // Later ones have their own.
  EXPECT_THAT(real_[1]->Send(2, {.control = "later"}), IsOk());
  LinkMessage hello;
  Line own = made_->Accept(&hello);
  EXPECT_FALSE(hello.hello().bulk());
  own.Send(made_->Accepted());
  EXPECT_EQ(own.ReceiveHead(), "Hlater");
}

TEST_F(LinksProtocolTest, TheHelloOfAHigherRankIsRejected) {
  Start(3, /*uses_unix=*/true);
  ASSERT_THAT(real_[1]->Send(2, {.control = "x"}), IsOk());
  LinkMessage hello;
  Line line = made_->Accept(&hello);
  Line other = made_->DialTo(1);
  other.Send(made_->HelloTo(1));
  EXPECT_EQ(other.Receive().hello_reply().outcome(),
            LinkMessage::HelloReply::REDUNDANT);
  line.Send(made_->Accepted());
  EXPECT_EQ(line.ReceiveHead(), "Hx");
}

TEST_F(LinksProtocolTest, QueuedMessagesPrecedeTheGoodbyeWhicheverEndConnects) {
  Start(3, /*uses_unix=*/true);
  Line line = made_->DialTo(1);
  // It connects, and its handshake is not answered.
  ASSERT_THAT(real_[1]->Send(2, {.control = "waits"}), IsOk());
  SayGoodbye(1, kLong);
  made_->WaitUntilItListensNoMore(1);
  line.Send(made_->HelloTo(1));
  EXPECT_EQ(line.Receive().hello_reply().outcome(),
            LinkMessage::HelloReply::ACCEPTED);
  EXPECT_EQ(line.ReceiveHead(), "Hwaits");
  EXPECT_TRUE(line.Receive().has_goodbye());
  line.Close();
  EXPECT_THAT(GoodbyeStatus(), IsOk());
  EXPECT_THAT(real_[1].mailbox->losses(), IsEmpty());
}

TEST_F(LinksProtocolTest, AWorkerThatDoesNotReceiveTheGoodbyeIsNamed) {
  Start(2, /*uses_unix=*/true);
  EXPECT_THAT(real_[0]->Goodbye(Deadline::After(absl::Milliseconds(1500))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("worker1 (rank 1)")));
  EXPECT_TRUE(to_zero_.Receive().has_goodbye());
}

TEST_F(LinksProtocolTest, TwoGoodbyesEndByTheEarlierDeadline) {
  Start(2, /*uses_unix=*/true);
  SayGoodbye(0, absl::Hours(1));
  EXPECT_TRUE(to_zero_.Receive().has_goodbye());
  EXPECT_THAT(real_[0]->Goodbye(Deadline::After(absl::Milliseconds(20))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("worker1 (rank 1)")));
  const absl::Status other = GoodbyeStatus();
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              HasSubstr("worker1 (rank 1)")));
  // There is nothing left that a later one could change.
  EXPECT_EQ(real_[0]->Goodbye(Deadline::Infinite()), other);
}

TEST_F(LinksProtocolTest, AWorkerThatReadsALargeTailSlowlyIsAlive) {
  constexpr absl::Duration kPatience = absl::Milliseconds(1500);
  Start(2, /*uses_unix=*/true, [&](LinkOptions& options) {
    options.heartbeat = absl::Milliseconds(20);
    options.patience = kPatience;
  });
  const std::string tail(size_t{64} << 20, 'x');
  absl::Notification done;
  absl::Status sent;
  ASSERT_THAT(real_[0]->Send(
                  1, {.control = "large",
                      .tail = {{reinterpret_cast<const std::byte*>(tail.data()),
                                tail.size()}},
                      .on_sent =
                          [&](const absl::Status& status) {
                            sent = status;
                            done.Notify();
                          }}),
              IsOk());
  uint64_t left = 0;
  std::string head = to_zero_.ReceiveHead(&left);
  while (head[0] == 'L') head = to_zero_.ReceiveHead(&left);
  ASSERT_EQ(left, tail.size());
  const absl::Time end = absl::Now() + 2 * kPatience;
  while (left > 0) {
    const size_t size = std::min<size_t>(left, 256 << 10);
    ASSERT_THAT(to_zero_.ReceiveBytes(size), SizeIs(size));
    left -= size;
    if (absl::Now() < end) absl::SleepFor(absl::Milliseconds(20));
  }
  done.WaitForNotification();
  EXPECT_THAT(sent, IsOk());
  // Silent from here on.
  EXPECT_THAT(real_[0].mailbox->WaitForLoss(1),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it sent nothing for 1.5s")));
}

TEST_F(LinksProtocolTest, AWorkerThatDoesNotReadIsLostByName) {
  Start(2, /*uses_unix=*/true);
  std::atomic<int> waiting{0};
  const auto on_sent = [&](const absl::Status& end) {
    --waiting;
    EXPECT_FALSE(WireMessage::IsUnsent(end));
  };
  absl::Status refused;
  // All but what its socket holds stays here.
  while (refused.ok()) {
    ++waiting;
    refused = real_[0]->Send(
        1, {.control = std::string(size_t{4} << 20, 'x'), .on_sent = on_sent});
  }
  const auto is_named =
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("worker1 (rank 1) is lost: it does not read what is "
                         "sent to it"));
  EXPECT_THAT(real_[0].mailbox->WaitForLoss(1), is_named);
  EXPECT_THAT(refused, is_named);
  EXPECT_EQ(FailedRank(refused), 1);
  // Without the refused one, which is not reported.
  EXPECT_EQ(waiting, 1);
}

TEST_F(LinksProtocolTest, HalfAGoodbyeIsAwaitedNoLongerThanAHeartbeat) {
  Start(2, /*uses_unix=*/false, [](LinkOptions& options) {
    options.heartbeat = absl::Milliseconds(20);
    options.patience = absl::Milliseconds(200);
  });
  const Line bulk = made_->LinkTo(0, /*bulk=*/true);
  to_zero_.Send(AGoodbye());
  EXPECT_THAT(real_[0].mailbox->WaitForGoodbye(1),
              StatusIs(absl::StatusCode::kUnavailable,
                       "worker1 (rank 1) has said goodbye"));
  EXPECT_THAT(real_[0].mailbox->losses(), IsEmpty());
}

TEST_F(LinksProtocolTest, AWorkerThatConnectsLateLearnsOfEarlierLosses) {
  TestWorker zero;
  std::thread start([&] {
    zero.links = Links::Start(OptionsOn(store_, 0, 3), zero.mailbox.get());
  });
  std::unique_ptr<HandMadeWorker> made[2];
  std::thread other(
      [&] { made[0] = std::make_unique<HandMadeWorker>(store_, 1, 3, true); });
  made[1] = std::make_unique<HandMadeWorker>(store_, 2, 3, true);
  other.join();
  made[1]->LinkTo(0).Close();
  EXPECT_THAT(zero.mailbox->WaitForLoss(2),
              StatusIs(absl::StatusCode::kUnavailable));
  Line line = made[0]->LinkTo(0);
  start.join();
  ASSERT_THAT(zero.links, IsOk());
  // Something that follows, if there is no notice.
  std::thread goodbye(
      [&] { EXPECT_THAT(zero->Goodbye(Deadline::After(kLong)), IsOk()); });
  const LinkMessage notice = line.Receive();
  EXPECT_EQ(notice.lost_notice().rank(), 2);
  EXPECT_THAT(notice.lost_notice().why(), HasSubstr("without a goodbye"));
  EXPECT_TRUE(!notice.has_lost_notice() || line.Receive().has_goodbye());
  line.Close();
  goodbye.join();
}

TEST_F(LinksProtocolTest, AWorkerThatConnectsToALeavingOneIsNotified) {
  TestWorker real;
  std::thread start([&] {
    real.links = Links::Start(OptionsOn(store_, 1, 3), real.mailbox.get());
  });
  std::unique_ptr<HandMadeWorker> zero;
  std::thread other(
      [&] { zero = std::make_unique<HandMadeWorker>(store_, 0, 3, true); });
  const HandMadeWorker two(store_, 2, 3, true);
  other.join();
  LinkMessage hello;
  Line line = zero->Accept(&hello);
  line.Send(zero->Accepted());
  start.join();
  ASSERT_THAT(real.links, IsOk());
  Line late = two.DialTo(1);
  // Its goodbye is not taken yet, so that it is still there.
  std::thread goodbye(
      [&] { EXPECT_THAT(real->Goodbye(Deadline::After(kLong)), IsOk()); });
  EXPECT_TRUE(line.Receive().has_goodbye());
  late.Send(two.HelloTo(1));
  EXPECT_EQ(late.Receive().hello_reply().outcome(),
            LinkMessage::HelloReply::LEAVING);
  line.Close();
  goodbye.join();
}

// Worker 1 may know that rank 0 has ended before the receiver does.
TEST_F(LinksProtocolTest, ANoticeOfAnotherRankCountsOnceTheLowerOnesHaveEnded) {
  TestWorker real;
  std::thread start([&] {
    real.links = Links::Start(OptionsOn(store_, 2, 4), real.mailbox.get());
  });
  std::unique_ptr<HandMadeWorker> made[2];
  std::vector<std::thread> others;
  for (int rank = 0; rank < 2; ++rank) {
    others.emplace_back([&, rank] {
      made[rank] = std::make_unique<HandMadeWorker>(store_, rank, 4, true);
    });
  }
  const HandMadeWorker three(store_, 3, 4, true);
  for (std::thread& other : others) other.join();
  LinkMessage hello;
  Line zero = made[0]->Accept(&hello);
  zero.Send(made[0]->Accepted());
  start.join();
  ASSERT_THAT(real.links, IsOk());
  Line one = made[1]->LinkTo(2);
  LinkMessage notice;
  notice.mutable_lost_notice()->set_rank(3);
  notice.mutable_lost_notice()->set_why("it fell over");
  one.Send(notice);
  LinkMessage heartbeat;
  heartbeat.mutable_heartbeat();
  one.Send(heartbeat);
  // The answer shows that the notice was read.
  EXPECT_NE(one.ReceiveHead(), "");
  EXPECT_THAT(real.mailbox->losses(), IsEmpty());
  zero.Send(AGoodbye());
  EXPECT_THAT(real.mailbox->WaitForLoss(3),
              StatusIs(absl::StatusCode::kUnavailable, "it fell over"));
}

}  // namespace
}  // namespace sherd::internal
