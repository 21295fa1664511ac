#ifndef SHERD_CORE_NET_SOCKET_H_
#define SHERD_CORE_NET_SOCKET_H_

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

struct HostPort {
  std::string host;
  int port = 0;
};

// "host:port", "1.2.3.4:port" or "[::1]:port", port 0 to 65535.
//   kInvalidArgument  Anything else, an IPv6 address without brackets too.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// The inverse: brackets around an IPv6 address.
std::string FormatHostPort(absl::string_view host, int port);

// The address of a TCP socket, IPv4 or IPv6, or of a Unix socket with an
// abstract name, which only processes of the same network namespace see, and
// which disappears with its last user. A value.
class SocketAddress {
 public:
  // Numeric hosts only, e.g. "127.0.0.1", "::1", "fe80::1%eth0".
  //   kInvalidArgument  The host is not numeric, or the port not 0 to 65535.
  static absl::StatusOr<SocketAddress> FromNumeric(const std::string& host,
                                                   int port);

  // "@name", up to 107 visible characters after the "@".
  //   kInvalidArgument  It is not such a name.
  static absl::StatusOr<SocketAddress> FromUnixName(absl::string_view name);

  // The addresses of `host`, a name or a number, in the order of preference of
  // the system's resolver, which has no deadline. Also FromUnixName, whatever
  // the port.
  //   kInvalidArgument  The host has no address, or the port is wrong.
  //   kUnavailable      The resolver has no answer now.
  static absl::StatusOr<std::vector<SocketAddress>> Resolve(
      const std::string& host, int port);

  // The address to which a socket is bound.
  static absl::StatusOr<SocketAddress> Local(int fd);
  static absl::StatusOr<SocketAddress> Remote(int fd);

  // "127.0.0.1:80", "[::1]:80", "@name"
  std::string ToString() const;
  // 0 for a Unix socket.
  int port() const;
  int family() const { return storage_.ss_family; }
  bool is_unix() const { return family() == AF_UNIX; }

  const sockaddr* data() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t size() const { return size_; }

  friend bool operator==(const SocketAddress& a, const SocketAddress& b) {
    return a.ToString() == b.ToString();
  }

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

// A socket that listens at `address`. Sockets made here are non-blocking, and
// are not passed to programs that this one starts. An IPv6 socket takes IPv6
// only.
//   kUnavailable        The address is in use, or not of this host.
//   kPermissionDenied   The port is reserved for the system.
//   kResourceExhausted  No descriptors left.
absl::StatusOr<UniqueFd> Listen(const SocketAddress& address);

// A connection to `address`, without delay of small messages, and with probes
// that end it when the other host is unreachable; over a Unix socket, with room
// for large messages.
//   kUnavailable        There is no server, the host cannot be reached, or too
//                       many connections wait to be accepted.
//   kPermissionDenied   Another user listens at the Unix socket.
//   kDeadlineExceeded   No answer by the deadline.
//   kResourceExhausted  No descriptors or ports left.
absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address,
                                       Deadline deadline);

// Sets the options that ConnectSocket sets, for a socket from accept().
void ConfigureConnection(int fd);

// OK unless the other end of the Unix socket `fd` belongs to another user than
// this process, or did when it began to listen or connect.
//   kPermissionDenied  It does, or this cannot be determined: both are user
//                      65534, which in this user namespace stands for all users
//                      that it does not map.
absl::Status CheckSameUser(int fd);

// For a socket that no loop watches: sends all of `data`, or receives `size`
// bytes.
//   kUnavailable       The other end closed the connection, or it broke.
//   kDeadlineExceeded  Not all by the deadline.
absl::Status SendFully(int fd, absl::string_view data, Deadline deadline);
absl::Status ReceiveFully(int fd, char* data, size_t size, Deadline deadline);

}  // namespace sherd

#endif  // SHERD_CORE_NET_SOCKET_H_
