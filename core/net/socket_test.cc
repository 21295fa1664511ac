#include "sherd/core/net/socket.h"

#include <sys/socket.h>

#include <string>

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
       {"", ":", "host", "host:", ":80", "host:x", "host:-1", "host:+1",
        "host: 1", "host:65536", "host:999999", "::1:80", "[::1]", "[]:80",
        "[::1:80", "::1]:80", "[host]:80", "a b:80", "[[::1]]:80"}) {
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

TEST(SocketTest, NobodyListeningIsUnavailable) {
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
