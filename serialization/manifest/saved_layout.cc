#include "sherd/serialization/manifest/saved_layout.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

#include "absl/base/call_once.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/serialization/manifest/box_tree.h"

namespace sherd {
namespace {

using Axis = SavedLayout::Axis;

bool IsWhole(const Axis& axis) { return axis.step == 0 && axis.cuts.empty(); }

// Where cell `i` begins, and cell i - 1 ends, in a dimension of `size`.
int64_t BeginOf(const Axis& axis, int64_t size, int64_t i) {
  if (axis.step > 0) return std::min(size, i * axis.step);
  return axis.cuts.empty() ? (i == 0 ? 0 : size)
                           : axis.cuts[static_cast<size_t>(i)];
}

// The cell in dimension `d`, of box number `i` in that dimension and those
// before it; `i` becomes the number in the latter. Most dimensions have one
// cell, and all of a million shards ask: without a division where none is
// needed.
int64_t TakeCell(const Axis& axis, size_t d, int64_t& i) {
  if (axis.cells == 1) return 0;
  if (d == 0) return i;
  const int64_t cell = i % axis.cells;
  i /= axis.cells;
  return cell;
}

// The cells [first, second) of which those with elements in [begin, end),
// which is not empty, are part.
std::pair<int64_t, int64_t> CellsIn(const Axis& axis, int64_t begin,
                                    int64_t end) {
  if (IsWhole(axis)) return {0, 1};
  if (axis.step > 0) {
    return {begin / axis.step, std::min(axis.cells, (end - 1) / axis.step + 1)};
  }
  const auto& cuts = axis.cuts;
  const auto first = std::upper_bound(cuts.begin(), cuts.end(), begin) - 1;
  const auto last = std::lower_bound(first, cuts.end(), end);
  return {first - cuts.begin(),
          std::min<int64_t>(axis.cells, last - cuts.begin())};
}

// The axis with these cuts, in the shortest form.
Axis AxisOf(std::vector<int64_t> cuts) {
  Axis axis;
  axis.cells = static_cast<int64_t>(cuts.size()) - 1;
  if (axis.cells == 1) return axis;
  axis.step = cuts[1] - cuts[0];
  const int64_t size = cuts.back();
  // The end of the last cell is a number too.
  bool is_uniform =
      axis.step > 0 && CheckedMul(axis.cells, axis.step).has_value();
  for (size_t i = 1; is_uniform && i < cuts.size(); ++i) {
    const auto begin = CheckedMul(static_cast<int64_t>(i), axis.step);
    is_uniform = std::min(begin.value_or(size), size) == cuts[i];
  }
  if (is_uniform) return axis;
  axis.step = 0;
  axis.cuts = std::move(cuts);
  return axis;
}

// The only dimension in which a box differs from the whole tensor; the first
// without elements if none does; nullopt if several do.
std::optional<size_t> CutDim(absl::Span<const int64_t> sizes,
                             absl::Span<const Box> boxes) {
  std::optional<size_t> cut;
  for (const Box& box : boxes) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (box.offsets[d] == 0 && box.sizes[d] == sizes[d]) continue;
      if (cut.has_value() && *cut != d) return std::nullopt;
      cut = d;
    }
  }
  for (size_t d = 0; !cut.has_value() && d < sizes.size(); ++d) {
    if (sizes[d] == 0) cut = d;
  }
  return cut;
}

// The cuts of dimension `dim`, of `size`, if the boxes follow each other there.
std::optional<std::vector<int64_t>> CutsInOrder(int64_t size, size_t dim,
                                                absl::Span<const Box> boxes) {
  std::vector<int64_t> cuts = {0};
  cuts.reserve(boxes.size() + 1);
  for (const Box& box : boxes) {
    if (box.sizes[dim] != 0 && box.offsets[dim] != cuts.back()) {
      return std::nullopt;
    }
    cuts.push_back(cuts.back() + box.sizes[dim]);
  }
  if (cuts.back() != size) return std::nullopt;
  return cuts;
}

// The places at which boxes begin in each dimension, ascending, if there are as
// many cells between them as boxes.
std::optional<std::vector<std::vector<int64_t>>> FindBegins(
    size_t dims, absl::Span<const Box> boxes) {
  std::vector<std::vector<int64_t>> begins(dims);
  int64_t cells = 1;
  for (size_t d = 0; d < dims; ++d) {
    for (const Box& box : boxes) begins[d].push_back(box.offsets[d]);
    std::sort(begins[d].begin(), begins[d].end());
    begins[d].erase(std::unique(begins[d].begin(), begins[d].end()),
                    begins[d].end());
    if (begins[d].front() != 0) return std::nullopt;
    const auto product =
        CheckedMul(cells, static_cast<int64_t>(begins[d].size()));
    if (!product.has_value()) return std::nullopt;
    cells = *product;
  }
  if (cells != static_cast<int64_t>(boxes.size())) return std::nullopt;
  return begins;
}

// The number of the cell that `box` is, nullopt if it is none.
std::optional<int64_t> CellOf(const Box& box, absl::Span<const int64_t> sizes,
                              const std::vector<std::vector<int64_t>>& begins) {
  int64_t cell = 0;
  bool is_cell = true;
  bool is_empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const std::vector<int64_t>& list = begins[d];
    const auto it = std::lower_bound(list.begin(), list.end(), box.offsets[d]);
    const int64_t begin = std::min(*it, sizes[d]);
    const int64_t end =
        it + 1 == list.end() ? sizes[d] : std::min(*(it + 1), sizes[d]);
    is_cell &= box.sizes[d] == end - begin;
    is_empty |= end == begin;
    cell = cell * static_cast<int64_t>(list.size()) + (it - list.begin());
  }
  // Nothing is lost where both are empty.
  if (is_cell || (is_empty && IsEmpty(box))) return cell;
  return std::nullopt;
}

}  // namespace

// The boxes, and the index of those that have elements.
struct SavedLayout::BoxList {
  BoxList(size_t dims, absl::Span<const Box> list) : dims(dims) {
    numbers.reserve(2 * dims * list.size());
    for (const Box& box : list) {
      numbers.insert(numbers.end(), box.offsets.begin(), box.offsets.end());
      numbers.insert(numbers.end(), box.sizes.begin(), box.sizes.end());
    }
    count = static_cast<int64_t>(list.size());
  }

  BoxView At(int64_t i) const {
    const int64_t* const begin =
        numbers.data() + 2 * dims * static_cast<size_t>(i);
    return {{begin, dims}, {begin + dims, dims}};
  }

  const BoxTree& tree() const {
    absl::call_once(once, [this] {
      index.emplace(static_cast<int>(dims));
      for (int64_t i = 0; i < count; ++i) index->Add(At(i), i);
      index->Build();
    });
    return *index;
  }

  const size_t dims;
  int64_t count = 0;
  // Offsets and sizes of each box in turn.
  std::vector<int64_t> numbers;
  mutable absl::once_flag once;
  mutable std::optional<BoxTree> index;
};

SavedLayout::SavedLayout() = default;

SavedLayout::SavedLayout(Dims sizes, std::vector<Axis> axes,
                         std::shared_ptr<const BoxList> boxes, int64_t count)
    : sizes_(std::move(sizes)),
      axes_(axes.empty()
                ? nullptr
                : std::make_shared<const std::vector<Axis>>(std::move(axes))),
      boxes_(std::move(boxes)),
      count_(count) {}

SavedLayout SavedLayout::Whole(Dims sizes) {
  std::vector<Axis> axes(sizes.size());
  return SavedLayout(std::move(sizes), std::move(axes), nullptr, 1);
}

SavedLayout SavedLayout::Grid(Dims sizes, std::vector<Axis> axes) {
  int64_t count = 1;
  for (const Axis& axis : axes) {
    // Validate refuses what does not fit.
    count = CheckedMul(count, axis.cells)
                .value_or(std::numeric_limits<int64_t>::max());
  }
  return SavedLayout(std::move(sizes), std::move(axes), nullptr, count);
}

SavedLayout SavedLayout::Boxes(Dims sizes, absl::Span<const Box> boxes) {
  auto list = std::make_shared<const BoxList>(sizes.size(), boxes);
  return SavedLayout(std::move(sizes), {}, std::move(list),
                     static_cast<int64_t>(boxes.size()));
}

SavedLayout SavedLayout::FromBoxes(Dims sizes, absl::Span<const Box> boxes,
                                   std::vector<int64_t>* order) {
  std::vector<int64_t> in_order(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    in_order[i] = static_cast<int64_t>(i);
  }
  std::vector<int64_t> unused;
  std::vector<int64_t>& result = order != nullptr ? *order : unused;
  result = in_order;
  if (boxes.empty()) return Boxes(std::move(sizes), boxes);
  if (sizes.empty()) {
    return boxes.size() == 1 ? Whole(std::move(sizes))
                             : Boxes(std::move(sizes), boxes);
  }
  std::vector<Axis> axes(sizes.size());
  const std::optional<size_t> dim = CutDim(sizes, boxes);
  if (boxes.size() == 1 && !dim.has_value()) return Whole(std::move(sizes));
  if (dim.has_value()) {
    if (auto cuts = CutsInOrder(sizes[*dim], *dim, boxes)) {
      axes[*dim] = AxisOf(*std::move(cuts));
      return Grid(std::move(sizes), std::move(axes));
    }
  }
  const auto begins = FindBegins(sizes.size(), boxes);
  if (!begins.has_value()) return Boxes(std::move(sizes), boxes);
  std::vector<int64_t> box_of_cell(boxes.size(), -1);
  for (size_t i = 0; i < boxes.size(); ++i) {
    const auto cell = CellOf(boxes[i], sizes, *begins);
    if (!cell.has_value() || box_of_cell[*cell] >= 0) {
      return Boxes(std::move(sizes), boxes);
    }
    box_of_cell[*cell] = static_cast<int64_t>(i);
  }
  result = std::move(box_of_cell);
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::vector<int64_t> cuts = (*begins)[d];
    for (int64_t& cut : cuts) cut = std::min(cut, sizes[d]);
    cuts.push_back(sizes[d]);
    axes[d] = AxisOf(std::move(cuts));
  }
  return Grid(std::move(sizes), std::move(axes));
}

void SavedLayout::BoxAt(int64_t i, Box& box) const {
  if (boxes_ != nullptr) {
    const BoxView view = boxes_->At(i);
    box.offsets.assign(view.offsets.begin(), view.offsets.end());
    box.sizes.assign(view.sizes.begin(), view.sizes.end());
    return;
  }
  box.offsets.resize(sizes_.size());
  box.sizes.resize(sizes_.size());
  for (size_t d = sizes_.size(); d-- > 0;) {
    const Axis& axis = AxisAt(d);
    const int64_t cell = TakeCell(axis, d, i);
    box.offsets[d] = BeginOf(axis, sizes_[d], cell);
    box.sizes[d] = BeginOf(axis, sizes_[d], cell + 1) - box.offsets[d];
  }
}

Box SavedLayout::BoxAt(int64_t i) const {
  Box box;
  BoxAt(i, box);
  return box;
}

int64_t SavedLayout::VolumeAt(int64_t i) const {
  if (boxes_ != nullptr) return Volume(boxes_->At(i));
  int64_t volume = 1;
  for (size_t d = sizes_.size(); d-- > 0;) {
    const Axis& axis = AxisAt(d);
    const int64_t cell = TakeCell(axis, d, i);
    volume *=
        BeginOf(axis, sizes_[d], cell + 1) - BeginOf(axis, sizes_[d], cell);
  }
  return volume;
}

bool SavedLayout::HasEmptyBoxes() const {
  if (boxes_ != nullptr) return true;
  for (size_t d = 0; d < sizes_.size(); ++d) {
    const Axis& axis = AxisAt(d);
    const bool has_empty =
        axis.cuts.empty()
            ? BeginOf(axis, sizes_[d], axis.cells - 1) >= sizes_[d]
            : std::adjacent_find(axis.cuts.begin(), axis.cuts.end()) !=
                  axis.cuts.end();
    if (has_empty) return true;
  }
  return false;
}

bool SavedLayout::ForEachIn(const BoxView& box,
                            absl::FunctionRef<bool(int64_t)> visit) const {
  if (IsEmpty(box)) return true;
  if (boxes_ != nullptr) return boxes_->tree().ForEachIn(box, visit);
  const size_t dims = sizes_.size();
  // The cells in each dimension, and the current one.
  absl::InlinedVector<std::pair<int64_t, int64_t>, 4> cells(dims);
  for (size_t d = 0; d < dims; ++d) {
    cells[d] = CellsIn(AxisAt(d), box.offsets[d], box.end(d));
    if (cells[d].first >= cells[d].second) return true;
  }
  Dims cell(dims);
  for (size_t d = 0; d < dims; ++d) cell[d] = cells[d].first;
  while (true) {
    int64_t number = 0;
    bool is_empty = false;
    for (size_t d = 0; d < dims; ++d) {
      number = number * AxisAt(d).cells + cell[d];
      is_empty |= BeginOf(AxisAt(d), sizes_[d], cell[d] + 1) ==
                  BeginOf(AxisAt(d), sizes_[d], cell[d]);
    }
    if (!is_empty && !visit(number)) return false;
    size_t d = dims;
    while (d-- > 0) {
      if (++cell[d] < cells[d].second) break;
      cell[d] = cells[d].first;
    }
    if (d > dims) return true;
  }
}

namespace {

absl::Status ValidateAxis(size_t dim, int64_t size, const Axis& axis) {
  const auto where = [&] {
    return absl::StrCat("dimension ", dim, " of ", size);
  };
  if (axis.cells < 1) {
    return absl::DataLossError(
        absl::StrCat(where(), " is cut into ", axis.cells, " cells"));
  }
  if (axis.step < 0) {
    return absl::DataLossError(
        absl::StrCat(where(), " has cells of ", axis.step));
  }
  if (axis.step > 0) {
    const auto end = CheckedMul(axis.cells, axis.step);
    if (axis.cuts.empty() && end.has_value() && *end >= size) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(where(), " has ", axis.cells,
                                            " cells of ", axis.step,
                                            ", which do not fill it"));
  }
  if (axis.cuts.empty() && axis.cells == 1) return absl::OkStatus();
  if (static_cast<int64_t>(axis.cuts.size()) - 1 != axis.cells ||
      axis.cuts.front() != 0 || axis.cuts.back() != size ||
      !std::is_sorted(axis.cuts.begin(), axis.cuts.end())) {
    return absl::DataLossError(absl::StrCat(
        where(), " has ", axis.cuts.size(), " cuts for ", axis.cells,
        " cells, expected ascending ones from 0 to ", size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SavedLayout::Validate() const {
  if (absl::Status status = NumElements(sizes_).status(); !status.ok()) {
    return absl::DataLossError(status.message());
  }
  if (boxes_ == nullptr) {
    if (axes().size() != sizes_.size()) {
      return absl::DataLossError(absl::StrCat("a grid has ", axes().size(),
                                              " dimensions, expected ",
                                              sizes_.size()));
    }
    int64_t count = 1;
    for (size_t d = 0; d < sizes_.size(); ++d) {
      SHERD_RETURN_IF_ERROR(ValidateAxis(d, sizes_[d], AxisAt(d)));
      const auto product = CheckedMul(count, AxisAt(d).cells);
      if (!product.has_value() || *product > kMaxShards) {
        return absl::DataLossError(
            absl::StrCat("a grid has more than ", kMaxShards, " cells"));
      }
      count = *product;
    }
    return absl::OkStatus();
  }
  std::vector<ShardMetadata> shards(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) {
    const BoxView box = boxes_->At(i);
    shards[i].offsets.assign(box.offsets.begin(), box.offsets.end());
    shards[i].sizes.assign(box.sizes.begin(), box.sizes.end());
  }
  absl::Status status = ValidateNonOverlapping(shards);
  if (status.ok()) status = ValidateCover(shards, sizes_);
  return status.ok() ? status : absl::DataLossError(status.message());
}

bool operator==(const SavedLayout& a, const SavedLayout& b) {
  if (a.sizes_ != b.sizes_ || a.count_ != b.count_ ||
      a.is_grid() != b.is_grid()) {
    return false;
  }
  return a.is_grid() ? a.axes() == b.axes()
                     : a.boxes_->numbers == b.boxes_->numbers;
}

}  // namespace sherd
