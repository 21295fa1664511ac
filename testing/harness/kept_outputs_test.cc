#include "sherd/testing/harness/kept_outputs.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

class KeptOutputsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(GetKnobOr(Knob::kTestTmpDir, "/tmp"),
                          "kept." + std::to_string(getpid()));
    files_ = {.outputs = JoinPath(directory_, "run/outputs"),
              .flights = JoinPath(directory_, "run/flights")};
    kept_ = JoinPath(directory_, "kept");
    for (const std::string& path : {files_.outputs, files_.flights, kept_}) {
      ASSERT_THAT(FileSystem::Posix().CreateDirectories(path), IsOk());
    }
    setenv("TEST_UNDECLARED_OUTPUTS_DIR", kept_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TEST_UNDECLARED_OUTPUTS_DIR");
    EXPECT_THAT(FileSystem::Posix().RemoveAll(directory_), IsOk());
  }

  static void Write(const std::string& path) {
    const std::byte byte{'x'};
    ASSERT_THAT(WriteFileAtomically(FileSystem::Posix(), path, {&byte, 1}),
                IsOk());
  }

  std::string directory_;
  RunFiles files_;
  std::string kept_;
};

TEST_F(KeptOutputsTest, OutputsAndDumpsOfARunStandInADirectoryOfTheTest) {
  Write(JoinPath(files_.outputs, "rank-0.log"));
  Write(JoinPath(files_.flights, "flight.rank-1.json"));
  const std::string path = KeepOutputs("Sizes/ATest.Fails/3", files_);
  EXPECT_EQ(path, JoinPath(kept_, "Sizes_ATest.Fails_3"));
  EXPECT_THAT(FileSystem::Posix().List(path),
              IsOkAndHolds(::testing::UnorderedElementsAre(
                  "rank-0.log", "flight.rank-1.json")));
}

TEST_F(KeptOutputsTest, RepeatedTestsHaveDirectoriesOfTheirOwn) {
  Write(JoinPath(files_.outputs, "rank-0.log"));
  EXPECT_EQ(KeepOutputs("ATest.Fails", files_), JoinPath(kept_, "ATest.Fails"));
  EXPECT_EQ(KeepOutputs("ATest.Fails", files_),
            JoinPath(kept_, "ATest.Fails.2"));
}

TEST_F(KeptOutputsTest, WithoutFilesOrVariableNothingIsKept) {
  EXPECT_EQ(KeepOutputs("ATest.Fails", files_), "");
  EXPECT_EQ(KeepOutputs("ATest.Fails", {}), "");
  Write(JoinPath(files_.outputs, "rank-0.log"));
  unsetenv("TEST_UNDECLARED_OUTPUTS_DIR");
  EXPECT_EQ(KeepOutputs("ATest.Fails", files_), "");
  setenv("TEST_UNDECLARED_OUTPUTS_DIR", "/nowhere/at/all", 1);
  EXPECT_EQ(KeepOutputs("ATest.Fails", files_), "");
  EXPECT_THAT(FileSystem::Posix().List(kept_),
              IsOkAndHolds(::testing::IsEmpty()));
}

}  // namespace
}  // namespace sherd::testing::internal
