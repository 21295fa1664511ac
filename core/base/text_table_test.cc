#include "sherd/core/base/text_table.h"

#include "gtest/gtest.h"

namespace sherd {
namespace {

constexpr TextTable::Align kRight = TextTable::Align::kRight;

TEST(TextTableTest, AlignsColumnsByCharactersAndEndsLinesWithoutBlanks) {
  TextTable table({{"tensor"}, {"bytes", kRight}, {"layout"}});
  table.AddRow({"w", "12", "rows → grid"});
  table.AddRow({"a.long.name", "3456789", ""});
  EXPECT_EQ(table.ToString(),
            "tensor         bytes  layout\n"
            "w                 12  rows → grid\n"
            "a.long.name  3456789\n");
}

TEST(TextTableTest, EscapesAndShortensTextFromFiles) {
  TextTable table({{"tensor", TextTable::Align::kLeft, 7}, {"layout"}});
  table.AddRow({"a\x1b[31m\nb", "rows\a"});
  table.AddRow({"a.very.long.name", "columns that are not shortened"});
  EXPECT_EQ(table.ToString(),
            "tensor   layout\n"
            "a\\nb     rows\\x07\n"
            "a.v…ame  columns that are not shortened\n");
}

TEST(TextTableTest, FillsMissingCells) {
  TextTable table({{"a"}, {"b", kRight}});
  EXPECT_TRUE(table.empty());
  table.AddRow({"only"});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.ToString(), "a     b\nonly\n");
}

}  // namespace
}  // namespace sherd
