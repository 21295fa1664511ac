#include "sherd/rpc/ownership/reference_codec.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {
namespace {

using ::testing::HasSubstr;

TEST(ReferenceCodecTest, DecodingReturnsTheEncodedMessages) {
  std::vector<ReferenceMessage> sent;
  for (uint64_t kind = 1; kind <= 6; ++kind) {
    sent.push_back({static_cast<ReferenceMessage::Kind>(kind),
                    {static_cast<int32_t>(kind), 20, kind << 40},
                    ~kind});
  }
  rpc::Message arrived;
  ASSERT_TRUE(arrived.ParseFromString(EncodeReferenceMessages(sent)));
  const auto messages = DecodeReferenceMessages(arrived.reference());
  ASSERT_TRUE(messages.ok()) << messages.status();
  ASSERT_EQ(messages->size(), 6);
  for (uint64_t kind = 1; kind <= 6; ++kind) {
    const ReferenceMessage& message = (*messages)[kind - 1];
    EXPECT_EQ(static_cast<uint64_t>(message.kind), kind);
    EXPECT_EQ(message.id,
              (ReferenceId{static_cast<int32_t>(kind), 20, kind << 40}));
    EXPECT_EQ(message.sequence, ~kind);
  }
}

rpc::ReferenceMessage Words(int count) {
  rpc::Message words;
  const std::vector<ReferenceMessage> all(static_cast<size_t>(count));
  EXPECT_TRUE(words.ParseFromString(EncodeReferenceMessages(all)));
  return words.reference();
}

TEST(ReferenceCodecTest, TheBytesAreThoseOfTheSpecification) {
  EXPECT_EQ(absl::BytesToHexString(EncodeReferenceMessages(
                {{ReferenceMessage::Kind::kRegister, {1, 0, 300}, 7},
                 {ReferenceMessage::Kind::kAccepted, {0, 0, 0}, 8}})),
            "1a15"        // Message.reference, 21 bytes
            "0a020206"    // kind: 2, 6
            "12020100"    // owner: 1, 0
            "1a020000"    // creator: 0, 0
            "2203ac0200"  // number: 300, 0
            "2a020708");  // sequence: 7, 8
}

TEST(ReferenceCodecTest, RefusesMalformedMessages) {
  for (const uint32_t kind : {0u, 7u, 1u << 31}) {
    rpc::ReferenceMessage encoded = Words(1);
    encoded.set_kind(0, kind);
    const auto messages = DecodeReferenceMessages(encoded);
    EXPECT_EQ(messages.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(messages.status().message(), HasSubstr("unknown kind"));
  }
  for (int column = 0; column < 5; ++column) {
    rpc::ReferenceMessage encoded = Words(2);
    if (column == 0) encoded.mutable_kind()->RemoveLast();
    if (column == 1) encoded.mutable_owner()->RemoveLast();
    if (column == 2) encoded.mutable_creator()->RemoveLast();
    if (column == 3) encoded.mutable_number()->RemoveLast();
    if (column == 4) encoded.mutable_sequence()->RemoveLast();
    const auto messages = DecodeReferenceMessages(encoded);
    EXPECT_EQ(messages.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(messages.status().message(), HasSubstr("equal length"));
  }
}

}  // namespace
}  // namespace sherd::internal
