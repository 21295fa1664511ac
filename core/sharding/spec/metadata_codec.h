#ifndef SHERD_CORE_SHARDING_SPEC_METADATA_CODEC_H_
#define SHERD_CORE_SHARDING_SPEC_METADATA_CODEC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/sharding/shard_metadata.h"

namespace sherd::internal {

// Metadata as bytes, for the other ranks of this run; not a format for storage.
// The text of a placement has at most 1024 bytes.
std::string EncodeMetadata(const ShardedTensorMetadata& metadata);

// The inverse. Accepts any bytes: allocates at most O(bytes), plus the longest
// placement once per shard.
//   kDataLoss  The bytes are not a result of EncodeMetadata.
absl::StatusOr<ShardedTensorMetadata> DecodeMetadata(absl::string_view bytes);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_SPEC_METADATA_CODEC_H_
