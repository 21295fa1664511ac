#ifndef SHERD_RPC_OWNERSHIP_REFERENCE_CODEC_H_
#define SHERD_RPC_OWNERSHIP_REFERENCE_CODEC_H_

#include <vector>

#include "absl/status/statusor.h"
#include "sherd/rpc/ownership/reference_message.h"

namespace sherd::rpc {
class ReferenceMessage;  // Of rpc.proto.
}

namespace sherd::internal {

void AppendReferenceMessage(const ReferenceMessage& message,
                            rpc::ReferenceMessage* encoded);

//   kInvalidArgument  The columns differ in length, or a kind is unknown.
absl::StatusOr<std::vector<ReferenceMessage>> DecodeReferenceMessages(
    const rpc::ReferenceMessage& encoded);

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_REFERENCE_CODEC_H_
