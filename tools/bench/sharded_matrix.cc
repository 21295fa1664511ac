#include "sherd/tools/bench/sharded_matrix.h"

#include <cstdint>
#include <vector>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

MatrixBox BoxOf(const Shard& shard) {
  return {shard.metadata.offsets[0], shard.metadata.offsets[1],
          shard.metadata.sizes[0], shard.metadata.sizes[1]};
}

// A Tensor is a handle: this writes to the shard.
uint32_t* WordsOf(const Shard& shard) {
  Tensor tensor = shard.tensor;
  return tensor.mutable_data_as<uint32_t>();
}

}  // namespace

absl::StatusOr<ShardedTensor> MakeShardedMatrix(
    const Matrix& matrix, const MatrixLayout& layout,
    const std::shared_ptr<ProcessGroup>& group) {
  std::vector<ShardMetadata> shards;
  for (size_t rank = 0; rank < layout.size(); ++rank) {
    const MatrixBox& box = layout[rank];
    shards.push_back({.offsets = {box.row, box.col},
                      .sizes = {box.rows, box.cols},
                      .placement = Placement::OnRank(static_cast<int>(rank))});
  }
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec, InferShardingSpec(shards));
  return ShardedTensor::Empty(spec, {matrix.rows, matrix.cols},
                              {.dtype = kUInt32, .group = group});
}

void FillShards(const Matrix& matrix, const ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    FillBox(matrix, BoxOf(shard), WordsOf(shard));
  }
}

void SpoilShards(const Matrix& matrix, const ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    SpoilBox(matrix, BoxOf(shard), WordsOf(shard));
  }
}

absl::Status CheckShards(const Matrix& matrix, const ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    SHERD_RETURN_IF_ERROR(CheckBox(matrix, BoxOf(shard), WordsOf(shard)));
  }
  return absl::OkStatus();
}

}  // namespace sherd
