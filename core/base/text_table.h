#ifndef SHERD_CORE_BASE_TEXT_TABLE_H_
#define SHERD_CORE_BASE_TEXT_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

// Rows of text in aligned columns, without lines between them.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    // Cells are shortened to as many characters: for names that may come from
    // files. 0 has no limit.
    int64_t max_width = 0;
  };

  explicit TextTable(std::vector<Column> columns)
      : columns_(std::move(columns)) {}

  // Missing cells are empty; there are at most as many cells as columns.
  // Unprintable bytes of a cell are escaped (see printable_text.h).
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // Title line and rows, each with its newline and no blanks at its end.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_TEXT_TABLE_H_
