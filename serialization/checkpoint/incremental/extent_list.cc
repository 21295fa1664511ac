#include "sherd/serialization/checkpoint/incremental/extent_list.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/wire/wire_fields.h"

namespace sherd {
namespace {

void AppendNumber(int64_t number, std::string& text) {
  AppendVarint(static_cast<uint64_t>(number), text);
}

// Reads a list from front to back; errors show once it has ended.
class ListReader {
 public:
  explicit ListReader(absl::string_view text) : wire_(text) {}

  bool ok() const { return ok_; }
  bool done() const { return !ok_ || wire_.done(); }

  int64_t Number() {
    uint64_t number = 0;
    ok_ = ok_ && wire_.ReadVarint(number);
    return ok_ ? static_cast<int64_t>(number) : 0;
  }

  ManifestFile File() {
    absl::string_view name;
    ok_ = wire_.ReadBytes(static_cast<uint64_t>(Number()), name) && ok_;
    ManifestFile file = {.name = std::string(name)};
    file.size = Number();
    file.data_begin = Number();
    file.chunks = Number();
    file.crc32c = static_cast<uint32_t>(Number());
    return file;
  }

 private:
  WireReader wire_;
  bool ok_ = true;
};

// The list of one rank while its shards are put into a manifest.
struct RankShards {
  int rank = 0;
  ListReader reader;
  std::vector<ManifestFile> files;
  // By the numbers in the list: those in the manifest.
  std::vector<int32_t> numbers;
  // The shard to come next; its tensor is that of no manifest at the end.
  ExtentList::Shard next;

  void Advance(size_t tensors) {
    if (reader.done()) {
      next.tensor = static_cast<int32_t>(tensors);
      return;
    }
    next.tensor += static_cast<int32_t>(reader.Number());
    next.shard = reader.Number();
    next.extents.clear();
    for (int64_t n = reader.Number(); n > 0 && reader.ok(); --n) {
      SavedExtent& extent = next.extents.emplace_back();
      const size_t file = static_cast<size_t>(reader.Number());
      extent.file = numbers[std::min(file, numbers.size() - 1)];
      extent.data_offset = reader.Number();
      extent.first_chunk = reader.Number();
      extent.bytes = reader.Number();
    }
  }
};

// What follows the ranks in a name: that of a save.
absl::string_view SaveOf(absl::string_view file_name) {
  return file_name.substr(std::min(file_name.find('.'), file_name.size()));
}

// Adds the earlier files of all ranks to the manifest, and numbers them.
void AddFiles(absl::Span<const int> rank_of_file,
              std::vector<RankShards>& ranks, Manifest& manifest) {
  absl::flat_hash_map<int, int32_t> own_file;
  for (size_t i = 0; i < rank_of_file.size(); ++i) {
    own_file[rank_of_file[i]] = static_cast<int32_t>(i);
  }
  struct Earlier {
    const ManifestFile* file;
    RankShards* rank;
    size_t number;
  };
  std::vector<Earlier> files;
  for (RankShards& rank : ranks) {
    rank.numbers.assign(1 + rank.files.size(), own_file[rank.rank]);
    for (size_t i = 0; i < rank.files.size(); ++i) {
      files.push_back({&rank.files[i], &rank, i + 1});
    }
  }
  std::sort(files.begin(), files.end(), [](const Earlier& a, const Earlier& b) {
    return std::tuple(SaveOf(a.file->name), a.rank->rank) <
           std::tuple(SaveOf(b.file->name), b.rank->rank);
  });
  for (const Earlier& earlier : files) {
    earlier.rank->numbers[earlier.number] =
        static_cast<int32_t>(manifest.files.size());
    manifest.files.push_back(*earlier.file);
  }
}

// `moved` are shards of the tensor by number.
void MoveShards(const std::vector<std::pair<int64_t, SavedExtents>>& moved,
                int64_t chunk_bytes, ManifestTensor& tensor) {
  if (moved.empty()) return;
  SavedRuns runs;
  auto next = moved.begin();
  for (int64_t shard = 0; shard < tensor.num_shards(); ++shard) {
    SavedShardPlace place = tensor.PlaceOf(shard, chunk_bytes);
    if (next != moved.end() && next->first == shard) {
      place.extents = (next++)->second;
    }
    AppendPlace(std::move(place), chunk_bytes, runs);
  }
  tensor.runs = std::move(runs);
}

}  // namespace

std::string EncodeExtentList(const ExtentList& list) {
  std::string text;
  AppendNumber(static_cast<int64_t>(list.files.size()), text);
  for (const ManifestFile& file : list.files) {
    AppendNumber(static_cast<int64_t>(file.name.size()), text);
    text += file.name;
    AppendNumber(file.size, text);
    AppendNumber(file.data_begin, text);
    AppendNumber(file.chunks, text);
    AppendNumber(file.crc32c, text);
  }
  int32_t tensor = 0;
  for (const ExtentList::Shard& shard : list.shards) {
    AppendNumber(shard.tensor - std::exchange(tensor, shard.tensor), text);
    AppendNumber(shard.shard, text);
    AppendNumber(static_cast<int64_t>(shard.extents.size()), text);
    for (const SavedExtent& extent : shard.extents) {
      AppendNumber(extent.file, text);
      AppendNumber(extent.data_offset, text);
      AppendNumber(extent.first_chunk, text);
      AppendNumber(extent.bytes, text);
    }
  }
  return text;
}

absl::Status ApplyExtentLists(absl::Span<const std::string> lists,
                              absl::Span<const int> rank_of_file,
                              Manifest& manifest) {
  std::vector<RankShards> ranks;
  for (size_t r = 0; r < lists.size(); ++r) {
    if (lists[r].empty()) continue;
    RankShards& rank = ranks.emplace_back(RankShards{
        .rank = static_cast<int>(r), .reader = ListReader(lists[r])});
    for (int64_t n = rank.reader.Number(); n > 0 && rank.reader.ok(); --n) {
      rank.files.push_back(rank.reader.File());
    }
  }
  AddFiles(rank_of_file, ranks, manifest);
  for (RankShards& rank : ranks) rank.Advance(manifest.tensors.size());
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    std::vector<std::pair<int64_t, SavedExtents>> moved;
    for (RankShards& rank : ranks) {
      while (rank.next.tensor == static_cast<int32_t>(t)) {
        moved.emplace_back(rank.next.shard, std::move(rank.next.extents));
        rank.Advance(manifest.tensors.size());
      }
    }
    std::sort(moved.begin(), moved.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    MoveShards(moved, manifest.chunk_bytes, manifest.tensors[t]);
  }
  for (const RankShards& rank : ranks) {
    if (rank.reader.ok()) continue;
    return absl::InternalError(absl::StrCat(
        "rank ", rank.rank,
        " sent a list of extents that is cut off; report this error"));
  }
  return absl::OkStatus();
}

}  // namespace sherd
