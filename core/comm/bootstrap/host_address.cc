#include "sherd/core/comm/bootstrap/host_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {
namespace {

// Documentation addresses, which the default route would carry if anything
// were sent (RFC 5737, RFC 3849).
constexpr char kFarAway4[] = "192.0.2.1";
constexpr char kFarAway6[] = "2001:db8::1";
// Any port will do: no packet leaves.
constexpr int kDiscardPort = 9;

bool IsIpv6(absl::string_view address) {
  return absl::StrContains(address, ':');
}

std::string ToText(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  if (getnameinfo(address, size, host, sizeof(host), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

struct InterfaceListDeleter {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

struct Lookup {
  int error = 0;
  int system_error = 0;
  AddressList list;
};

Lookup LookUp(const std::string& host, int flags, int port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  Lookup lookup;
  lookup.error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  lookup.system_error = errno;
  lookup.list.reset(list);
  return lookup;
}

std::string TextOf(const Lookup& lookup) {
  return lookup.error == EAI_SYSTEM ? strerror(lookup.system_error)
                                    : gai_strerror(lookup.error);
}

// The resolver has timeouts of its own, which may be longer than ours.
std::optional<Lookup> LookUpBefore(const std::string& host, Deadline deadline) {
  struct Shared {
    Lookup lookup;
    absl::Notification done;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, host] {
    shared->lookup = LookUp(host, 0, kDiscardPort);
    shared->done.Notify();
  }).detach();
  if (!shared->done.WaitForNotificationWithTimeout(deadline.Remaining())) {
    return std::nullopt;
  }
  return std::move(shared->lookup);
}

bool IsWildcard(absl::string_view address) {
  return address == "0.0.0.0" || address == "::";
}

std::string KernelIdentity() {
  std::string boot = BootId();
  if (!boot.empty()) return boot;
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// SHERD_SOCKET_IFNAME, taken apart.
struct InterfacePattern {
  explicit InterfacePattern(absl::string_view text)
      : exclude(absl::ConsumePrefix(&text, "^")),
        whole(absl::ConsumePrefix(&text, "=")),
        names(absl::StrSplit(text, ',', absl::SkipWhitespace())) {}

  bool Allows(absl::string_view name) const {
    const bool listed =
        std::any_of(names.begin(), names.end(), [&](const std::string& given) {
          return whole ? name == given : absl::StartsWith(name, given);
        });
    return listed != exclude;
  }

  bool exclude;
  bool whole;
  std::vector<std::string> names;
};

}  // namespace

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1" ||
         absl::StartsWith(address, "::ffff:127.");
}

std::string LoopbackLike(absl::string_view address) {
  return IsIpv6(address) ? "::1" : "127.0.0.1";
}

std::string HostAndPort(absl::string_view host, int port) {
  return IsIpv6(host) ? absl::StrCat("[", host, "]:", port)
                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host,
                                                     Deadline deadline) {
  Lookup lookup = LookUp(host, AI_NUMERICHOST, kDiscardPort);
  if (lookup.error != 0) {
    std::optional<Lookup> answer = LookUpBefore(host, deadline);
    if (!answer) {
      return absl::DeadlineExceededError(
          absl::StrCat("the name \"", host, "\" was not resolved in time"));
    }
    lookup = *std::move(answer);
  }
  std::vector<std::string> addresses;
  for (addrinfo* i = lookup.list.get(); i != nullptr; i = i->ai_next) {
    std::string text = ToText(i->ai_addr, i->ai_addrlen);
    if (!text.empty() && std::find(addresses.begin(), addresses.end(), text) ==
                             addresses.end()) {
      addresses.push_back(std::move(text));
    }
  }
  if (lookup.error != 0 || addresses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the host \"", host, "\" is unknown here: ",
                     lookup.error != 0 ? TextOf(lookup) : "no address"));
  }
  return addresses;
}

absl::StatusOr<std::string> AddressTowards(const std::string& address) {
  const Lookup lookup = LookUp(address, AI_NUMERICHOST, kDiscardPort);
  if (lookup.error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is not an address: ", TextOf(lookup)));
  }
  const addrinfo& to = *lookup.list;
  const UniqueFd fd(socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (!fd.is_open() || connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return absl::UnavailableError(absl::StrCat("this host has no route to ",
                                               address, ": ", strerror(errno)));
  }
  return ToText(reinterpret_cast<const sockaddr*>(&own), size);
}

absl::StatusOr<std::vector<NetworkInterface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::InternalError(
        absl::StrCat("listing the network interfaces: ", strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, InterfaceListDeleter> owner(list);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    socklen_t size = 0;
    if (i->ifa_addr->sa_family == AF_INET) {
      size = sizeof(sockaddr_in);
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto& in6 = *reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr)) continue;
      size = sizeof(sockaddr_in6);
    } else {
      continue;
    }
    std::string text = ToText(i->ifa_addr, size);
    if (!text.empty()) interfaces.push_back({i->ifa_name, std::move(text)});
  }
  return interfaces;
}

absl::StatusOr<std::string> AddressOfInterface(
    absl::string_view pattern, absl::string_view like,
    absl::Span<const NetworkInterface> interfaces) {
  const InterfacePattern allowed(pattern);
  const NetworkInterface* other_family = nullptr;
  for (const NetworkInterface& interface : interfaces) {
    if (!allowed.Allows(interface.name)) continue;
    // "All but these" is about where others are; the loopback leads nowhere.
    if (allowed.exclude && IsLoopback(interface.address)) continue;
    if (IsIpv6(interface.address) == IsIpv6(like)) return interface.address;
    if (other_family == nullptr) other_family = &interface;
  }
  if (other_family != nullptr && like.empty()) return other_family->address;
  return absl::InvalidArgumentError(absl::StrCat(
      "SHERD_SOCKET_IFNAME is \"", pattern,
      "\", but no interface that fits "
      "has an ",
      IsIpv6(like) ? "IPv6" : "IPv4", " address; there are ",
      absl::StrJoin(interfaces, ", ",
                    [](std::string* out, const NetworkInterface& interface) {
                      absl::StrAppend(out, interface.name, " (",
                                      interface.address, ")");
                    })));
}

absl::StatusOr<std::string> PrimaryAddress() {
  for (const char* far_away : {kFarAway4, kFarAway6}) {
    absl::StatusOr<std::string> address = AddressTowards(far_away);
    if (address.ok() && !address->empty() && !IsLoopback(*address) &&
        !IsWildcard(*address)) {
      return address;
    }
  }
  SHERD_ASSIGN_OR_RETURN(const std::vector<NetworkInterface> interfaces,
                         ListInterfaces());
  for (const NetworkInterface& interface : interfaces) {
    if (!IsLoopback(interface.address)) return interface.address;
  }
  return absl::UnavailableError(
      "this host has no network interface beside the loopback");
}

HostIdentity OwnHostIdentity() {
  const std::string kernel = KernelIdentity();
  HostIdentity identity;
  identity.network = absl::StrCat(kernel, " ", OwnNamespace("net"));
  identity.machine = kernel;
  for (const char* kind : {"pid", "user"}) {
    absl::StrAppend(&identity.machine, " ", OwnNamespace(kind));
  }
  return identity;
}

}  // namespace sherd
