#include "sherd/serialization/sharded_layout.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/manifest.h"
#include "sherd/serialization/safetensors_header.h"

namespace sherd {
namespace {

absl::Status CheckName(const std::string& name) {
  if (!IsValidUtf8(name)) {
    return absl::InvalidArgumentError("a tensor name is not valid UTF-8");
  }
  if (name.empty() || static_cast<int64_t>(name.size()) > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor name has ", name.size(),
                     " bytes, expected 1 to ", kMaxTensorNameBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckLocalShards(const ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    if (shard.tensor.device().is_cpu() &&
        (shard.tensor.numel() == 0 || shard.tensor.data() != nullptr)) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("the local shard ", shard.metadata.ToString(), " is on ",
                     shard.tensor.device().ToString(),
                     ", expected host memory: copy it there first"));
  }
  return absl::OkStatus();
}

absl::Status DescribeShards(const ShardedTensor& tensor, int world_size,
                            TensorToSave& layout) {
  for (const ShardMetadata& shard : tensor.metadata().shards) {
    SHERD_ASSIGN_OR_RETURN(const int rank,
                           ResolveRank(shard.placement, world_size));
    layout.shards.push_back({.offsets = shard.offsets,
                             .sizes = shard.sizes,
                             .rank = rank,
                             .placement = shard.placement->ToString()});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorToSave> DescribeTensor(const std::string& name,
                                            const ShardedTensor& tensor,
                                            const ProcessGroup& group) {
  SHERD_RETURN_IF_ERROR(CheckName(name));
  const std::string where = absl::StrCat("tensor \"", name, "\"");
  if (!tensor.defined()) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, " is not defined: create it first"));
  }
  if (tensor.group().get() != &group) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " belongs to the group \"", tensor.group()->name(),
                     "\", expected \"", group.name(), "\""));
  }
  TensorToSave layout;
  layout.name = name;
  layout.dtype = tensor.dtype();
  layout.sizes.assign(tensor.size().begin(), tensor.size().end());
  layout.requires_grad = tensor.requires_grad();
  if (const auto* chunk =
          dynamic_cast<const ChunkShardingSpec*>(tensor.spec().get())) {
    layout.layout = SavedLayout::kChunk;
    layout.chunk_dim = static_cast<int32_t>(
        chunk->dim() < 0 ? chunk->dim() + tensor.dim() : chunk->dim());
  }
  absl::Status status = CheckLocalShards(tensor);
  if (status.ok()) status = DescribeShards(tensor, group.size(), layout);
  if (!status.ok()) return Annotate(status, where);
  return layout;
}

void AddToFingerprint(const TensorToSave& layout, Fingerprint& fingerprint) {
  fingerprint.Add(layout.name).Add(static_cast<int64_t>(layout.dtype));
  fingerprint.Add(static_cast<int64_t>(layout.sizes.size()));
  for (const int64_t size : layout.sizes) fingerprint.Add(size);
  fingerprint.Add(static_cast<int64_t>(layout.shards.size()));
  for (const ShardToSave& shard : layout.shards) {
    fingerprint.Add(shard.rank);
    for (const int64_t offset : shard.offsets) fingerprint.Add(offset);
    for (const int64_t size : shard.sizes) fingerprint.Add(size);
  }
}

Tensor LocalShard(const ShardedTensor& tensor, size_t shard) {
  const absl::Span<const int> indices = tensor.local_shard_indices();
  const auto it =
      std::find(indices.begin(), indices.end(), static_cast<int>(shard));
  SHERD_CHECK(it != indices.end()) << "shard " << shard << " is elsewhere";
  return tensor.local_shards()[it - indices.begin()].tensor;
}

}  // namespace sherd
