#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOkAndHolds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ranks that the real mpirun starts, in a directory with a short name, since
// Open MPI makes sockets below it.
class MpirunInitTest : public ::testing::Test {
 protected:
  MpirunInitTest() {
    char name[] = "/tmp/sherd_mpirun_XXXXXX";
    const char* const made = mkdtemp(name);
    EXPECT_NE(made, nullptr);
    directory_ = name;
  }
  ~MpirunInitTest() override {
    FileSystem::Posix().RemoveAll(directory_).IgnoreError();
  }

  void SetUp() override {
    if (Shell("mpirun --version > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "mpirun is not installed";
    }
  }

  // Exit code of mpirun with `variables`; its output goes to output().
  int Mpirun(int ranks, const std::string& variables) {
    return Shell(absl::StrCat(
        "env TMPDIR=", directory_, " OMPI_MCA_btl_vader_backing_directory=",
        directory_, " SHERD_TIMEOUT=60s ", variables,
        " mpirun --allow-run-as-root --oversubscribe -n ", ranks,
        " core/comm/init_rank > ", directory_, "/output 2>&1 < /dev/null"));
  }
  std::string output() const {
    return ReadFile(FileSystem::Posix(), directory_ + "/output", 1 << 20)
        .value_or("no output");
  }

  std::string directory_;

 private:
  static int Shell(const std::string& command) {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(MpirunInitTest, RanksOnOneHostNeedNothingElse) {
  EXPECT_EQ(Mpirun(3, "SHERD_BACKEND=gloo"), 0) << output();
  EXPECT_THAT(output(), HasSubstr("gloo gathered 100 101 102\n"));
  EXPECT_THAT(output(), HasSubstr("lived 3 times\n"));
  // The file in which they met has been removed.
  EXPECT_THAT(
      FileSystem::Posix().List(absl::StrCat(directory_, "/sherd-", geteuid())),
      IsOkAndHolds(IsEmpty()));
}

TEST_F(MpirunInitTest, AutoIsSharedMemoryOnOneHost) {
  EXPECT_EQ(Mpirun(3, "SHERD_LOG_LEVEL=debug"), 0) << output();
  EXPECT_THAT(output(), HasSubstr("backend auto is shm\n"));
  EXPECT_THAT(output(), HasSubstr("shm gathered 100 101 102\n"));
}

TEST_F(MpirunInitTest, LeftoverVariablesOfAnotherRunAreAnError) {
  EXPECT_NE(Mpirun(2, "SHERD_BACKEND=gloo RANK=0 WORLD_SIZE=2"), 0);
  EXPECT_THAT(output(), HasSubstr("the environment contradicts itself"));
}

}  // namespace
}  // namespace sherd
