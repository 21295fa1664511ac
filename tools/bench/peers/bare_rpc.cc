// The limits of RPC: a socket and a memcpy.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/core/net/socket.h"
#include "sherd/tools/bench/peers/rpc_worker.h"

namespace sherd {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
// Bytes that a server reads at once.
constexpr size_t kServedBytes = size_t{64} << 10;

void LetItBlock(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

absl::Status SendAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return ErrnoStatus(errno, "sending to", "a bare socket");
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

// A connection that blocks: in recv, or in `epoll` if there is one.
struct Endpoint {
  UniqueFd socket;
  UniqueFd epoll;

  int fd() const { return socket.get(); }
};

absl::Status WaitByEpoll(Endpoint& endpoint) {
  endpoint.epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  if (!endpoint.epoll.is_open() ||
      epoll_ctl(endpoint.epoll.get(), EPOLL_CTL_ADD, endpoint.fd(), &event) !=
          0) {
    return ErrnoStatus(errno, "watching", "a bare socket");
  }
  return absl::OkStatus();
}

// At least one byte, at most `size`.
absl::StatusOr<size_t> Receive(const Endpoint& endpoint, void* data,
                               size_t size) {
  while (true) {
    if (endpoint.epoll.is_open()) {
      epoll_event event;
      if (epoll_wait(endpoint.epoll.get(), &event, 1, -1) != 1) continue;
    }
    const ssize_t received = recv(endpoint.fd(), data, size, 0);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0) return absl::UnavailableError("end of a bare socket");
    if (errno != EINTR) {
      return ErrnoStatus(errno, "receiving from", "a bare socket");
    }
  }
}

absl::Status ReceiveAll(const Endpoint& endpoint, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    SHERD_ASSIGN_OR_RETURN(const size_t received, Receive(endpoint, at, size));
    at += received;
    size -= received;
  }
  return absl::OkStatus();
}

// Sends back the received bytes or, if it serves a tensor, that for each byte.
class SocketRpc final : public RpcWorker {
 public:
  SocketRpc(Tensor served, bool epoll)
      : served_(std::move(served)), epoll_(epoll) {}
  ~SocketRpc() override {
    for (const Endpoint& end : accepted_) shutdown(end.fd(), SHUT_RDWR);
    for (std::thread& server : servers_) server.join();
  }

  absl::Status Connect(RankContext& context, absl::string_view name,
                       const SocketAddress& own_address) {
    SHERD_ASSIGN_OR_RETURN(UniqueFd listener, Listen(own_address));
    SHERD_ASSIGN_OR_RETURN(const SocketAddress bound,
                           SocketAddress::Local(listener.get()));
    LetItBlock(listener.get());
    FileStore store(JoinPath(context.directory(), absl::StrCat("bare-", name)));
    SHERD_RETURN_IF_ERROR(
        store.Set(absl::StrCat(context.rank()), bound.ToString()));
    for (int rank = 0; rank < context.world(); ++rank) {
      if (rank == context.rank()) continue;
      SHERD_ASSIGN_OR_RETURN(
          const std::string text,
          store.Get(absl::StrCat(rank), Deadline::After(kTimeout)));
      SHERD_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(text));
      SHERD_ASSIGN_OR_RETURN(connections_[rank].socket,
                             ConnectSocket(address, Deadline::After(kTimeout)));
      LetItBlock(connections_[rank].fd());
      if (epoll_) SHERD_RETURN_IF_ERROR(WaitByEpoll(connections_[rank]));
    }
    for (int i = 1; i < context.world(); ++i) {
      Endpoint end;
      end.socket =
          UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!end.socket.is_open()) {
        return ErrnoStatus(errno, "accepting at", bound.ToString());
      }
      ConfigureConnection(end.fd());
      if (epoll_) SHERD_RETURN_IF_ERROR(WaitByEpoll(end));
      accepted_.push_back(std::move(end));
    }
    for (const Endpoint& end : accepted_) {
      servers_.emplace_back([this, &end] { Serve(end); });
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Echo(int rank,
                                   const std::string& message) override {
    const Endpoint& end = connections_[rank];
    SHERD_RETURN_IF_ERROR(SendAll(end.fd(), message.data(), message.size()));
    std::string answer(message.size(), '\0');
    SHERD_RETURN_IF_ERROR(ReceiveAll(end, answer.data(), answer.size()));
    return answer;
  }

  // As many messages at once as there is room for.
  absl::Status EchoMany(int rank, const std::string& message, int calls,
                        int outstanding) override {
    const Endpoint& end = connections_[rank];
    const size_t size = message.size();
    std::string messages;
    for (int i = 0; i < outstanding; ++i) messages += message;
    std::string answers(messages.size(), '\0');
    const size_t total = size * static_cast<size_t>(calls);
    size_t sent = 0;
    size_t received = 0;
    while (received < total) {
      // Whole messages only.
      const size_t answered = received - received % size;
      const size_t room =
          std::min(total - sent, messages.size() - (sent - answered));
      SHERD_RETURN_IF_ERROR(SendAll(end.fd(), messages.data(), room));
      sent += room;
      const size_t phase = received % size;
      SHERD_ASSIGN_OR_RETURN(
          const size_t more,
          Receive(end, answers.data(), answers.size() - phase));
      if (std::memcmp(answers.data(), messages.data() + phase, more) != 0) {
        return WrongEcho(rank);
      }
      received += more;
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(int rank, Tensor& out) override {
    const Endpoint& end = connections_[rank];
    SHERD_RETURN_IF_ERROR(SendAll(end.fd(), "", 1));
    return ReceiveAll(end, out.data(), static_cast<size_t>(out.nbytes()));
  }

 private:
  static absl::StatusOr<SocketAddress> AddressOf(const std::string& text) {
    if (text[0] == '@') return SocketAddress::FromUnixName(text);
    SHERD_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(text));
    return SocketAddress::FromNumeric(at.host, at.port);
  }

  void Serve(const Endpoint& end) const {
    std::vector<char> buffer(kServedBytes);
    while (true) {
      const absl::StatusOr<size_t> size =
          Receive(end, buffer.data(), served_.defined() ? 1 : buffer.size());
      if (!size.ok()) return;
      const absl::Status sent =
          served_.defined() ? SendAll(end.fd(), std::as_const(served_).data(),
                                      static_cast<size_t>(served_.nbytes()))
                            : SendAll(end.fd(), buffer.data(), *size);
      if (!sent.ok()) return;
    }
  }

  const Tensor served_;
  const bool epoll_;
  std::map<int, Endpoint> connections_;
  std::vector<Endpoint> accepted_;
  std::vector<std::thread> servers_;
};

class MemcpyRpc final : public RpcWorker {
 public:
  explicit MemcpyRpc(const std::byte* shared) : shared_(shared) {}

  absl::StatusOr<std::string> Echo(int, const std::string&) override {
    return absl::UnimplementedError("a memcpy is not a call");
  }
  absl::Status EchoMany(int, const std::string&, int, int) override {
    return absl::UnimplementedError("a memcpy is not a call");
  }
  absl::Status Fetch(int rank, Tensor& out) override {
    const size_t size = static_cast<size_t>(out.nbytes());
    std::memcpy(out.data(), shared_ + static_cast<size_t>(rank) * size, size);
    return absl::OkStatus();
  }

 private:
  const std::byte* const shared_;
};

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeSocketRpc(
    RankContext& context, const Tensor& served, absl::string_view name,
    const absl::StatusOr<SocketAddress>& address, bool epoll = false) {
  SHERD_RETURN_IF_ERROR(address.status());
  auto worker = std::make_unique<SocketRpc>(served, epoll);
  SHERD_RETURN_IF_ERROR(worker->Connect(context, name, *address));
  return worker;
}

absl::StatusOr<SocketAddress> OwnUnixName() {
  return SocketAddress::FromUnixName(absl::StrCat("@sherd-bench-", getpid()));
}

}  // namespace

absl::Status WrongEcho(int rank) {
  return absl::DataLossError(
      absl::StrCat("rank ", rank, " answered something else than the message"));
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeUnixSocketRpc(
    RankContext& context, const Tensor& served) {
  return MakeSocketRpc(context, served, "unix", OwnUnixName());
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeEpollSocketRpc(
    RankContext& context, const Tensor& served) {
  return MakeSocketRpc(context, served, "epoll", OwnUnixName(), true);
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeTcpSocketRpc(
    RankContext& context, const Tensor& served) {
  return MakeSocketRpc(context, served, "tcp",
                       SocketAddress::FromNumeric("127.0.0.1", 0));
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeMemcpyRpc(RankContext& context,
                                                         const Tensor& served) {
  const size_t size = static_cast<size_t>(served.nbytes());
  std::byte* const shared = context.shared().data();
  std::memcpy(shared + static_cast<size_t>(context.rank()) * size,
              served.data(), size);
  return std::make_unique<MemcpyRpc>(shared);
}

}  // namespace sherd
