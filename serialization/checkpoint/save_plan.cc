#include "sherd/serialization/checkpoint/save_plan.h"

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
#include "sherd/serialization/checkpoint/equal_shards.h"
#include "sherd/serialization/checkpoint/lease.h"
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

// Of a shard or slot: sorted by this, they are in the order of the file.
std::tuple<int64_t, int64_t, int32_t> OrderInFile(int64_t bytes,
                                                  int32_t tensor) {
  const int64_t alignment = std::min(kMaxAlignment, bytes & -bytes);
  return {-alignment, -bytes, tensor};
}

// Shards of one tensor that have the same size and are in one file, where they
// follow one another.
struct Slot {
  int32_t tensor = 0;
  int32_t shards = 0;
  int64_t bytes = 0;
  int64_t data_offset = 0;
  int64_t first_chunk = 0;
};

// The files of ranks that have the same sizes of the same tensors.
struct FileClass {
  // The lowest of them.
  int rank = 0;
  // By tensor, then by first shard of the lowest rank.
  std::vector<Slot> slots;
  // While tensors are visited in their order: the first slot that is not of an
  // earlier one.
  size_t next = 0;
  int64_t data_bytes = 0;
  int64_t chunks = 0;

  void Add(int32_t tensor, int64_t bytes, int64_t shards) {
    for (size_t i = slots.size(); i-- > 0 && slots[i].tensor == tensor;) {
      if (slots[i].bytes != bytes) continue;
      slots[i].shards += static_cast<int32_t>(shards);
      return;
    }
    slots.push_back({.tensor = tensor,
                     .shards = static_cast<int32_t>(shards),
                     .bytes = bytes});
  }

  void PlaceSlots() {
    std::vector<Slot*> order;
    order.reserve(slots.size());
    for (Slot& slot : slots) order.push_back(&slot);
    std::sort(order.begin(), order.end(), [](const Slot* a, const Slot* b) {
      return OrderInFile(a->bytes, a->tensor) <
             OrderInFile(b->bytes, b->tensor);
    });
    for (Slot* const slot : order) {
      slot->data_offset = data_bytes;
      // Number 0 is the CRC of the header.
      slot->first_chunk = 1 + chunks;
      data_bytes += slot->shards * slot->bytes;
      chunks += slot->shards * NumChunks(slot->bytes, kChunkBytes);
    }
  }

  // The slot of shards of `bytes` of the tensor that is visited.
  const Slot& SlotOf(int32_t tensor, int64_t bytes) {
    while (slots[next].tensor < tensor) ++next;
    size_t i = next;
    while (slots[i].bytes != bytes) ++i;
    SHERD_CHECK(slots[i].tensor == tensor);
    return slots[i];
  }
};

// The files of all ranks, in classes.
class FileClasses {
 public:
  explicit FileClasses(const SaveLayout& layout)
      : class_of_rank_(static_cast<size_t>(layout.world_size), kNoFile) {
    FindClasses(layout);
    FillClasses(layout);
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
  FileClass& operator[](int32_t i) { return classes_[static_cast<size_t>(i)]; }

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

  void FindClasses(const SaveLayout& layout) {
    // Entry r is what rank r has more than rank r - 1.
    std::vector<Contents> contents(class_of_rank_.size() + 1);
    for (size_t t = 0; t < layout.tensors.size(); ++t) {
      ForEachEqualShards(layout.tensors[t], [&](const EqualShards& shards) {
        if (shards.bytes == 0) return;
        const Contents hash = HashOf(static_cast<int32_t>(t), shards.bytes);
        const uint64_t times = shards.rank_step == 0 ? shards.shards : 1;
        for (size_t i = 0; i < hash.size(); ++i) {
          contents[shards.rank][i] += times * hash[i];
          contents[shards.end_rank()][i] -= times * hash[i];
        }
      });
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

  void FillClasses(const SaveLayout& layout) {
    // Classes are in the order of their lowest ranks.
    const auto first_from = [&](int rank) {
      return std::lower_bound(
          classes_.begin(), classes_.end(), rank,
          [](const FileClass& c, int wanted) { return c.rank < wanted; });
    };
    for (size_t t = 0; t < layout.tensors.size(); ++t) {
      ForEachEqualShards(layout.tensors[t], [&](const EqualShards& shards) {
        if (shards.bytes == 0) return;
        for (auto it = first_from(shards.rank);
             it != classes_.end() && it->rank < shards.end_rank(); ++it) {
          it->Add(static_cast<int32_t>(t), shards.bytes,
                  shards.rank_step == 0 ? shards.shards : 1);
        }
      });
    }
    for (FileClass& file : classes_) file.PlaceSlots();
  }

  std::vector<FileClass> classes_;
  std::vector<int32_t> class_of_rank_;
  std::vector<int> end_of_class_;
};

// Puts the shards of one tensor into the files, as runs.
class RunPlanner {
 public:
  RunPlanner(const TensorLayout& tensor, int32_t index,
             absl::Span<const int32_t> file_of_rank, FileClasses& classes)
      : index_(index),
        file_of_rank_(file_of_rank),
        classes_(classes),
        owners_ascend_(OwnersAscend(*tensor.owners)) {
    ForEachEqualShards(tensor,
                       [this](const EqualShards& shards) { Add(shards); });
  }

  std::vector<SavedRun> Take() && { return std::move(runs_); }

 private:
  // Whether each rank owns at most one shard, and later shards are owned by
  // later ranks.
  static bool OwnersAscend(absl::Span<const OwnerRun> owners) {
    int64_t next = 0;
    for (const OwnerRun& run : owners) {
      if (run.rank < next || (run.rank_step == 0 && run.shards > 1)) {
        return false;
      }
      next = run.rank + run.shards;
    }
    return true;
  }

  void Add(const EqualShards& shards) {
    if (shards.bytes == 0) {
      Append({.shards = shards.shards,
              .placement = shards.placement,
              .placement_step = shards.placement_step});
      return;
    }
    if (shards.rank_step == 0) {
      SavedRun run = RunOf(shards, shards.rank, shards.shards);
      run.advances = shards.shards > 1;
      Append(std::move(run));
      return;
    }
    for (int rank = shards.rank; rank < shards.end_rank();) {
      // Without other shards of theirs, ranks of a class have this one at the
      // same offset.
      const int end =
          owners_ascend_ ? classes_.EndOf(rank, shards.end_rank()) : rank + 1;
      SavedRun run = RunOf(shards, rank, end - rank);
      run.file_step = end - rank > 1 ? 1 : 0;
      Append(std::move(run));
      rank = end;
    }
  }

  // `count` of `shards`, from the one of `rank` on.
  SavedRun RunOf(const EqualShards& shards, int rank, int64_t count) {
    const Slot& slot =
        classes_[classes_.ClassOf(rank)].SlotOf(index_, shards.bytes);
    const int64_t before = CountBefore(rank, shards.bytes, count);
    const int32_t k = rank - shards.rank;
    SavedRun run = {.shards = count,
                    .placement = shards.placement + k * shards.placement_step,
                    .placement_step = count > 1 ? shards.placement_step : 0};
    run.extents.push_back(
        {.file = file_of_rank_[static_cast<size_t>(rank)],
         .data_offset = slot.data_offset + before * shards.bytes,
         .bytes = shards.bytes,
         .first_chunk =
             slot.first_chunk + before * NumChunks(shards.bytes, kChunkBytes)});
    return run;
  }

  // How many shards of that size the rank has in its file already; `count` more
  // follow.
  int64_t CountBefore(int rank, int64_t bytes, int64_t count) {
    if (owners_ascend_) return 0;
    int64_t& placed = placed_[{rank, bytes}];
    placed += count;
    return placed - count;
  }

  void Append(SavedRun run) {
    run.first = next_;
    next_ += run.shards;
    if (run.shards == 1) run.placement_step = 0;
    if (runs_.empty() || !Merge(run, runs_.back())) {
      runs_.push_back(std::move(run));
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

  const int32_t index_;
  const absl::Span<const int32_t> file_of_rank_;
  FileClasses& classes_;
  const bool owners_ascend_;
  absl::flat_hash_map<std::pair<int, int64_t>, int64_t> placed_;
  int64_t next_ = 0;
  std::vector<SavedRun> runs_;
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
  FileClasses classes(layout);
  ManifestPlan plan;
  Manifest& manifest = plan.manifest;
  manifest.writer = absl::StrCat("sherd ", kVersion);
  manifest.world_size = layout.world_size;
  manifest.placements = layout.placements;
  std::vector<int32_t> file_of_rank(static_cast<size_t>(layout.world_size));
  for (int rank = 0; rank < layout.world_size; ++rank) {
    const int32_t kind = classes.ClassOf(rank);
    if (kind == FileClasses::kNoFile) continue;
    file_of_rank[static_cast<size_t>(rank)] =
        static_cast<int32_t>(plan.rank_of_file.size());
    plan.rank_of_file.push_back(rank);
    const FileClass& file = classes[kind];
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
    manifest.tensors.back().runs =
        RunPlanner(tensor, static_cast<int32_t>(t), file_of_rank, classes)
            .Take();
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
