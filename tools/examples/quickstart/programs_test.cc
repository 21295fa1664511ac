// Runs the programs as tools/quickstart does.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MakeModelProgramTest, ErrorsNameTheFileAndMisuseIsDistinguished) {
  const std::string folder = ShellTestFolder();
  const ShellResult nowhere =
      Shell("tools/examples/make_model --preset tiny --out " +
            Quoted(folder + "/a/b"));
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.output, AllOf(HasSubstr("sherd make_model: "),
                                    HasSubstr(folder + "/a: No such file")));
  EXPECT_EQ(Shell("tools/examples/make_model --preset huge").exit_code, 2);
}

TEST(MakeModelProgramTest, PathsAreTheCallersOfBazelRun) {
  const std::string folder = ShellTestFolder();
  const ShellResult made =
      Shell("BUILD_WORKING_DIRECTORY=" + Quoted(folder) +
            " tools/examples/make_model --preset tiny --out m");
  EXPECT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("m: "));
  EXPECT_EQ(
      Shell("tools/sherd/sherd verify " + Quoted(folder + "/m")).exit_code, 0);
}

TEST(QuickstartProgramTest, OnlyItsStepsAreUnderstood) {
  for (const char* arguments : {"", "walk", "save"}) {
    EXPECT_EQ(
        Shell(absl::StrCat("tools/examples/quickstart ", arguments)).exit_code,
        2)
        << arguments;
  }
}

std::string Half(int ranks, const std::string& half, const std::string& folder,
                 const std::string& model) {
  return absl::StrCat("tools/sherd/sherd run -n ", ranks,
                      " --no-prefix tools/examples/quickstart ", half,
                      " --dir ", Quoted(folder), " --model ", Quoted(model));
}

TEST(QuickstartProgramTest, RunsInProcesses) {
  const std::string folder = ShellTestFolder();
  const ShellResult prepared =
      Shell("tools/examples/quickstart prepare --preset tiny --dir " +
            Quoted(folder) + " 2> /dev/null");
  ASSERT_EQ(prepared.exit_code, 0) << prepared.output;
  const std::string model = folder + "/model.safetensors";
  EXPECT_EQ(prepared.output, model + "\n");

  const ShellResult saved = Shell(Half(4, "save", folder, model));
  ASSERT_EQ(saved.exit_code, 0) << saved.output;
  const std::string checkpoint = folder + "/checkpoint";
  EXPECT_EQ(Shell("tools/sherd/sherd verify " + Quoted(checkpoint)).exit_code,
            0);
  EXPECT_THAT(Shell("tools/sherd/sherd inspect " + Quoted(checkpoint)).output,
              HasSubstr("checkpoint of 4 ranks"));

  const ShellResult loaded = Shell(Half(3, "load", folder, model));
  EXPECT_EQ(loaded.exit_code, 0) << loaded.output;
  EXPECT_THAT(loaded.output,
              ::testing::ContainsRegex("\nverified: [0-9]+ tensors, [0-9]+ "
                                       "bytes\n$"));

  ASSERT_EQ(Shell("f=$(ls " + Quoted(checkpoint) +
                  "/shard-*.safetensors | head -1); "
                  "printf '\\377' | dd of=\"$f\" bs=1 conv=notrunc "
                  "seek=$(( $(stat -c %s \"$f\") - 1 ))")
                .exit_code,
            0);
  const ShellResult damaged = Shell(Half(3, "load", folder, model));
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.output, Not(HasSubstr("verified:")));
  EXPECT_THAT(Shell("cat " + Quoted(folder + "/failure.txt")).output,
              AllOf(HasSubstr(".safetensors"), HasSubstr("tensor")));
  EXPECT_EQ(Shell("tools/sherd/sherd verify " + Quoted(checkpoint)).exit_code,
            1);
}

}  // namespace
}  // namespace sherd
