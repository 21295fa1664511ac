#include "sherd/core/sharding/tensor/local_shards.h"

#include <cstddef>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/types/memory_overlap.h"

namespace sherd::internal {
namespace {

bool HasData(const Tensor& tensor) {
  return tensor.defined() && !tensor.device().is_meta();
}

using Accesses = absl::InlinedVector<MemoryAccess, 8>;

void Append(absl::Span<const Shard> shards, Access access, Accesses& accesses) {
  for (const Shard& shard : shards) {
    accesses.push_back(AccessToTensor(shard.tensor, access));
  }
}

template <typename Memory>
std::vector<Memory> MemoryOf(absl::Span<const Shard> shards,
                             absl::Span<const int> indices) {
  std::vector<Memory> memory;
  memory.reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    Tensor tensor = shards[i].tensor;
    memory.push_back({.shard = indices[i],
                      .offsets = shards[i].metadata.offsets,
                      .strides = StridesOf(tensor),
                      .data = tensor.data(),
                      .owner = tensor.storage(),
                      .device = tensor.device(),
                      .storage = tensor.storage().get()});
  }
  return memory;
}

}  // namespace

Allocator* AllocatorFor(const ProcessGroup* group, const Device& device,
                        Allocator* given) {
  if (given != nullptr && SameDevice(given->device(), device)) return given;
  if (group == nullptr || !device.is_cpu()) return nullptr;
  return &group->shard_allocator();
}

absl::StatusOr<Tensor> AllocateShard(const ProcessGroup* group,
                                     const ShardMetadata& shard,
                                     const TensorProperties& properties,
                                     Allocator* allocator) {
  const Device device = shard.placement ? shard.placement->device() : Device();
  Allocator* memory = AllocatorFor(group, device, allocator);
  if (properties.pin_memory && device.is_cpu() && memory != allocator) {
    // Memory that devices can access, rather than peers.
    Allocator* const pinned = PinnedMemory();
    if (pinned != nullptr) memory = pinned;
  }
  return MakeLocalTensor(shard.sizes, properties, device, memory);
}

absl::StatusOr<LocalShards> AllocateShards(const ShardedTensorState& state,
                                           Allocator* allocator) {
  std::vector<Shard> shards;
  shards.reserve(state.local_indices.size());
  for (const int index : state.local_indices) {
    const ShardMetadata& metadata =
        state.metadata.shards[static_cast<size_t>(index)];
    SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                           AllocateShard(state.group.get(), metadata,
                                         state.metadata.properties, allocator));
    shards.push_back({std::move(tensor), metadata});
  }
  return std::make_shared<const std::vector<Shard>>(std::move(shards));
}

LocalShards Relabel(const ShardedTensorState& state, const LocalShards& given) {
  std::vector<Shard> shards = *given;
  bool changes = false;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardMetadata& label =
        state.metadata.shards[static_cast<size_t>(state.local_indices[i])];
    changes = changes || shards[i].metadata != label;
    shards[i].metadata = label;
  }
  if (!changes) return given;
  return std::make_shared<const std::vector<Shard>>(std::move(shards));
}

absl::Status CheckHasData(const Tensor& tensor, absl::string_view what) {
  if (HasData(tensor)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " is ",
                   tensor.defined() ? "on " + tensor.device().ToString()
                                    : std::string("undefined"),
                   ", expected one in host memory or on a device"));
}

absl::Status CheckHasData(absl::Span<const Shard> shards) {
  for (const Shard& shard : shards) {
    if (HasData(shard.tensor)) continue;
    return CheckHasData(shard.tensor, shard.metadata.ToString());
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> OnHost(const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return tensor.To(Device());
}

absl::Status CheckDestinations(absl::Span<const Shard> destinations,
                               absl::Span<const Shard> sources) {
  for (const Shard& shard : destinations) {
    if (shard.tensor.numel() == 0 || !HasData(shard.tensor) ||
        shard.tensor.writable()) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "destination ", shard.metadata.ToString(), " may not be written to"));
  }
  Accesses accesses;
  Append(destinations, Access::kWrite, accesses);
  Append(sources, Access::kRead, accesses);
  const auto conflict = FindConflict(accesses);
  if (!conflict) return absl::OkStatus();
  const Shard& first = destinations[conflict->first];
  if (conflict->second >= destinations.size()) {
    const Shard& source = sources[conflict->second - destinations.size()];
    return absl::InvalidArgumentError(absl::StrCat(
        "the memory of source and destination shards overlaps: that of source ",
        source.metadata.ToString(), " and of destination ",
        first.metadata.ToString(), "; copy from a Clone()"));
  }
  if (conflict->first == conflict->second) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elements of destination ", first.metadata.ToString(),
        " coincide: sizes ", FormatDims(first.tensor.sizes()), ", strides ",
        FormatDims(first.tensor.strides()), "; write to a Clone()"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "destinations ", first.metadata.ToString(), " and ",
      destinations[conflict->second].metadata.ToString(),
      " share memory, expected each in memory of its own; write to a Clone()"));
}

absl::StatusOr<absl::Span<const Shard>> ApartFrom(
    absl::Span<const Shard> destinations, absl::Span<const Shard> sources,
    std::vector<Shard>& copies) {
  Accesses accesses;
  Append(destinations, Access::kWrite, accesses);
  Append(sources, Access::kRead, accesses);
  for (size_t i = 0; i < destinations.size(); ++i) {
    MemoryAccess& source = accesses[destinations.size() + i];
    if (IsSameMemory(accesses[i], source)) source = {};
  }
  if (!FindConflict(accesses)) return sources;
  copies.assign(sources.begin(), sources.end());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (accesses[destinations.size() + i].data == nullptr) continue;
    SHERD_ASSIGN_OR_RETURN(copies[i].tensor, sources[i].tensor.Clone());
  }
  return absl::MakeConstSpan(copies);
}

Dims StridesOf(const Tensor& tensor) {
  return Dims(tensor.strides().begin(), tensor.strides().end());
}

std::vector<SourceMemory> SourcesOf(absl::Span<const Shard> shards,
                                    absl::Span<const int> indices) {
  return MemoryOf<SourceMemory>(shards, indices);
}

std::vector<DestinationMemory> DestinationsOf(absl::Span<const Shard> shards,
                                              absl::Span<const int> indices) {
  return MemoryOf<DestinationMemory>(shards, indices);
}

}  // namespace sherd::internal
