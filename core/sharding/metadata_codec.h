#ifndef SHERD_CORE_SHARDING_METADATA_CODEC_H_
#define SHERD_CORE_SHARDING_METADATA_CODEC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/sharding/shard_metadata.h"

namespace sherd::internal {

// Metadata as bytes, for the other ranks of this run; nothing that is kept.
// Placements are by rank; a shard without such a placement has none afterwards.
std::string EncodeMetadata(const ShardedTensorMetadata& metadata);

// The inverse. Takes any bytes: allocates no more than a small multiple of
// what it was given.
//   kDataLoss  Not what EncodeMetadata makes.
absl::StatusOr<ShardedTensorMetadata> DecodeMetadata(absl::string_view bytes);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_METADATA_CODEC_H_
