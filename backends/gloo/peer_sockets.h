#ifndef SHERD_BACKENDS_GLOO_PEER_SOCKETS_H_
#define SHERD_BACKENDS_GLOO_PEER_SOCKETS_H_

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Owns a descriptor, or none (-1).
class GlooSocket {
 public:
  explicit GlooSocket(int fd = -1) : fd_(fd) {}
  GlooSocket(GlooSocket&& other) noexcept : fd_(other.Release()) {}
  GlooSocket& operator=(GlooSocket&& other) noexcept {
    GlooSocket taken(std::move(other));
    std::swap(fd_, taken.fd_);
    return *this;
  }
  ~GlooSocket() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// One rank's TCP connections to all others of its group, each to a peer that
// has proved its identity. Gloo's own pairs accept the first connection that
// arrives, from any process, and end the process if it is reset before they
// look.
//
// A rank listens on one address and publishes it in the host's store with two
// random numbers. Of two ranks the higher connects, and sends the lower rank's
// first number and its own rank; the lower answers with its second number. A
// stranger, who knows neither, occupies a descriptor until all peers have
// connected, and nothing more.
//
// Descriptors are close-on-exec from the beginning.
class GlooPeerSockets {
 public:
  GlooPeerSockets(int rank, int size) : rank_(rank), peers_(size) {}
  GlooPeerSockets(const GlooPeerSockets&) = delete;
  GlooPeerSockets& operator=(const GlooPeerSockets&) = delete;

  // Called once. Returns when every peer is connected at this end; the peers
  // may not have noticed yet.
  sherd_code Connect(const sherd_comm_config_v0& config,
                     const sockaddr_storage& address, socklen_t length,
                     sherd_error_v0* error);

  // After Connect: the connection to `peer`, non-blocking.
  GlooSocket Take(int peer) { return std::move(peers_[peer]); }

 private:
  using Number = std::array<char, 16>;
  // The record that a rank publishes in the store.
  struct Invitation {
    Number ticket;
    Number answer;
    uint32_t length;
    sockaddr_storage address;
  };
  // The message that the higher rank sends.
  struct Greeting {
    Number ticket;
    int32_t rank;
  };
  // A connection whose peer has not proved its identity.
  struct Candidate {
    GlooSocket socket;
    // The peer that this rank connects to; -1: unknown, the connection was
    // accepted.
    int peer = -1;
    bool greeted = false;
    size_t received = 0;
    std::array<char, sizeof(Greeting)> bytes = {};
  };
  enum class Progress { kWaiting, kProved, kFailed };

  sherd_code Listen(const sockaddr_storage& address, socklen_t length,
                    sherd_error_v0* error);
  sherd_code Publish(const sherd_comm_config_v0& config, sherd_error_v0* error);
  sherd_code FindInvitations(const sherd_comm_config_v0& config,
                             sherd_error_v0* error);
  sherd_code ConnectAll(const sherd_comm_config_v0& config,
                        sherd_error_v0* error);
  // Starts connections to the lower peers that have none yet.
  sherd_code Dial(sherd_error_v0* error);
  sherd_code FindLost(const sherd_comm_config_v0& config,
                      sherd_error_v0* error);
  // Waits at most kLook for an event, and handles it.
  sherd_code Poll(sherd_error_v0* error);
  sherd_code Handle(Candidate& candidate, short events, sherd_error_v0* error);
  void Accept();
  Progress Advance(Candidate& candidate);
  Progress Receive(Candidate& candidate, size_t expected);
  // The first peer without a connection, or -1.
  int FirstAbsent() const;

  const int rank_;
  // Connections whose peers have proved their identity.
  std::vector<GlooSocket> peers_;
  GlooSocket listener_;
  Invitation own_ = {};
  std::vector<Invitation> invitations_;
  std::deque<Candidate> candidates_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_PEER_SOCKETS_H_
