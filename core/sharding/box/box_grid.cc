#include "sherd/core/sharding/box/box_grid.h"

#include <algorithm>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace sherd::internal {
namespace {

// Cells for each box, and for small sets.
constexpr uint64_t kMaxCellsPerBox = 4;
constexpr uint64_t kFewCells = 64;

}  // namespace

std::optional<BoxGrid> BoxGrid::Detect(const BoxSet& boxes) {
  BoxGrid grid(boxes);
  if (!grid.FindIntervals()) return std::nullopt;
  grid.FillCells();
  return grid;
}

// Fills axes_, cells_ and cell_of_box_, one dimension after the other.
bool BoxGrid::FindIntervals() {
  const size_t n = boxes_->size();
  const uint64_t max_cells = kMaxCellsPerBox * n + kFewCells;
  cell_of_box_.assign(n, 0);
  std::vector<uint32_t> slots(n);
  for (int d = 0; d < boxes_->dims(); ++d) {
    absl::flat_hash_map<int64_t, uint32_t> slot_of_lo;
    std::vector<Interval> found;
    for (size_t i = 0; i < n; ++i) {
      const Interval interval = {boxes_->lo(i, d), boxes_->hi(i, d)};
      // Neighbours in the list are often neighbours in the tensor.
      uint32_t slot = i > 0 ? slots[i - 1] : 0;
      if (i == 0 || found[slot].lo != interval.lo) {
        slot =
            slot_of_lo
                .try_emplace(interval.lo, static_cast<uint32_t>(found.size()))
                .first->second;
        if (slot == found.size()) found.push_back(interval);
      }
      if (found[slot].hi != interval.hi) return false;
      slots[i] = slot;
    }
    std::vector<uint32_t> order(found.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return found[a].lo < found[b].lo;
    });
    std::vector<uint32_t> place(found.size());
    std::vector<Interval>& axis = axes_.emplace_back();
    for (const uint32_t slot : order) {
      if (!axis.empty() && axis.back().hi > found[slot].lo) return false;
      place[slot] = static_cast<uint32_t>(axis.size());
      axis.push_back(found[slot]);
    }
    cells_ *= std::max<size_t>(axis.size(), 1);
    if (cells_ > max_cells) return false;
    for (size_t i = 0; i < n; ++i) {
      cell_of_box_[i] = cell_of_box_[i] * axis.size() + place[slots[i]];
    }
  }
  return true;
}

void BoxGrid::FillCells() {
  first_.assign(cells_, -1);
  next_.assign(boxes_->size(), -1);
  for (size_t i = boxes_->size(); i-- > 0;) {
    int32_t& first = first_[cell_of_box_[i]];
    next_[i] = first;
    first = static_cast<int32_t>(i);
  }
}

bool BoxGrid::ForEachIn(const BoxView& box,
                        absl::FunctionRef<bool(size_t)> visit) const {
  // The cells [begin, end) of each axis, and the odometer over them.
  absl::InlinedVector<std::pair<uint64_t, uint64_t>, 4> range;
  absl::InlinedVector<uint64_t, 4> at;
  for (size_t d = 0; d < axes_.size(); ++d) {
    const std::vector<Interval>& axis = axes_[d];
    const auto begin = std::partition_point(
        axis.begin(), axis.end(), [&](const Interval& interval) {
          return interval.hi <= box.offsets[d];
        });
    const auto end = std::partition_point(
        begin, axis.end(),
        [&](const Interval& interval) { return interval.lo < box.end(d); });
    if (begin == end) return true;
    range.emplace_back(begin - axis.begin(), end - axis.begin());
    at.push_back(range.back().first);
  }
  while (true) {
    uint64_t cell = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      cell = cell * axes_[d].size() + at[d];
    }
    for (int32_t i = first_[cell]; i >= 0; i = next_[i]) {
      if (!visit(static_cast<size_t>(i))) return false;
    }
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == range[d - 1].second) {
      at[d - 1] = range[d - 1].first;
      --d;
    }
    if (d == 0) return true;
  }
}

}  // namespace sherd::internal
