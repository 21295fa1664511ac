#include "sherd/serialization/manifest/manifest.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"

namespace sherd {
namespace {

// Extent `extent` of the first shard of a run, as that of shard `k`.
SavedExtent Advance(SavedExtent extent, const SavedRun& run, int64_t k,
                    int64_t chunk_bytes) {
  if (run.advances) {
    extent.first_chunk += k * NumChunks(extent.bytes, chunk_bytes);
    extent.data_offset += k * extent.bytes;
  }
  extent.file += static_cast<int32_t>(k) * run.file_step;
  return extent;
}

// Whether `next`, which begins where `run` ends, can be its next shard. Sets
// the steps of a run of one.
bool Continue(const SavedShardPlace& next, int64_t chunk_bytes, SavedRun& run) {
  if (run.extents.size() > 1 || next.extents.size() != run.extents.size()) {
    return false;
  }
  SavedRun longer = run;
  ++longer.shards;
  if (run.shards == 1) {
    longer.placement_step = next.placement - run.placement;
    if (longer.placement_step < 0 || longer.placement_step > 1) return false;
    if (!run.extents.empty()) {
      longer.file_step = next.extents[0].file - run.extents[0].file;
      if (longer.file_step < 0 || longer.file_step > 1) return false;
      longer.advances = longer.file_step == 0;
    }
  }
  if (next.placement != run.placement + run.shards * longer.placement_step) {
    return false;
  }
  if (!run.extents.empty()) {
    const SavedExtent expected =
        Advance(run.extents[0], longer, run.shards, chunk_bytes);
    const SavedExtent& extent = next.extents[0];
    if (extent.file != expected.file ||
        extent.data_offset != expected.data_offset ||
        extent.first_chunk != expected.first_chunk) {
      return false;
    }
  }
  run = std::move(longer);
  return true;
}

}  // namespace

int64_t ManifestTensor::bytes() const {
  return Volume(sizes()) * static_cast<int64_t>(SizeOf(dtype));
}

int64_t ManifestTensor::ShardBytes(int64_t shard) const {
  return layout.VolumeAt(shard) * static_cast<int64_t>(SizeOf(dtype));
}

int64_t ManifestTensor::num_extents() const {
  int64_t count = 0;
  for (const SavedRun& run : runs) {
    count += run.shards * static_cast<int64_t>(run.extents.size());
  }
  return count;
}

SavedShardPlace ManifestTensor::PlaceOf(int64_t shard,
                                        int64_t chunk_bytes) const {
  const SavedRun& run = *std::prev(std::upper_bound(
      runs.begin(), runs.end(), shard,
      [](int64_t wanted, const SavedRun& r) { return wanted < r.first; }));
  const int64_t k = shard - run.first;
  SavedShardPlace place = {
      .placement = run.placement + static_cast<int32_t>(k) * run.placement_step,
      .extents = run.extents};
  if (place.extents.size() == 1) {
    place.extents[0] = Advance(place.extents[0], run, k, chunk_bytes);
    place.extents[0].bytes = ShardBytes(shard);
  }
  return place;
}

void AppendPlace(SavedShardPlace place, int64_t chunk_bytes, SavedRuns& runs) {
  if (!runs.empty() && Continue(place, chunk_bytes, runs.back())) return;
  const int64_t first =
      runs.empty() ? 0 : runs.back().first + runs.back().shards;
  runs.push_back({.first = first,
                  .placement = place.placement,
                  .extents = std::move(place.extents)});
}

absl::StatusOr<const ManifestTensor*> Manifest::Find(
    absl::string_view name) const {
  const auto it = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const ManifestTensor& tensor, absl::string_view wanted) {
        return absl::string_view(tensor.name) < wanted;
      });
  if (it != tensors.end() && it->name == name) return &*it;
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min<size_t>(3, tensors.size()); ++i) {
    some.push_back(tensors[i].name);
  }
  return NoSuchTensor(name, static_cast<int64_t>(tensors.size()), some);
}

absl::Status NoSuchTensor(absl::string_view name, int64_t count,
                          absl::Span<const std::string> some) {
  std::string known;
  for (const std::string& other : some) {
    absl::StrAppend(&known, known.empty() ? ", among them " : ", ",
                    other.substr(0, 200));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the checkpoint has no tensor ", Quoted(name), "; it has ",
                   count, known));
}

std::string ShardKey(absl::string_view tensor_name,
                     absl::Span<const int64_t> offsets) {
  std::string key = absl::StrCat(tensor_name, "@");
  const char* separator = "";
  for (const int64_t offset : offsets) {
    absl::StrAppend(&key, separator, offset);
    separator = ",";
  }
  return key;
}

}  // namespace sherd
