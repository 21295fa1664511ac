// Any bytes as messages about references: they are refused, or the decoded
// messages are of a known kind and survive being written and read again.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/logging.h"
#include "sherd/rpc/ownership/reference_codec.h"
#include "sherd/rpc/ownership/reference_message.h"
#include "sherd/rpc/rpc.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sherd::internal;  // NOLINT(google-build-using-namespace)
  sherd::rpc::ReferenceMessage encoded;
  if (size > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !encoded.ParseFromArray(data, static_cast<int>(size))) {
    return 0;
  }
  const absl::StatusOr<std::vector<ReferenceMessage>> messages =
      DecodeReferenceMessages(encoded);
  if (!messages.ok()) return 0;
  SHERD_CHECK(messages->size() == static_cast<size_t>(encoded.kind_size()));
  for (const ReferenceMessage& message : *messages) {
    SHERD_CHECK(message.kind >= ReferenceMessage::Kind::kCreate);
    SHERD_CHECK(message.kind <= ReferenceMessage::Kind::kAccepted);
  }
  sherd::rpc::Message again;
  SHERD_CHECK(again.ParseFromString(EncodeReferenceMessages(*messages)));
  const absl::StatusOr<std::vector<ReferenceMessage>> reread =
      DecodeReferenceMessages(again.reference());
  SHERD_CHECK(reread.ok() && reread->size() == messages->size());
  for (size_t i = 0; i < reread->size(); ++i) {
    const ReferenceMessage& a = (*messages)[i];
    const ReferenceMessage& b = (*reread)[i];
    SHERD_CHECK(a.kind == b.kind && a.id == b.id && a.sequence == b.sequence);
  }
  return 0;
}
