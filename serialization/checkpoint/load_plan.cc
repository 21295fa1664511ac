#include "sherd/serialization/checkpoint/load_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {
namespace {

// So many short reads take less time than the messages of an exchange.
constexpr int64_t kFewReads = 1024;

bool SameBoxes(const ManifestTensorV1& saved,
               absl::Span<const PlacedBox> wanted) {
  absl::flat_hash_set<BoxView> boxes;
  for (const PlacedBox& box : wanted) {
    if (!IsEmpty(box)) boxes.insert(box);
  }
  for (const ManifestShardV1& shard : saved.shards) {
    if (!IsEmpty(shard) && !boxes.contains(BoxView(shard))) return false;
  }
  return true;
}

template <typename Boxes>
const Dims* LargestSizes(const Boxes& boxes) {
  const Dims* largest = nullptr;
  for (const auto& box : boxes) {
    if (largest == nullptr || Volume(box) > Volume(*largest)) {
      largest = &box.sizes;
    }
  }
  return largest;
}

// Every part of a wanted box for all others that hold the box.
void AddCopies(absl::Span<const PlacedBox> wanted, WantedParts& parts) {
  absl::flat_hash_map<BoxView, std::vector<size_t>> holders;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!IsEmpty(wanted[i])) holders[wanted[i]].push_back(i);
  }
  for (size_t p = 0; p < parts.boxes.size(); ++p) {
    if (IsEmpty(parts.boxes[p])) continue;
    for (const size_t other : holders.at(wanted[parts.shards[p]])) {
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

ReadStrategy ChooseReadStrategy(const ManifestTensorV1& saved,
                                absl::Span<const PlacedBox> wanted,
                                int world_size, int64_t min_read_bytes) {
  if (SameBoxes(saved, wanted)) return ReadStrategy::kWhole;
  // The largest shards represent all: exact for grids, and otherwise good
  // enough for a choice that affects speed only.
  const Dims* from = LargestSizes(saved.shards);
  const Dims* to = LargestSizes(wanted);
  if (from == nullptr || to == nullptr) return ReadStrategy::kPieces;
  Dims common;
  for (size_t d = 0; d < from->size(); ++d) {
    common.push_back(std::min((*from)[d], (*to)[d]));
  }
  const size_t element_size = SizeOf(saved.dtype);
  const int64_t run = RunBytes(*from, common, element_size);
  if (run == 0 || run >= min_read_bytes) return ReadStrategy::kPieces;
  const int64_t bytes = Volume(*to) * static_cast<int64_t>(element_size);
  return world_size == 1 || bytes / run <= kFewReads ? ReadStrategy::kPieces
                                                     : ReadStrategy::kExchange;
}

absl::StatusOr<std::vector<ShardRead>> PlanReads(
    const ManifestTensorV1& saved, absl::Span<const PlacedBox> wanted,
    int rank) {
  // The saved shards belong to no rank of this run: all comes from outside.
  int outside = 0;
  for (const PlacedBox& box : wanted) outside = std::max(outside, box.rank + 1);
  outside = std::max(outside, rank + 1);
  std::vector<PlacedBox> from;
  from.reserve(saved.shards.size());
  for (const ManifestShardV1& shard : saved.shards) {
    from.push_back({shard, outside});
  }
  SHERD_ASSIGN_OR_RETURN(const ReshardPlan plan,
                         ReshardPlan::Create(from, wanted, rank));
  std::vector<ShardRead> reads;
  for (const PeerCopies& peer : plan.receives()) {
    for (const BoxCopy& copy : peer.copies) {
      ShardRead read;
      read.saved = copy.src_shard;
      read.wanted = copy.dst_shard;
      read.in_saved = OffsetsFrom(from[copy.src_shard].offsets, copy);
      read.in_wanted = OffsetsFrom(wanted[copy.dst_shard].offsets, copy);
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

std::vector<ReadPart> PlanParts(const ManifestTensorV1& saved, int world_size) {
  std::vector<ReadPart> parts;
  for (size_t s = 0; s < saved.shards.size(); ++s) {
    const ManifestShardV1& shard = saved.shards[s];
    if (IsEmpty(shard)) continue;
    const size_t dim = OuterDim(shard);
    const int64_t size = shard.sizes.empty() ? 1 : shard.sizes[dim];
    const int64_t count = std::min<int64_t>(size, world_size);
    for (int64_t k = 0; k < count; ++k) {
      Box box = PartOf(shard, dim, count, k);
      Dims offsets = OffsetsFrom(shard.offsets, box);
      // Those that have fewer parts than ranks do not all begin at rank 0.
      const int rank = static_cast<int>((s + k) % world_size);
      parts.push_back({s, std::move(offsets), {std::move(box), rank}});
    }
  }
  return parts;
}

}  // namespace sherd
