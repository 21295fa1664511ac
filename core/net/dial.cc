#include "sherd/core/net/dial.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/handshake.h"
#include "sherd/core/net/socket.h"

namespace sherd {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);

// Byte by byte what belongs to the frame: what follows is not ours.
absl::StatusOr<std::string> ReceiveFrame(int fd, Deadline deadline) {
  char header[kFrameHeaderBytes];
  SHERD_RETURN_IF_ERROR(ReceiveFully(fd, header, sizeof(header), deadline));
  uint32_t length = 0;
  for (size_t i = 0; i < sizeof(header); ++i) {
    length |= uint32_t{static_cast<uint8_t>(header[i])} << (8 * i);
  }
  if (length > kMaxHandshakeBytes) {
    return absl::FailedPreconditionError(
        "the other end does not answer as a sherd server");
  }
  std::string payload(length, '\0');
  SHERD_RETURN_IF_ERROR(
      ReceiveFully(fd, payload.data(), payload.size(), deadline));
  return payload;
}

absl::Status ShakeHands(int fd, const DialOptions& options) {
  ClientHandshake handshake(options.protocol, options.secret, NewNonce());
  SHERD_RETURN_IF_ERROR(
      SendFully(fd, EncodeFrame(handshake.Hello()), options.deadline));
  SHERD_ASSIGN_OR_RETURN(const std::string challenge,
                         ReceiveFrame(fd, options.deadline));
  SHERD_ASSIGN_OR_RETURN(const std::string proof,
                         handshake.AnswerChallenge(challenge));
  SHERD_RETURN_IF_ERROR(SendFully(fd, EncodeFrame(proof), options.deadline));
  SHERD_ASSIGN_OR_RETURN(const std::string welcome,
                         ReceiveFrame(fd, options.deadline));
  return handshake.CheckWelcome(welcome);
}

absl::StatusOr<UniqueFd> DialOnce(const SocketAddress& address,
                                  const DialOptions& options) {
  SHERD_ASSIGN_OR_RETURN(UniqueFd socket,
                         ConnectSocket(address, options.deadline));
  if (absl::Status status = ShakeHands(socket.get(), options); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("connecting to ", address.ToString(), ": ",
                                     status.message()));
  }
  return socket;
}

}  // namespace

absl::StatusOr<UniqueFd> Dial(const DialOptions& options) {
  if (options.port < 1 && !absl::StartsWith(options.host, "@")) {
    return absl::InvalidArgumentError(
        absl::StrCat("port ", options.port, ", expected 1 to 65535"));
  }
  const auto started = Deadline::Clock::now();
  SHERD_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                         SocketAddress::Resolve(options.host, options.port));
  absl::Duration pause = kFirstPause;
  for (;;) {
    absl::Status failure;
    for (const SocketAddress& address : addresses) {
      absl::StatusOr<UniqueFd> socket = DialOnce(address, options);
      if (socket.ok()) return socket;
      failure = socket.status();
      if (!absl::IsUnavailable(failure)) break;
    }
    if (!absl::IsUnavailable(failure) || options.deadline.HasPassed()) {
      const absl::Duration elapsed =
          absl::FromChrono(Deadline::Clock::now() - started);
      return absl::Status(failure.code(),
                          absl::StrCat(failure.message(), " (tried for ",
                                       absl::FormatDuration(absl::Trunc(
                                           elapsed, absl::Milliseconds(1))),
                                       ")"));
    }
    absl::SleepFor(std::min(pause, options.deadline.Remaining()));
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace sherd
