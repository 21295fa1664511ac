#include "sherd/core/base/text_table.h"

#include <algorithm>

#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/units.h"

namespace sherd {

void TextTable::AddRow(std::vector<std::string> cells) {
  SHERD_CHECK(cells.size() <= columns_.size()) << "too many cells";
  cells.resize(columns_.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    cells[c] = PrintableLine(cells[c]);
    if (const int64_t width = columns_[c].max_width; width > 0) {
      cells[c] = Shorten(cells[c], width);
    }
  }
  rows_.push_back(std::move(cells));
}

std::string TextTable::ToString() const {
  std::vector<int64_t> widths;
  std::vector<std::string> titles;
  for (size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    widths.push_back(DisplayWidth(titles[c]));
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], DisplayWidth(row[c]));
    }
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string blanks(widths[c] - DisplayWidth(cells[c]), ' ');
      if (c > 0) text += "  ";
      if (columns_[c].align == Align::kRight) {
        text += blanks + cells[c];
      } else {
        text += cells[c] + blanks;
      }
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  append(titles);
  for (const auto& row : rows_) append(row);
  return text;
}

}  // namespace sherd
