#include "sherd/tools/bench/peers/sharded_words.h"

#include <cstdint>

#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

Dims LastOf(const Extent& extent, int dims) {
  return Dims(extent.end() - dims, extent.end());
}

Extent ExtentOf(absl::Span<const int64_t> dims, int64_t missing) {
  Extent extent;
  extent.fill(missing);
  std::copy(dims.begin(), dims.end(), extent.end() - dims.size());
  return extent;
}

}  // namespace

Dims SizeOf(const WordTensor& tensor) {
  return LastOf(tensor.size, tensor.dims);
}

absl::StatusOr<ShardingSpecPtr> SpecOf(const WordTensor& tensor,
                                       const BoxLayout& layout) {
  std::vector<ShardMetadata> shards;
  for (size_t rank = 0; rank < layout.size(); ++rank) {
    for (const WordBox& box : layout[rank]) {
      shards.push_back(
          {.offsets = LastOf(box.offsets, tensor.dims),
           .sizes = LastOf(box.sizes, tensor.dims),
           .placement = Placement::OnRank(static_cast<int>(rank))});
    }
  }
  return InferShardingSpec(shards);
}

absl::StatusOr<ShardedTensor> MakeShardedWords(
    const WordTensor& words, const BoxLayout& layout,
    const std::shared_ptr<ProcessGroup>& group) {
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec, SpecOf(words, layout));
  return ShardedTensor::Empty(spec, SizeOf(words),
                              {.dtype = kUInt32, .group = group});
}

std::vector<StoredBox> StoredShards(const ShardedTensor& tensor) {
  std::vector<StoredBox> stored;
  for (const Shard& shard : tensor.local_shards()) {
    // A Tensor is a handle: this is the shard itself.
    Tensor handle = shard.tensor;
    stored.push_back(DenseBox({ExtentOf(shard.metadata.offsets, 0),
                               ExtentOf(shard.metadata.sizes, 1)},
                              handle.mutable_data_as<uint32_t>()));
  }
  return stored;
}

}  // namespace sherd
