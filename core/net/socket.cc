#include "sherd/core/net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// Connections of ranks that start together wait here. The kernel takes the
// smaller of this and its own maximum.
constexpr int kBacklog = 4096;
// A host that fell silent is given up after about this, idle or not.
constexpr int kIdleSeconds = 15;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 3;
constexpr int kUnackedMillis = 30000;
// With what the system gives, both ends of a large transfer wait for each other
// after every 200 KiB. It takes the smaller of this and its own maximum.
constexpr int kUnixSendBuffer = 1 << 20;
// Before the bytes of an abstract name: its family, and the zero that makes it
// one.
constexpr size_t kBeforeUnixName = offsetof(sockaddr_un, sun_path) + 1;

absl::Status SocketError(int error, absl::string_view what,
                         const SocketAddress& address) {
  const std::string message =
      absl::StrCat(what, " ", address.ToString(), ": ", strerror(error));
  switch (error) {
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EAFNOSUPPORT:
    case EINVAL:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<UniqueFd> NewSocket(const SocketAddress& address) {
  UniqueFd fd(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return SocketError(errno, "a socket for", address);
  return fd;
}

void SetOption(int fd, int level, int name, int value) {
  // Each is a refinement that some kernels or kinds of sockets do not know.
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

// -1: no socket, with errno.
int FamilyOf(int fd) {
  int family = 0;
  socklen_t size = sizeof(family);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 ? family
                                                                    : -1;
}

// Until `events` can be served.
absl::Status Poll(int fd, int16_t events, Deadline deadline) {
  for (;;) {
    int millis = -1;
    if (!deadline.IsInfinite()) {
      millis = static_cast<int>(std::min<int64_t>(
          1000000, absl::ToInt64Milliseconds(absl::Ceil(
                       deadline.Remaining(), absl::Milliseconds(1)))));
    }
    pollfd entry = {fd, events, 0};
    const int n = poll(&entry, 1, millis);
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    }
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError("the other end does not answer");
    }
  }
}

absl::Status CheckPort(int port) {
  if (port >= 0 && port <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("port ", port, ", expected 0 to 65535"));
}

absl::Status BrokenConnection(int error) {
  return absl::UnavailableError(
      absl::StrCat("the connection broke: ", strerror(error)));
}

// The user that a user namespace shows for those that it has no number for.
constexpr uid_t kOverflowUser = 65534;

bool AllUsersHaveNumbers() {
  std::ifstream map("/proc/self/uid_map");
  uint64_t first = 0, outside = 0, count = 0, total = 0;
  while (map >> first >> outside >> count) total += count;
  // The last one stands for none.
  return total >= std::numeric_limits<uint32_t>::max();
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" ", why,
                     ", expected HOST:PORT or [IPV6]:PORT with a port from 0 "
                     "to 65535"));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return bad("has no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view digits = text.substr(colon + 1);
  HostPort result;
  const bool all_digits = !digits.empty() && digits.size() <= 5 &&
                          std::all_of(digits.begin(), digits.end(), [](char c) {
                            return c >= '0' && c <= '9';
                          });
  if (!all_digits || !absl::SimpleAtoi(digits, &result.port) ||
      result.port > 65535) {
    return bad("has no valid port");
  }
  if (!host.empty() && host.front() == '[') {
    if (host.back() != ']' || host.size() < 4) return bad("has no valid host");
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == absl::string_view::npos) {
      return bad("has brackets around something else than an IPv6 address");
    }
  } else if (host.find(':') != absl::string_view::npos) {
    return bad("has an IPv6 address without brackets");
  }
  if (host.empty() || host.front() == '@' ||
      host.find_first_of("[] \t\n") != absl::string_view::npos) {
    return bad("has no valid host");
  }
  result.host = std::string(host);
  return result;
}

std::string FormatHostPort(absl::string_view host, int port) {
  const bool v6 = host.find(':') != absl::string_view::npos;
  return v6 ? absl::StrCat("[", host, "]:", port)
            : absl::StrCat(host, ":", port);
}

absl::StatusOr<SocketAddress> SocketAddress::FromNumeric(
    const std::string& host, int port) {
  SHERD_RETURN_IF_ERROR(CheckPort(port));
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // The resolver would also take "1.2.3" and "0x7f.1".
  in_addr v4;
  if ((host.find(':') == std::string::npos &&
       inet_pton(AF_INET, host.c_str(), &v4) != 1) ||
      getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) !=
          0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", host, "\" is not a numeric address"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found,
                                                                 freeaddrinfo);
  SocketAddress address;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  address.size_ = found->ai_addrlen;
  return address;
}

absl::StatusOr<SocketAddress> SocketAddress::FromUnixName(
    absl::string_view name) {
  constexpr size_t kMaxName = sizeof(sockaddr_un) - kBeforeUnixName;
  const bool is_visible = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (name.size() < 2 || name[0] != '@' || name.size() - 1 > kMaxName ||
      !is_visible) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CHexEscape(name),
        "\" is not the name of a Unix socket, expected @ and 1 to ", kMaxName,
        " visible characters"));
  }
  SocketAddress address;
  sockaddr_un unix_address = {};
  unix_address.sun_family = AF_UNIX;
  std::memcpy(unix_address.sun_path + 1, name.data() + 1, name.size() - 1);
  std::memcpy(&address.storage_, &unix_address, sizeof(unix_address));
  address.size_ = static_cast<socklen_t>(kBeforeUnixName + name.size() - 1);
  return address;
}

absl::StatusOr<std::vector<SocketAddress>> SocketAddress::Resolve(
    const std::string& host, int port) {
  if (!host.empty() && host[0] == '@') {
    SHERD_ASSIGN_OR_RETURN(const SocketAddress address, FromUnixName(host));
    return std::vector<SocketAddress>{address};
  }
  SHERD_RETURN_IF_ERROR(CheckPort(port));
  absl::StatusOr<SocketAddress> numeric = FromNumeric(host, port);
  if (numeric.ok()) return std::vector<SocketAddress>{*numeric};
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = host.empty()
                        ? EAI_NONAME
                        : getaddrinfo(host.c_str(), absl::StrCat(port).c_str(),
                                      &hints, &found);
  if (error != 0) {
    const std::string message = absl::StrCat("no address of host \"", host,
                                             "\": ", gai_strerror(error));
    return error == EAI_NONAME ? absl::InvalidArgumentError(message)
                               : absl::UnavailableError(message);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found,
                                                                 freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage_, entry->ai_addr, entry->ai_addrlen);
    address.size_ = entry->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("host \"", host, "\" has no IP address"));
  }
  return addresses;
}

absl::StatusOr<SocketAddress> SocketAddress::Local(int fd) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_),
                  &address.size_) != 0) {
    return absl::InternalError(absl::StrCat("getsockname: ", strerror(errno)));
  }
  return address;
}

absl::StatusOr<SocketAddress> SocketAddress::Remote(int fd) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage_),
                  &address.size_) != 0) {
    return BrokenConnection(errno);
  }
  return address;
}

std::string SocketAddress::ToString() const {
  if (is_unix()) {
    if (size_ <= kBeforeUnixName) return "(unnamed socket)";
    return absl::StrCat(
        "@", absl::string_view(
                 reinterpret_cast<const char*>(&storage_) + kBeforeUnixName,
                 size_ - kBeforeUnixName));
  }
  char host[NI_MAXHOST];
  if (getnameinfo(data(), size_, host, sizeof(host), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "(unknown address)";
  }
  return FormatHostPort(host, port());
}

int SocketAddress::port() const {
  if (is_unix()) return 0;
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

absl::StatusOr<UniqueFd> Listen(const SocketAddress& address) {
  SHERD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address));
  // A server can start again while connections of its predecessor expire.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  if (bind(fd.get(), address.data(), address.size()) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return SocketError(errno, "cannot listen on", address);
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address,
                                       Deadline deadline) {
  SHERD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address));
  if (connect(fd.get(), address.data(), address.size()) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      return SocketError(errno, "cannot connect to", address);
    }
    if (absl::Status status = Poll(fd.get(), POLLOUT, deadline); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("cannot connect to ", address.ToString(),
                                       ": ", status.message()));
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
    if (error != 0) return SocketError(error, "cannot connect to", address);
  }
  ConfigureConnection(fd.get());
  if (address.is_unix()) {
    if (absl::Status status = CheckSameUser(fd.get()); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("cannot connect to ", address.ToString(),
                                       ": ", status.message()));
    }
    return fd;
  }
  // Where no server listens on a port that the system gives to clients, a
  // client may be given that very port, and TCP connects it with itself.
  const absl::StatusOr<SocketAddress> local = SocketAddress::Local(fd.get());
  if (local.ok() && *local == address) {
    return SocketError(ECONNREFUSED, "cannot connect to", address);
  }
  return fd;
}

void ConfigureConnection(int fd) {
  if (FamilyOf(fd) == AF_UNIX) {
    // Not for TCP, which finds its own size.
    return SetOption(fd, SOL_SOCKET, SO_SNDBUF, kUnixSendBuffer);
  }
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnackedMillis);
}

absl::Status CheckSameUser(int fd) {
  const int family = FamilyOf(fd);
  if (family < 0) return BrokenConnection(errno);
  if (family != AF_UNIX) return absl::OkStatus();
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return BrokenConnection(errno);
  }
  if (peer.uid == kOverflowUser && geteuid() == kOverflowUser &&
      !AllUsersHaveNumbers()) {
    return absl::PermissionDeniedError(
        absl::StrCat("process ", peer.pid,
                     " at the other end and this one are of user ", peer.uid,
                     ", which stands for several in this user namespace; give "
                     "the user of this process a number there"));
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", peer.pid, " at the other end is of user ",
                   peer.uid, ", expected ", geteuid()));
}

absl::Status SendFully(int fd, absl::string_view data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t n = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      data.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      SHERD_RETURN_IF_ERROR(Poll(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return BrokenConnection(errno);
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveFully(int fd, char* data, size_t size, Deadline deadline) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = recv(fd, data + done, size - done, 0);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0) {
      return absl::UnavailableError("the other end closed the connection");
    } else if (errno == EAGAIN) {
      SHERD_RETURN_IF_ERROR(Poll(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return BrokenConnection(errno);
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
