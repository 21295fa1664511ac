#include "sherd/tools/sherd/run/line_prefixer.h"

#include <string>

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(LinePrefixerTest, PrefixesEveryLineHoweverItIsCut) {
  const std::string text = "first\n\nthird is longer\nrest";
  for (size_t step = 1; step <= text.size(); ++step) {
    LinePrefixer prefixer("[3] ");
    std::string output;
    for (size_t i = 0; i < text.size(); i += step) {
      prefixer.Feed(absl::string_view(text).substr(i, step), output);
    }
    EXPECT_EQ(output, "[3] first\n[3] \n[3] third is longer\n")
        << "pieces of " << step;
    prefixer.Finish(output);
    EXPECT_EQ(output, "[3] first\n[3] \n[3] third is longer\n[3] rest\n");
  }
}

TEST(LinePrefixerTest, FinishesWithoutALineWhenTheLastOneWasComplete) {
  LinePrefixer prefixer("[0] ");
  std::string output;
  prefixer.Feed("whole\n", output);
  prefixer.Finish(output);
  EXPECT_EQ(output, "[0] whole\n");
}

TEST(LinePrefixerTest, HoldsALongLineBackUntilItIsComplete) {
  LinePrefixer prefixer("[0] ");
  const std::string half(1 << 20, 'a');
  std::string output;
  prefixer.Feed(half, output);
  EXPECT_EQ(output, "");
  prefixer.Feed(half + "\n", output);
  EXPECT_EQ(output, "[0] " + half + half + "\n");
}

TEST(LinePrefixerTest, BreaksALineBeyondTheLimit) {
  LinePrefixer prefixer("> ", /*max_line=*/4);
  std::string output;
  prefixer.Feed("abcdefghij\nxy", output);
  EXPECT_EQ(output, "> abcd\n> efgh\n> ij\n");
  prefixer.Feed("zw", output);
  prefixer.Feed("\n", output);
  EXPECT_EQ(output, "> abcd\n> efgh\n> ij\n> xyzw\n");
}

TEST(LinePrefixerTest, KeepsNulAndCarriageReturn) {
  LinePrefixer prefixer("[1] ");
  std::string output;
  prefixer.Feed(absl::string_view("a\0b\r\n", 5), output);
  EXPECT_EQ(output, std::string("[1] a\0b\r\n", 9));
}

}  // namespace
}  // namespace sherd
