#include "sherd/core/net/frame_server.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

Deadline Late() { return Deadline::After(absl::Seconds(60)); }

// A Unix socket's name that no other test uses.
std::string UnixName(absl::string_view name) {
  return absl::StrCat("@sherd-server-test-", getpid(), "-", name);
}

std::string EncodeTailFrame(absl::string_view head, absl::string_view tail) {
  return absl::StrCat(TailFrameHeader(head.size(), tail.size()), head, tail);
}

// A server that echoes its input, and records which connections ended and why.
class EchoServer final : private FrameServer::Handler {
 public:
  // Sends `greeting`, unless empty, twice to each accepted connection.
  explicit EchoServer(FrameServer::Options options, std::string greeting = "")
      : greeting_(std::move(greeting)) {
    if (options.address.empty()) options.address = "127.0.0.1";
    options.protocol = "echo 1";
    absl::StatusOr<std::unique_ptr<EventLoop>> loop = EventLoop::Start("echo");
    EXPECT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    absl::StatusOr<std::unique_ptr<FrameServer>> server =
        FrameServer::Create(loop_.get(), options, this);
    EXPECT_THAT(server, IsOk());
    server_ = *std::move(server);
    server_->Open();
  }

  ~EchoServer() override {
    loop_->Post([this] { server_->CloseAll(absl::CancelledError("end")); });
    loop_.reset();
  }

  UniqueFd Connect(const std::string& secret = "") {
    const SocketAddress& address = server_->address();
    absl::StatusOr<UniqueFd> fd =
        Dial({.host = address.is_unix() ? address.ToString() : "127.0.0.1",
              .port = address.port(),
              .protocol = "echo 1",
              .secret = secret,
              .deadline = Late()});
    EXPECT_THAT(fd, IsOk());
    return *std::move(fd);
  }

  int port() const { return server_->address().port(); }

  // The first `count` reasons why connections ended.
  std::vector<absl::Status> WaitForClosed(size_t count) {
    absl::MutexLock lock(&mutex_);
    while (closed_.size() < count) changed_.Wait(&mutex_);
    return closed_;
  }

 private:
  void OnOpened(FrameServer::ConnectionId id) override {
    if (greeting_.empty()) return;
    // From another thread, as soon as it can.
    std::thread([&, connection = server_->connection(id)] {
      ASSERT_NE(connection, nullptr);
      EXPECT_THAT(connection->Send(greeting_), IsOk());
    }).join();
    server_->Send(id, greeting_);
  }
  void OnFrame(FrameServer::ConnectionId id,
               absl::string_view payload) override {
    if (payload == "close me") {
      return server_->Close(id, absl::AbortedError("as you wish"));
    }
    server_->Send(id, payload);
  }
  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnHead(
      FrameServer::ConnectionId id, absl::string_view head,
      uint64_t tail_bytes) override {
    if (head == "refuse") return absl::AbortedError("as you wish");
    Echo& echo = echoes_[id];
    echo.head = std::string(head);
    echo.tail = std::make_shared<std::string>(tail_bytes, '\0');
    if (tail_bytes == 0) OnTail(id);
    return std::vector<absl::Span<std::byte>>{
        {reinterpret_cast<std::byte*>(echo.tail->data()), tail_bytes}};
  }
  void OnTail(FrameServer::ConnectionId id) override {
    const Echo& echo = echoes_[id];
    // From another thread, as handlers of requests do.
    std::thread([&, connection = server_->connection(id)] {
      ASSERT_NE(connection, nullptr);
      EXPECT_THAT(
          connection->Send(
              {.head = echo.head,
               .tail = {{reinterpret_cast<const std::byte*>(echo.tail->data()),
                         echo.tail->size()}},
               .on_sent = [keep = echo.tail](const absl::Status&) {}}),
          IsOk());
    }).join();
  }
  void OnClosed(FrameServer::ConnectionId id,
                const absl::Status& why) override {
    EXPECT_EQ(server_->connection(id), nullptr);
    absl::MutexLock lock(&mutex_);
    closed_.push_back(why);
    changed_.SignalAll();
  }

  struct Echo {
    std::string head;
    std::shared_ptr<std::string> tail;
  };

  const std::string greeting_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<FrameServer> server_;
  // Of the loop thread only: the last frame with a tail.
  std::map<FrameServer::ConnectionId, Echo> echoes_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

std::string Receive(const UniqueFd& fd, size_t size) {
  std::string data(size, '\0');
  EXPECT_THAT(ReceiveFully(fd.get(), data.data(), size, Late()), IsOk());
  return data;
}

TEST(FrameServerTest, FramesGoThereAndBack) {
  EchoServer server({.secret = "s"});
  const UniqueFd a = server.Connect("s"), b = server.Connect("s");
  const std::string small = EncodeFrame("small");
  const std::string large = EncodeFrame(std::string(300000, 'x'));
  ASSERT_THAT(SendFully(a.get(), small + large, Late()), IsOk());
  ASSERT_THAT(SendFully(b.get(), EncodeFrame(""), Late()), IsOk());
  EXPECT_EQ(Receive(a, small.size() + large.size()), small + large);
  EXPECT_EQ(Receive(b, 4), EncodeFrame(""));
}

TEST(FrameServerTest, TheReasonOfEachEndIsReported) {
  EchoServer server(
      {.max_frame_bytes = 100, .frame_timeout = absl::Milliseconds(50)});
  { const UniqueFd leaves = server.Connect(); }
  EXPECT_THAT(server.WaitForClosed(1)[0],
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
  const UniqueFd oversized = server.Connect();
  ASSERT_THAT(SendFully(oversized.get(), FrameHeader(101), Late()), IsOk());
  EXPECT_THAT(server.WaitForClosed(2)[1],
              StatusIs(absl::StatusCode::kInvalidArgument, "101"));
  const UniqueFd half = server.Connect();
  ASSERT_THAT(SendFully(half.get(), FrameHeader(10) + "half", Late()), IsOk());
  EXPECT_THAT(server.WaitForClosed(3)[2],
              StatusIs(absl::StatusCode::kDeadlineExceeded, "half a frame"));
  const UniqueFd asks = server.Connect();
  ASSERT_THAT(SendFully(asks.get(), EncodeFrame("close me"), Late()), IsOk());
  EXPECT_THAT(server.WaitForClosed(4)[3],
              StatusIs(absl::StatusCode::kAborted, "as you wish"));
}

TEST(FrameServerTest, AFrameMayComeSlowerThanTheTimeoutIfItIsNotHalf) {
  EchoServer server({.frame_timeout = absl::Milliseconds(30)});
  const UniqueFd quiet = server.Connect();
  const UniqueFd other = server.Connect();
  ASSERT_THAT(SendFully(other.get(), FrameHeader(10) + "half", Late()), IsOk());
  // By then the quiet one has been idle for as long.
  EXPECT_THAT(server.WaitForClosed(1)[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_THAT(SendFully(quiet.get(), EncodeFrame("here"), Late()), IsOk());
  EXPECT_EQ(Receive(quiet, 8), EncodeFrame("here"));
}

TEST(FrameServerTest, ConnectionsWithoutAProofDoNotKeepOutMembers) {
  EchoServer server({.max_connections = 2});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SocketAddress address,
      SocketAddress::FromNumeric("127.0.0.1", server.port()));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 400; ++i) {
    SHERD_ASSERT_OK_AND_ASSIGN(UniqueFd stranger,
                               ConnectSocket(address, Late()));
    strangers.push_back(std::move(stranger));
  }
  const UniqueFd a = server.Connect(), b = server.Connect();
  ASSERT_THAT(SendFully(b.get(), EncodeFrame("in"), Late()), IsOk());
  EXPECT_EQ(Receive(b, 6), EncodeFrame("in"));
}

TEST(FrameServerTest, FramesWithTailsGoThereAndBack) {
  for (const std::string& address : {std::string(), UnixName("tails")}) {
    SCOPED_TRACE(address);
    EchoServer server({.address = address,
                       .secret = "s",
                       .has_tails = true,
                       .max_tail_bytes = 1 << 20});
    const UniqueFd a = server.Connect("s"), b = server.Connect("s");
    const std::string large =
        EncodeTailFrame("large", std::string(1 << 20, 'x'));
    const std::string small = EncodeTailFrame("small", "tail");
    const std::string none = EncodeTailFrame("none", "");
    std::thread sender([&] {
      EXPECT_THAT(SendFully(a.get(), large + small + none, Late()), IsOk());
    });
    ASSERT_THAT(SendFully(b.get(), none + small, Late()), IsOk());
    // Not by a matcher, which would print it.
    EXPECT_TRUE(Receive(a, large.size()) == large);
    sender.join();
    EXPECT_EQ(Receive(a, small.size() + none.size()), small + none);
    EXPECT_EQ(Receive(b, none.size() + small.size()), none + small);
    ASSERT_THAT(SendFully(a.get(), TailFrameHeader(1, (1 << 20) + 1), Late()),
                IsOk());
    EXPECT_THAT(server.WaitForClosed(1)[0],
                StatusIs(absl::StatusCode::kInvalidArgument, "1048577"));
    ASSERT_THAT(SendFully(b.get(), EncodeTailFrame("refuse", "t"), Late()),
                IsOk());
    EXPECT_THAT(server.WaitForClosed(2)[1],
                StatusIs(absl::StatusCode::kAborted, "as you wish"));
  }
}

TEST(FrameServerTest, FramesSentOnceItIsOpenFollowTheWelcome) {
  for (const bool has_tails : {false, true}) {
    SCOPED_TRACE(has_tails);
    EchoServer server({.secret = "s", .has_tails = has_tails}, "hello");
    const UniqueFd fd = server.Connect("s");
    const std::string hello =
        has_tails ? EncodeTailFrame("hello", "") : EncodeFrame("hello");
    EXPECT_EQ(Receive(fd, 2 * hello.size()), hello + hello);
  }
}

TEST(FrameServerTest, OptionsOfConnectionsArePassedOn) {
  EchoServer server({.address = UnixName("options"),
                     .pauses_reading = false,
                     .max_queued_bytes = 2 << 20});
  const UniqueFd fd = server.Connect();
  // One that pauses would leave most of it unread, one with more room keep it.
  const std::string frame = EncodeFrame(std::string(100000, 'x'));
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = SendFully(fd.get(), frame, Late());
  }
  EXPECT_THAT(server.WaitForClosed(1)[0],
              StatusIs(absl::StatusCode::kResourceExhausted, "does not read"));
}

TEST(FrameServerTest, AUnixSocketsServerRefusesAnotherUser) {
  const std::string name = UnixName("users");
  EchoServer server({.address = name});
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                             SocketAddress::FromUnixName(name));
  absl::StatusOr<UniqueFd> dialled;
  std::string answer;
  bool may = false;
  std::thread([&] {
    // The system call changes this thread only, the library's function all.
    // Where root has no other users, as in most sandboxes, it fails.
    may = geteuid() == 0 && syscall(SYS_setresuid, -1, 65534, -1) == 0;
    if (!may) return;
    dialled = Dial({.host = name, .protocol = "echo 1", .deadline = Late()});
    // A client that does not check who listens.
    const UniqueFd raw(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(raw.get(), address.data(), address.size()), 0);
    char byte;
    while (recv(raw.get(), &byte, 1, 0) == 1) answer += byte;
  }).join();
  if (!may) GTEST_SKIP() << "only root of all users can act as another user";
  EXPECT_THAT(dialled, StatusIs(absl::StatusCode::kPermissionDenied, name));
  EXPECT_THAT(answer, HasSubstr("SHERDNO!"));
  EXPECT_THAT(answer, HasSubstr("of user 65534, expected 0"));
  // Members connect as before.
  const UniqueFd own = server.Connect();
  ASSERT_THAT(SendFully(own.get(), EncodeFrame("in"), Late()), IsOk());
  EXPECT_EQ(Receive(own, 6), EncodeFrame("in"));
}

TEST(FrameServerTest, AUnixSocketsNameIsTakenOnce) {
  const std::string name = UnixName("once");
  EXPECT_THAT(Dial({.host = name,
                    .protocol = "echo 1",
                    .deadline = Deadline::After(absl::Milliseconds(20))}),
              StatusIs(absl::StatusCode::kUnavailable, name));
  EchoServer server({.address = name});
  FrameServer::Handler* const none = nullptr;
  EXPECT_THAT(FrameServer::Create(nullptr, {.address = name}, none),
              StatusIs(absl::StatusCode::kUnavailable, name));
  EXPECT_THAT(FrameServer::Create(nullptr, {.address = "@"}, none),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FrameServerTest, AnotherProtocolIsRefusedByName) {
  EchoServer server({});
  EXPECT_THAT(Dial({.host = "127.0.0.1",
                    .port = server.port(),
                    .protocol = "store 1",
                    .deadline = Late()}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "echo 1"));
}

}  // namespace
}  // namespace sherd
