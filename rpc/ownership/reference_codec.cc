#include "sherd/rpc/ownership/reference_codec.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {

using Kind = ReferenceMessage::Kind;

std::string EncodeReferenceMessages(
    absl::Span<const ReferenceMessage> messages) {
  rpc::Message all;
  rpc::ReferenceMessage& encoded = *all.mutable_reference();
  for (const ReferenceMessage& message : messages) {
    encoded.add_kind(static_cast<uint32_t>(message.kind));
    encoded.add_owner(message.id.owner);
    encoded.add_creator(message.id.creator);
    encoded.add_number(message.id.number);
    encoded.add_sequence(message.sequence);
  }
  return all.SerializeAsString();
}

absl::StatusOr<std::vector<ReferenceMessage>> DecodeReferenceMessages(
    const rpc::ReferenceMessage& encoded) {
  const int count = encoded.kind_size();
  if (encoded.owner_size() != count || encoded.creator_size() != count ||
      encoded.number_size() != count || encoded.sequence_size() != count) {
    return absl::InvalidArgumentError(
        "reference messages: expected columns of equal length");
  }
  std::vector<ReferenceMessage> messages;
  for (int i = 0; i < count; ++i) {
    const uint32_t kind = encoded.kind(i);
    if (kind < static_cast<uint32_t>(Kind::kCreate) ||
        kind > static_cast<uint32_t>(Kind::kAccepted)) {
      return absl::InvalidArgumentError(
          absl::StrCat("reference messages: unknown kind ", kind));
    }
    const ReferenceId id = {encoded.owner(i), encoded.creator(i),
                            encoded.number(i)};
    messages.push_back({static_cast<Kind>(kind), id, encoded.sequence(i)});
  }
  return messages;
}

}  // namespace sherd::internal
