#include "sherd/core/net/handshake.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/net/sha256.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

const char kProtocol[] = "test 1";
const std::string kClientNonce(32, 'C');
const std::string kServerNonce(32, 'S');

// The whole handshake; the client's result, or the server's if it refuses.
absl::Status Meet(absl::string_view client_secret,
                  absl::string_view server_secret) {
  ClientHandshake client(kProtocol, client_secret, NewNonce());
  ServerHandshake server(kProtocol, server_secret, NewNonce());
  const auto challenge = server.AnswerHello(client.Hello());
  if (!challenge.ok()) return challenge.status();
  const auto proof = client.AnswerChallenge(*challenge);
  if (!proof.ok()) return proof.status();
  const auto welcome = server.AnswerProof(*proof);
  if (!welcome.ok()) return welcome.status();
  return client.CheckWelcome(*welcome);
}

TEST(HandshakeTest, OnlyTheSameSecretPasses) {
  EXPECT_THAT(Meet("", ""), IsOk());
  EXPECT_THAT(Meet("secret", "secret"), IsOk());
  EXPECT_THAT(Meet(std::string(4096, 's'), std::string(4096, 's')), IsOk());
  for (const char* other : {"Secret", "secre", "secret ", "s"}) {
    EXPECT_THAT(
        Meet(other, "secret"),
        StatusIs(absl::StatusCode::kPermissionDenied, "is not the server's"));
  }
  EXPECT_THAT(Meet("", "secret"), StatusIs(absl::StatusCode::kPermissionDenied,
                                           "the client has none"));
  EXPECT_THAT(Meet("secret", ""), StatusIs(absl::StatusCode::kPermissionDenied,
                                           "the server has none"));
}

// Other releases connect with this one: these bytes are the protocol.
TEST(HandshakeTest, FramesHaveTheDocumentedBytes) {
  ClientHandshake client(kProtocol, "key", kClientNonce);
  ServerHandshake server(kProtocol, "key", kServerNonce);
  const auto proof_of = [](absl::string_view label) {
    const std::string zero(1, '\0');
    const Sha256Digest digest = HmacSha256(
        "key",
        absl::StrCat(label, zero, kProtocol, zero, kClientNonce, kServerNonce));
    return std::string(digest.begin(), digest.end());
  };
  const std::string version_and_secured("\1\0\1", 3);
  EXPECT_EQ(client.Hello(), absl::StrCat("SHERDNET", version_and_secured,
                                         kClientNonce, kProtocol));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string challenge,
                             server.AnswerHello(client.Hello()));
  EXPECT_EQ(challenge,
            absl::StrCat("SHERDSRV", version_and_secured, kServerNonce));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string proof,
                             client.AnswerChallenge(challenge));
  EXPECT_EQ(proof, absl::StrCat("SHERDPRF", proof_of("sherd client 1")));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string welcome,
                             server.AnswerProof(proof));
  EXPECT_EQ(welcome, absl::StrCat("SHERDYES", proof_of("sherd server 1")));
  EXPECT_EQ(EncodeRefusal(absl::UnavailableError("why")),
            absl::StrCat("SHERDNO!", "\x0e", "why"));
}

TEST(HandshakeTest, TheSecretNeverTravels) {
  ClientHandshake client(kProtocol, "tell nobody", NewNonce());
  ServerHandshake server(kProtocol, "tell nobody", NewNonce());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string challenge,
                             server.AnswerHello(client.Hello()));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string proof,
                             client.AnswerChallenge(challenge));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string welcome,
                             server.AnswerProof(proof));
  EXPECT_THAT(absl::StrCat(client.Hello(), challenge, proof, welcome),
              Not(HasSubstr("tell nobody")));
}

// A proof observed in one handshake is useless in the next.
TEST(HandshakeTest, AProofIsValidForOneConnection) {
  ClientHandshake client(kProtocol, "key", kClientNonce);
  ServerHandshake server(kProtocol, "key", kServerNonce);
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string challenge,
                             server.AnswerHello(client.Hello()));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string proof,
                             client.AnswerChallenge(challenge));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string welcome,
                             server.AnswerProof(proof));
  ServerHandshake next(kProtocol, "key", NewNonce());
  ASSERT_THAT(next.AnswerHello(client.Hello()), IsOk());
  EXPECT_THAT(next.AnswerProof(proof),
              StatusIs(absl::StatusCode::kPermissionDenied));
  ClientHandshake other(kProtocol, "key", NewNonce());
  ASSERT_THAT(other.AnswerChallenge(challenge), IsOk());
  EXPECT_THAT(other.CheckWelcome(welcome),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "does not know the shared secret"));
}

// An impostor without the secret sends the client's own proof back to it.
TEST(HandshakeTest, AProofIsValidInOneDirection) {
  ClientHandshake client(kProtocol, "key", kClientNonce);
  ServerHandshake impostor(kProtocol, "another key", kServerNonce);
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string challenge,
                             impostor.AnswerHello(client.Hello()));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string proof,
                             client.AnswerChallenge(challenge));
  EXPECT_THAT(client.CheckWelcome(absl::StrCat("SHERDYES", proof.substr(8))),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(HandshakeTest, RefusesOtherProtocolsVersionsAndRandomBytes) {
  ServerHandshake server(kProtocol, "", kServerNonce);
  EXPECT_THAT(
      server.AnswerHello(ClientHandshake("rpc 1", "", kClientNonce).Hello()),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "speaks \"test 1\", the client asked for \"rpc 1\""));
  std::string hello = ClientHandshake(kProtocol, "", kClientNonce).Hello();
  for (size_t size = 0; size < hello.size(); ++size) {
    EXPECT_THAT(server.AnswerHello(hello.substr(0, size)),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  hello[8] = 2;
  EXPECT_THAT(server.AnswerHello(hello),
              StatusIs(absl::StatusCode::kFailedPrecondition, "version 2"));
  EXPECT_THAT(server.AnswerProof("GET / HTTP/1.1"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(HandshakeTest, TheClientGetsTheReasonOfARefusal) {
  ClientHandshake client(kProtocol, "", kClientNonce);
  EXPECT_THAT(client.AnswerChallenge(
                  EncodeRefusal(absl::ResourceExhaustedError("full\x1b[31m"))),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "the server refuses: full?[31m"));
  for (const std::string& noise :
       {std::string(), std::string("HTTP/1.1 400"), std::string("SHERDNO!"),
        std::string("SHERDSRV")}) {
    EXPECT_THAT(client.AnswerChallenge(noise),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  // An invalid code must not become OK.
  for (const char code : {'\0', '\x11', '\xff'}) {
    EXPECT_THAT(
        client.AnswerChallenge(absl::StrCat("SHERDNO!", std::string(1, code))),
        StatusIs(absl::StatusCode::kUnknown));
  }
}

TEST(HandshakeTest, NoncesDiffer) {
  EXPECT_EQ(NewNonce().size(), kNonceBytes);
  EXPECT_NE(NewNonce(), NewNonce());
}

}  // namespace
}  // namespace sherd
