#include "sherd/core/comm/store/tcp_store.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/store_protocol.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/socket.h"
#include "sherd/testing/kits/sanitized.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }
Deadline Soon() { return Deadline::After(absl::Milliseconds(50)); }
Deadline Late() { return Deadline::After(absl::Seconds(60)); }

std::unique_ptr<TcpStoreServer> StartServer(
    const TcpStoreServer::Options& options = {}) {
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Start(options);
  EXPECT_THAT(server, IsOk());
  return *std::move(server);
}

TcpStore::Options To(const TcpStoreServer& server,
                     const std::string& secret = "") {
  return {.host = "127.0.0.1",
          .port = server.port(),
          .secret = secret,
          .deadline = Late(),
          .call_timeout = absl::Seconds(60)};
}

std::shared_ptr<TcpStore> ConnectTo(const TcpStoreServer& server) {
  absl::StatusOr<std::shared_ptr<TcpStore>> store =
      TcpStore::Connect(To(server));
  EXPECT_THAT(store, IsOk());
  return *std::move(store);
}

// A connection past the handshake on which a test can send any bytes.
class RawClient {
 public:
  explicit RawClient(const TcpStoreServer& server) {
    absl::StatusOr<UniqueFd> fd =
        Dial({.host = "127.0.0.1",
              .port = server.port(),
              .protocol = std::string(internal::kStoreProtocol),
              .deadline = Late()});
    EXPECT_THAT(fd, IsOk());
    fd_ = *std::move(fd);
  }

  int fd() const { return fd_.get(); }
  void Send(absl::string_view bytes) {
    EXPECT_THAT(SendFully(fd_.get(), bytes, Late()), IsOk());
  }
  absl::StatusOr<internal::StoreResponse> Receive() {
    char header[kFrameHeaderBytes];
    SHERD_RETURN_IF_ERROR(
        ReceiveFully(fd_.get(), header, sizeof(header), Late()));
    uint32_t length;
    std::memcpy(&length, header, sizeof(length));
    std::string payload(length, '\0');
    SHERD_RETURN_IF_ERROR(
        ReceiveFully(fd_.get(), payload.data(), length, Late()));
    return internal::ParseStoreResponse(payload);
  }

 private:
  UniqueFd fd_;
};

std::string Framed(uint64_t id, internal::StoreOperation operation,
                   std::vector<std::string> strings, int64_t number = 0) {
  internal::StoreRequest request;
  request.id = id;
  request.operation = operation;
  request.number = number;
  request.strings = std::move(strings);
  return EncodeFrame(internal::EncodeStoreRequest(request));
}

// A connection on which nothing has been sent yet.
UniqueFd ConnectRaw(const TcpStoreServer& server) {
  absl::StatusOr<SocketAddress> address =
      SocketAddress::FromNumeric("127.0.0.1", server.port());
  EXPECT_THAT(address, IsOk());
  absl::StatusOr<UniqueFd> fd = ConnectSocket(*address, Late());
  EXPECT_THAT(fd, IsOk());
  return *std::move(fd);
}

// All bytes until the other end closes.
std::string ReadToEnd(int fd) {
  std::string all;
  char byte;
  while (ReceiveFully(fd, &byte, 1, Late()).ok()) all.push_back(byte);
  return all;
}

int CountEntries(const char* directory) {
  DIR* dir = opendir(directory);
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

int64_t ResidentPages() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident;
}

TEST(TcpStoreTest, WorksOverBothAddressFamilies) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    SCOPED_TRACE(address);
    const auto server = StartServer({.address = address});
    EXPECT_GT(server->port(), 0);
    EXPECT_EQ(server->address(), FormatHostPort(address, server->port()));
    TcpStore::Options options = To(*server);
    options.host = address;
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<TcpStore> store,
                               TcpStore::Connect(options));
    ASSERT_THAT(store->Set("k", "v"), IsOk());
    EXPECT_THAT(store->Get("k", Now()), IsOkAndHolds("v"));
    EXPECT_THAT(store->Get("absent", Now()),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr(server->address()),
                               HasSubstr("absent"), HasSubstr("Get"))));
  }
}

TEST(TcpStoreTest, ResolvesANameAndTriesAllItsAddresses) {
  const auto server = StartServer();
  TcpStore::Options options = To(*server);
  options.host = "localhost";
  EXPECT_THAT(TcpStore::Connect(options), IsOk());
}

TEST(TcpStoreTest, APortInUseIsAnErrorThatNamesIt) {
  const auto server = StartServer();
  EXPECT_THAT(
      TcpStoreServer::Start({.port = server->port()}),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr(server->address()), HasSubstr("in use"))));
}

TEST(TcpStoreTest, RefusesAddressesAndPortsThatAreNone) {
  for (const char* address : {"", "localhost", "1.2.3", "[::1]", "@name"}) {
    EXPECT_THAT(TcpStoreServer::Start({.address = address}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(TcpStoreServer::Start({.port = 65536}),
              StatusIs(absl::StatusCode::kInvalidArgument, "65536"));
  EXPECT_THAT(TcpStoreServer::Start({.address = "192.0.2.1"}),
              StatusIs(absl::StatusCode::kUnavailable, "192.0.2.1"));
  for (const int port : {-1, 0, 65536}) {
    EXPECT_THAT(TcpStore::Connect({.host = "127.0.0.1", .port = port}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(TcpStore::Connect({.host = "@name", .port = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, "@name"));
}

TEST(TcpStoreTest, NoListenerIsUnavailableAtTheDeadline) {
  int port;
  {
    const auto server = StartServer();
    port = server->port();
  }
  const auto started = Deadline::Clock::now();
  EXPECT_THAT(
      TcpStore::Connect({.host = "127.0.0.1",
                         .port = port,
                         .deadline = Deadline::After(absl::Milliseconds(150))}),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr(absl::StrCat("127.0.0.1:", port))));
  EXPECT_GE(absl::FromChrono(Deadline::Clock::now() - started),
            absl::Milliseconds(150));
}

TEST(TcpStoreTest, AClientMayComeBeforeTheServer) {
  // Bound, so that no other program gets the port, but not listening yet.
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress any,
                             SocketAddress::FromNumeric("127.0.0.1", 0));
  UniqueFd bound(socket(AF_INET, SOCK_STREAM, 0));
  const int on = 1;
  ASSERT_EQ(setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)),
            0);
  ASSERT_EQ(bind(bound.get(), any.data(), any.size()), 0);
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                             SocketAddress::Local(bound.get()));
  absl::StatusOr<std::shared_ptr<TcpStore>> store;
  std::thread client([&] {
    store = TcpStore::Connect(
        {.host = "127.0.0.1", .port = address.port(), .deadline = Late()});
  });
  const auto server = StartServer({.port = address.port()});
  client.join();
  ASSERT_THAT(store, IsOk());
  EXPECT_THAT((*store)->Add("n", 1), IsOkAndHolds(1));
  store->reset();
}

TEST(TcpStoreTest, OnlyTheSameSecretIsAccepted) {
  const auto server = StartServer({.secret = "right"});
  for (const char* secret : {"wrong", "righ", "right "}) {
    EXPECT_THAT(TcpStore::Connect(To(*server, secret)),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr("is not the server's")));
  }
  EXPECT_THAT(TcpStore::Connect(To(*server, "")),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("the client has none")));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<TcpStore> store,
                             TcpStore::Connect(To(*server, "right")));
  EXPECT_THAT(store->Add("n", 1), IsOkAndHolds(1));
  const auto open = StartServer();
  EXPECT_THAT(TcpStore::Connect(To(*open, "right")),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("the server has none")));
}

TEST(TcpStoreTest, AServerThatIsNotAStoreIsRecognised) {
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress any,
                             SocketAddress::FromNumeric("127.0.0.1", 0));
  SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(any));
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                             SocketAddress::Local(listener.get()));
  // Connections wait in its queue: they can be answered before they ask.
  std::thread web([&] {
    int fd;
    while ((fd = accept(listener.get(), nullptr, nullptr)) < 0) {
    }
    const UniqueFd owned(fd);
    EXPECT_THAT(SendFully(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", Late()),
                IsOk());
    char byte;
    while (ReceiveFully(fd, &byte, 1, Late()).ok()) {
    }
  });
  EXPECT_THAT(
      TcpStore::Connect(
          {.host = "127.0.0.1", .port = address.port(), .deadline = Late()}),
      StatusIs(absl::StatusCode::kFailedPrecondition, "as a sherd server"));
  web.join();
}

TEST(TcpStoreTest, ASilentListenerIsADeadline) {
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress any,
                             SocketAddress::FromNumeric("127.0.0.1", 0));
  SHERD_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(any));
  SHERD_ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                             SocketAddress::Local(listener.get()));
  EXPECT_THAT(
      TcpStore::Connect(
          {.host = "127.0.0.1", .port = address.port(), .deadline = Soon()}),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "does not answer"));
}

TEST(TcpStoreTest, RandomBytesHarmNoOtherClient) {
  const auto server = StartServer();
  const auto store = ConnectTo(*server);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 50; ++i) {
    const UniqueFd stranger = ConnectRaw(*server);
    std::string bytes(random() % 2000 + 1, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // It may be cut off before it has sent everything.
    SendFully(stranger.get(), bytes, Late()).IgnoreError();
    shutdown(stranger.get(), SHUT_WR);
    ReadToEnd(stranger.get());
    ASSERT_THAT(store->Add("n", 1), IsOkAndHolds(i + 1));
  }
  EXPECT_EQ(server->num_clients(), 1);
}

TEST(TcpStoreTest, AnOversizedLengthEndsTheConnectionOnly) {
  const auto server = StartServer();
  const auto store = ConnectTo(*server);
  const UniqueFd stranger = ConnectRaw(*server);
  ASSERT_THAT(SendFully(stranger.get(), "\xff\xff\xff\x7f", Late()), IsOk());
  EXPECT_EQ(ReadToEnd(stranger.get()), "");
  // The same from a client that passed the handshake.
  RawClient member(*server);
  member.Send("\xff\xff\xff\x7f");
  EXPECT_THAT(member.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store->Add("n", 1), IsOkAndHolds(1));
}

TEST(TcpStoreTest, AFrameThatIsNoRequestEndsTheConnectionOnly) {
  const auto server = StartServer();
  const auto store = ConnectTo(*server);
  RawClient member(*server);
  member.Send(EncodeFrame("no request"));
  EXPECT_THAT(member.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store->Add("n", 1), IsOkAndHolds(1));
}

TEST(TcpStoreTest, HalfAHandshakeIsCutOffAfterItsTime) {
  const auto server =
      StartServer({.handshake_timeout = absl::Milliseconds(100)});
  const auto store = ConnectTo(*server);
  const UniqueFd silent = ConnectRaw(*server);
  const UniqueFd slow = ConnectRaw(*server);
  ASSERT_THAT(SendFully(slow.get(), "\x40\x00\x00\x00SHERDNET", Late()),
              IsOk());
  EXPECT_THAT(ReadToEnd(silent.get()), HasSubstr("no handshake within 100ms"));
  EXPECT_THAT(ReadToEnd(slow.get()), HasSubstr("no handshake within 100ms"));
  EXPECT_THAT(store->Add("n", 1), IsOkAndHolds(1));
}

TEST(TcpStoreTest, AFullServerReportsIt) {
  const auto server = StartServer({.max_clients = 2});
  const auto a = ConnectTo(*server);
  auto b = ConnectTo(*server);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(
        TcpStore::Connect(To(*server)),
        StatusIs(absl::StatusCode::kResourceExhausted, "it has 2 connections"));
  }
  EXPECT_THAT(b->Add("n", 1), IsOkAndHolds(1));
  b.reset();
  // The server sees the goodbye in its own time.
  while (server->num_clients() > 1) std::this_thread::yield();
  EXPECT_THAT(TcpStore::Connect(To(*server)), IsOk());
}

TEST(TcpStoreTest, AStoreThatIsFullRefusesAndServesOn) {
  const auto server = StartServer({.max_bytes = 1000});
  const auto store = ConnectTo(*server);
  ASSERT_THAT(store->Set("a", std::string(900, 'x')), IsOk());
  EXPECT_THAT(store->Set("b", std::string(200, 'y')),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("may hold 1000"), HasSubstr("Set of b"),
                             HasSubstr(server->address()))));
  EXPECT_THAT(store->Contains("b"), IsOkAndHolds(false));
  EXPECT_THAT(store->Wait({std::string(2000, 'k')}, Late()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(store->Delete("a"), IsOkAndHolds(true));
  EXPECT_THAT(store->Set("b", std::string(200, 'y')), IsOk());
}

TEST(TcpStoreTest, AnAddThatIsRefusedKeepsTheConnection) {
  const auto server = StartServer();
  const auto store = ConnectTo(*server);
  ASSERT_THAT(store->Set("t", "text"), IsOk());
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(
        store->Add("t", 1),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("Add of t"), HasSubstr(server->address()))));
  }
  EXPECT_THAT(store->Get("t", Now()), IsOkAndHolds("text"));
  EXPECT_EQ(server->num_clients(), 1);
}

TEST(TcpStoreTest, RequestsOfOneClientAreAnsweredInAnyOrder) {
  const auto server = StartServer();
  RawClient client(*server);
  using internal::StoreOperation;
  client.Send(Framed(1, StoreOperation::kGet, {"late"}, -1));
  client.Send(Framed(2, StoreOperation::kAdd, {"n"}, 4));
  SHERD_ASSERT_OK_AND_ASSIGN(const internal::StoreResponse second,
                             client.Receive());
  EXPECT_EQ(second.id, 2u);
  EXPECT_EQ(second.number, 4);
  // An id that is in use is refused, and the first request continues.
  client.Send(Framed(1, StoreOperation::kWait, {"other"}, -1));
  SHERD_ASSERT_OK_AND_ASSIGN(const internal::StoreResponse refused,
                             client.Receive());
  EXPECT_EQ(refused.code, absl::StatusCode::kInvalidArgument);
  client.Send(Framed(3, StoreOperation::kSet, {"late", "v"}));
  SHERD_ASSERT_OK_AND_ASSIGN(const internal::StoreResponse first,
                             client.Receive());
  EXPECT_EQ(first.id, 1u);
  EXPECT_THAT(first.strings, ::testing::ElementsAre("v"));
}

TEST(TcpStoreTest, ARequestMayArriveByteByByte) {
  const auto server = StartServer();
  RawClient client(*server);
  for (const char c :
       Framed(9, internal::StoreOperation::kSet, {"key", "value"})) {
    client.Send(absl::string_view(&c, 1));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const internal::StoreResponse response,
                             client.Receive());
  EXPECT_EQ(response.id, 9u);
  EXPECT_EQ(response.code, absl::StatusCode::kOk);
}

// It requests gigabytes and reads nothing; the server stops reading from it.
TEST(TcpStoreTest, AClientThatDoesNotReadHarmsNoOtherClient) {
  const auto server = StartServer();
  const auto store = ConnectTo(*server);
  ASSERT_THAT(store->Set("big", std::string(1 << 20, 'b')), IsOk());
  const int64_t pages = ResidentPages();
  RawClient greedy(*server);
  std::string requests;
  for (int i = 0; i < 2000; ++i) {
    requests += Framed(1, internal::StoreOperation::kGet, {"big"}, 0);
  }
  greedy.Send(requests);
  // When these are answered, its requests have been handled, too.
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(store->Add("n", 1), IsOkAndHolds(i + 1));
  }
  EXPECT_LT((ResidentPages() - pages) * sysconf(_SC_PAGESIZE), 64 << 20);
  // Once it reads, it gets the requested values.
  for (int i = 0; i < 100; ++i) {
    SHERD_ASSERT_OK_AND_ASSIGN(const internal::StoreResponse response,
                               greedy.Receive());
    EXPECT_EQ(response.strings[0].size(), size_t{1} << 20);
  }
}

TEST(TcpStoreTest, AFailedServerEndsAllCallsAtOnce) {
  auto server = StartServer();
  const auto store = ConnectTo(*server);
  constexpr int kWaiters = 4;
  std::vector<std::thread> waiters;
  std::vector<absl::Status> statuses(kWaiters);
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      statuses[i] =
          store->Wait({absl::StrCat("never", i)}, Deadline::Infinite());
    });
  }
  EXPECT_THAT(server->Shutdown(Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "1 clients"));
  for (std::thread& waiter : waiters) waiter.join();
  for (int i = 0; i < kWaiters; ++i) {
    EXPECT_THAT(
        statuses[i],
        StatusIs(absl::StatusCode::kUnavailable,
                 AllOf(HasSubstr("the server has ended or cannot be reached"),
                       HasSubstr(absl::StrCat("Wait of never", i)),
                       HasSubstr(server->address()))));
  }
  EXPECT_THAT(store->Set("k", "v"),
              StatusIs(absl::StatusCode::kUnavailable,
                       "the server has ended or cannot be reached"));
}

TEST(TcpStoreTest, AServerThatIsKilledEndsAllCallsAtOnce) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto server = StartServer();
    const int port = server->port();
    if (write(pipe_fds[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    for (;;) pause();
  }
  int port;
  ASSERT_EQ(read(pipe_fds[0], &port, sizeof(port)),
            static_cast<ssize_t>(sizeof(port)));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::shared_ptr<TcpStore> store,
      TcpStore::Connect({.host = "127.0.0.1",
                         .port = port,
                         .deadline = Late(),
                         .call_timeout = absl::Milliseconds(200)}));
  ASSERT_THAT(store->Set("k", "v"), IsOk());
  // Stopped, it is connected and silent.
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  const auto started = Deadline::Clock::now();
  EXPECT_THAT(store->Set("k", "w"),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("does not answer"),
                             HasSubstr(absl::StrCat(":", port)))));
  EXPECT_THAT(store->Get("k", Deadline::After(absl::Milliseconds(100))),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "Get of k"));
  EXPECT_LT(absl::FromChrono(Deadline::Clock::now() - started),
            absl::Seconds(10));
  ASSERT_EQ(kill(child, SIGCONT), 0);
  std::thread waiter([&] {
    EXPECT_THAT(store->Get("never", Deadline::Infinite()),
                StatusIs(absl::StatusCode::kUnavailable, "Get of never"));
  });
  ASSERT_EQ(kill(child, SIGKILL), 0);
  waiter.join();
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(TcpStoreTest, AServerStaysUntilItsClientsHaveLeft) {
  auto server = StartServer();
  auto a = ConnectTo(*server), b = ConnectTo(*server);
  absl::Notification ended;
  const TcpStore::Options late = [&] {
    TcpStore::Options options = To(*server);
    options.deadline = Soon();
    return options;
  }();
  std::thread shutdown([&] {
    EXPECT_THAT(server->Shutdown(Deadline::Infinite()), IsOk());
    ended.Notify();
  });
  EXPECT_THAT(a->Set("k", "v"), IsOk());
  a.reset();
  EXPECT_THAT(b->Get("k", Now()), IsOkAndHolds("v"));
  EXPECT_FALSE(ended.HasBeenNotified());
  b.reset();
  shutdown.join();
  EXPECT_THAT(TcpStore::Connect(late),
              StatusIs(absl::StatusCode::kUnavailable));
  // The port is free again.
  EXPECT_THAT(TcpStoreServer::Start({.port = late.port}), IsOk());
}

TEST(TcpStoreTest, AClientThatDisconnectsCountsAsHavingLeft) {
  auto server = StartServer();
  {
    RawClient client(*server);
    client.Send(Framed(1, internal::StoreOperation::kWait, {"never"}, -1));
    client.Send("\x10\x00");
  }
  EXPECT_THAT(server->Shutdown(Late()), IsOk());
}

// Requests that wait, and so have timers, are on their way while it ends.
TEST(TcpStoreTest, AServerMayEndWhileClientsCall) {
  for (int i = 0; i < 300; ++i) {
    const auto server = StartServer();
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<TcpStore> store,
                               TcpStore::Connect(To(*server)));
    absl::Notification calls;
    std::thread client([&] {
      absl::Status status = store->Set("k", "v");
      calls.Notify();
      while (!absl::IsUnavailable(status)) {
        status =
            store->Wait({"never"}, Deadline::After(absl::Microseconds(50)));
      }
    });
    calls.WaitForNotification();
    server->Shutdown(Now()).IgnoreError();
    client.join();
  }
}

TEST(TcpStoreTest, HundredsOfGenerationsLeakNoThreadDescriptorOrMemory) {
  const auto live = [](int i) {
    const auto server = StartServer({.secret = "s"});
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<TcpStore> a,
                               TcpStore::Connect(To(*server, "s")));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<TcpStore> b,
                               TcpStore::Connect(To(*server, "s")));
    ASSERT_THAT(a->Set("k", std::string(100000, 'x')), IsOk());
    ASSERT_THAT(b->Wait({"k"}, Late()), IsOk());
    ASSERT_THAT(b->Add("n", i), IsOkAndHolds(i));
  };
  for (int i = 0; i < 50; ++i) live(i);
  const int threads = CountEntries("/proc/self/task");
  const int fds = CountEntries("/proc/self/fd");
  const int64_t pages = ResidentPages();
  for (int i = 0; i < 300; ++i) live(i);
  EXPECT_EQ(CountEntries("/proc/self/task"), threads);
  EXPECT_EQ(CountEntries("/proc/self/fd"), fds);
  if (sherd::testing::kIsSanitized) return;
  // A leak of one value per session would be 30 MB.
  EXPECT_LT((ResidentPages() - pages) * sysconf(_SC_PAGESIZE), 10 << 20);
}

}  // namespace
}  // namespace sherd
