#include "sherd/core/sharding/local_shards.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

bool HasData(const Tensor& tensor) {
  return tensor.defined() && !tensor.device().is_meta();
}

// The addresses from the first to the last element.
struct AddressRange {
  const std::byte* begin;
  const std::byte* end;
};

AddressRange AddressesOf(const Tensor& tensor) {
  const auto* begin = static_cast<const std::byte*>(tensor.data());
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.sizes()[d] - 1) * tensor.strides()[d];
  }
  return {begin, begin + static_cast<size_t>(last + 1) * tensor.element_size()};
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
    // What devices reach, rather than what peers reach.
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

absl::Status CheckWritable(absl::Span<const Shard> shards) {
  for (const Shard& shard : shards) {
    if (shard.tensor.numel() == 0 || shard.tensor.writable()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "destination ", shard.metadata.ToString(), " may not be written to"));
  }
  return absl::OkStatus();
}

bool MemoryOverlaps(absl::Span<const Shard> a, absl::Span<const Shard> b) {
  // `first` says on which side a range begins; two that overlap are neighbours
  // of some kind in the order of their begins.
  struct Range {
    AddressRange at;
    bool first;
  };
  std::vector<Range> ranges;
  for (const Shard& shard : a) {
    ranges.push_back({AddressesOf(shard.tensor), true});
  }
  for (const Shard& shard : b) {
    ranges.push_back({AddressesOf(shard.tensor), false});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& x, const Range& y) {
    return x.at.begin < y.at.begin;
  });
  const std::byte* ends[2] = {nullptr, nullptr};
  for (const Range& range : ranges) {
    if (range.at.begin == range.at.end) continue;
    if (range.at.begin < ends[range.first ? 0 : 1]) return true;
    const std::byte*& end = ends[range.first ? 1 : 0];
    end = std::max(end, range.at.end);
  }
  return false;
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
