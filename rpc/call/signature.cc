#include "sherd/rpc/call/signature.h"

#include "sherd/core/base/fingerprint.h"

namespace sherd::internal {

uint64_t HashSignature(absl::string_view text) {
  return Fingerprint().Add(kArgumentsFormat).Add(text).value();
}

}  // namespace sherd::internal
