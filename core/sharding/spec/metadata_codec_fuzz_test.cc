// Any bytes as metadata: an error, or a value that survives encoding and
// decoding unchanged.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/sharding/spec/metadata_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<sherd::ShardedTensorMetadata> metadata =
      sherd::internal::DecodeMetadata(bytes);
  if (!metadata.ok()) {
    SHERD_CHECK(metadata.status().code() == absl::StatusCode::kDataLoss)
        << metadata.status().ToString();
    return 0;
  }
  const absl::StatusOr<sherd::ShardedTensorMetadata> again =
      sherd::internal::DecodeMetadata(
          sherd::internal::EncodeMetadata(*metadata));
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(*again == *metadata);
  return 0;
}
