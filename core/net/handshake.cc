#include "sherd/core/net/handshake.h"

#include <errno.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/net/sha256.h"

namespace sherd {
namespace {

constexpr absl::string_view kHello = "SHERDNET";
constexpr absl::string_view kChallenge = "SHERDSRV";
constexpr absl::string_view kProof = "SHERDPRF";
constexpr absl::string_view kWelcome = "SHERDYES";
constexpr absl::string_view kRefusal = "SHERDNO!";

constexpr uint16_t kVersion = 1;
constexpr size_t kFixedBytes = 2 + 1 + kNonceBytes;
constexpr size_t kMaxProtocolBytes = 32;
constexpr size_t kMaxReasonBytes = 400;

std::string Opening(absl::string_view tag, bool secured,
                    absl::string_view nonce) {
  const char fields[] = {static_cast<char>(kVersion & 0xff),
                         static_cast<char>(kVersion >> 8),
                         static_cast<char>(secured ? 1 : 0)};
  return absl::StrCat(tag, absl::string_view(fields, sizeof(fields)), nonce);
}

struct ParsedOpening {
  bool secured;
  std::string nonce;
  absl::string_view rest;
};

// `payload` without its tag.
absl::StatusOr<ParsedOpening> ParseOpening(absl::string_view payload) {
  if (payload.size() < 2) {
    return absl::FailedPreconditionError("the other end sent half a greeting");
  }
  const int version =
      static_cast<uint8_t>(payload[0]) | static_cast<uint8_t>(payload[1]) << 8;
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the other end speaks version ", version,
                     " of the handshake, this one ", kVersion,
                     ": use the same release on all hosts"));
  }
  if (payload.size() < kFixedBytes) {
    return absl::FailedPreconditionError("the other end sent half a greeting");
  }
  return ParsedOpening{payload[2] != 0,
                       std::string(payload.substr(3, kNonceBytes)),
                       payload.substr(kFixedBytes)};
}

std::string Proof(absl::string_view secret, absl::string_view label,
                  absl::string_view protocol, absl::string_view client_nonce,
                  absl::string_view server_nonce) {
  const absl::string_view zero("\0", 1);
  const Sha256Digest digest = HmacSha256(
      secret,
      absl::StrCat(label, zero, protocol, zero, client_nonce, server_nonce));
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

constexpr absl::string_view kClientLabel = "sherd client 1";
constexpr absl::string_view kServerLabel = "sherd server 1";

absl::Status CheckSecured(bool ours, bool theirs, absl::string_view them) {
  if (ours == theirs) return absl::OkStatus();
  return absl::PermissionDeniedError(
      ours ? absl::StrCat("this end has a shared secret and ", them,
                          " has none: give all ranks the same")
           : absl::StrCat(them,
                          " expects a shared secret and this end has none: "
                          "give all ranks the same"));
}

// OK if `payload` begins with `tag`, which is removed.
absl::Status ExpectFromServer(absl::string_view& payload,
                              absl::string_view tag) {
  if (absl::ConsumePrefix(&payload, tag)) return absl::OkStatus();
  if (!absl::ConsumePrefix(&payload, kRefusal) || payload.empty()) {
    return absl::FailedPreconditionError(
        "the other end does not answer as a sherd server");
  }
  const int code = static_cast<uint8_t>(payload[0]);
  std::string text(payload.substr(1, kMaxReasonBytes));
  // The text goes to logs and terminals, and its sender is not verified yet.
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  const bool known = code > 0 && code <= 16;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      absl::StrCat("the server refuses: ", text));
}

}  // namespace

std::string NewNonce() {
  std::string nonce(kNonceBytes, '\0');
  size_t done = 0;
  while (done < nonce.size()) {
    const ssize_t n = getrandom(nonce.data() + done, nonce.size() - done, 0);
    // Without randomness there is no proof of anything. Linux 3.17 has it.
    if (n < 0 && errno != EINTR) abort();
    if (n > 0) done += static_cast<size_t>(n);
  }
  return nonce;
}

std::string EncodeRefusal(const absl::Status& why) {
  const char code = static_cast<char>(why.code());
  return absl::StrCat(kRefusal, absl::string_view(&code, 1),
                      why.message().substr(0, kMaxReasonBytes));
}

ClientHandshake::ClientHandshake(absl::string_view protocol,
                                 absl::string_view secret,
                                 absl::string_view nonce)
    : protocol_(protocol), secret_(secret), nonce_(nonce) {}

std::string ClientHandshake::Hello() const {
  return absl::StrCat(Opening(kHello, !secret_.empty(), nonce_), protocol_);
}

absl::StatusOr<std::string> ClientHandshake::AnswerChallenge(
    absl::string_view payload) {
  SHERD_RETURN_IF_ERROR(ExpectFromServer(payload, kChallenge));
  SHERD_ASSIGN_OR_RETURN(const ParsedOpening opening, ParseOpening(payload));
  SHERD_RETURN_IF_ERROR(
      CheckSecured(!secret_.empty(), opening.secured, "the server"));
  server_nonce_ = opening.nonce;
  return absl::StrCat(
      kProof, Proof(secret_, kClientLabel, protocol_, nonce_, server_nonce_));
}

absl::Status ClientHandshake::CheckWelcome(absl::string_view payload) const {
  SHERD_RETURN_IF_ERROR(ExpectFromServer(payload, kWelcome));
  if (!EqualInConstantTime(payload, Proof(secret_, kServerLabel, protocol_,
                                          nonce_, server_nonce_))) {
    return absl::PermissionDeniedError(
        "the other end does not know the shared secret");
  }
  return absl::OkStatus();
}

ServerHandshake::ServerHandshake(absl::string_view protocol,
                                 absl::string_view secret,
                                 absl::string_view nonce)
    : protocol_(protocol), secret_(secret), nonce_(nonce) {}

absl::StatusOr<std::string> ServerHandshake::AnswerHello(
    absl::string_view payload) {
  if (!absl::ConsumePrefix(&payload, kHello)) {
    return absl::FailedPreconditionError("this is a sherd server: no greeting");
  }
  SHERD_ASSIGN_OR_RETURN(const ParsedOpening opening, ParseOpening(payload));
  if (opening.rest != protocol_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this server speaks \"", protocol_, "\", the client asked for \"",
        opening.rest.substr(0, kMaxProtocolBytes), "\""));
  }
  if (opening.secured != !secret_.empty()) {
    return absl::PermissionDeniedError(
        secret_.empty()
            ? "the client has a shared secret and the server has none: give "
              "all ranks the same"
            : "the server expects a shared secret and the client has none: "
              "give all ranks the same");
  }
  client_nonce_ = opening.nonce;
  return Opening(kChallenge, !secret_.empty(), nonce_);
}

absl::StatusOr<std::string> ServerHandshake::AnswerProof(
    absl::string_view payload) const {
  if (!absl::ConsumePrefix(&payload, kProof)) {
    return absl::FailedPreconditionError("expected the proof of a secret");
  }
  if (!EqualInConstantTime(payload, Proof(secret_, kClientLabel, protocol_,
                                          client_nonce_, nonce_))) {
    return absl::PermissionDeniedError(
        "the client's shared secret is not the server's");
  }
  return absl::StrCat(
      kWelcome, Proof(secret_, kServerLabel, protocol_, client_nonce_, nonce_));
}

}  // namespace sherd
