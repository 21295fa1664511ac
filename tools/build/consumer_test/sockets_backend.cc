// A backend in an afternoon: processes of one host, with a Unix socket between
// every two. It has a barrier and an exchange; the host emulates the others.
// backends/PLUGIN_GUIDE.md of Sherd walks through this file.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sherd/backends/plugin.h"

namespace {

using sherd::plugin::Fail;
using sherd::plugin::FailErrno;

// For poll(): at least 1 until the deadline has passed, -1 if it never does.
int MillisecondsUntil(int64_t deadline) {
  if (deadline == SHERD_NO_DEADLINE) return -1;
  const int64_t left = deadline - sherd::plugin::Host().now();
  return left <= 0 ? 0
                   : static_cast<int>(
                         std::min<int64_t>(1 + left / 1'000'000, 1'000'000));
}

// Precedes each message: distinguishes a message of another call from the
// expected one.
struct Header {
  uint64_t sequence;
  uint64_t size;
};

// The data that moves in one direction between this rank and a peer. Without
// bytes there is no message.
struct Stream {
  Header header;  // to send, or as received
  char* data;
  uint64_t size;
  uint64_t done;  // the header included

  void Start(const sherd_bytes_v0& bytes, uint64_t sequence) {
    header = {sequence, bytes.size};
    data = static_cast<char*>(bytes.data);
    size = bytes.size;
    done = 0;
  }
  bool busy() const { return size > 0 && done < sizeof(header) + size; }
  bool in_header() const { return done < sizeof(header); }
  char* next() {
    return in_header() ? reinterpret_cast<char*>(&header) + done
                       : data + (done - sizeof(header));
  }
  uint64_t left() const {
    return (in_header() ? 0 : size) + sizeof(header) - done;
  }
};

struct Peer {
  int fd = -1;
  Stream out = {};
  Stream in = {};
};

// One rank of a group: a socket to each of the others.
class Communicator {
 public:
  // Returns once this rank is connected to all others.
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Communicator>* made,
                           sherd_error_v0* error);
  explicit Communicator(const sherd_comm_config_v0& config);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error);
  void Abort();

 private:
  sherd_code Exchange(const sherd_op_v0& op, const sherd_bytes_v0* sends,
                      const sherd_bytes_v0* recvs, sherd_error_v0* error);
  int ListUnfinished();

  const int rank_;
  std::vector<Peer> peers_;
  std::vector<pollfd> polled_;
  // The exchange of a barrier.
  char token_ = 0;
  std::vector<char> tokens_;
  std::vector<sherd_bytes_v0> sends_, recvs_;
  std::atomic<bool> aborted_{false};
};

// Connecting: each rank listens, and calls the ranks below it.

std::string KeyOf(int rank) { return "sockets/" + std::to_string(rank); }

// Listens at an address that the kernel chooses and publishes it to the others.
sherd_code Listen(const sherd_comm_config_v0& config, int listener,
                  sherd_error_v0* error) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof(sa_family_t);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, config.size) != 0) {
    return FailErrno(error, SHERD_SYSTEM, -1, "cannot listen on a Unix socket");
  }
  size = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const sherd_code code = config.kv->set(
      config.kv->context, KeyOf(config.rank).c_str(), &address, size);
  return code == SHERD_OK ? code : Fail(error, code, -1, "the store failed");
}

sherd_code Call(const sherd_comm_config_v0& config, int peer, int* fd,
                sherd_error_v0* error) {
  sockaddr_un address = {};
  uint64_t size = 0;
  const sherd_code code =
      config.kv->get(config.kv->context, KeyOf(peer).c_str(), config.deadline,
                     &address, sizeof(address), &size);
  if (code == SHERD_PEER_LOST) return Fail(error, code, -1, "a rank failed");
  if (code != SHERD_OK) return Fail(error, code, peer, "did not come in time");
  *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int32_t own_rank = config.rank;
  if (connect(*fd, reinterpret_cast<sockaddr*>(&address),
              static_cast<socklen_t>(size)) != 0 ||
      send(*fd, &own_rank, sizeof(own_rank), MSG_NOSIGNAL) !=
          sizeof(own_rank)) {
    return Fail(error, SHERD_PEER_LOST, peer, "cannot be reached");
  }
  return SHERD_OK;
}

// Whether the caller is an expected rank of this group, and which one. Any
// process of this host can connect to the address.
bool Identify(const sherd_comm_config_v0& config, int fd, int32_t* rank) {
  ucred caller = {};
  socklen_t size = sizeof(caller);
  pollfd waiting = {fd, POLLIN, 0};
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &caller, &size) == 0 &&
         caller.uid == geteuid() &&
         poll(&waiting, 1, MillisecondsUntil(config.deadline)) > 0 &&
         recv(fd, rank, sizeof(*rank), MSG_WAITALL) == sizeof(*rank) &&
         *rank > config.rank && *rank < config.size;
}

// Takes the calls of the ranks above.
sherd_code AnswerAll(const sherd_comm_config_v0& config, int listener,
                     std::vector<Peer>& peers, sherd_error_v0* error) {
  for (int missing = config.size - 1 - config.rank; missing > 0;) {
    pollfd waiting = {listener, POLLIN, 0};
    const int left = MillisecondsUntil(config.deadline);
    if (left == 0) {
      return Fail(error, SHERD_TIMEOUT, -1, "not all ranks called in time");
    }
    if (poll(&waiting, 1, left) <= 0) continue;
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int32_t rank = -1;
    if (fd < 0 && errno != ECONNABORTED && errno != EINTR) {
      return FailErrno(error, SHERD_SYSTEM, -1, "cannot accept a call");
    }
    if (fd >= 0 && Identify(config, fd, &rank) && peers[rank].fd < 0) {
      peers[rank].fd = fd;
      --missing;
    } else if (fd >= 0) {
      close(fd);
    }
  }
  return SHERD_OK;
}

sherd_code Connect(const sherd_comm_config_v0& config, int listener,
                   std::vector<Peer>& peers, sherd_error_v0* error) {
  sherd_code code = Listen(config, listener, error);
  for (int r = 0; r < config.rank && code == SHERD_OK; ++r) {
    code = Call(config, r, &peers[r].fd, error);
  }
  return code == SHERD_OK ? AnswerAll(config, listener, peers, error) : code;
}

Communicator::Communicator(const sherd_comm_config_v0& config)
    : rank_(config.rank),
      peers_(config.size),
      polled_(config.size),
      tokens_(config.size) {
  for (char& token : tokens_) {
    sends_.push_back({&token_, 1});
    recvs_.push_back({&token, 1});
  }
}

Communicator::~Communicator() {
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) close(peer.fd);
  }
}

sherd_code Communicator::Create(const sherd_comm_config_v0& config,
                                std::unique_ptr<Communicator>* made,
                                sherd_error_v0* error) {
  *made = std::make_unique<Communicator>(config);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sherd_code code = Connect(config, listener, (*made)->peers_, error);
  close(listener);
  return code;
}

// Moving: all peers at once, each as far as its socket goes.

// Checks the values that must be equal at both ends.
sherd_code CheckHeader(const Stream& in, uint64_t sequence, int peer,
                       sherd_error_v0* error) {
  if (in.header.sequence == sequence && in.header.size == in.size) {
    return SHERD_OK;
  }
  return Fail(error, SHERD_INVALID_ARGUMENT, peer,
              "sent a message of another call or length");
}

// Moves as much as the socket takes, or has, now.
sherd_code Move(Peer& peer, int rank, bool sends, uint64_t sequence,
                sherd_error_v0* error) {
  Stream& stream = sends ? peer.out : peer.in;
  while (stream.busy()) {
    const ssize_t moved =
        sends ? send(peer.fd, stream.next(), stream.left(),
                     MSG_DONTWAIT | MSG_NOSIGNAL)
              : recv(peer.fd, stream.next(), stream.left(), MSG_DONTWAIT);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (moved <= 0) {
      return Fail(error, SHERD_PEER_LOST, rank, "closed the connection");
    }
    stream.done += static_cast<uint64_t>(moved);
    if (!sends && stream.done == sizeof(Header)) {
      const sherd_code code = CheckHeader(stream, sequence, rank, error);
      if (code != SHERD_OK) return code;
    }
  }
  return SHERD_OK;
}

// Lists in polled_ the connections that are waited for. Returns -1 if there is
// none, otherwise a rank that is waited for.
int Communicator::ListUnfinished() {
  int unfinished = -1;
  for (size_t r = 0; r < peers_.size(); ++r) {
    const Peer& peer = peers_[r];
    const int events =
        (peer.out.busy() ? POLLOUT : 0) | (peer.in.busy() ? POLLIN : 0);
    polled_[r] = {events == 0 ? -1 : peer.fd, static_cast<short>(events), 0};
    // Rather one that owes something.
    if (peer.in.busy() || (events != 0 && unfinished < 0)) {
      unfinished = static_cast<int>(r);
    }
  }
  return unfinished;
}

sherd_code Communicator::Exchange(const sherd_op_v0& op,
                                  const sherd_bytes_v0* sends,
                                  const sherd_bytes_v0* recvs,
                                  sherd_error_v0* error) {
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    const bool self = r == rank_;
    peers_[r].out.Start(self ? sherd_bytes_v0{} : sends[r], op.sequence);
    peers_[r].in.Start(self ? sherd_bytes_v0{} : recvs[r], op.sequence);
  }
  for (;;) {
    const int unfinished = ListUnfinished();
    if (unfinished < 0) return SHERD_OK;
    const int ready =
        poll(polled_.data(), polled_.size(), MillisecondsUntil(op.deadline));
    if (aborted_) return Fail(error, SHERD_ABORTED, -1, "was aborted");
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return FailErrno(error, SHERD_SYSTEM, -1, "poll failed");
    if (ready == 0 && MillisecondsUntil(op.deadline) == 0) {
      return Fail(error, SHERD_TIMEOUT, unfinished, "did not come in time");
    }
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (polled_[r].revents == 0) continue;
      for (const bool out : {false, true}) {
        const sherd_code code =
            Move(peers_[r], static_cast<int>(r), out, op.sequence, error);
        if (aborted_) return Fail(error, SHERD_ABORTED, -1, "was aborted");
        if (code != SHERD_OK) return code;
      }
    }
  }
}

sherd_code Communicator::Run(const sherd_op_v0& op, sherd_error_v0* error) {
  switch (op.op) {
    case SHERD_BARRIER:
      return Exchange(op, sends_.data(), recvs_.data(), error);
    case SHERD_ALL_TO_ALL_V:
      return Exchange(op, op.sends, op.recvs, error);
    default:
      return SHERD_UNSUPPORTED;
  }
}

// Wakes the poll of this rank, and that of its peers, who see the end.
void Communicator::Abort() {
  aborted_ = true;
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) shutdown(peer.fd, SHUT_RDWR);
  }
}

constexpr sherd_plugin_v0 kPlugin = sherd::plugin::BackendTable<Communicator>(
    {.name = "sockets",
     .operations = 1u << SHERD_BARRIER | 1u << SHERD_ALL_TO_ALL_V,
     .flags = SHERD_ONE_HOST_ONLY});

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
