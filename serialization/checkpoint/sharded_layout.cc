#include "sherd/serialization/checkpoint/sharded_layout.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {
namespace {

absl::Status CheckLocalShards(const ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    if (!shard.tensor.device().is_meta() &&
        (shard.tensor.numel() == 0 || shard.tensor.data() != nullptr)) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("the local shard ", shard.metadata.ToString(), " is on ",
                     shard.tensor.device().ToString(),
                     ", expected one in host memory or on a device"));
  }
  return absl::OkStatus();
}

// `Shards` are boxes with ranks.
template <typename Shards>
void AddShards(absl::Span<const int64_t> sizes, const Shards& shards,
               Fingerprint& fingerprint) {
  fingerprint.Add(static_cast<int64_t>(sizes.size()));
  for (const int64_t size : sizes) fingerprint.Add(size);
  fingerprint.Add(static_cast<int64_t>(shards.size()));
  for (const auto& shard : shards) {
    fingerprint.Add(shard.rank);
    for (const int64_t offset : shard.offsets) fingerprint.Add(offset);
    for (const int64_t size : shard.sizes) fingerprint.Add(size);
  }
}

void DescribeShards(const ShardedTensor& tensor, TensorToSave& layout) {
  const std::vector<ShardMetadata>& shards = tensor.metadata().shards;
  const absl::Span<const PlacedBox> boxes = tensor.placed_boxes();
  layout.shards.reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    layout.shards.push_back({boxes[i], boxes[i].rank, i});
  }
}

}  // namespace

std::vector<PlacedBox> TensorToSave::Boxes() const {
  std::vector<PlacedBox> boxes;
  boxes.reserve(shards.size());
  for (const ShardToSave& shard : shards) {
    boxes.push_back({shard, shard.rank});
  }
  return boxes;
}

DisplayLayout DisplayLayoutOf(const ShardedTensor& tensor) {
  const auto* chunk =
      dynamic_cast<const ChunkShardingSpec*>(tensor.spec().get());
  if (chunk == nullptr) return {};
  return {SavedLayoutKind::kChunk,
          static_cast<int32_t>(chunk->dim() < 0 ? chunk->dim() + tensor.dim()
                                                : chunk->dim())};
}

absl::Status CheckTensorName(absl::string_view name) {
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

absl::Status CheckTensor(absl::string_view name, const ShardedTensor& tensor,
                         const ProcessGroup& group) {
  SHERD_RETURN_IF_ERROR(CheckTensorName(name));
  const auto where = [&] { return absl::StrCat("tensor ", Quoted(name)); };
  if (!tensor.defined()) {
    return absl::FailedPreconditionError(
        absl::StrCat(where(), " is not defined: create it first"));
  }
  if (tensor.group() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        where(), " belongs to no group, expected ", Quoted(group.name())));
  }
  if (tensor.group().get() != &group) {
    return absl::InvalidArgumentError(absl::StrCat(
        where(), " belongs to the group ", Quoted(tensor.group()->name()),
        ", expected ", Quoted(group.name())));
  }
  if (!group.is_member()) {
    return absl::FailedPreconditionError(
        absl::StrCat(where(), ": this process is not a member of the group ",
                     Quoted(group.name())));
  }
  absl::Status status = CheckLocalShards(tensor);
  return status.ok() ? status : Annotate(std::move(status), where());
}

absl::StatusOr<TensorToSave> DescribeTensor(absl::string_view name,
                                            const ShardedTensor& tensor,
                                            const ProcessGroup& group) {
  SHERD_RETURN_IF_ERROR(CheckTensor(name, tensor, group));
  const DisplayLayout display = DisplayLayoutOf(tensor);
  TensorToSave layout;
  layout.name = std::string(name);
  layout.dtype = tensor.dtype();
  layout.sizes.assign(tensor.size().begin(), tensor.size().end());
  layout.requires_grad = tensor.requires_grad();
  layout.layout = display.kind;
  layout.chunk_dim = display.chunk_dim;
  layout.layout_fingerprint = LayoutFingerprintOf(tensor);
  DescribeShards(tensor, layout);
  return layout;
}

ShardedTensor WithoutElements(const ShardedTensor& tensor) {
  auto shards = std::make_shared<std::vector<Shard>>();
  shards->reserve(tensor.local_shards().size());
  for (const Shard& shard : tensor.local_shards()) {
    shards->push_back({Tensor(), shard.metadata});
  }
  return internal::ShardedTensorAccess::Make(
      internal::ShardedTensorAccess::StateOf(tensor), std::move(shards));
}

uint64_t LayoutFingerprintOf(const ShardedTensor& tensor) {
  return internal::ShardedTensorAccess::StateOf(tensor)->layout_fingerprint;
}

void AddToFingerprint(const TensorToSave& layout, Fingerprint& fingerprint) {
  fingerprint.Add(layout.name).Add(static_cast<int64_t>(layout.dtype));
  AddShards(layout.sizes, layout.shards, fingerprint);
}

uint64_t BoxesFingerprintOf(const ShardedTensor& tensor) {
  Fingerprint fingerprint;
  AddShards(tensor.size(), tensor.placed_boxes(), fingerprint);
  return fingerprint.value();
}

std::string DescribeForAgreement(absl::Span<const TensorToSave> layouts,
                                 bool with_properties) {
  // Errors show no more of it.
  constexpr size_t kMaxShards = 1000;
  std::string text;
  for (const TensorToSave& layout : layouts) {
    absl::StrAppend(&text, "tensor ", Quoted(layout.name), " of ",
                    Name(layout.dtype), " ", FormatDims(layout.sizes));
    if (with_properties) {
      absl::StrAppend(
          &text, ", requires_grad ", layout.requires_grad ? "true" : "false",
          layout.layout == SavedLayoutKind::kChunk
              ? absl::StrCat(", in chunks of dimension ", layout.chunk_dim)
              : ", not in chunks",
          ", shards and placements ", absl::Hex(layout.layout_fingerprint));
    }
    text += '\n';
  }
  size_t shards = 0;
  for (const TensorToSave& layout : layouts) {
    for (const ShardToSave& shard : layout.shards) {
      if (++shards > kMaxShards) return text;
      absl::StrAppend(&text, "tensor ", Quoted(layout.name),
                      " with a shard of ", FormatBox(shard), " on rank ",
                      shard.rank, "\n");
    }
  }
  return text;
}

Tensor LocalShard(const ShardedTensor& tensor, size_t shard) {
  const absl::Span<const int> indices = tensor.local_shard_indices();
  const auto it =
      std::lower_bound(indices.begin(), indices.end(), static_cast<int>(shard));
  SHERD_CHECK(it != indices.end() && *it == static_cast<int>(shard))
      << "shard " << shard << " is elsewhere";
  return tensor.local_shards()[it - indices.begin()].tensor;
}

absl::StatusOr<Tensor> LocalPart(const ShardedTensor& tensor, size_t shard,
                                 BoxView box) {
  const Dims& begin = tensor.metadata().shards[shard].offsets;
  return LocalShard(tensor, shard).Narrow(OffsetsFrom(begin, box), box.sizes);
}

}  // namespace sherd
