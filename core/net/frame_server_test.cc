#include "sherd/core/net/frame_server.h"

#include <sys/socket.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
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
using ::testing::ElementsAre;

Deadline Late() { return Deadline::After(absl::Seconds(60)); }

// A server that sends back what it gets, and remembers who left and why.
class EchoServer final : private FrameServer::Handler {
 public:
  explicit EchoServer(FrameServer::Options options) {
    options.address = "127.0.0.1";
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
    absl::StatusOr<UniqueFd> fd = Dial({.host = "127.0.0.1",
                                        .port = server_->address().port(),
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
  void OnOpened(FrameServer::ConnectionId) override {}
  void OnFrame(FrameServer::ConnectionId id,
               absl::string_view payload) override {
    if (payload == "close me") {
      return server_->Close(id, absl::AbortedError("as you wish"));
    }
    server_->Send(id, payload);
  }
  void OnClosed(FrameServer::ConnectionId, const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    closed_.push_back(why);
    changed_.SignalAll();
  }

  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<FrameServer> server_;
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

TEST(FrameServerTest, StrangersDoNotKeepOutThoseWhoBelongHere) {
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
