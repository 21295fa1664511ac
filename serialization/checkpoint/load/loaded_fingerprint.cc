#include "sherd/serialization/checkpoint/load/loaded_fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/checkpoint/save/tensor_runs.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"

namespace sherd {
namespace {

constexpr size_t kBlockBytes = size_t{512} << 10;

// The shards that this rank adds.
std::vector<size_t> ShardsToAdd(const ShardedTensor& tensor, bool has_replicas,
                                int rank, absl::Span<int64_t> load) {
  std::vector<size_t> shards;
  if (!has_replicas) {
    for (const int shard : tensor.local_shard_indices()) {
      shards.push_back(static_cast<size_t>(shard));
    }
    return shards;
  }
  // A sum with a row does not overflow.
  constexpr int64_t kUndivided = std::numeric_limits<int64_t>::max() / 2;
  for (const DividedBox& owned :
       DivideReplicas(tensor.placed_boxes(), kUndivided, load)) {
    if (owned.part.rank == rank) shards.push_back(owned.box);
  }
  return shards;
}

}  // namespace

absl::StatusOr<uint32_t> LoadedFingerprint(
    const ShardedTensor& tensor, bool has_replicas, int rank,
    absl::Span<int64_t> load, absl::FunctionRef<absl::Status()> progress) {
  uint32_t sum = 0;
  for (const size_t shard : ShardsToAdd(tensor, has_replicas, rank, load)) {
    const Tensor elements = LocalShard(tensor, shard);
    if (elements.numel() == 0) continue;
    BoxFingerprint fingerprint(tensor.size(), tensor.placed_boxes()[shard],
                               SizeOf(tensor.dtype()));
    SHERD_RETURN_IF_ERROR(ForEachRun(
        elements, {0, elements.nbytes()},
        [&](int64_t, absl::Span<const std::byte> data) -> absl::Status {
          while (!data.empty()) {
            const auto block = data.first(std::min(kBlockBytes, data.size()));
            fingerprint.Add(block);
            data.remove_prefix(block.size());
            SHERD_RETURN_IF_ERROR(progress());
          }
          return absl::OkStatus();
        }));
    sum ^= fingerprint.Finish();
  }
  return sum;
}

}  // namespace sherd
