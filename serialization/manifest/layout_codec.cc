#include "sherd/serialization/manifest/layout_codec.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/box.h"

namespace sherd {
namespace {

constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();

enum LayoutForm : uint64_t { kBoxes = 0, kGrid = 1 };

// How a box's offset follows from the box before: the same, its end, or given.
// And its size: the same, up to the end of the tensor, or given. Together a
// digit in base 9 per dimension.
enum Relation : uint64_t { kSame = 0, kAdjacent = 1, kGiven = 2 };
constexpr uint64_t kBase = 9;
// Digits per number: for boxes of two dimensions it is one byte.
constexpr size_t kDigits = 4;

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

}  // namespace

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

}  // namespace sherd
