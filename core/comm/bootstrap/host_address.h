#ifndef SHERD_CORE_COMM_BOOTSTRAP_HOST_ADDRESS_H_
#define SHERD_CORE_COMM_BOOTSTRAP_HOST_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"

namespace sherd {

// Which address a rank listens on, and whom it shares a host with. Addresses
// are numeric text, IPv4 ("10.0.0.5") or IPv6 ("fd00::5", "fe80::1%eth0").
// A host's own name is not used: on many systems it resolves to 127.0.1.1,
// which no other host reaches.
//
// Threads. All functions may be called from any thread.

// Whether only this host can connect to `address`: 127.0.0.0/8, ::1.
bool IsLoopback(absl::string_view address);

// The loopback address of the same family as `address`: "127.0.0.1", or "::1"
// for IPv6.
std::string LoopbackLike(absl::string_view address);

// "10.0.0.5:29500", "[fd00::5]:29500".
std::string HostAndPort(absl::string_view host, int port);

// The addresses of a name or the address itself, in the resolver's order,
// without duplicates.
//   kInvalidArgument   The name does not resolve.
//   kDeadlineExceeded  The resolver did not answer in time. The lookup
//                      continues in its own thread until it gives up.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host,
                                                     Deadline deadline);

// This host's address on the route to `address`; `address` itself if it belongs
// to this host. Sends nothing.
//   kUnavailable  There is no route.
absl::StatusOr<std::string> AddressTowards(const std::string& address);

struct NetworkInterface {
  std::string name;
  std::string address;
};

// The addresses of the interfaces that are up, in the system's order, without
// link-local addresses.
absl::StatusOr<std::vector<NetworkInterface>> ListInterfaces();

// The first address on an interface that `pattern` (SHERD_SOCKET_IFNAME)
// allows: "eth,ib" names prefixes, "=eth0,eth1" whole names, and "^docker,lo",
// or "^=lo", all others than these and the loopback. IPv6 if `like`, an address
// or empty, is IPv6; otherwise IPv4 if there is one.
//   kInvalidArgument  No interface fits; all are listed.
absl::StatusOr<std::string> AddressOfInterface(
    absl::string_view pattern, absl::string_view like,
    absl::Span<const NetworkInterface> interfaces);

// An address of this host which others may be able to reach: that of the
// default route, otherwise of the first interface beside the loopback.
//   kUnavailable  There is only the loopback.
absl::StatusOr<std::string> PrimaryAddress();

// Identifies a host. Equal `network`: processes reach each other over the
// loopback. Equal `machine`: they run under one kernel and see each other's
// processes and, through /proc, their shared memory. Containers of one machine
// may share one without the other; two processes are on one host if both are
// equal.
struct HostIdentity {
  std::string network;
  std::string machine;

  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

HostIdentity OwnHostIdentity();

}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_HOST_ADDRESS_H_
