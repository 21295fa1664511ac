#include "sherd/testing/gpus.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GpusTest : public ::testing::Test {
 protected:
  GpusTest() : directory_(absl::StrCat(::testing::TempDir(), "/gpus_XXXXXX")) {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  ~GpusTest() override { std::filesystem::remove_all(directory_); }

  // A host with these files among its devices.
  GpuHost Host(const std::vector<std::string>& files,
               std::optional<std::string> visible = std::nullopt) {
    for (const std::string& file : files) std::ofstream(Path(file)).put('\n');
    return {.devices = directory_, .visible = std::move(visible)};
  }

  std::string Path(const std::string& file) const {
    return absl::StrCat(directory_, "/", file);
  }

  static std::vector<std::string> Names(const std::vector<Gpu>& gpus) {
    std::vector<std::string> names;
    for (const Gpu& gpu : gpus) names.push_back(gpu.name);
    return names;
  }

  static Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

  std::string directory_;
};

TEST_F(GpusTest, CountsDeviceFilesByTheirNumberAndNothingElse) {
  const GpuHost host = Host({"nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm",
                             "nvidia", "nvidia03", "tty1", "nvidia0"});
  const std::vector<Gpu> gpus = VisibleGpus(host);
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_THAT(Names(gpus), ElementsAre("0", "1", "2"));
  EXPECT_THAT(gpus[0].files, ElementsAre(Path("nvidia0")));
  EXPECT_THAT(gpus[1].files, ElementsAre(Path("nvidia2")));
  EXPECT_THAT(gpus[2].files, ElementsAre(Path("nvidia10")));
}

TEST_F(GpusTest, AHostWithoutDevicesHasNone) {
  EXPECT_THAT(VisibleGpus({.devices = "/nonexistent"}), IsEmpty());
  EXPECT_THAT(VisibleGpus({.devices = "/nonexistent", .visible = "GPU-1"}),
              IsEmpty());
}

TEST_F(GpusTest, CudaVisibleDevicesChoosesAsInCuda) {
  Host({"nvidia0", "nvidia1", "nvidia2", "nvidia3"});
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"", {}},
      {"-1", {}},
      {"2", {"2"}},
      {"3,0", {"3", "0"}},
      {" 1 , 2 ", {"1", "2"}},
      {"0,-1,1", {"0"}},
      {"0,4,1", {"0"}},
      {"none", {}},
      {"1,1", {}},
      {"GPU-8932f937,GPU-1c9e", {"GPU-8932f937", "GPU-1c9e"}},
      {"MIG-GPU-8932f937/1/2", {"MIG-GPU-8932f937/1/2"}},
  };
  for (const auto& [visible, expected] : cases) {
    EXPECT_EQ(Names(VisibleGpus({.devices = directory_, .visible = visible})),
              expected)
        << "CUDA_VISIBLE_DEVICES=" << visible;
  }
  EXPECT_THAT(VisibleGpus({.devices = directory_, .visible = "3,0"})[0].files,
              ElementsAre(Path("nvidia3")));
  EXPECT_EQ(
      VisibleGpus({.devices = directory_, .visible = "GPU-1"})[0].files.size(),
      4u);
}

TEST_F(GpusTest, OwnHostFollowsTheVariable) {
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  EXPECT_EQ(GpuHost::Own().visible, "");
  EXPECT_THAT(VisibleGpus(), IsEmpty());
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  ASSERT_EQ(setenv("SHERD_EMULATED_GPUS", "2", 1), 0);
  ASSERT_EQ(setenv("SHERD_TEST_SHARE_GPUS", "1", 1), 0);
  EXPECT_EQ(GpuHost::Own().emulated, 2);
  EXPECT_TRUE(GpuHost::Own().shared);
  ASSERT_EQ(unsetenv("SHERD_EMULATED_GPUS"), 0);
  ASSERT_EQ(unsetenv("SHERD_TEST_SHARE_GPUS"), 0);
  EXPECT_EQ(GpuHost::Own().emulated, 0);
  EXPECT_FALSE(GpuHost::Own().shared);
  EXPECT_EQ(GpuHost::Own().visible, std::nullopt);
  EXPECT_EQ(GpuHost::Own().devices, "/dev");
}

TEST_F(GpusTest, TooFewGpusAreASkipWithTheReferencesReason) {
  const GpuHost host = Host({"nvidia0", "nvidia1"});
  EXPECT_FALSE(SkipIfFewerGpus(0, host));
  EXPECT_FALSE(SkipIfFewerGpus(2, host));
  const std::optional<Skip> skip = SkipIfFewerGpus(4, host);
  ASSERT_TRUE(skip);
  EXPECT_EQ(skip->reason, SkipReason::kMultiGpu4);
  EXPECT_EQ(skip->detail, "(needs 4, and 2 are visible)");
  EXPECT_EQ(SkipIfFewerGpus(9, host)->reason, SkipReason::kGeneric);
}

TEST_F(GpusTest, GpusInUseAreLeftOut) {
  const GpuHost host = Host({"nvidia0", "nvidia1", "nvidia2"}, "2,1,0");
  absl::StatusOr<GpuLocks> first = GpuLocks::Acquire(1, Now(), host);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->Visible(), "2");
  absl::StatusOr<GpuLocks> second = GpuLocks::Acquire(2, Now(), host);
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(second->Visible(), "1,0");
  EXPECT_THAT(GpuLocks::Acquire(1, Now(), host),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "needs 1 of 3"));
  first = GpuLocks();
  EXPECT_THAT(GpuLocks::Acquire(2, Now(), host),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "needs 2 of 3"));
  const absl::StatusOr<GpuLocks> again = GpuLocks::Acquire(1, Now(), host);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->Visible(), "2");
}

TEST_F(GpusTest, WhoHasAGpuIsNamed) {
  const GpuHost host = Host({"nvidia0", "nvidia1"});
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  char byte = 0;
  if (child == 0) {
    close(end[1]);
    const int fd = open(Path("nvidia0").c_str(), O_RDONLY);
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (write(ready[1], &byte, 1) == 1 && read(end[0], &byte, 1) == 0) {
      _exit(locked ? 0 : 1);
    }
    _exit(2);
  }
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  {
    const absl::StatusOr<GpuLocks> own = GpuLocks::Acquire(1, Now(), host);
    ASSERT_THAT(own, IsOk());
    EXPECT_EQ(own->Visible(), "1");
    const absl::Status status = GpuLocks::Acquire(1, Now(), host).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat(Path("nvidia0"), " by process ",
                                             child, " (")),
                      HasSubstr(absl::StrCat(Path("nvidia1"), " by process ",
                                             getpid(), " (")),
                      HasSubstr("gpus_test")));
  }
  // A lock goes with its process.
  close(end[1]);
  int exit_status;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  EXPECT_EQ(exit_status, 0);
  for (int fd : {ready[0], ready[1], end[0]}) close(fd);
  EXPECT_THAT(GpuLocks::Acquire(2, Now(), host), IsOk());
}

TEST_F(GpusTest, AFailedAttemptLeavesNothingLocked) {
  const GpuHost host = Host({"nvidia0", "nvidia1", "nvidia2"});
  const absl::StatusOr<GpuLocks> middle =
      GpuLocks::Acquire(1, Now(), {.devices = directory_, .visible = "1"});
  ASSERT_THAT(middle, IsOk());
  EXPECT_THAT(GpuLocks::Acquire(3, Now(), host),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "nvidia1"));
  const absl::StatusOr<GpuLocks> rest = GpuLocks::Acquire(2, Now(), host);
  ASSERT_THAT(rest, IsOk());
  EXPECT_EQ(rest->Visible(), "0,2");
}

TEST_F(GpusTest, AUuidLocksAllDevices) {
  const GpuHost host = Host({"nvidia0", "nvidia1"}, "GPU-1,GPU-2");
  const absl::StatusOr<GpuLocks> both = GpuLocks::Acquire(2, Now(), host);
  ASSERT_THAT(both, IsOk());
  EXPECT_EQ(both->Visible(), "GPU-1,GPU-2");
  EXPECT_THAT(GpuLocks::Acquire(1, Now(), {.devices = directory_}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "nvidia1"));
}

// What this process writes to stderr while this object lives.
class StderrPipe {
 public:
  StderrPipe() : stderr_(dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    read_.Reset(ends[0]);
    EXPECT_GE(dup2(ends[1], STDERR_FILENO), 0);
    close(ends[1]);
  }
  ~StderrPipe() { dup2(stderr_.get(), STDERR_FILENO); }

  // Waits for some output.
  std::string Read() {
    char bytes[4096];
    const ssize_t n = read(read_.get(), bytes, sizeof(bytes));
    return n > 0 ? std::string(bytes, n) : "";
  }

 private:
  UniqueFd stderr_;
  UniqueFd read_;
};

TEST_F(GpusTest, WaitsUntilTheOtherTestIsOver) {
  const GpuHost host = Host({"nvidia0", "nvidia1"});
  std::optional<GpuLocks> held =
      *GpuLocks::Acquire(1, Now(), {.devices = directory_, .visible = "1"});
  StderrPipe log;
  std::thread other([&] {
    const absl::StatusOr<GpuLocks> locks =
        GpuLocks::Acquire(2, Deadline::Infinite(), host);
    ASSERT_THAT(locks, IsOk());
    EXPECT_EQ(locks->Visible(), "0,1");
  });
  // The other one says so once it waits.
  std::string text;
  while (!absl::StrContains(text, "needs 2 of 2 GPUs")) text += log.Read();
  EXPECT_THAT(text, HasSubstr(absl::StrCat("nvidia1 by process ", getpid())));
  // It keeps none while it waits, but for a moment.
  EXPECT_THAT(GpuLocks::Acquire(1, Deadline::Infinite(), host), IsOk());
  held.reset();
  other.join();
  EXPECT_THAT(GpuLocks::Acquire(2, Now(), host), IsOk());
}

TEST_F(GpusTest, EmulatedGpusNeedNoFilesAndNoLocks) {
  const GpuHost host = {.devices = "/nonexistent", .emulated = 3};
  EXPECT_THAT(Names(VisibleGpus(host)), ElementsAre("0", "1", "2"));
  const absl::StatusOr<GpuLocks> one = GpuLocks::Acquire(3, Now(), host);
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->Visible(), "0,1,2");
  EXPECT_THAT(GpuLocks::Acquire(3, Now(), host), IsOk());
  EXPECT_EQ(SkipIfFewerGpus(4, host)->reason, SkipReason::kMultiGpu4);
}

TEST_F(GpusTest, RanksShareWhatIsThereIfTheyMay) {
  GpuHost host = Host({"nvidia0", "nvidia1"});
  host.shared = true;
  EXPECT_EQ(SkipIfFewerGpus(4, host), std::nullopt);
  const absl::StatusOr<GpuLocks> locks = GpuLocks::Acquire(4, Now(), host);
  ASSERT_THAT(locks, IsOk());
  EXPECT_EQ(locks->Visible(), "0,1");
  GpuHost none = {.devices = "/nonexistent", .shared = true};
  EXPECT_EQ(SkipIfFewerGpus(4, none)->reason, SkipReason::kMultiGpu4);
  EXPECT_THAT(GpuLocks::Acquire(4, Now(), none),
              StatusIs(absl::StatusCode::kResourceExhausted, "0 are visible"));
}

TEST_F(GpusTest, WhatCannotBeLockedIsAnError) {
  EXPECT_THAT(GpuLocks::Acquire(3, Now(), Host({"nvidia0", "nvidia1"})),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "needs 3 GPUs, and 2 are visible"));
  const absl::StatusOr<GpuLocks> none =
      GpuLocks::Acquire(0, Now(), {.devices = "/nonexistent"});
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(none->Visible(), "");
  std::filesystem::create_symlink("/nonexistent", Path("nvidia7"));
  EXPECT_THAT(GpuLocks::Acquire(3, Now(), {.devices = directory_}),
              StatusIs(absl::StatusCode::kNotFound, Path("nvidia7")));
}

}  // namespace
}  // namespace sherd::testing::internal
