#include "sherd/backends/gloo/pair_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>

#include "gloo/transport/tcp/address.h"
#include "gloo/transport/tcp/loop.h"
#include "sherd/backends/vendor_descriptors.h"

namespace sherd::internal {
namespace {

struct SocketName {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);

  sockaddr* plain() { return reinterpret_cast<sockaddr*>(&address); }
  bool operator==(const SocketName& other) const {
    return length == other.length &&
           std::memcmp(&address, &other.address, length) == 0;
  }
};

// This process's descriptor of the connection between `local` and `peer`, or
// -1. One name is not enough: connections to several listeners share a port.
int FindConnection(const SocketName& local, const SocketName& peer) {
  int found = -1;
  VisitDescriptors([&](int fd) {
    SocketName own, other;
    if (getpeername(fd, other.plain(), &other.length) == 0 && other == peer &&
        getsockname(fd, own.plain(), &own.length) == 0 && own == local) {
      found = fd;
    }
    return found >= 0;
  });
  return found;
}

bool IsOver(const GlooSocket& socket) {
  pollfd polled = {socket.get(), POLLIN, 0};
  return poll(&polled, 1, 0) != 0;
}

}  // namespace

bool ConnectPairOver(const GlooSocket& connection,
                     gloo::transport::tcp::Device& device,
                     gloo::transport::Pair& pair) {
  auto* const handler = dynamic_cast<gloo::transport::tcp::Handler*>(&pair);
  const auto* const listener =
      dynamic_cast<const gloo::transport::tcp::Address*>(&pair.address());
  if (handler == nullptr || listener == nullptr) return false;
  SocketName at;
  at.address = listener->getSockaddr();
  at.length = at.address.ss_family == AF_INET ? sizeof(sockaddr_in)
                                              : sizeof(sockaddr_in6);
  const GlooSocket visitor(
      socket(at.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketName own;
  if (connect(visitor.get(), at.plain(), at.length) != 0 ||
      getsockname(visitor.get(), own.plain(), &own.length) != 0) {
    return false;
  }
  int accepted = FindConnection(at, own);
  while (accepted < 0) {
    // Gloo accepts one connection and resets all others.
    if (IsOver(visitor)) return false;
    sched_yield();
    accepted = FindConnection(at, own);
  }
  // Gloo's thread holds the pair from before it accepts until the connection is
  // in the device's epoll. A buffer is registered before that or after it.
  char unused = 0;
  pair.createRecvBuffer(/*slot=*/0, &unused, sizeof(unused)).reset();
  // Takes the visitor's connection out of the epoll.
  if (dup3(connection.get(), accepted, O_CLOEXEC) < 0) return false;
  device.registerDescriptor(accepted, EPOLLIN, handler);
  return true;
}

}  // namespace sherd::internal
