// Ten thousand ranks on one server: each sets its address, waits for that of
// its neighbour and for a key that is set last, and is counted. The clients are
// plain sockets in a second process, so that neither needs more than one
// descriptor per connection.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/store_protocol.h"
#include "sherd/core/comm/store/tcp_store.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/socket.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using internal::StoreOperation;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;

constexpr int kClients = 10000;
constexpr rlim_t kDescriptors = kClients + 200;
constexpr char kSecret[] = "of ten thousand";

Deadline Late() { return Deadline::After(absl::Seconds(100)); }

bool RaiseDescriptorLimit() {
  rlimit limit;
  SHERD_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kDescriptors) {
    return false;
  }
  limit.rlim_cur = std::max(limit.rlim_cur, kDescriptors);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

std::string Framed(uint64_t id, StoreOperation operation,
                   std::vector<std::string> strings, int64_t number) {
  internal::StoreRequest request;
  request.id = id;
  request.operation = operation;
  request.number = number;
  request.strings = std::move(strings);
  return EncodeFrame(internal::EncodeStoreRequest(request));
}

std::string AddressKey(int rank) { return absl::StrCat("address/", rank); }

internal::StoreResponse Receive(int fd) {
  char header[kFrameHeaderBytes];
  SHERD_CHECK(ReceiveFully(fd, header, sizeof(header), Late()).ok());
  uint32_t length;
  std::memcpy(&length, header, sizeof(length));
  std::string payload(length, '\0');
  SHERD_CHECK(ReceiveFully(fd, payload.data(), length, Late()).ok());
  absl::StatusOr<internal::StoreResponse> response =
      internal::ParseStoreResponse(payload);
  SHERD_CHECK(response.ok()) << response.status().ToString();
  SHERD_CHECK(response->code == absl::StatusCode::kOk);
  return *std::move(response);
}

// The clients, all of them; returns once each has all its answers.
void RunClients(int port) {
  std::vector<UniqueFd> sockets;
  for (int rank = 0; rank < kClients; ++rank) {
    absl::StatusOr<UniqueFd> socket =
        Dial({.host = "127.0.0.1",
              .port = port,
              .protocol = std::string(internal::kStoreProtocol),
              .secret = kSecret,
              .deadline = Late()});
    SHERD_CHECK(socket.ok()) << socket.status().ToString();
    sockets.push_back(*std::move(socket));
  }
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(absl::Seconds(100));
  for (int rank = 0; rank < kClients; ++rank) {
    const std::string requests = absl::StrCat(
        Framed(1, StoreOperation::kGet,
               {AddressKey((rank + 1) % kClients), "go"}, nanoseconds),
        Framed(2, StoreOperation::kSet,
               {AddressKey(rank), absl::StrCat(rank * 7)}, 0),
        Framed(3, StoreOperation::kAdd, {"arrived"}, 1));
    SHERD_CHECK(SendFully(sockets[rank].get(), requests, Late()).ok());
  }
  for (int rank = 0; rank < kClients; ++rank) {
    // In this order, since "go" is set when all have been counted.
    SHERD_CHECK(Receive(sockets[rank].get()).id == 2);
    SHERD_CHECK(Receive(sockets[rank].get()).id == 3);
  }
  absl::StatusOr<std::shared_ptr<TcpStore>> store =
      TcpStore::Connect({.host = "127.0.0.1",
                         .port = port,
                         .secret = kSecret,
                         .deadline = Late()});
  SHERD_CHECK(store.ok());
  SHERD_CHECK((*store)->Set("go", "!").ok());
  for (int rank = 0; rank < kClients; ++rank) {
    const internal::StoreResponse response = Receive(sockets[rank].get());
    SHERD_CHECK(response.id == 1 && response.strings.size() == 2);
    SHERD_CHECK(response.strings[0] == absl::StrCat((rank + 1) % kClients * 7));
    SHERD_CHECK(response.strings[1] == "!");
  }
}

TEST(TcpStoreScaleTest, ServesTenThousandClients) {
  if (!RaiseDescriptorLimit()) {
    GTEST_SKIP() << "the hard limit of descriptors is below " << kDescriptors;
  }
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  // Before this process has other threads.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int port;
    SHERD_CHECK(read(port_pipe[0], &port, sizeof(port)) == sizeof(port));
    RunClients(port);
    _exit(0);
  }
  const auto started = Deadline::Clock::now();
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TcpStoreServer> server,
                             TcpStoreServer::Start({.secret = kSecret}));
  const int port = server->port();
  ASSERT_EQ(write(port_pipe[1], &port, sizeof(port)),
            static_cast<ssize_t>(sizeof(port)));
  SHERD_ASSERT_OK_AND_ASSIGN(std::shared_ptr<TcpStore> store,
                             TcpStore::Connect({.host = "127.0.0.1",
                                                .port = port,
                                                .secret = kSecret,
                                                .deadline = Late()}));
  EXPECT_THAT(store->Get("go", Late()), IsOkAndHolds("!"));
  EXPECT_THAT(store->Add("arrived", 0), IsOkAndHolds(kClients));
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "a client failed, see above";
  store.reset();
  EXPECT_THAT(server->Shutdown(Late()), IsOk());
  RecordProperty("milliseconds",
                 static_cast<int>(absl::ToInt64Milliseconds(
                     absl::FromChrono(Deadline::Clock::now() - started))));
  close(port_pipe[0]);
  close(port_pipe[1]);
}

}  // namespace
}  // namespace sherd
