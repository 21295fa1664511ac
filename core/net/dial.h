#ifndef SHERD_CORE_NET_DIAL_H_
#define SHERD_CORE_NET_DIAL_H_

#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

struct DialOptions {
  // Numeric, a name for the system's resolver, or a Unix socket's "@name",
  // which has no port.
  std::string host;
  int port = 0;
  // See handshake.h.
  std::string protocol;
  std::string secret;
  Deadline deadline = Deadline::Infinite();
};

// A connection to a FrameServer that both sides have let pass, for a
// FrameConnection. Blocks. While nobody listens there, or the connection breaks
// off in the middle, it is tried again until the deadline: the server may be
// just about to start.
//   kInvalidArgument     The port is none or the host has no address.
//   kUnavailable         Nobody listens there until the deadline.
//   kDeadlineExceeded    Somebody listens, but does not answer in time.
//   kPermissionDenied    The other end has another secret, or one of the two
//                        has none, or a Unix socket is another user's.
//   kFailedPrecondition  It speaks something else, or another version.
//   kResourceExhausted   It is full, or this process has no descriptors left.
absl::StatusOr<UniqueFd> Dial(const DialOptions& options);

}  // namespace sherd

#endif  // SHERD_CORE_NET_DIAL_H_
