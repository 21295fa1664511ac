#include "sherd/serialization/manifest/empty_boxes.h"

namespace sherd {

EmptyBoxes::EmptyBoxes(const SavedLayout& layout, int64_t first)
    : layout_(layout), box_(first) {
  for (size_t d = layout.axes().size(); layout.is_grid() && d-- > 0;) {
    const int64_t cells = layout.axes()[d].cells;
    if (cells == 1) {
      empty_cells_ += layout.sizes()[d] == 0 ? 1 : 0;
      continue;
    }
    Set(digits_.emplace_back(Digit{.dim = d}), first % cells);
    first /= cells;
  }
}

void EmptyBoxes::Next() {
  ++box_;
  for (Digit& digit : digits_) {
    if (digit.cell + 1 < layout_.axes()[digit.dim].cells) {
      return Set(digit, digit.cell + 1);
    }
    Set(digit, 0);
  }
}

bool EmptyBoxes::IsEmpty(size_t dim, int64_t cell) const {
  const SavedLayout::Axis& axis = layout_.axes()[dim];
  if (!axis.cuts.empty()) {
    const auto begin = static_cast<size_t>(cell);
    return axis.cuts[begin] == axis.cuts[begin + 1];
  }
  const int64_t size = layout_.sizes()[dim];
  return size == 0 || cell > (size - 1) / axis.step;
}

void EmptyBoxes::Set(Digit& digit, int64_t cell) {
  empty_cells_ -= digit.is_empty ? 1 : 0;
  digit.cell = cell;
  digit.is_empty = IsEmpty(digit.dim, cell);
  empty_cells_ += digit.is_empty ? 1 : 0;
}

}  // namespace sherd
