#ifndef SHERD_SERIALIZATION_METADATA_H_
#define SHERD_SERIALIZATION_METADATA_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"

namespace sherd {

// How a tensor is cut, as bytes for files and for other programs: messages of
// proto/sharding.proto (the target //serialization/proto:sharding_proto),
// without a frame, so that any Protobuf reads them. Nothing in them is
// executed.
//
// Versions. The bytes carry their version. Later releases read what earlier
// ones wrote.

// The version that this build writes, and the newest that it reads.
inline constexpr int kShardingFormatVersion = 1;

// All of it: the shards with their placements, the size, and the properties,
// also those that sharded tensors refuse, as a sparse layout. Equal metadata
// gives equal bytes, on every machine.
//   kInvalidArgument     ValidateNonOverlapping or ValidateCover refuses the
//                        shards, replicas allowed; a placement is malformed,
//                        or its text exceeds 1024 bytes; a property is not one
//                        of its enumeration.
//   kFailedPrecondition  A placement's device is malformed.
//   kResourceExhausted   There would be more than 2^30 bytes; or the names of
//                        workers, counted once per shard, have more than 2^26
//                        bytes and more than 64 per shard.
absl::StatusOr<std::string> SerializeMetadata(
    const ShardedTensorMetadata& metadata);

// The inverse, for bytes from any source: a result is what SerializeMetadata
// accepts, and equal to what it was given.
//   kDataLoss       Not such a message, truncated, or with columns of different
//                   lengths; a number that is not a dtype, layout or
//                   memory format; a placement that does not parse; names of
//                   workers or shards that SerializeMetadata refuses.
//   kUnimplemented  A later version wrote it; the message has both versions.
//
// Memory. O(bytes), and at most 2^26 bytes for names of workers, which the
// message has once and the result once per shard.
absl::StatusOr<ShardedTensorMetadata> ParseMetadata(absl::string_view bytes);

// A ChunkShardingSpec, EnumerableShardingSpec or MeshShardingSpec. Equal specs
// give equal bytes.
//   kInvalidArgument    "Expecting ShardingSpec" for null; the text of a
//                       placement exceeds 1024 bytes; a mesh has more than 64
//                       dimensions or cuts a dimension outside [-64, 64), which
//                       no tensor has.
//   kUnimplemented      A class of your own: serialize the metadata that it
//                       builds.
//   kResourceExhausted  As SerializeMetadata.
absl::StatusOr<std::string> SerializeSpec(const ShardingSpecPtr& spec);

// The inverse, for bytes from any source: the result equals the spec that was
// serialized.
//   kDataLoss       As ParseMetadata; or Create of the spec's class refuses it.
//   kUnimplemented  As ParseMetadata.
//
// Memory. As ParseMetadata.
absl::StatusOr<ShardingSpecPtr> ParseSpec(absl::string_view bytes);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_METADATA_H_
