#ifndef SHERD_RPC_OWNERSHIP_REFERENCE_CODEC_H_
#define SHERD_RPC_OWNERSHIP_REFERENCE_CODEC_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/rpc/ownership/reference_message.h"

namespace sherd::rpc {
class ReferenceMessage;  // Of rpc.proto.
}

namespace sherd::internal {

// A message with as many is shorter than Wire::kMaxControlBytes.
inline constexpr size_t kMaxReferenceMessages = size_t{1} << 16;

// Encodes all of these as one control part.
std::string EncodeReferenceMessages(
    absl::Span<const ReferenceMessage> messages);

//   kInvalidArgument  The columns differ in length, or a kind is unknown.
absl::StatusOr<std::vector<ReferenceMessage>> DecodeReferenceMessages(
    const rpc::ReferenceMessage& encoded);

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_REFERENCE_CODEC_H_
