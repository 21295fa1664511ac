#include "sherd/serialization/checkpoint/incremental/increment.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/safetensors/safetensors_header.h"
#include "sherd/serialization/safetensors/tensors_on_host.h"

namespace sherd {

Increment::Increment(std::shared_ptr<const SavePlan> plan)
    : plan_(std::move(plan)),
      hashes_(static_cast<size_t>(plan_->chunks)),
      places_(hashes_.size()),
      fingerprints_(hashes_.size()),
      written_(hashes_.size(), true),
      files_(1) {}

absl::StatusOr<Increment> Increment::Make(
    std::shared_ptr<const SavePlan> plan, const SavedChunks* base,
    ShardElementsFn elements, bool ahead,
    absl::FunctionRef<absl::Status()> progress) {
  Increment increment(std::move(plan));
  const std::vector<PlannedShard>& shards = increment.plan_->shards;
  const auto elements_of = [&](size_t i) { return elements(shards[i]); };
  TensorsOnHost on_host(shards.size(), elements_of, ahead);
  for (size_t i = 0; i < shards.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(const Tensor tensor, on_host.At(i));
    SHERD_RETURN_IF_ERROR(
        HashChunks(tensor, kChunkBytes, progress,
                   absl::MakeSpan(increment.hashes_)
                       .subspan(increment.FirstOf(i),
                                static_cast<size_t>(shards[i].chunks))));
  }
  if (base != nullptr) {
    increment.KeepUnchanged(*base);
    increment.WriteScatteredShards();
    // After that, which leaves less of the files. It makes no extent more.
    increment.GiveUpFiles(*base);
    increment.NumberFiles(*base);
  }
  increment.PlaceParts();
  increment.DescribeParts();
  return increment;
}

int64_t Increment::ChunkLength(size_t shard, int64_t chunk) const {
  return std::min(kChunkBytes, BytesOf(shard) - chunk * kChunkBytes);
}

bool Increment::Continues(size_t chunk) const {
  if (written_[chunk] || written_[chunk - 1]) {
    return written_[chunk] && written_[chunk - 1];
  }
  const ChunkPlace& before = places_[chunk - 1];
  const ChunkPlace& place = places_[chunk];
  return place.file == before.file && place.chunk == before.chunk + 1 &&
         place.data_offset == before.data_offset + kChunkBytes;
}

void Increment::ForEachExtent(
    size_t shard, absl::FunctionRef<void(int64_t, int64_t)> visit) const {
  const size_t first = FirstOf(shard);
  const int64_t chunks = plan_->shards[shard].chunks;
  for (int64_t begin = 0; begin < chunks;) {
    int64_t end = begin + 1;
    while (end < chunks && Continues(first + static_cast<size_t>(end))) ++end;
    visit(begin, end);
    begin = end;
  }
}

void Increment::KeepUnchanged(const SavedChunks& base) {
  for (size_t i = 0; i < hashes_.size(); ++i) {
    if (hashes_[i] != base.hashes[i]) continue;
    written_[i] = false;
    places_[i] = base.places[i];
    fingerprints_[i] = base.fingerprints[i];
  }
}

std::vector<int64_t> Increment::LiveBytes(const SavedChunks& base) const {
  std::vector<int64_t> live(base.files.size());
  for (size_t s = 0; s < plan_->shards.size(); ++s) {
    for (int64_t c = 0; c < plan_->shards[s].chunks; ++c) {
      const size_t i = FirstOf(s) + static_cast<size_t>(c);
      if (!written_[i]) live[places_[i].file] += ChunkLength(s, c);
    }
  }
  return live;
}

void Increment::GiveUpFiles(const SavedChunks& base) {
  const std::vector<int64_t> live = LiveBytes(base);
  std::vector<size_t> kept;
  for (size_t f = 0; f < base.files.size(); ++f) {
    const ManifestFile& file = base.files[f];
    const int64_t data_bytes =
        file.size - file.data_begin - CrcTableBytes(file.chunks);
    if (live[f] > 0 && live[f] >= data_bytes / kMinLivePart) kept.push_back(f);
  }
  if (kept.size() > kMaxEarlierFiles) {
    const auto last =
        kept.begin() + static_cast<std::ptrdiff_t>(kMaxEarlierFiles);
    std::nth_element(kept.begin(), last, kept.end(), [&](size_t a, size_t b) {
      return std::pair(-live[a], a) < std::pair(-live[b], b);
    });
    kept.erase(last, kept.end());
  }
  std::vector<bool> is_kept(base.files.size());
  for (const size_t f : kept) is_kept[f] = true;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!written_[i]) {
      written_[i] = !is_kept[static_cast<size_t>(places_[i].file)];
    }
  }
}

void Increment::WriteScatteredShards() {
  for (size_t s = 0; s < plan_->shards.size(); ++s) {
    int64_t extents = 0;
    ForEachExtent(s, [&](int64_t, int64_t) { ++extents; });
    const int64_t chunks = plan_->shards[s].chunks;
    if (extents <= std::max(kFewExtents, chunks / kMinChunksPerExtent)) {
      continue;
    }
    const auto first =
        written_.begin() + static_cast<std::ptrdiff_t>(FirstOf(s));
    std::fill(first, first + chunks, true);
  }
}

void Increment::NumberFiles(const SavedChunks& base) {
  std::vector<int32_t> numbers(base.files.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    if (written_[i]) continue;
    int32_t& number = numbers[places_[i].file];
    if (number == 0) {
      number = static_cast<int32_t>(files_.size());
      files_.push_back(base.files[places_[i].file]);
    }
    places_[i].file = number;
  }
}

// Gives each run of chunks that is written a place in the file.
void Increment::PlaceParts() {
  for (size_t s = 0; s < plan_->shards.size(); ++s) {
    ForEachExtent(s, [&](int64_t begin, int64_t end) {
      if (!written_[FirstOf(s) + static_cast<size_t>(begin)]) return;
      file_.parts.push_back({.shard = s,
                             .range = {begin * kChunkBytes,
                                       std::min(end * kChunkBytes, BytesOf(s))},
                             .chunks = end - begin});
    });
  }
  std::stable_sort(file_.parts.begin(), file_.parts.end(),
                   [](const FilePart& a, const FilePart& b) {
                     return AlignmentClass(a.range.size()) >
                            AlignmentClass(b.range.size());
                   });
  for (FilePart& part : file_.parts) {
    part.data_offset = file_.data_bytes;
    part.first_chunk = 1 + file_.chunks;
    const size_t first = FirstOf(part.shard) +
                         static_cast<size_t>(part.range.begin / kChunkBytes);
    for (int64_t c = 0; c < part.chunks; ++c) {
      places_[first + static_cast<size_t>(c)] = {
          part.data_offset + c * kChunkBytes,
          static_cast<int32_t>(part.first_chunk + c), 0};
    }
    file_.data_bytes += part.range.size();
    file_.chunks += part.chunks;
  }
}

SavedExtents Increment::ExtentsOf(size_t shard) const {
  SavedExtents extents;
  ForEachExtent(shard, [&](int64_t begin, int64_t end) {
    const ChunkPlace& place =
        places_[FirstOf(shard) + static_cast<size_t>(begin)];
    extents.push_back({.file = place.file,
                       .data_offset = place.data_offset,
                       .bytes = std::min(end * kChunkBytes, BytesOf(shard)) -
                                begin * kChunkBytes,
                       .first_chunk = place.chunk});
  });
  return extents;
}

// What the header says.
void Increment::DescribeParts() {
  DataFileContents& contents = file_.contents;
  contents = plan_->contents;
  contents.shards.clear();
  for (const FilePart& part : file_.parts) {
    DataFileShard& shard =
        contents.shards.emplace_back(plan_->contents.shards[part.shard]);
    if (part.range.size() == BytesOf(part.shard)) continue;
    shard.part_begin = part.range.begin;
    shard.part_bytes = part.range.size();
  }
  for (size_t i = 1; i < files_.size(); ++i) {
    contents.earlier_files.push_back(files_[i].name);
  }
  for (size_t s = 0; s < plan_->shards.size(); ++s) {
    SavedExtents extents = ExtentsOf(s);
    if (std::all_of(extents.begin(), extents.end(),
                    [](const SavedExtent& e) { return e.file == 0; })) {
      continue;
    }
    const DataFileShard& shard = plan_->contents.shards[s];
    SplitShard& split = contents.split.emplace_back();
    static_cast<Box&>(split) = shard;
    split.tensor = shard.tensor;
    split.placement = shard.placement;
    split.extents = std::move(extents);
  }
  std::sort(contents.split.begin(), contents.split.end(),
            [](const SplitShard& a, const SplitShard& b) {
              return std::tie(a.tensor, a.offsets) <
                     std::tie(b.tensor, b.offsets);
            });
}

void Increment::AddFingerprints(absl::Span<uint32_t> sums) const {
  for (size_t s = 0; s < plan_->shards.size(); ++s) {
    const PlannedShard& shard = plan_->shards[s];
    for (int64_t c = 0; c < shard.chunks; ++c) {
      const size_t i = FirstOf(s) + static_cast<size_t>(c);
      if (!written_[i]) {
        sums[static_cast<size_t>(shard.tensor)] ^= fingerprints_[i];
      }
    }
  }
}

std::string Increment::EncodedExtents() const {
  if (file_.contents.split.empty()) return "";
  ExtentList list;
  list.files.assign(files_.begin() + 1, files_.end());
  for (size_t s = 0; s < plan_->shards.size(); ++s) {
    const PlannedShard& shard = plan_->shards[s];
    list.shards.push_back({shard.tensor, shard.shard, ExtentsOf(s)});
  }
  std::sort(list.shards.begin(), list.shards.end(),
            [](const ExtentList::Shard& a, const ExtentList::Shard& b) {
              return std::tie(a.tensor, a.shard) < std::tie(b.tensor, b.shard);
            });
  return EncodeExtentList(list);
}

SavedChunks Increment::Finish(std::string path, bool sync, ManifestFile own,
                              absl::Span<const uint32_t> fingerprints) && {
  for (const FilePart& part : file_.parts) {
    const size_t to = FirstOf(part.shard) +
                      static_cast<size_t>(part.range.begin / kChunkBytes);
    const auto from =
        fingerprints.subspan(static_cast<size_t>(part.first_chunk - 1),
                             static_cast<size_t>(part.chunks));
    std::copy(from.begin(), from.end(),
              fingerprints_.begin() + static_cast<std::ptrdiff_t>(to));
  }
  files_[0] = std::move(own);
  return {.path = std::move(path),
          .sync = sync,
          .plan = std::move(plan_),
          .files = std::move(files_),
          .hashes = std::move(hashes_),
          .places = std::move(places_),
          .fingerprints = std::move(fingerprints_)};
}

}  // namespace sherd
