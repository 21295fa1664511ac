#include "sherd/core/net/socket.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

Deadline Late() { return Deadline::After(absl::Seconds(60)); }

// An abstract name that no other test has.
SocketAddress UnixAddress(absl::string_view name) {
  absl::StatusOr<SocketAddress> address = SocketAddress::FromUnixName(
      absl::StrCat("@sherd-socket-test-", getpid(), "-", name));
  EXPECT_THAT(address, IsOk());
  return *address;
}

// Runs `body` on a thread of the user "nobody", if this process may.
bool RunAsAnotherUser(const std::function<void()>& body) {
  bool may = false;
  std::thread([&] {
    // The system call changes this thread only, the library's function all.
    // Where root has no other users, as in most sandboxes, it fails.
    may = geteuid() == 0 && syscall(SYS_setresuid, -1, 65534, -1) == 0;
    if (may) body();
  }).join();
  return may;
}

TEST(ParseHostPortTest, ReadsNamesAndBothKindsOfAddress) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const Case& c :
       {Case{"node1:29500", "node1", 29500},
        Case{"127.0.0.1:0", "127.0.0.1", 0}, Case{"[::1]:65535", "::1", 65535},
        Case{"[fe80::1%eth0]:1", "fe80::1%eth0", 1}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const HostPort parsed, ParseHostPort(c.text));
    EXPECT_EQ(parsed.host, c.host);
    EXPECT_EQ(parsed.port, c.port);
    EXPECT_EQ(FormatHostPort(parsed.host, parsed.port), c.text);
  }
}

TEST(ParseHostPortTest, RefusesEverythingElse) {
  for (const char* text :
       {"",          ":",          "host",        "host:",
        ":80",       "host:x",     "host:-1",     "host:+1",
        "host: 1",   "host:65536", "host:999999", "::1:80",
        "[::1]",     "[]:80",      "[::1:80",     "::1]:80",
        "[host]:80", "@name:80",   "a b:80",      "[[::1]]:80"}) {
    EXPECT_THAT(ParseHostPort(text),
                StatusIs(absl::StatusCode::kInvalidArgument, text))
        << text;
  }
}

TEST(SocketAddressTest, KnowsNumericAddressesOnly) {
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress v4,
                             SocketAddress::FromNumeric("10.1.2.3", 80));
  EXPECT_EQ(v4.family(), AF_INET);
  EXPECT_EQ(v4.ToString(), "10.1.2.3:80");
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress v6,
                             SocketAddress::FromNumeric("::1", 29500));
  EXPECT_EQ(v6.family(), AF_INET6);
  EXPECT_EQ(v6.ToString(), "[::1]:29500");
  EXPECT_EQ(v6.port(), 29500);
  for (const char* host : {"", "localhost", "1.2.3.4.5", "[::1]", "g::1"}) {
    EXPECT_THAT(SocketAddress::FromNumeric(host, 80),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(SocketAddress::FromNumeric("::1", 65536),
              StatusIs(absl::StatusCode::kInvalidArgument, "65536"));
  EXPECT_THAT(SocketAddress::FromNumeric("::1", -1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SocketAddressTest, KnowsAbstractUnixNames) {
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                             SocketAddress::FromUnixName("@sherd-1"));
  EXPECT_TRUE(address.is_unix());
  EXPECT_EQ(address.ToString(), "@sherd-1");
  EXPECT_EQ(address.port(), 0);
  SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<SocketAddress> resolved,
                             SocketAddress::Resolve("@sherd-1", -1));
  ASSERT_EQ(resolved.size(), 1u);
  EXPECT_EQ(resolved[0], address);
  const std::string longest = absl::StrCat("@", std::string(107, 'n'));
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress long_address,
                             SocketAddress::FromUnixName(longest));
  SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(long_address));
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress bound,
                             SocketAddress::Local(listener.get()));
  EXPECT_EQ(bound.ToString(), longest);
  for (const std::string& name :
       {std::string(), std::string("@"), std::string("sherd"), longest + "n",
        std::string("@a b"), std::string("@a\0b", 4), std::string("@\n")}) {
    EXPECT_THAT(SocketAddress::FromUnixName(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "expected @ and 1 to 107 visible characters"))
        << name;
  }
}

TEST(SocketTest, AnAbstractNameHasOneListenerAndGoesWithIt) {
  const SocketAddress address = UnixAddress("one");
  EXPECT_THAT(ConnectSocket(address, Late()),
              StatusIs(absl::StatusCode::kUnavailable, address.ToString()));
  for (int life = 0; life < 2; ++life) {
    SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(address));
    EXPECT_THAT(Listen(address),
                StatusIs(absl::StatusCode::kUnavailable, address.ToString()));
    SHERD_ASSERT_OK_AND_ASSIGN(UniqueFd client, ConnectSocket(address, Late()));
    const UniqueFd server(accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(server.is_open());
    EXPECT_THAT(CheckSameUser(server.get()), IsOk());
    ASSERT_THAT(SendFully(client.get(), "ping", Late()), IsOk());
    char data[4];
    ASSERT_THAT(ReceiveFully(server.get(), data, 4, Late()), IsOk());
    EXPECT_EQ(std::string(data, 4), "ping");
    client.Reset();
    EXPECT_THAT(ReceiveFully(server.get(), data, 1, Late()),
                StatusIs(absl::StatusCode::kUnavailable, "closed"));
  }
}

int SendBufferOf(int fd) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
  return bytes;
}

TEST(SocketTest, BothEndsOfAUnixSocketHaveRoomForLargeMessages) {
  const SocketAddress address = UnixAddress("large");
  SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(address));
  SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd client,
                             ConnectSocket(address, Late()));
  const UniqueFd server(accept(listener.get(), nullptr, nullptr));
  ASSERT_TRUE(server.is_open());
  const int by_default = SendBufferOf(server.get());
  ConfigureConnection(server.get());
  EXPECT_GT(SendBufferOf(server.get()), by_default);
  EXPECT_EQ(SendBufferOf(client.get()), SendBufferOf(server.get()));
}

TEST(SocketTest, AFullQueueOfAUnixSocketIsUnavailable) {
  const SocketAddress address = UnixAddress("full");
  const UniqueFd listener(
      socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), address.data(), address.size()), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::vector<UniqueFd> waiting;
  absl::Status status;
  while (status.ok() && waiting.size() < 10) {
    absl::StatusOr<UniqueFd> client = ConnectSocket(address, Late());
    status = client.status();
    if (status.ok()) waiting.push_back(*std::move(client));
  }
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, address.ToString()));
}

TEST(SocketTest, AUnixSocketIsForOneUser) {
  const SocketAddress own = UnixAddress("own"),
                      foreign = UnixAddress("foreign");
  SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(own));
  UniqueFd client;
  absl::StatusOr<UniqueFd> other_listener, other_client;
  if (!RunAsAnotherUser([&] {
        other_client = ConnectSocket(own, Late());
        client.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(connect(client.get(), own.data(), own.size()), 0);
        other_listener = Listen(foreign);
      })) {
    GTEST_SKIP() << "only root of all users can act as another user";
  }
  EXPECT_THAT(other_client, StatusIs(absl::StatusCode::kPermissionDenied,
                                     "is of user 0, expected 65534"));
  for (int i = 0; i < 2; ++i) {
    const UniqueFd server(accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(server.is_open());
    EXPECT_THAT(CheckSameUser(server.get()),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         "is of user 65534, expected 0"));
  }
  ASSERT_THAT(other_listener, IsOk());
  EXPECT_THAT(
      ConnectSocket(foreign, Late()),
      StatusIs(absl::StatusCode::kPermissionDenied, foreign.ToString()));
}

// In a user namespace without a map, all users have one number.
TEST(SocketTest, AUserWithoutNumberIsNotTakenForAnother) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd own(fds[0]), other(fds[1]);
  EXPECT_THAT(CheckSameUser(own.get()), IsOk());
  constexpr int kRefused = 0, kTaken = 1, kNoNamespaces = 2;
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER) != 0 || geteuid() != 65534) {
      _exit(kNoNamespaces);
    }
    const absl::Status status = CheckSameUser(own.get());
    _exit(absl::IsPermissionDenied(status) ? kRefused : kTaken);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoNamespaces) {
    GTEST_SKIP() << "the system makes no user namespace";
  }
  EXPECT_EQ(WEXITSTATUS(status), kRefused);
}

TEST(SocketTest, BytesTravelBothWaysAndTheEndIsSeen) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    SCOPED_TRACE(host);
    SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress any,
                               SocketAddress::FromNumeric(host, 0));
    SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(any));
    SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                               SocketAddress::Local(listener.get()));
    EXPECT_THAT(Listen(address),
                StatusIs(absl::StatusCode::kUnavailable, address.ToString()));
    SHERD_ASSERT_OK_AND_ASSIGN(UniqueFd client, ConnectSocket(address, Late()));
    UniqueFd server(accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(server.is_open());
    ASSERT_THAT(SendFully(client.get(), "ping", Late()), IsOk());
    char data[4];
    ASSERT_THAT(ReceiveFully(server.get(), data, 4, Late()), IsOk());
    EXPECT_EQ(std::string(data, 4), "ping");
    EXPECT_THAT(ReceiveFully(client.get(), data, 1,
                             Deadline::After(absl::Milliseconds(10))),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    server.Reset();
    EXPECT_THAT(ReceiveFully(client.get(), data, 1, Late()),
                StatusIs(absl::StatusCode::kUnavailable, "closed"));
  }
}

TEST(SocketTest, WithoutAServerDialIsUnavailable) {
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress any,
                             SocketAddress::FromNumeric("127.0.0.1", 0));
  SHERD_ASSERT_OK_AND_ASSIGN(UniqueFd listener, Listen(any));
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                             SocketAddress::Local(listener.get()));
  listener.Reset();
  // Often enough to be given that very port, and connected with itself.
  for (int i = 0; i < 200; ++i) {
    ASSERT_THAT(ConnectSocket(address, Late()),
                StatusIs(absl::StatusCode::kUnavailable, address.ToString()));
  }
}

}  // namespace
}  // namespace sherd
