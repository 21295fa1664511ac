#ifndef SHERD_CORE_NET_HANDSHAKE_H_
#define SHERD_CORE_NET_HANDSHAKE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// The handshake by which both ends of a new connection verify that they speak
// the same protocol and know the same secret, before any other data. Four
// frames of at most kMaxHandshakeBytes, numbers little-endian:
//
//   client  hello      "SHERDNET" u16 version, u8 secured, 32 bytes nonce C,
//                      protocol (1 to 32 bytes, the rest of the frame)
//   server  challenge  "SHERDSRV" u16 version, u8 secured, 32 bytes nonce S
//   client  proof      "SHERDPRF" HMAC(secret, client label)
//   server  welcome    "SHERDYES" HMAC(secret, server label)
//
// HMAC is HMAC-SHA256 over: label, 0, protocol, 0, nonce C, nonce S, with the
// label "sherd client 1" or "sherd server 1", so that neither proof can be
// replayed, to the same or to the other end. "secured" is 1 if that end has a
// secret; without one the empty secret is used, which proves nothing. Instead
// of its frames the server may send, and then closes,
//
//   server  refusal    "SHERDNO!" u8 absl::StatusCode, text
//
// Guarantees. A client without the secret is not accepted, and a server without
// the secret is detected. The secret is never sent, but a false server can test
// guesses against the proof offline, so the secret has to be long and random.
// Data after the handshake is neither encrypted nor signed.
//
// The classes hold one side's state and do no I/O. One handshake each.

inline constexpr size_t kMaxHandshakeBytes = 512;
inline constexpr size_t kNonceBytes = 32;

// Random bytes of the system, for one handshake.
std::string NewNonce();

// The payload of a frame that gives the client the reason of a refusal.
std::string EncodeRefusal(const absl::Status& why);

class ClientHandshake {
 public:
  ClientHandshake(absl::string_view protocol, absl::string_view secret,
                  absl::string_view nonce);

  std::string Hello() const;

  // Returns the proof, in answer to the challenge.
  //   kPermissionDenied    One side has a secret, the other has none.
  //   kFailedPrecondition  The other end is not a Sherd server, or has another
  //                        version.
  //   other                The error with which the server refused.
  absl::StatusOr<std::string> AnswerChallenge(absl::string_view payload);

  // OK if the server accepted the client and knows the secret. Errors as above.
  absl::Status CheckWelcome(absl::string_view payload) const;

 private:
  const std::string protocol_;
  const std::string secret_;
  const std::string nonce_;
  std::string server_nonce_;
};

class ServerHandshake {
 public:
  ServerHandshake(absl::string_view protocol, absl::string_view secret,
                  absl::string_view nonce);

  // Returns the challenge, in answer to a hello.
  //   kFailedPrecondition  The payload is not a hello, or is of another version
  //                        or protocol.
  //   kPermissionDenied    One side has a secret, the other has none.
  absl::StatusOr<std::string> AnswerHello(absl::string_view payload);

  // Returns the welcome, in answer to a proof.
  //   kPermissionDenied    The client has another secret.
  //   kFailedPrecondition  The payload is not a proof.
  absl::StatusOr<std::string> AnswerProof(absl::string_view payload) const;

 private:
  const std::string protocol_;
  const std::string secret_;
  const std::string nonce_;
  std::string client_nonce_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_HANDSHAKE_H_
