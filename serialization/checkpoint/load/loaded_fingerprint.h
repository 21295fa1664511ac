#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOADED_FINGERPRINT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOADED_FINGERPRINT_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/sharded_tensor.h"

namespace sherd {

// What this rank's shards add to the fingerprint of a tensor: the XOR over the
// ranks is its linear CRC, as that over the boxes of a save (BoxFingerprint).
// Of replicas, one holder adds its own: the one that has added least. `load`
// counts the elements that each rank has added, as in DivideReplicas; callers
// pass it from tensor to tensor. `progress` is called at least once per 512
// KiB; its error ends the work.
//
// Cost. One pass over the shards; buffers as ForEachRun. With replicas O(number
// of shards) more.
absl::StatusOr<uint32_t> LoadedFingerprint(
    const ShardedTensor& tensor, bool has_replicas, int rank,
    absl::Span<int64_t> load, absl::FunctionRef<absl::Status()> progress);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOADED_FINGERPRINT_H_
