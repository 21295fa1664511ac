#include "sherd/serialization/manifest/tensor_codec.h"

#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/empty_boxes.h"
#include "sherd/serialization/manifest/layout_codec.h"

namespace sherd {
namespace {

constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();
// Of offsets and chunks: sums of two do not overflow.
constexpr int64_t kMaxOffset = (int64_t{1} << 62) - 1;

// The first number of a run.
constexpr uint64_t kPlacementStep = 1;
constexpr uint64_t kFileStep = 2;
constexpr uint64_t kAdvances = 4;
// Extents: none, one, or as many as a number says.
constexpr int kExtentsShift = 3;
// Shards: one, all that are left, or as many as a number says.
constexpr int kShardsShift = 5;
enum Count : uint64_t { kNoneOrOne = 0, kOneOrAll = 1, kSome = 2 };
constexpr uint64_t kMaxHead = 127;

// More than the one that a run has room for.
absl::Status TakeExtentMemory(int64_t count, MemoryBudget& memory) {
  return memory.Take(
      count, static_cast<int64_t>(sizeof(SavedExtent)) + kPerListedShard);
}

absl::Status TakeRunMemory(MemoryBudget& memory) {
  // In a list that grows.
  return memory.Take(1, 3 * static_cast<int64_t>(sizeof(SavedRun)));
}

// Chunks before an extent that follow from the shards before it in its file:
// each adds a part of one at most.
int64_t ExtraChunks(const SavedExtent& extent, int64_t chunk_bytes) {
  return extent.first_chunk - extent.data_offset / chunk_bytes;
}

// What a run is encoded relative to: at first all 0, then the run before.
struct Before {
  int64_t placement = 0;
  int64_t file = 0;
  int64_t data_offset = 0;
  int64_t extra_chunks = 0;

  void Set(const SavedRun& run, int64_t chunk_bytes) {
    placement = run.placement + (run.shards - 1) * run.placement_step + 1;
    if (run.extents.empty()) return;
    file = run.extents.back().file + (run.shards - 1) * run.file_step + 1;
    data_offset = run.extents.back().data_offset;
    extra_chunks = ExtraChunks(run.extents.back(), chunk_bytes);
  }
};

// Offsets of a shard that has one extent are multiples of the element.
int64_t OffsetUnit(const ManifestTensor& tensor, size_t extents) {
  return extents == 1 ? static_cast<int64_t>(SizeOf(tensor.dtype)) : 1;
}

absl::Status TakeExtents(const ManifestTensor& tensor, int64_t chunk_bytes,
                         int64_t files, NumberReader& numbers, Before before,
                         SavedRun& run) {
  const int64_t shard_bytes = tensor.ShardBytes(run.first);
  const int64_t unit = OffsetUnit(tensor, run.extents.size());
  int64_t left = shard_bytes;
  for (SavedExtent& extent : run.extents) {
    SHERD_ASSIGN_OR_RETURN(const int64_t file,
                           numbers.TakeDelta(before.file, files - 1));
    extent.file = static_cast<int32_t>(file);
    SHERD_ASSIGN_OR_RETURN(
        const int64_t offset,
        numbers.TakeDelta(before.data_offset / unit, kMaxOffset / unit));
    extent.data_offset = offset * unit;
    SHERD_ASSIGN_OR_RETURN(
        extent.first_chunk,
        numbers.TakeDelta(
            before.extra_chunks + extent.data_offset / chunk_bytes,
            kMaxOffset));
    extent.bytes = left;
    if (run.extents.size() > 1) {
      SHERD_ASSIGN_OR_RETURN(extent.bytes, numbers.Take(left));
      left -= extent.bytes;
    }
    before = {.file = extent.file,
              .data_offset = extent.data_offset,
              .extra_chunks = ExtraChunks(extent, chunk_bytes)};
  }
  if (run.extents.size() > 1 && left != 0) {
    return absl::DataLossError(
        absl::StrCat("the extents of shard ", run.first, " have ", left,
                     " bytes less than its ", shard_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedRun> TakeRun(const ManifestTensor& tensor, int64_t first,
                                 NumberReader& numbers, MemoryBudget& memory) {
  SHERD_ASSIGN_OR_RETURN(const int64_t taken, numbers.Take(kMaxHead));
  const uint64_t head = static_cast<uint64_t>(taken);
  SavedRun run = {.first = first,
                  .placement_step = (head & kPlacementStep) != 0 ? 1 : 0,
                  .file_step = (head & kFileStep) != 0 ? 1 : 0,
                  .advances = (head & kAdvances) != 0};
  const int64_t left = tensor.num_shards() - first;
  const uint64_t shards = head >> kShardsShift;
  const uint64_t extents = head >> kExtentsShift & 3;
  if (shards > kSome || extents > kSome) {
    return absl::DataLossError(
        absl::StrCat("a run of shards begins with ", head));
  }
  run.shards = shards == kOneOrAll ? left : 1;
  if (shards == kSome) {
    SHERD_ASSIGN_OR_RETURN(run.shards, numbers.Take(left));
  }
  int64_t count = extents == kNoneOrOne ? 0 : 1;
  if (extents == kSome) {
    SHERD_ASSIGN_OR_RETURN(count, numbers.Take(kMaxNumber));
    // Four numbers each.
    if (count < 2 || count > static_cast<int64_t>(numbers.left())) {
      return absl::DataLossError(absl::StrCat("shard ", first, " has ", count,
                                              " extents, but ", numbers.left(),
                                              " numbers follow"));
    }
    SHERD_RETURN_IF_ERROR(TakeExtentMemory(count, memory));
  }
  if (run.shards < 1 || (run.shards > 1 && count > 1) ||
      (run.file_step != 0 && (run.advances || count == 0)) ||
      (run.advances && count == 0)) {
    return absl::DataLossError(
        absl::StrCat("a run of ", run.shards, " shards from ", first, " has ",
                     count, " extents, in steps of ", run.file_step, " files",
                     run.advances ? " and of bytes" : ""));
  }
  run.extents.resize(static_cast<size_t>(count));
  return run;
}

// That what follows from the rule of a run is in range. `may_be_empty`: whether
// some box of the tensor is.
absl::Status CheckEnd(const SavedRun& run, const ManifestTensor& tensor,
                      bool may_be_empty, int64_t chunk_bytes,
                      int64_t placements, int64_t files) {
  const int64_t last = run.shards - 1;
  bool fits = run.placement + last * run.placement_step < placements;
  if (!run.extents.empty()) {
    const SavedExtent& extent = run.extents[0];
    fits &= extent.file + last * run.file_step < files;
    const int64_t step = run.advances ? extent.bytes : 0;
    const auto moved = CheckedMul(last, step);
    const auto chunks =
        CheckedMul(run.advances ? last : 0, NumChunks(step, chunk_bytes));
    fits &= moved.has_value() && *moved <= kMaxOffset - extent.data_offset &&
            chunks.has_value() && *chunks <= kMaxOffset - extent.first_chunk;
  }
  if (!fits) {
    return absl::DataLossError(
        absl::StrCat("the run of ", run.shards, " shards from ", run.first,
                     " ends past the last of ", placements, " placements, ",
                     files, " files, or offset ", kMaxOffset));
  }
  // Most grids: no need to look at the shards.
  if (!run.extents.empty() && !may_be_empty) return absl::OkStatus();
  // As all other boxes of a run, the first may be empty where the tensor is.
  EmptyBoxes boxes(tensor.layout, run.first);
  for (int64_t i = run.first; i < run.first + run.shards; ++i, boxes.Next()) {
    if (boxes.is_empty() == run.extents.empty()) continue;
    return absl::DataLossError(
        absl::StrCat("shard ", i,
                     run.extents.empty() ? " has elements, but no place"
                                         : " is empty, but has a place"));
  }
  return absl::OkStatus();
}

}  // namespace

void AppendRuns(const ManifestTensor& tensor, int64_t chunk_bytes,
                std::vector<uint64_t>& numbers) {
  Before before;
  for (const SavedRun& run : tensor.runs) {
    const bool is_last = run.first + run.shards == tensor.num_shards();
    const uint64_t shards = run.shards == 1 ? kNoneOrOne
                            : is_last       ? kOneOrAll
                                            : kSome;
    const uint64_t extents = run.extents.empty()       ? kNoneOrOne
                             : run.extents.size() == 1 ? kOneOrAll
                                                       : kSome;
    numbers.push_back((run.placement_step != 0 ? kPlacementStep : 0) |
                      (run.file_step != 0 ? kFileStep : 0) |
                      (run.advances ? kAdvances : 0) |
                      extents << kExtentsShift | shards << kShardsShift);
    if (shards == kSome) numbers.push_back(static_cast<uint64_t>(run.shards));
    if (extents == kSome) numbers.push_back(run.extents.size());
    numbers.push_back(Zigzag(run.placement - before.placement));
    const int64_t unit = OffsetUnit(tensor, run.extents.size());
    Before extent_before = before;
    for (const SavedExtent& extent : run.extents) {
      numbers.push_back(Zigzag(extent.file - extent_before.file));
      numbers.push_back(
          Zigzag(extent.data_offset / unit - extent_before.data_offset / unit));
      numbers.push_back(Zigzag(ExtraChunks(extent, chunk_bytes) -
                               extent_before.extra_chunks));
      if (extents == kSome) {
        numbers.push_back(static_cast<uint64_t>(extent.bytes));
      }
      extent_before = {.file = extent.file,
                       .data_offset = extent.data_offset,
                       .extra_chunks = ExtraChunks(extent, chunk_bytes)};
    }
    before.Set(run, chunk_bytes);
  }
}

absl::StatusOr<SavedRuns> TakeRuns(const ManifestTensor& tensor,
                                   int64_t chunk_bytes, int64_t placements,
                                   int64_t files, NumberReader& numbers,
                                   MemoryBudget& memory) {
  SavedRuns runs;
  // A tensor that is checked has them already.
  runs.reserve(tensor.runs.size());
  // It looks at every cut: not for each run.
  const bool may_be_empty = tensor.layout.HasEmptyBoxes();
  Before before;
  for (int64_t first = 0; first < tensor.num_shards();) {
    SHERD_RETURN_IF_ERROR(TakeRunMemory(memory));
    SHERD_ASSIGN_OR_RETURN(SavedRun run,
                           TakeRun(tensor, first, numbers, memory));
    SHERD_ASSIGN_OR_RETURN(const int64_t placement,
                           numbers.TakeDelta(before.placement, placements - 1));
    run.placement = static_cast<int32_t>(placement);
    SHERD_RETURN_IF_ERROR(
        TakeExtents(tensor, chunk_bytes, files, numbers, before, run));
    SHERD_RETURN_IF_ERROR(memory.Take(run.shards, kPerListedShard));
    SHERD_RETURN_IF_ERROR(
        CheckEnd(run, tensor, may_be_empty, chunk_bytes, placements, files));
    first += run.shards;
    before.Set(run, chunk_bytes);
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::Status TakeTensorMemory(const ManifestTensor& tensor,
                              MemoryBudget& memory) {
  SHERD_RETURN_IF_ERROR(TakeLayoutMemory(tensor.layout, memory));
  for (const SavedRun& run : tensor.runs) {
    SHERD_RETURN_IF_ERROR(TakeRunMemory(memory));
    SHERD_RETURN_IF_ERROR(memory.Take(run.shards, kPerListedShard));
    if (run.extents.size() < 2) continue;
    SHERD_RETURN_IF_ERROR(
        TakeExtentMemory(static_cast<int64_t>(run.extents.size()), memory));
  }
  return absl::OkStatus();
}

}  // namespace sherd
