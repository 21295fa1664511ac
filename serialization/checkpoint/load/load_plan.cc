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

// Adds a read once the file that has its first byte is found.
void AddRead(const ManifestTensor& saved, int64_t chunk_bytes, ShardRead read,
             std::vector<ShardRead>& reads) {
  int64_t offset = read.from * static_cast<int64_t>(SizeOf(saved.dtype));
  for (const SavedExtent& extent :
       saved.PlaceOf(read.saved, chunk_bytes).extents) {
    if (offset < extent.bytes) {
      read.file = extent.file;
      read.data_offset = extent.data_offset + offset;
      reads.push_back(read);
      return;
    }
    offset -= extent.bytes;
  }
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
      work.reads.push_back(
          {.shard = divided.box, .part = std::move(divided.part)});
    }
  }
  return work;
}

void PlanReads(const ManifestTensor& saved, int64_t chunk_bytes, int32_t tensor,
               const BoxView& wanted, int32_t number,
               std::vector<ShardRead>& reads) {
  if (IsEmpty(wanted)) return;
  const size_t dims = wanted.sizes.size();
  Box box;
  Dims common(dims, 0);
  saved.layout.ForEachIn(wanted, [&](int64_t shard) {
    saved.layout.BoxAt(shard, box);
    ShardRead read = {.tensor = tensor, .wanted = number, .saved = shard};
    for (size_t d = 0; d < dims; ++d) {
      const int64_t begin = std::max(wanted.offsets[d], box.offsets[d]);
      common[d] = std::min(wanted.end(d), BoxView(box).end(d)) - begin;
      read.from = read.from * box.sizes[d] + begin - box.offsets[d];
      read.to = read.to * wanted.sizes[d] + begin - wanted.offsets[d];
    }
    const int64_t elements = Volume(common);
    if (RunBytes(box.sizes, common, 1) == elements &&
        RunBytes(wanted.sizes, common, 1) == elements) {
      read.elements = elements;
    }
    AddRead(saved, chunk_bytes, read, reads);
    return true;
  });
}

void RepeatReads(const ManifestTensor& saved, int64_t chunk_bytes,
                 int32_t tensor, size_t first, size_t last,
                 std::vector<ShardRead>& reads) {
  for (size_t i = first; i < last; ++i) {
    ShardRead read = reads[i];
    read.tensor = tensor;
    AddRead(saved, chunk_bytes, read, reads);
  }
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
