#ifndef SHERD_CORE_BASE_TEXT_TABLE_H_
#define SHERD_CORE_BASE_TEXT_TABLE_H_

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
  };

  explicit TextTable(std::vector<Column> columns)
      : columns_(std::move(columns)) {}

  // Missing cells are empty; there are not more than columns.
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
