#include "sherd/serialization/manifest/tensor_codec.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/manifest/empty_boxes.h"

namespace sherd {
namespace {

constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();
// Of offsets and chunks: sums of two do not overflow.
constexpr int64_t kMaxOffset = (int64_t{1} << 62) - 1;

enum LayoutForm : uint64_t { kBoxes = 0, kGrid = 1 };

// How a box's offset follows from the box before: the same, its end, or given.
// And its size: the same, up to the end of the tensor, or given. Together a
// digit in base 9 per dimension.
enum Relation : uint64_t { kSame = 0, kAdjacent = 1, kGiven = 2 };
constexpr uint64_t kBase = 9;
// Digits per number: for boxes of two dimensions it is one byte.
constexpr size_t kDigits = 4;

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

// While boxes are compared: copies and an index, and for each dimension those
// offsets and sizes that do not fit into a Dims.
constexpr int64_t kPerComparedBox =
    256 + sizeof(ShardMetadata) + 2 * sizeof(Box);
constexpr int64_t kPerComparedDim = 4 * 16;
// What remains of a box: its numbers, and an index of them.
constexpr int64_t kPerBox = 32;
constexpr int64_t kPerBoxDim = 4 * 8;

absl::Status TakeBoxMemory(int64_t count, size_t dims, MemoryBudget& memory,
                           MemoryLoan& loan) {
  const auto each = static_cast<int64_t>(dims);
  SHERD_RETURN_IF_ERROR(
      loan.Take(count, kPerComparedBox + each * kPerComparedDim));
  return memory.Take(count, kPerBox + each * kPerBoxDim);
}

absl::Status TakeAxisMemory(size_t dims, MemoryBudget& memory) {
  return memory.Take(static_cast<int64_t>(dims),
                     3 * static_cast<int64_t>(sizeof(SavedLayout::Axis)));
}

absl::Status TakeCutMemory(int64_t cells, MemoryBudget& memory) {
  return memory.Take(cells + 1, 8);
}

// More than the one that a run has room for.
absl::Status TakeExtentMemory(int64_t count, MemoryBudget& memory) {
  return memory.Take(
      count, static_cast<int64_t>(sizeof(SavedExtent)) + kPerListedShard);
}

absl::Status TakeRunMemory(MemoryBudget& memory) {
  // In a list that grows.
  return memory.Take(1, 3 * static_cast<int64_t>(sizeof(SavedRun)));
}

// As much as TakeLayout takes for such a layout.
absl::Status TakeLayoutMemory(const SavedLayout& layout, MemoryBudget& memory) {
  if (!layout.is_grid()) {
    MemoryLoan loan(memory);
    return TakeBoxMemory(layout.size(), layout.sizes().size(), memory, loan);
  }
  SHERD_RETURN_IF_ERROR(TakeAxisMemory(layout.sizes().size(), memory));
  for (const SavedLayout::Axis& axis : layout.axes()) {
    if (axis.cuts.empty()) continue;
    SHERD_RETURN_IF_ERROR(TakeCutMemory(axis.cells, memory));
  }
  return absl::OkStatus();
}

void AppendBoxes(const SavedLayout& layout, std::vector<uint64_t>& numbers) {
  const size_t dims = layout.sizes().size();
  numbers.push_back(static_cast<uint64_t>(layout.size()));
  Box box = {Dims(dims, 0), Dims(dims, 0)};
  Box previous = box;
  std::vector<uint64_t> given;
  for (int64_t i = 0; i < layout.size(); ++i) {
    layout.BoxAt(i, box);
    given.clear();
    uint64_t digits = 0;
    uint64_t unit = 1;
    for (size_t d = 0; d < dims; ++d) {
      const int64_t offset = box.offsets[d];
      const int64_t size = box.sizes[d];
      const Relation begin = offset == previous.offsets[d]        ? kSame
                             : offset == BoxView(previous).end(d) ? kAdjacent
                                                                  : kGiven;
      const Relation length = size == previous.sizes[d]            ? kSame
                              : size == layout.sizes()[d] - offset ? kAdjacent
                                                                   : kGiven;
      if (begin == kGiven) given.push_back(static_cast<uint64_t>(offset));
      if (length == kGiven) given.push_back(static_cast<uint64_t>(size));
      digits += unit * (3 * begin + length);
      unit *= kBase;
      if ((d + 1) % kDigits == 0 || d + 1 == dims) {
        numbers.push_back(digits);
        digits = 0;
        unit = 1;
      }
    }
    numbers.insert(numbers.end(), given.begin(), given.end());
    std::swap(previous, box);
  }
}

absl::Status TakeBox(const Dims& tensor, const Box& previous,
                     NumberReader& numbers, Box& box) {
  const size_t dims = tensor.size();
  absl::InlinedVector<int64_t, 4> digits;
  for (size_t d = 0; d < dims; d += kDigits) {
    int64_t limit = 1;
    for (size_t k = d; k < std::min(dims, d + kDigits); ++k) limit *= kBase;
    SHERD_ASSIGN_OR_RETURN(int64_t number, numbers.Take(limit - 1));
    for (size_t k = d; k < std::min(dims, d + kDigits); ++k) {
      digits.push_back(number % static_cast<int64_t>(kBase));
      number /= static_cast<int64_t>(kBase);
    }
  }
  for (size_t d = 0; d < dims; ++d) {
    const auto begin = static_cast<Relation>(digits[d] / 3);
    const auto length = static_cast<Relation>(digits[d] % 3);
    int64_t& offset = box.offsets[d];
    if (begin == kGiven) {
      SHERD_ASSIGN_OR_RETURN(offset, numbers.Take(kMaxNumber));
    } else {
      offset = previous.offsets[d];
      if (begin == kAdjacent) {
        offset = CheckedAdd(offset, previous.sizes[d]).value_or(kMaxNumber);
      }
    }
    int64_t& size = box.sizes[d];
    if (length == kGiven) {
      SHERD_ASSIGN_OR_RETURN(size, numbers.Take(kMaxNumber));
    } else {
      size = length == kSame ? previous.sizes[d]
                             : std::max<int64_t>(0, tensor[d] - offset);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedLayout> TakeBoxes(Dims sizes, NumberReader& numbers,
                                      MemoryBudget& memory, MemoryLoan& loan) {
  const size_t dims = sizes.size();
  SHERD_ASSIGN_OR_RETURN(const int64_t count, numbers.Take(kMaxShards));
  // Each takes a number at least, unless there are no dimensions.
  if (dims > 0 ? count > static_cast<int64_t>(numbers.left()) : count > 1) {
    return absl::DataLossError(absl::StrCat("a layout has ", count,
                                            " boxes, but ", numbers.left(),
                                            " numbers follow"));
  }
  SHERD_RETURN_IF_ERROR(TakeBoxMemory(count, dims, memory, loan));
  std::vector<Box> boxes;
  boxes.reserve(static_cast<size_t>(count));
  Box previous = {Dims(dims, 0), Dims(dims, 0)};
  for (int64_t i = 0; i < count; ++i) {
    Box& box = boxes.emplace_back(previous);
    SHERD_RETURN_IF_ERROR(TakeBox(sizes, previous, numbers, box));
    previous = box;
  }
  return SavedLayout::Boxes(std::move(sizes), boxes);
}

absl::StatusOr<SavedLayout::Axis> TakeAxis(int64_t size, NumberReader& numbers,
                                           MemoryBudget& memory) {
  SavedLayout::Axis axis;
  SHERD_ASSIGN_OR_RETURN(axis.cells, numbers.Take(kMaxShards));
  if (axis.cells <= 1) return axis;
  SHERD_ASSIGN_OR_RETURN(axis.step, numbers.Take(kMaxNumber));
  if (axis.step > 0) return axis;
  if (axis.cells - 1 > static_cast<int64_t>(numbers.left())) {
    return absl::DataLossError(absl::StrCat("a dimension has ", axis.cells,
                                            " cells, but ", numbers.left(),
                                            " numbers follow"));
  }
  SHERD_RETURN_IF_ERROR(TakeCutMemory(axis.cells, memory));
  axis.cuts.reserve(static_cast<size_t>(axis.cells) + 1);
  axis.cuts.push_back(0);
  for (int64_t i = 1; i < axis.cells; ++i) {
    const int64_t last = axis.cuts.back();
    SHERD_ASSIGN_OR_RETURN(const int64_t cell, numbers.Take(size - last));
    axis.cuts.push_back(last + cell);
  }
  axis.cuts.push_back(size);
  return axis;
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

absl::Status MemoryBudget::Take(int64_t count, int64_t bytes) {
  const auto total = CheckedMul(count, bytes);
  if (total.has_value() && *total <= left_) {
    left_ -= *total;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the manifest would take more than ", limit_,
                   " bytes in memory: ", count, " entries of ", bytes));
}

absl::Status MemoryLoan::Take(int64_t count, int64_t bytes) {
  SHERD_RETURN_IF_ERROR(budget_.Take(count, bytes));
  bytes_ += count * bytes;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> NumberReader::Next() {
  if (next_ < numbers_.size()) return numbers_[next_++];
  return absl::DataLossError(absl::StrCat("the column ", column_,
                                          " ends after ", next_,
                                          " numbers, expected more"));
}

absl::Status NumberReader::Wrong(uint64_t number, int64_t max) const {
  return absl::DataLossError(absl::StrCat("the column ", column_, " has ",
                                          number, " as number ", next_ - 1,
                                          ", expected one that leads to at "
                                          "most ",
                                          max));
}

absl::StatusOr<int64_t> NumberReader::Take(int64_t max) {
  SHERD_ASSIGN_OR_RETURN(const uint64_t number, Next());
  if (max >= 0 && number <= static_cast<uint64_t>(max)) {
    return static_cast<int64_t>(number);
  }
  return Wrong(number, max);
}

absl::StatusOr<int64_t> NumberReader::TakeDelta(int64_t base, int64_t max) {
  SHERD_ASSIGN_OR_RETURN(const uint64_t number, Next());
  const int64_t delta =
      static_cast<int64_t>(number >> 1) ^ -static_cast<int64_t>(number & 1);
  const auto value = CheckedAdd(base, delta);
  if (value.has_value() && *value >= 0 && *value <= max) return *value;
  return Wrong(number, max);
}

absl::Status NumberReader::ExpectEmpty() const {
  if (left() == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the column ", column_, " has ",
                                          left(), " numbers too many"));
}

void AppendLayout(const SavedLayout& layout, std::vector<uint64_t>& numbers) {
  if (!layout.is_grid()) {
    numbers.push_back(kBoxes);
    AppendBoxes(layout, numbers);
    return;
  }
  numbers.push_back(kGrid);
  for (const SavedLayout::Axis& axis : layout.axes()) {
    numbers.push_back(static_cast<uint64_t>(axis.cells));
    if (axis.cells == 1) continue;
    numbers.push_back(static_cast<uint64_t>(axis.step));
    for (size_t i = 1; i + 1 < axis.cuts.size(); ++i) {
      numbers.push_back(static_cast<uint64_t>(axis.cuts[i] - axis.cuts[i - 1]));
    }
  }
}

absl::StatusOr<SavedLayout> TakeLayout(Dims sizes, NumberReader& numbers,
                                       MemoryBudget& memory) {
  SHERD_ASSIGN_OR_RETURN(const int64_t form, numbers.Take(kGrid));
  SavedLayout layout;
  // Until the boxes are compared.
  MemoryLoan loan(memory);
  if (form == kBoxes) {
    SHERD_ASSIGN_OR_RETURN(layout,
                           TakeBoxes(std::move(sizes), numbers, memory, loan));
  } else {
    SHERD_RETURN_IF_ERROR(TakeAxisMemory(sizes.size(), memory));
    std::vector<SavedLayout::Axis> axes;
    axes.reserve(sizes.size());
    for (const int64_t size : sizes) {
      SHERD_ASSIGN_OR_RETURN(axes.emplace_back(),
                             TakeAxis(size, numbers, memory));
    }
    layout = SavedLayout::Grid(std::move(sizes), std::move(axes));
  }
  SHERD_RETURN_IF_ERROR(layout.Validate());
  return layout;
}

absl::StatusOr<SavedLayout> LayoutReader::Take(const Dims& sizes) {
  // The numbers of a layout tell where they end.
  if (!last_numbers_.empty() && last_.sizes() == sizes &&
      numbers_.TakeIfNext(last_numbers_)) {
    SHERD_RETURN_IF_ERROR(TakeLayoutMemory(last_, memory_));
    return last_;
  }
  const absl::Span<const uint64_t> rest = numbers_.rest();
  SHERD_ASSIGN_OR_RETURN(last_, TakeLayout(sizes, numbers_, memory_));
  last_numbers_ = rest.first(rest.size() - numbers_.left());
  return last_;
}

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

absl::StatusOr<std::vector<SavedRun>> TakeRuns(
    const ManifestTensor& tensor, int64_t chunk_bytes, int64_t placements,
    int64_t files, NumberReader& numbers, MemoryBudget& memory) {
  std::vector<SavedRun> runs;
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
