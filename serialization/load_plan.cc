#include "sherd/serialization/load_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/replica_division.h"
#include "sherd/core/sharding/reshard_plan.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/box_pieces.h"

namespace sherd {
namespace {

// So many short reads take less time than the messages of an exchange.
constexpr int64_t kFewReads = 1024;

int64_t Volume(absl::Span<const int64_t> sizes) {
  int64_t volume = 1;
  for (const int64_t size : sizes) volume *= size;
  return volume;
}

bool SameBoxes(const ManifestTensor& saved,
               absl::Span<const PlacedBox> wanted) {
  absl::flat_hash_set<std::pair<Dims, Dims>> boxes;
  for (const PlacedBox& box : wanted) {
    if (Volume(box.sizes) != 0) boxes.emplace(box.offsets, box.sizes);
  }
  for (const ManifestShard& shard : saved.shards) {
    if (Volume(shard.sizes) != 0 &&
        !boxes.contains(std::make_pair(shard.offsets, shard.sizes))) {
      return false;
    }
  }
  return true;
}

template <typename Boxes>
const Dims* LargestSizes(const Boxes& boxes) {
  const Dims* largest = nullptr;
  for (const auto& box : boxes) {
    if (largest == nullptr || Volume(box.sizes) > Volume(*largest)) {
      largest = &box.sizes;
    }
  }
  return largest;
}

Dims Minus(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  Dims difference;
  for (size_t d = 0; d < a.size(); ++d) difference.push_back(a[d] - b[d]);
  return difference;
}

// Every part of a wanted box for all others that hold the box.
void AddCopies(absl::Span<const PlacedBox> wanted, WantedParts& parts) {
  using Bounds =
      std::pair<absl::Span<const int64_t>, absl::Span<const int64_t>>;
  const auto bounds = [&](size_t i) {
    return Bounds(wanted[i].offsets, wanted[i].sizes);
  };
  absl::flat_hash_map<Bounds, std::vector<size_t>> holders;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (Volume(wanted[i].sizes) != 0) holders[bounds(i)].push_back(i);
  }
  for (size_t p = 0; p < parts.boxes.size(); ++p) {
    if (Volume(parts.boxes[p].sizes) == 0) continue;
    for (const size_t other : holders.at(bounds(parts.shards[p]))) {
      if (other == parts.shards[p]) continue;
      PlacedBox& copy = parts.copies.emplace_back(parts.boxes[p]);
      copy.rank = wanted[other].rank;
      parts.copy_shards.push_back(other);
    }
  }
}

}  // namespace

WantedParts DivideWanted(absl::Span<const PlacedBox> wanted,
                         size_t element_size, absl::Span<int64_t> load) {
  std::vector<DividedBox> divided = DivideReplicas(
      wanted, kMinReplicaPartBytes / static_cast<int64_t>(element_size), load);
  WantedParts parts;
  bool has_replicas = divided.size() != wanted.size();
  for (DividedBox& d : divided) {
    has_replicas |= d.part.sizes != wanted[d.box].sizes;
    parts.boxes.push_back(std::move(d.part));
    parts.shards.push_back(d.box);
  }
  if (has_replicas) AddCopies(wanted, parts);
  return parts;
}

LoadWay ChooseLoadWay(const ManifestTensor& saved,
                      absl::Span<const PlacedBox> wanted, int world_size,
                      int64_t min_read_bytes) {
  if (SameBoxes(saved, wanted)) return LoadWay::kWhole;
  // The largest shards stand for all: exact for grids, and otherwise good
  // enough for a choice that decides about speed only.
  const Dims* from = LargestSizes(saved.shards);
  const Dims* to = LargestSizes(wanted);
  if (from == nullptr || to == nullptr) return LoadWay::kPieces;
  Dims common;
  for (size_t d = 0; d < from->size(); ++d) {
    common.push_back(std::min((*from)[d], (*to)[d]));
  }
  const size_t element_size = SizeOf(saved.dtype);
  const int64_t run = RunBytes(*from, common, element_size);
  if (run == 0 || run >= min_read_bytes) return LoadWay::kPieces;
  const int64_t bytes = Volume(*to) * static_cast<int64_t>(element_size);
  return world_size == 1 || bytes / run <= kFewReads ? LoadWay::kPieces
                                                     : LoadWay::kExchange;
}

absl::StatusOr<std::vector<ShardRead>> PlanReads(
    const ManifestTensor& saved, absl::Span<const PlacedBox> wanted, int rank) {
  // The saved shards belong to no rank of this run: all comes from outside.
  int outside = 0;
  for (const PlacedBox& box : wanted) outside = std::max(outside, box.rank + 1);
  outside = std::max(outside, rank + 1);
  std::vector<PlacedBox> from;
  from.reserve(saved.shards.size());
  for (const ManifestShard& shard : saved.shards) {
    from.push_back({shard.offsets, shard.sizes, outside});
  }
  SHERD_ASSIGN_OR_RETURN(const ReshardPlan plan,
                         ReshardPlan::Create(from, wanted, rank));
  std::vector<ShardRead> reads;
  for (const PeerCopies& peer : plan.receives()) {
    for (const BoxCopy& copy : peer.copies) {
      ShardRead read;
      read.saved = copy.src_shard;
      read.wanted = copy.dst_shard;
      read.in_saved = Minus(copy.offsets, from[copy.src_shard].offsets);
      read.in_wanted = Minus(copy.offsets, wanted[copy.dst_shard].offsets);
      read.sizes = copy.sizes;
      reads.push_back(std::move(read));
    }
  }
  // In the order of the file.
  std::sort(
      reads.begin(), reads.end(), [](const ShardRead& a, const ShardRead& b) {
        return std::tie(a.saved, a.in_saved) < std::tie(b.saved, b.in_saved);
      });
  return reads;
}

std::vector<ReadPart> PlanParts(const ManifestTensor& saved, int world_size) {
  std::vector<ReadPart> parts;
  for (size_t s = 0; s < saved.shards.size(); ++s) {
    const ManifestShard& shard = saved.shards[s];
    if (Volume(shard.sizes) == 0) continue;
    // Cut along the first dimension that has more than one index: parts are
    // contiguous then.
    size_t d = 0;
    while (d + 1 < shard.sizes.size() && shard.sizes[d] == 1) ++d;
    const int64_t size = shard.sizes.empty() ? 1 : shard.sizes[d];
    const int64_t count = std::min<int64_t>(size, world_size);
    for (int64_t k = 0; k < count; ++k) {
      ReadPart part;
      part.saved = s;
      part.offsets.assign(shard.sizes.size(), 0);
      part.box.offsets = shard.offsets;
      part.box.sizes = shard.sizes;
      // Those that have fewer parts than ranks do not all begin at rank 0.
      part.box.rank = static_cast<int>((s + k) % world_size);
      if (!shard.sizes.empty()) {
        const int64_t begin = size / count * k + std::min(k, size % count);
        part.offsets[d] = begin;
        part.box.offsets[d] += begin;
        part.box.sizes[d] = size / count + (k < size % count ? 1 : 0);
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

}  // namespace sherd
