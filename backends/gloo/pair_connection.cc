#include "sherd/backends/gloo/pair_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "gloo/transport/tcp/address.h"
#include "gloo/transport/tcp/loop.h"
#include "sherd/backends/vendor_descriptors.h"

#if __has_include("gloo/transport/tcp/listener.h")
#define SHERD_GLOO_DEVICES_LISTEN 1
#else
#define SHERD_GLOO_DEVICES_LISTEN 0
#endif

namespace sherd::internal {
namespace {

namespace tcp = gloo::transport::tcp;

// How the link to the epoll of a device begins.
constexpr char kPoll[] = "anon_inode:[eventpoll]";

struct SocketName {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);

  sockaddr* plain() { return reinterpret_cast<sockaddr*>(&address); }
  bool operator==(const SocketName& other) const {
    return length == other.length &&
           std::memcmp(&address, &other.address, length) == 0;
  }
};

socklen_t LengthOf(sa_family_t family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

SocketName NameOf(const tcp::Address& address) {
  SocketName name;
  name.address = address.getSockaddr();
  name.length = LengthOf(name.address.ss_family);
  return name;
}

#if SHERD_GLOO_DEVICES_LISTEN

// Gives access to what Gloo keeps for its own pairs.
class Device : public tcp::Device {
 public:
  // Later ones also take whether pairs connect when they are first used.
  static std::shared_ptr<Device> Make(const tcp::attr& attributes) {
    if constexpr (std::is_constructible_v<tcp::Device, const tcp::attr&>) {
      return std::make_shared<Device>(attributes);
    } else {
      return std::make_shared<Device>(attributes, /*lazyInit=*/false);
    }
  }

  using tcp::Device::Device;

  SocketName listener() { return NameOf(nextAddress()); }
};

// This process's socket that listens at `name`, or -1.
int FindListener(const SocketName& name) {
  int found = -1;
  VisitDescriptors([&](int fd) {
    SocketName own;
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 &&
        listens != 0 && getsockname(fd, own.plain(), &own.length) == 0 &&
        own == name) {
      found = fd;
    }
    return found >= 0;
  });
  return found;
}

// The loopback address of `family`, or the unspecified one, at `port`.
SocketName MakeName(sa_family_t family, bool loopback, in_port_t port) {
  SocketName name;
  name.address.ss_family = family;
  if (family == AF_INET) {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&name.address);
    v4->sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    v4->sin_port = port;
  } else {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&name.address);
    v6->sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    v6->sin6_port = port;
  }
  name.length = LengthOf(family);
  return name;
}

// Gloo would try for as long as its timeout.
bool CanConnect(SocketName& name) {
  const GlooSocket visitor(
      socket(name.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(visitor.get(), name.plain(), name.length) == 0;
}

in_port_t PortOf(const SocketName& name) {
  return name.address.ss_family == AF_INET
             ? reinterpret_cast<const sockaddr_in&>(name.address).sin_port
             : reinterpret_cast<const sockaddr_in6&>(name.address).sin6_port;
}

// This process's only descriptor of a connection to `peer`, or -1.
int FindConnectionTo(const SocketName& peer) {
  std::vector<int> found;
  VisitDescriptors([&](int fd) {
    SocketName other;
    if (getpeername(fd, other.plain(), &other.length) == 0 && other == peer) {
      found.push_back(fd);
    }
    return false;
  });
  return found.size() == 1 ? found[0] : -1;
}

#else

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

// A pair takes the first connection that arrives: this process connects to it
// at once, and then puts `connection` under the accepted descriptor. False if
// another process connected first, or Gloo cannot accept.
bool PutUnder(const GlooSocket& connection, tcp::Device& device,
              gloo::transport::Pair& pair) {
  auto* const handler = dynamic_cast<tcp::Handler*>(&pair);
  const auto* const listener =
      dynamic_cast<const tcp::Address*>(&pair.address());
  if (handler == nullptr || listener == nullptr) return false;
  SocketName at = NameOf(*listener);
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

#endif

}  // namespace

#if SHERD_GLOO_DEVICES_LISTEN

std::shared_ptr<tcp::Device> MakeGlooDevice(const tcp::attr& attributes) {
  const VendorDescriptors polls(kPoll), pipes("pipe:");
  const std::shared_ptr<Device> device = Device::Make(attributes);
  polls.Close();
  pipes.Close();
  const int listener = FindListener(device->listener());
  const GlooSocket silent(eventfd(0, EFD_CLOEXEC));
  if (listener < 0 || !silent.is_open()) {
    throw std::runtime_error("out of descriptors (ulimit -n), or no /proc");
  }
  // The device takes the descriptor out of its epoll before it closes it.
  device->unregisterDescriptor(listener, nullptr);
  dup3(silent.get(), listener, O_CLOEXEC);
  device->registerDescriptor(listener, /*events=*/0, nullptr);
  return device;
}

// Of two addresses Gloo connects from the higher to the lower. Here a pair
// connects to this process at the lowest address, which reaches the loopback
// one, and stays unaccepted until `connection` is put under its descriptor.
bool ConnectPairOver(const GlooSocket& connection, tcp::Device& device,
                     gloo::transport::Context& context, int peer) {
  gloo::transport::Pair& pair = *context.createPair(peer);
  auto* const handler = dynamic_cast<tcp::Handler*>(&pair);
  const auto* const own = dynamic_cast<const tcp::Address*>(&pair.address());
  if (handler == nullptr || own == nullptr) return false;
  const sa_family_t family = own->getSockaddr().ss_family;
  const GlooSocket listener(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketName at = MakeName(family, /*loopback=*/true, /*port=*/0);
  if (bind(listener.get(), at.plain(), at.length) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), at.plain(), &at.length) != 0) {
    return false;
  }
  SocketName lowest = MakeName(family, /*loopback=*/false, PortOf(at));
  if (!CanConnect(lowest)) return false;
  pair.connect(tcp::Address(lowest.address, /*seq=*/0).bytes());
  const int connected = FindConnectionTo(at);
  // Takes the pair's own connection out of the epoll.
  if (connected < 0 || dup3(connection.get(), connected, O_CLOEXEC) < 0) {
    return false;
  }
  device.registerDescriptor(connected, EPOLLIN, handler);
  return true;
}

#else

std::shared_ptr<tcp::Device> MakeGlooDevice(const tcp::attr& attributes) {
  const VendorDescriptors polls(kPoll);
  auto device = std::make_shared<tcp::Device>(attributes);
  polls.Close();
  return device;
}

bool ConnectPairOver(const GlooSocket& connection, tcp::Device& device,
                     gloo::transport::Context& context, int peer) {
  // Pairs listen at ports that are not published, and only briefly.
  constexpr int kAttempts = 8;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (PutUnder(connection, device, *context.createPair(peer))) return true;
  }
  return false;
}

#endif

}  // namespace sherd::internal
