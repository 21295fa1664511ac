#include "sherd/serialization/checkpoint/load/load_plan.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {
namespace {

// So many short reads take less time than the messages of an exchange.
constexpr int64_t kFewReads = 1024;

int64_t LargestCell(const SavedLayout::Axis& axis, int64_t size) {
  if (axis.step > 0) return std::min(axis.step, size);
  // One cell.
  if (axis.cuts.empty()) return size;
  int64_t largest = 0;
  for (size_t i = 0; i + 1 < axis.cuts.size(); ++i) {
    largest = std::max(largest, axis.cuts[i + 1] - axis.cuts[i]);
  }
  return largest;
}

}  // namespace

ReadStrategy StrategyChooser::Choose(const Dims& saved, const Dims& wanted,
                                     size_t element_size) {
  Dims common;
  for (size_t d = 0; d < saved.size(); ++d) {
    common.push_back(std::min(saved[d], wanted[d]));
  }
  const int64_t run = RunBytes(saved, common, element_size);
  if (world_size_ == 1 || run == 0 || run >= min_read_bytes_) {
    return ReadStrategy::kPieces;
  }
  // A shard that is read as a whole is one run, however short.
  if (common == saved) return ReadStrategy::kPieces;
  const int64_t bytes = Volume(wanted) * static_cast<int64_t>(element_size);
  const int64_t reads = bytes / run;
  if (reads > kFewReads - short_reads_) return ReadStrategy::kExchange;
  short_reads_ += reads;
  return ReadStrategy::kPieces;
}

Dims LargestSizes(const SavedLayout& layout) {
  Dims sizes = layout.sizes();
  if (layout.is_grid()) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = LargestCell(layout.axes()[d], sizes[d]);
    }
    return sizes;
  }
  int64_t largest = -1;
  for (int64_t i = 0; i < layout.size(); ++i) {
    if (layout.VolumeAt(i) <= largest) continue;
    largest = layout.VolumeAt(i);
    sizes = layout.BoxAt(i).sizes;
  }
  return sizes;
}

Dims LargestSizes(absl::Span<const PlacedBox> boxes) {
  const auto largest = std::max_element(
      boxes.begin(), boxes.end(), [](const PlacedBox& a, const PlacedBox& b) {
        return Volume(a) < Volume(b);
      });
  return largest == boxes.end() ? Dims() : largest->sizes;
}

bool HasReplicas(absl::Span<const int64_t> sizes,
                 absl::Span<const PlacedBox> boxes) {
  int64_t left = Volume(sizes);
  for (const PlacedBox& box : boxes) {
    const int64_t volume = Volume(box);
    if (volume > left) return true;
    left -= volume;
  }
  return false;
}

ReplicaWork PlanReplicas(absl::Span<const PlacedBox> wanted,
                         size_t element_size, int rank,
                         absl::Span<int64_t> load) {
  absl::flat_hash_map<BoxView, std::vector<size_t>> holders;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!IsEmpty(wanted[i])) holders[wanted[i]].push_back(i);
  }
  ReplicaWork work;
  for (DividedBox& divided : DivideReplicas(
           wanted, kMinReplicaPartBytes / static_cast<int64_t>(element_size),
           load)) {
    if (IsEmpty(divided.part)) continue;
    const int reader = divided.part.rank;
    for (const size_t other : holders.at(wanted[divided.box])) {
      if (other == divided.box) continue;
      if (reader != rank && wanted[other].rank != rank) continue;
      BoxCopy& copy = work.copies.emplace_back();
      static_cast<Box&>(copy) = divided.part;
      copy.src_rank = reader;
      copy.src_shard = static_cast<int>(divided.box);
      copy.dst_rank = wanted[other].rank;
      copy.dst_shard = static_cast<int>(other);
    }
    if (reader == rank) {
      work.reads.push_back({{std::move(divided.part)}, divided.box});
    }
  }
  return work;
}

void PlanReads(const ManifestTensor& saved, int64_t chunk_bytes, int32_t tensor,
               const BoxView& wanted, int32_t number,
               std::vector<ShardRead>& reads) {
  if (IsEmpty(wanted)) return;
  const size_t dims = wanted.sizes.size();
  const int64_t element_size = static_cast<int64_t>(SizeOf(saved.dtype));
  Box box;
  saved.layout.ForEachIn(wanted, [&](int64_t shard) {
    saved.layout.BoxAt(shard, box);
    // Of the first element that both have, row-major in the shard.
    int64_t offset = 0;
    for (size_t d = 0; d < dims; ++d) {
      offset = offset * box.sizes[d] +
               std::max(wanted.offsets[d] - box.offsets[d], int64_t{0});
    }
    offset *= element_size;
    for (const SavedExtent& extent :
         saved.PlaceOf(shard, chunk_bytes).extents) {
      if (offset < extent.bytes) {
        reads.push_back(
            {tensor, number, shard, extent.file, extent.data_offset + offset});
        break;
      }
      offset -= extent.bytes;
    }
    return true;
  });
}

void SortReads(std::vector<ShardRead>& reads) {
  const auto before = [](const ShardRead& a, const ShardRead& b) {
    return std::tie(a.file, a.data_offset, a.tensor, a.wanted) <
           std::tie(b.file, b.data_offset, b.tensor, b.wanted);
  };
  // Names that number the layers of a model are in the order of the file.
  if (std::is_sorted(reads.begin(), reads.end(), before)) return;
  std::sort(reads.begin(), reads.end(), before);
}

}  // namespace sherd
