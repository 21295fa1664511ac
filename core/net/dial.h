#ifndef SHERD_CORE_NET_DIAL_H_
#define SHERD_CORE_NET_DIAL_H_

#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

struct DialOptions {
  // Numeric, a name for the system's resolver, or a Unix socket's "@name",
  // without a port.
  std::string host;
  int port = 0;
  // See handshake.h.
  std::string protocol;
  std::string secret;
  Deadline deadline = Deadline::Infinite();
};

// Connects to a FrameServer and completes the handshake; the result is for a
// FrameConnection. Blocks. While there is no server at the address, or the
// connection breaks in the middle, tries again until the deadline: the server
// may be about to start.
//   kInvalidArgument     The port is out of range or the host has no address.
//   kUnavailable         There was no server until the deadline.
//   kDeadlineExceeded    A server listens, but does not answer in time.
//   kPermissionDenied    The other end has another secret, or one of the two
//                        has none, or a Unix socket is another user's.
//   kFailedPrecondition  The other end uses another protocol or version.
//   kResourceExhausted   The server is full, or no descriptors are left here.
absl::StatusOr<UniqueFd> Dial(const DialOptions& options);

}  // namespace sherd

#endif  // SHERD_CORE_NET_DIAL_H_
