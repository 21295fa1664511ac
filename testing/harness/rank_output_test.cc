#include "sherd/testing/harness/rank_output.h"

#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

std::string FileFor(const std::string& name) {
  return JoinPath(GetKnobOr(Knob::kTestTmpDir, "/tmp"),
                  absl::StrCat(name, ".", getpid()));
}

TEST(RankOutputTest, OfMuchOutputBeginningAndEndAreKeptAndTheRestIsCounted) {
  RankOutput output("");
  size_t written = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    output.Append(line);
    written += line.size();
  }
  const std::string text = output.ToString();
  EXPECT_TRUE(absl::StartsWith(text, "line 0\nline 1\n"));
  EXPECT_TRUE(absl::EndsWith(text, "line 99998\nline 99999\n"));
  EXPECT_TRUE(output.EndHas("line 99999"));
  EXPECT_LE(text.size(), RankOutput::kBegin + 2 * RankOutput::kEnd + 100);
  const std::string::size_type note = text.find("… (");
  ASSERT_NE(note, std::string::npos);
  const size_t dropped = std::stoul(text.substr(note + sizeof("… (") - 1));
  const std::string whole_note =
      absl::StrCat("\n… (", dropped, " bytes left out) …\n");
  EXPECT_EQ(text.size() - whole_note.size() + dropped, written);
}

TEST(RankOutputTest, LittleOutputStaysAsItIs) {
  RankOutput output("");
  EXPECT_EQ(output.ToString(), "");
  output.Append("a");
  output.Append("b\n");
  EXPECT_EQ(output.ToString(), "ab\n");
}

TEST(RankOutputTest, TheFileHoldsWhatIsLeftOut) {
  const std::string path = FileFor("whole");
  std::string whole;
  {
    RankOutput output(path);
    for (int i = 0; i < 1000; ++i) {
      const std::string line = absl::StrCat(i, std::string(999, 'x'), "\n");
      output.Append(line);
      whole += line;
    }
    EXPECT_LT(output.ToString().size(), whole.size());
  }
  EXPECT_THAT(ReadFile(FileSystem::Posix(), path, int64_t{1} << 24),
              IsOkAndHolds(whole));
  EXPECT_THAT(FileSystem::Posix().Remove(path), IsOk());
}

TEST(RankOutputTest, WithoutOutputThereIsNoFile) {
  const std::string path = FileFor("none");
  RankOutput output(path);
  output.Append("");
  EXPECT_THAT(FileSystem::Posix().Exists(path), IsOkAndHolds(false));
}

TEST(RankOutputTest, AFileThatCannotBeWrittenHarmsNothing) {
  RankOutput output("/nowhere/at/all");
  output.Append("text");
  output.Append("!");
  EXPECT_EQ(output.ToString(), "text!");
}

}  // namespace
}  // namespace sherd::testing::internal
