#include "sherd/tools/examples/quickstart/progress.h"

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

std::string Contents(std::FILE* file) {
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

TEST(ProgressTest, WritesWholeLinesWhereThereIsNoTerminal) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress(file, "sharding", 2000);
    progress.Add(500, "wte.weight");
    // Too soon for a line of its own, unless the machine is very slow.
    progress.Add(1500, "wpe.weight");
    progress.Finish();
  }
  EXPECT_THAT(Contents(file),
              ::testing::MatchesRegex("sharding:  25% of 2.00 kB  wte.weight\n"
                                      "(sharding: 100% .*\n)?"
                                      "sharding: 2.00 kB in [0-9.]+ m?s\n"));
  std::fclose(file);
}

TEST(ProgressTest, NothingToDoIsAllDone) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  Progress progress(file, "sharding", 0);
  progress.Add(0, "empty");
  EXPECT_EQ(Contents(file), "sharding: 100% of 0 B  empty\n");
  std::fclose(file);
}

TEST(ProgressTest, IsSilentWithoutAFile) {
  Progress progress(nullptr, "sharding", 10);
  progress.Add(10, "x");
  progress.Finish();
}

}  // namespace
}  // namespace sherd
