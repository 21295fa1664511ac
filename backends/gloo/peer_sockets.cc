#include "sherd/backends/gloo/peer_sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "sherd/backends/gloo/wait_limits.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;
using plugin::FailErrno;

constexpr int kBacklog = 1024;
// The limit of connections without proof: the oldest is dropped, and if it was
// a peer's, the peer connects again.
constexpr size_t kMaxStrangers = 256;
// Interval of checks for failed ranks and for connections to be made again.
constexpr std::chrono::milliseconds kLook(100);
// Longer than the host's store waits before it checks for failed ranks.
constexpr std::chrono::milliseconds kLostWait(120);

using Clock = std::chrono::steady_clock;

std::string Key(int rank) { return "gloo/" + std::to_string(rank); }

const sockaddr* Plain(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// So that nothing waits here that the end of the connection would discard.
void SendAtOnce(const GlooSocket& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// A message of a few bytes always fits into what a new connection buffers.
bool SendAll(int fd, const void* data, size_t size) {
  return send(fd, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

}  // namespace

sherd_code GlooPeerSockets::Connect(const sherd_comm_config_v0& config,
                                    const sockaddr_storage& address,
                                    socklen_t length, sherd_error_v0* error) {
  sherd_code code = Listen(address, length, error);
  if (code == SHERD_OK) code = Publish(config, error);
  if (code == SHERD_OK) code = FindInvitations(config, error);
  if (code == SHERD_OK) code = ConnectAll(config, error);
  candidates_.clear();
  listener_ = GlooSocket();
  return code;
}

sherd_code GlooPeerSockets::Listen(const sockaddr_storage& address,
                                   socklen_t length, sherd_error_v0* error) {
  listener_ = GlooSocket(
      socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  own_.length = sizeof(own_.address);
  if (!listener_.is_open() ||
      bind(listener_.get(), Plain(address), length) != 0 ||
      listen(listener_.get(), kBacklog) != 0 ||
      getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own_.address),
                  &own_.length) != 0) {
    return FailErrno(error, SHERD_SYSTEM, -1,
                     "cannot listen on the rank's address");
  }
  return SHERD_OK;
}

sherd_code GlooPeerSockets::Publish(const sherd_comm_config_v0& config,
                                    sherd_error_v0* error) {
  for (Number* const number : {&own_.ticket, &own_.answer}) {
    if (getrandom(number->data(), number->size(), 0) !=
        static_cast<ssize_t>(number->size())) {
      return FailErrno(error, SHERD_SYSTEM, -1, "no random numbers");
    }
  }
  const sherd_kv_v0& kv = *config.kv;
  const sherd_code code =
      kv.set(kv.context, Key(rank_).c_str(), &own_, sizeof(own_));
  return code == SHERD_OK ? code : Fail(error, code, -1, "the store failed");
}

// All invitations are read before the first connection: a failed rank is
// reported while this one waits for them.
sherd_code GlooPeerSockets::FindInvitations(const sherd_comm_config_v0& config,
                                            sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config.kv;
  const int size = static_cast<int>(peers_.size());
  invitations_.resize(size);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank_) continue;
    uint64_t found = 0;
    const sherd_code code =
        kv.get(kv.context, Key(peer).c_str(), config.deadline,
               &invitations_[peer], sizeof(Invitation), &found);
    if (code == SHERD_PEER_LOST) return Fail(error, code, -1, "a rank is lost");
    if (code != SHERD_OK) {
      return Fail(error, code, peer, "did not publish its address");
    }
    if (found != sizeof(Invitation) ||
        invitations_[peer].length > sizeof(sockaddr_storage)) {
      return Fail(error, SHERD_INTERNAL, peer, "published a bad address");
    }
  }
  return SHERD_OK;
}

sherd_code GlooPeerSockets::Dial(sherd_error_v0* error) {
  for (int peer = 0; peer < rank_; ++peer) {
    const bool under_way =
        std::any_of(candidates_.begin(), candidates_.end(),
                    [peer](const Candidate& c) { return c.peer == peer; });
    if (under_way || peers_[peer].is_open()) continue;
    const sockaddr_storage& address = invitations_[peer].address;
    Candidate candidate;
    candidate.peer = peer;
    candidate.socket = GlooSocket(socket(
        address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!candidate.socket.is_open()) {
      return FailErrno(error, SHERD_SYSTEM, -1, "no socket");
    }
    if (connect(candidate.socket.get(), Plain(address),
                invitations_[peer].length) != 0 &&
        errno != EINPROGRESS) {
      return FailErrno(error, SHERD_PEER_LOST, peer, "cannot be reached");
    }
    candidates_.push_back(std::move(candidate));
  }
  return SHERD_OK;
}

sherd_code GlooPeerSockets::ConnectAll(const sherd_comm_config_v0& config,
                                       sherd_error_v0* error) {
  sherd_code code = Dial(error);
  auto next_look = Clock::now() + kLook;
  while (code == SHERD_OK && FirstAbsent() >= 0) {
    if (HasPassed(config.deadline)) {
      return Fail(error, SHERD_TIMEOUT, FirstAbsent(),
                  "did not connect in time");
    }
    code = Poll(error);
    if (code != SHERD_OK || Clock::now() < next_look) continue;
    code = FindLost(config, error);
    if (code == SHERD_OK) code = Dial(error);
    next_look = Clock::now() + kLook;
  }
  return code;
}

// Waits for a key that no rank sets.
sherd_code GlooPeerSockets::FindLost(const sherd_comm_config_v0& config,
                                     sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config.kv;
  char none = 0;
  uint64_t found = 0;
  const int64_t until = (Clock::now() + kLostWait).time_since_epoch() /
                        std::chrono::nanoseconds(1);
  const sherd_code code =
      kv.get(kv.context, "gloo/none", until, &none, sizeof(none), &found);
  if (code == SHERD_TIMEOUT) return SHERD_OK;
  return Fail(error, code, -1,
              code == SHERD_PEER_LOST ? "a rank is lost" : "the store failed");
}

sherd_code GlooPeerSockets::Poll(sherd_error_v0* error) {
  std::vector<pollfd> polled;
  polled.push_back({listener_.get(), POLLIN, 0});
  for (const Candidate& candidate : candidates_) {
    const bool connecting = candidate.peer >= 0 && !candidate.greeted;
    polled.push_back({candidate.socket.get(),
                      static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
  }
  if (poll(polled.data(), polled.size(), static_cast<int>(kLook.count())) <=
      0) {
    return SHERD_OK;
  }
  for (size_t i = 1; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    const sherd_code code =
        Handle(candidates_[i - 1], polled[i].revents, error);
    if (code != SHERD_OK) return code;
  }
  candidates_.erase(
      std::remove_if(candidates_.begin(), candidates_.end(),
                     [](const Candidate& c) { return !c.socket.is_open(); }),
      candidates_.end());
  if (polled[0].revents != 0) Accept();
  return SHERD_OK;
}

void GlooPeerSockets::Accept() {
  for (;;) {
    Candidate candidate;
    candidate.socket = GlooSocket(accept4(listener_.get(), nullptr, nullptr,
                                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    // No connection is pending, or it was closed already.
    if (!candidate.socket.is_open()) return;
    const auto came_in = [](const Candidate& c) { return c.peer < 0; };
    if (static_cast<size_t>(
            std::count_if(candidates_.begin(), candidates_.end(), came_in)) >=
        kMaxStrangers) {
      candidates_.erase(
          std::find_if(candidates_.begin(), candidates_.end(), came_in));
    }
    candidates_.push_back(std::move(candidate));
  }
}

sherd_code GlooPeerSockets::Handle(Candidate& candidate, short events,
                                   sherd_error_v0* error) {
  if (candidate.peer >= 0 && !candidate.greeted) {
    int number = 0;
    socklen_t length = sizeof(number);
    getsockopt(candidate.socket.get(), SOL_SOCKET, SO_ERROR, &number, &length);
    if (number == 0 && (events & POLLOUT) == 0) return SHERD_OK;
    // Its listener is closed, so it is not waiting for this rank.
    if (number == ECONNREFUSED || number == ETIMEDOUT ||
        number == EHOSTUNREACH || number == ENETUNREACH) {
      errno = number;
      return FailErrno(error, SHERD_PEER_LOST, candidate.peer,
                       "cannot be reached");
    }
  }
  switch (Advance(candidate)) {
    case Progress::kWaiting:
      break;
    case Progress::kProved:
      SendAtOnce(candidate.socket);
      peers_[candidate.peer] = std::move(candidate.socket);
      break;
    case Progress::kFailed:
      candidate.socket = GlooSocket();
      break;
  }
  return SHERD_OK;
}

GlooPeerSockets::Progress GlooPeerSockets::Advance(Candidate& candidate) {
  const int fd = candidate.socket.get();
  if (candidate.peer < 0) {
    const Progress progress = Receive(candidate, sizeof(Greeting));
    if (progress != Progress::kProved) return progress;
    Greeting greeting;
    std::memcpy(&greeting, candidate.bytes.data(), sizeof(greeting));
    if (greeting.ticket != own_.ticket || greeting.rank <= rank_ ||
        greeting.rank >= static_cast<int>(peers_.size()) ||
        !SendAll(fd, own_.answer.data(), own_.answer.size())) {
      return Progress::kFailed;
    }
    candidate.peer = greeting.rank;
    return Progress::kProved;
  }
  const Invitation& invitation = invitations_[candidate.peer];
  if (!candidate.greeted) {
    const Greeting greeting = {invitation.ticket, rank_};
    if (!SendAll(fd, &greeting, sizeof(greeting))) return Progress::kFailed;
    candidate.greeted = true;
    return Progress::kWaiting;
  }
  const Progress progress = Receive(candidate, invitation.answer.size());
  if (progress != Progress::kProved) return progress;
  return std::equal(invitation.answer.begin(), invitation.answer.end(),
                    candidate.bytes.begin())
             ? Progress::kProved
             : Progress::kFailed;
}

GlooPeerSockets::Progress GlooPeerSockets::Receive(Candidate& candidate,
                                                   size_t expected) {
  const ssize_t n =
      recv(candidate.socket.get(), candidate.bytes.data() + candidate.received,
           expected - candidate.received, 0);
  if (n <= 0) {
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? Progress::kWaiting
                                                        : Progress::kFailed;
  }
  candidate.received += static_cast<size_t>(n);
  return candidate.received == expected ? Progress::kProved
                                        : Progress::kWaiting;
}

int GlooPeerSockets::FirstAbsent() const {
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer != rank_ && !peers_[peer].is_open()) return peer;
  }
  return -1;
}

}  // namespace sherd::internal
