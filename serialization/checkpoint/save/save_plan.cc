#include "sherd/serialization/checkpoint/save/save_plan.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/version.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/save/equal_shards.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {
namespace {

constexpr absl::string_view kShardPrefix = "shard-";
constexpr absl::string_view kShardSuffix = ".safetensors";
constexpr int64_t kMaxAlignment = 4096;

// The prefix of `text` is consumed if it has that form.
bool ConsumeDigits(absl::string_view& text) {
  size_t n = 0;
  while (n < text.size() && absl::ascii_isdigit(text[n])) ++n;
  text.remove_prefix(n);
  return n > 0;
}

// Of a shard: sorted by this, they are in the order of the file.
std::tuple<int64_t, int64_t, int32_t> OrderInFile(int64_t bytes,
                                                  int32_t tensor) {
  const int64_t alignment = std::min(kMaxAlignment, bytes & -bytes);
  return {-alignment, -bytes, tensor};
}

// Shards of a tensor that are planned together.
struct Part : EqualShards {
  int32_t tensor = 0;
};

// Those of all tensors in the order of files; behind them those without
// elements.
std::vector<Part> PartsOf(const SaveLayout& layout) {
  std::vector<Part> parts;
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    ForEachEqualShards(layout.tensors[t], [&](const EqualShards& shards) {
      parts.push_back({shards, static_cast<int32_t>(t)});
    });
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    const auto order_a = OrderInFile(a.bytes, a.tensor);
    const auto order_b = OrderInFile(b.bytes, b.tensor);
    return order_a != order_b ? order_a < order_b : a.first < b.first;
  });
  return parts;
}

// The files of ranks that have the same sizes of the same tensors.
struct FileClass {
  // The lowest of them.
  int rank = 0;
  // What has been placed in each.
  int64_t data_bytes = 0;
  int64_t chunks = 0;
  // How many of the shards that are being placed are of the lowest rank.
  int64_t shards = 0;

  bool EndsWhere(const FileClass& other) const {
    return data_bytes == other.data_bytes && chunks == other.chunks;
  }
};

// The files of all ranks, in classes.
class FileClasses {
 public:
  FileClasses(int world_size, absl::Span<const Part> parts)
      : class_of_rank_(static_cast<size_t>(world_size), kNoFile) {
    FindClasses(parts);
  }

  static constexpr int32_t kNoFile = -1;

  int32_t ClassOf(int rank) const {
    return class_of_rank_[static_cast<size_t>(rank)];
  }
  // The rank behind the last one from `rank` on, before `end`, that is of the
  // same class.
  int EndOf(int rank, int end) const {
    return std::min(end, end_of_class_[static_cast<size_t>(rank)]);
  }
  // Of a rank that has a file.
  FileClass& Of(int rank) {
    return classes_[static_cast<size_t>(ClassOf(rank))];
  }

 private:
  // A sum of hashes, in which order does not count: of what a rank has.
  using Contents = std::array<uint64_t, 2>;

  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  static Contents HashOf(int32_t tensor, int64_t bytes) {
    const uint64_t x = Mix(static_cast<uint64_t>(tensor) + 0x9e3779b97f4a7c15) +
                       static_cast<uint64_t>(bytes);
    return {Mix(x), Mix(x ^ 0xd1b54a32d192ed03)};
  }

  void FindClasses(absl::Span<const Part> parts) {
    // Entry r is what rank r has more than rank r - 1.
    std::vector<Contents> contents(class_of_rank_.size() + 1);
    for (const Part& part : parts) {
      if (part.bytes == 0) continue;
      const Contents hash = HashOf(part.tensor, part.bytes);
      const uint64_t times = part.rank_step == 0 ? part.shards : 1;
      for (size_t i = 0; i < hash.size(); ++i) {
        contents[part.rank][i] += times * hash[i];
        contents[part.end_rank()][i] -= times * hash[i];
      }
    }
    absl::flat_hash_map<Contents, int32_t> known;
    Contents sum = {};
    for (size_t r = 0; r < class_of_rank_.size(); ++r) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += contents[r][i];
      if (sum == Contents()) continue;
      const auto [it, added] =
          known.emplace(sum, static_cast<int32_t>(classes_.size()));
      if (added) classes_.push_back({.rank = static_cast<int>(r)});
      class_of_rank_[r] = it->second;
    }
    end_of_class_.resize(class_of_rank_.size());
    for (size_t r = class_of_rank_.size(); r-- > 0;) {
      const bool continues = r + 1 < class_of_rank_.size() &&
                             class_of_rank_[r] == class_of_rank_[r + 1];
      end_of_class_[r] =
          continues ? end_of_class_[r + 1] : static_cast<int>(r) + 1;
    }
  }

  std::vector<FileClass> classes_;
  std::vector<int32_t> class_of_rank_;
  std::vector<int> end_of_class_;
};

// Puts the shards of all tensors into the files, as runs.
class RunPlanner {
 public:
  RunPlanner(size_t tensors, absl::Span<const int32_t> file_of_rank,
             FileClasses& classes)
      : file_of_rank_(file_of_rank), classes_(classes), runs_(tensors) {}

  // Adds all parts of one tensor and size, in the order of files.
  void Add(absl::Span<const Part> parts) {
    owners_ascend_ = OwnersAscend(parts);
    for (const Part& part : parts) AddPart(part);
    for (FileClass* const file : touched_) {
      file->data_bytes += file->shards * parts[0].bytes;
      file->chunks += file->shards * NumChunks(parts[0].bytes, kChunkBytes);
      file->shards = 0;
    }
    touched_.clear();
    placed_.clear();
  }

  // Those of a tensor of which all parts were added.
  std::vector<SavedRun> Take(int32_t tensor) {
    std::vector<SavedRun>& parts = runs_[static_cast<size_t>(tensor)];
    std::sort(
        parts.begin(), parts.end(),
        [](const SavedRun& a, const SavedRun& b) { return a.first < b.first; });
    std::vector<SavedRun> runs;
    for (SavedRun& run : parts) Append(std::move(run), runs);
    parts = {};
    return runs;
  }

 private:
  // Whether each rank owns at most one of the shards, and later ones are owned
  // by later ranks.
  static bool OwnersAscend(absl::Span<const Part> parts) {
    int next = 0;
    for (const Part& part : parts) {
      if (part.rank < next || (part.rank_step == 0 && part.shards > 1)) {
        return false;
      }
      next = part.end_rank();
    }
    return true;
  }

  void AddPart(const Part& part) {
    std::vector<SavedRun>& runs = runs_[static_cast<size_t>(part.tensor)];
    if (part.bytes == 0) {
      Append({.first = part.first,
              .shards = part.shards,
              .placement = part.placement,
              .placement_step = part.placement_step},
             runs);
      return;
    }
    if (part.rank_step == 0) {
      Count(part.rank, part.rank + 1, part.shards);
      SavedRun run = RunOf(part, part.rank, part.shards);
      run.advances = part.shards > 1;
      Append(std::move(run), runs);
      return;
    }
    for (int rank = part.rank; rank < part.end_rank();) {
      const int end = EndOfStretch(rank, part.end_rank());
      SavedRun run = RunOf(part, rank, end - rank);
      run.file_step = end - rank > 1 ? 1 : 0;
      Append(std::move(run), runs);
      rank = end;
    }
  }

  // The rank behind those from `rank` on that have their shard at the same
  // offset; all are counted.
  int EndOfStretch(int rank, int limit) {
    const FileClass& first = classes_.Of(rank);
    int end = rank;
    do {
      const int begin = end;
      // Other shards of a rank may come before.
      end = owners_ascend_ ? classes_.EndOf(begin, limit) : begin + 1;
      Count(begin, end, 1);
    } while (owners_ascend_ && end < limit &&
             classes_.Of(end).EndsWhere(first));
    return end;
  }

  // Ranks of one class have `shards` more each.
  void Count(int rank, int end, int64_t shards) {
    FileClass& file = classes_.Of(rank);
    if (file.rank < rank || file.rank >= end) return;
    if (file.shards == 0) touched_.push_back(&file);
    file.shards += shards;
  }

  // `count` of the shards, from the one of `rank` on.
  SavedRun RunOf(const Part& part, int rank, int64_t count) {
    const FileClass& file = classes_.Of(rank);
    const int64_t before = CountBefore(rank, count);
    const int32_t k = rank - part.rank;
    SavedRun run = {.first = part.first + k,
                    .shards = count,
                    .placement = part.placement + k * part.placement_step,
                    .placement_step = count > 1 ? part.placement_step : 0};
    run.extents.push_back(
        {.file = file_of_rank_[static_cast<size_t>(rank)],
         .data_offset = file.data_bytes + before * part.bytes,
         .bytes = part.bytes,
         // Number 0 is the CRC of the header.
         .first_chunk =
             1 + file.chunks + before * NumChunks(part.bytes, kChunkBytes)});
    return run;
  }

  // How many of the shards the rank has in its file already; `count` more
  // follow.
  int64_t CountBefore(int rank, int64_t count) {
    if (owners_ascend_) return 0;
    int64_t& placed = placed_[rank];
    placed += count;
    return placed - count;
  }

  static void Append(SavedRun run, std::vector<SavedRun>& runs) {
    if (run.shards == 1) run.placement_step = 0;
    if (runs.empty() || runs.back().first + runs.back().shards != run.first ||
        !Merge(run, runs.back())) {
      runs.push_back(std::move(run));
    }
  }

  // Continues `run` by `next`, which begins where it ends, if one rule fits
  // both.
  static bool Merge(const SavedRun& next, SavedRun& run) {
    SavedRun longer = run;
    if (run.shards == 1) {
      longer.placement_step = next.placement - run.placement;
    }
    if (longer.placement_step < 0 || longer.placement_step > 1 ||
        next.placement != run.placement + run.shards * longer.placement_step ||
        (next.shards > 1 && next.placement_step != longer.placement_step) ||
        run.extents.size() != next.extents.size()) {
      return false;
    }
    if (!run.extents.empty() && !MergeExtents(next, longer)) return false;
    longer.shards += next.shards;
    run = std::move(longer);
    return true;
  }

  static bool MergeExtents(const SavedRun& next, SavedRun& longer) {
    const SavedExtent& first = longer.extents[0];
    const SavedExtent& then = next.extents[0];
    const int64_t n = longer.shards;
    const bool steps = first.file + n == then.file &&
                       first.data_offset == then.data_offset &&
                       first.first_chunk == then.first_chunk;
    const bool advances =
        first.file == then.file &&
        first.data_offset + n * first.bytes == then.data_offset &&
        first.first_chunk + n * NumChunks(first.bytes, kChunkBytes) ==
            then.first_chunk &&
        (next.shards == 1 || first.bytes == then.bytes);
    if (steps && !longer.advances && !next.advances &&
        (n == 1 || longer.file_step == 1)) {
      longer.file_step = 1;
      return true;
    }
    if (advances && longer.file_step == 0 && next.file_step == 0) {
      longer.advances = true;
      return true;
    }
    return false;
  }

  const absl::Span<const int32_t> file_of_rank_;
  FileClasses& classes_;
  // By tensor; not in order while parts are added.
  std::vector<std::vector<SavedRun>> runs_;
  // Of the shards that are being placed.
  bool owners_ascend_ = false;
  std::vector<FileClass*> touched_;
  absl::flat_hash_map<int, int64_t> placed_;
};

// The shards of a rank in the order of the tensors, without places.
std::vector<FileShard> ShardsOf(const SaveLayout& layout, int rank) {
  std::vector<FileShard> shards;
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorLayout& tensor = layout.tensors[t];
    int64_t first = 0;
    const auto add = [&](const OwnerRun& run, int64_t k) {
      const int64_t bytes = tensor.layout.VolumeAt(first + k) *
                            static_cast<int64_t>(SizeOf(tensor.dtype));
      if (bytes == 0) return;
      shards.push_back({.tensor = static_cast<int32_t>(t),
                        .shard = first + k,
                        .bytes = bytes,
                        .placement = run.placement + static_cast<int32_t>(k) *
                                                         run.placement_step});
    };
    for (const OwnerRun& run : *tensor.owners) {
      if (run.rank_step == 1) {
        const int64_t k = rank - run.rank;
        if (k >= 0 && k < run.shards) add(run, k);
      } else if (run.rank == rank) {
        for (int64_t k = 0; k < run.shards; ++k) add(run, k);
      }
      first += run.shards;
    }
  }
  return shards;
}

}  // namespace

void AppendOwner(int32_t rank, int32_t placement, std::vector<OwnerRun>& runs) {
  if (!runs.empty()) {
    OwnerRun longer = runs.back();
    if (longer.shards == 1) {
      longer.rank_step = rank - longer.rank;
      longer.placement_step = placement - longer.placement;
    }
    const auto is_step = [](int32_t step) { return step == 0 || step == 1; };
    if (is_step(longer.rank_step) && is_step(longer.placement_step) &&
        rank == longer.rank + longer.shards * longer.rank_step &&
        placement == longer.placement + longer.shards * longer.placement_step) {
      ++longer.shards;
      runs.back() = longer;
      return;
    }
  }
  runs.push_back({.rank = rank, .placement = placement});
}

RankFile PlanRankFile(const SaveLayout& layout, int rank) {
  RankFile plan;
  plan.shards = ShardsOf(layout, rank);
  std::sort(plan.shards.begin(), plan.shards.end(),
            [](const FileShard& a, const FileShard& b) {
              const auto order_a = OrderInFile(a.bytes, a.tensor);
              const auto order_b = OrderInFile(b.bytes, b.tensor);
              return order_a != order_b ? order_a < order_b : a.shard < b.shard;
            });
  for (FileShard& shard : plan.shards) {
    shard.data_offset = plan.data_bytes;
    shard.first_chunk = 1 + plan.chunks;
    plan.data_bytes += shard.bytes;
    plan.chunks += NumChunks(shard.bytes, kChunkBytes);
  }
  return plan;
}

int CountFiles(const SaveLayout& layout) {
  // Entry r: by how much rank r has more shards with elements than rank r - 1.
  std::vector<int64_t> more(static_cast<size_t>(layout.world_size) + 1);
  for (const TensorLayout& tensor : layout.tensors) {
    ForEachEqualShards(tensor, [&](const EqualShards& shards) {
      if (shards.bytes == 0) return;
      ++more[static_cast<size_t>(shards.rank)];
      --more[static_cast<size_t>(shards.end_rank())];
    });
  }
  int files = 0;
  int64_t shards = 0;
  for (int rank = 0; rank < layout.world_size; ++rank) {
    shards += more[static_cast<size_t>(rank)];
    if (shards > 0) ++files;
  }
  return files;
}

ManifestPlan PlanManifest(const SaveLayout& layout) {
  const std::vector<Part> parts = PartsOf(layout);
  FileClasses classes(layout.world_size, parts);
  ManifestPlan plan;
  std::vector<int32_t> file_of_rank(static_cast<size_t>(layout.world_size));
  for (int rank = 0; rank < layout.world_size; ++rank) {
    if (classes.ClassOf(rank) == FileClasses::kNoFile) continue;
    file_of_rank[static_cast<size_t>(rank)] =
        static_cast<int32_t>(plan.rank_of_file.size());
    plan.rank_of_file.push_back(rank);
  }
  RunPlanner runs(layout.tensors.size(), file_of_rank, classes);
  for (size_t i = 0; i < parts.size();) {
    const size_t begin = i;
    while (i < parts.size() && parts[i].tensor == parts[begin].tensor &&
           parts[i].bytes == parts[begin].bytes) {
      ++i;
    }
    runs.Add(absl::MakeConstSpan(parts).subspan(begin, i - begin));
  }
  Manifest& manifest = plan.manifest;
  manifest.writer = absl::StrCat("sherd ", kVersion);
  manifest.world_size = layout.world_size;
  manifest.placements = layout.placements;
  for (const int rank : plan.rank_of_file) {
    const FileClass& file = classes.Of(rank);
    manifest.files.push_back(
        {.size = file.data_bytes + CrcTableBytes(file.chunks),
         .chunks = file.chunks});
  }
  manifest.tensors.reserve(layout.tensors.size());
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorLayout& tensor = layout.tensors[t];
    manifest.tensors.push_back({.name = tensor.name,
                                .dtype = tensor.dtype,
                                .requires_grad = tensor.requires_grad,
                                .kind = tensor.kind,
                                .chunk_dim = tensor.chunk_dim,
                                .layout = tensor.layout});
    manifest.tensors.back().runs = runs.Take(static_cast<int32_t>(t));
  }
  return plan;
}

std::string DataFileName(int rank, int world_size, absl::string_view save_id) {
  return absl::StrFormat("%s%05d-of-%05d.%s%s", kShardPrefix, rank, world_size,
                         save_id, kShardSuffix);
}

bool IsSaveFileName(absl::string_view name) {
  if (IsStagedManifestName(name)) return true;
  absl::string_view rest = name;
  // lease.sherd.<16 hex digits>.tmp
  if (absl::ConsumePrefix(&rest, absl::StrCat(kLeaseFileName, ".")) &&
      absl::ConsumeSuffix(&rest, ".tmp")) {
    return IsSaveId(rest);
  }
  // shard-<rank>-of-<ranks>.<16 hex digits>.safetensors
  if (!absl::ConsumePrefix(&rest, kShardPrefix) || !ConsumeDigits(rest) ||
      !absl::ConsumePrefix(&rest, "-of-") || !ConsumeDigits(rest) ||
      !absl::ConsumePrefix(&rest, ".") ||
      !absl::ConsumeSuffix(&rest, kShardSuffix)) {
    return false;
  }
  return IsSaveId(rest);
}

bool IsStagedManifestName(absl::string_view name) {
  // manifest.sherd.<16 hex digits>.tmp, and of earlier builds, which wrote
  // digits of any number.
  absl::string_view id = name;
  return absl::ConsumePrefix(&id, absl::StrCat(kManifestFileName, ".")) &&
         absl::ConsumeSuffix(&id, ".tmp") &&
         (IsSaveId(id) || (ConsumeDigits(id) && id.empty()));
}

std::string StagedManifestName(absl::string_view save_id) {
  return absl::StrCat(kManifestFileName, ".", save_id, ".tmp");
}

}  // namespace sherd
