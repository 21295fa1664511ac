#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Four ranks, with `options` of sherd run and of the program.
ShellResult Train(const std::string& name, const std::string& options,
                  const std::string& kill = "") {
  return Shell(absl::StrCat("tools/sherd/sherd run -n 4 ", options,
                            " tools/examples/elastic_train --steps=50 --dir=",
                            ::testing::TempDir(), "/", name, " ", kill));
}

// The sums of weights that the ranks printed.
std::set<std::string> SumsIn(const std::string& output) {
  constexpr char kSum[] = "sum of the weights: ";
  std::set<std::string> sums;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t at = line.find(kSum);
    if (at != line.npos) sums.emplace(line.substr(at));
  }
  return sums;
}

TEST(ElasticTrainTest, ARankThatIsKilledChangesNothingOfTheResult) {
  const ShellResult whole = Train("whole", "");
  EXPECT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr("step 50 on 4 ranks"));
  const std::set<std::string> sums = SumsIn(whole.output);
  EXPECT_THAT(sums, SizeIs(1));

  const ShellResult smaller =
      Train("smaller", "--on-failure=continue", "--kill=2:33");
  EXPECT_EQ(smaller.exit_code, 0) << smaller.output;
  EXPECT_THAT(
      smaller.output,
      AllOf(HasSubstr("step 30 on 4 ranks"), HasSubstr("step 50 on 3 ranks"),
            HasSubstr("rank 2 of 4 failed, as ranks 0, 1, 3 report: "
                      "killed by signal 9")));
  EXPECT_EQ(SumsIn(smaller.output), sums);

  const ShellResult restarted =
      Train("restarted", "--max-restarts=1 --min-ranks=3", "--kill=2:33");
  EXPECT_EQ(restarted.exit_code, 0) << restarted.output;
  EXPECT_THAT(restarted.output,
              AllOf(HasSubstr("starting 3 ranks again (restart 1 of 1)"),
                    HasSubstr("[2] sum of the weights")));
  EXPECT_EQ(SumsIn(restarted.output), sums);
}

}  // namespace
}  // namespace sherd
