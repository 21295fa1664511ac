#include "sherd/testing/requirements.h"

#include <stdlib.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store_remote_access.h"
#include "sherd/testing/announced_skip.h"
#include "sherd/testing/described_backend.h"

namespace sherd::testing {
namespace {

using internal::AddBackend;
using internal::WithLoader;
using ::testing::AllOf;
using ::testing::HasSubstr;

SkipReason ReasonOf(const std::optional<Skip>& skip) {
  if (skip) return skip->reason;
  ADD_FAILURE() << "no skip";
  return SkipReason::kRocm;
}

TEST(RequirementsTest, GpusAreThoseThatCudaSees) {
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  EXPECT_FALSE(SkipIfFewerGpusThan(0).Check(4));
  EXPECT_EQ(ReasonOf(SkipIfFewerGpusThan(1).Check(4)), SkipReason::kMultiGpu1);
  EXPECT_EQ(ReasonOf(SkipIfFewerGpusThan(2).Check(1)), SkipReason::kMultiGpu2);
  const std::optional<Skip> many = SkipIfFewerGpusThan(12).Check(4);
  EXPECT_EQ(ReasonOf(many), SkipReason::kGeneric);
  EXPECT_EQ(many->detail, "(needs 12, and 0 are visible)");
  EXPECT_EQ(ReasonOf(RequiresGpuPerRank().Check(4)), SkipReason::kNoCuda);
}

TEST(RequirementsTest, WorldSizesAreLookedAtInTheParent) {
  EXPECT_EQ(ReasonOf(RequiresWorldSizeAtLeast(3).Check(2)),
            SkipReason::kSmallWorldSize);
  EXPECT_EQ(RequiresWorldSizeAtLeast(3).Check(2)->detail,
            "(2, expected at least 3)");
  EXPECT_FALSE(RequiresWorldSizeAtLeast(3).Check(3));
  EXPECT_EQ(ReasonOf(RequiresEvenWorldSize().Check(5)),
            SkipReason::kOddWorldSize);
  EXPECT_FALSE(RequiresEvenWorldSize().Check(6));
}

TEST(RequirementsTest, RpcIsThereOnceItIsLinked) {
  RegisterRemoteAccess(nullptr);
  const std::optional<Skip> skip = RequiresRpc().Check(4);
  EXPECT_EQ(ReasonOf(skip), SkipReason::kMissingDependency);
  EXPECT_THAT(skip->detail, HasSubstr("depend on @sherd//rpc"));
  RegisterRemoteAccess(StartStoreRemoteAccess);
  EXPECT_FALSE(RequiresRpc().Check(4));
  RegisterRemoteAccess(nullptr);
}

TEST(RequirementsTest, ABackendWorksIfItSaysSo) {
  AddBackend({.name = "works"});
  EXPECT_FALSE(RequiresBackend("works").Check(4));

  AddBackend({.name = "sulks"}, absl::UnavailableError("no link is up"));
  const std::optional<Skip> sulks = RequiresBackend("sulks").Check(4);
  EXPECT_EQ(ReasonOf(sulks), SkipReason::kBackendUnavailable);
  EXPECT_EQ(sulks->detail, "(no link is up)");

  const std::optional<Skip> unknown = RequiresBackend("unheard_of").Check(4);
  EXPECT_EQ(ReasonOf(unknown), SkipReason::kBackendUnavailable);
  EXPECT_THAT(unknown->detail,
              AllOf(HasSubstr("Backend unheard_of not supported!"),
                    HasSubstr("libsherd_backend_unheard_of.so")));
}

TEST(RequirementsTest, NcclHasAReasonOfItsOwn) {
  const std::optional<Skip> skip = RequiresBackend("nccl").Check(4);
  EXPECT_EQ(ReasonOf(skip), SkipReason::kNoNccl);
  EXPECT_THAT(skip->detail, HasSubstr("Backend nccl not supported!"));
}

TEST(RequirementsTest, MpiWithoutItsPluginOrLibraryIsASkip) {
  EXPECT_EQ(ReasonOf(RequiresMpi().Check(4)), SkipReason::kBackendUnavailable);
  const WithLoader loader(absl::FailedPreconditionError(
      "x.so cannot be loaded: libmpi.so.40: cannot open shared object file"));
  const std::optional<Skip> skip = RequiresMpi().Check(4);
  EXPECT_EQ(ReasonOf(skip), SkipReason::kBackendUnavailable);
  EXPECT_THAT(skip->detail, HasSubstr("libmpi.so.40"));
}

TEST(RequirementsTest, ABackendsLauncherMustBeThereInPlaceOfItsRanks) {
  AddBackend({.name = "launched", .needs_launcher = true},
             absl::FailedPreconditionError("not started by its launcher"));
  ASSERT_EQ(setenv("SHERD_TEST_LAUNCHER", "/bin/sh", 1), 0);
  EXPECT_FALSE(RequiresBackend("launched").Check(4));
  ASSERT_EQ(setenv("SHERD_TEST_LAUNCHER", "/nonexistent/mpirun", 1), 0);
  const std::optional<Skip> skip = RequiresBackend("launched").Check(4);
  EXPECT_EQ(ReasonOf(skip), SkipReason::kBackendUnavailable);
  EXPECT_THAT(skip->detail, HasSubstr("/nonexistent/mpirun is not installed"));
  ASSERT_EQ(unsetenv("SHERD_TEST_LAUNCHER"), 0);
}

// A body that needs 3 ranks, run in place of GoogleTest's.
struct Body {
  int world_size() const { return size; }
  void Run() {
    SHERD_REQUIRE(RequiresWorldSizeAtLeast(3));
    reached = true;
  }

  int size;
  bool reached = false;
};

TEST(RequirementsTest, RequireSkipsTheBodyWithTheReason) {
  ::testing::TestPartResultArray results;
  Body small = {.size = 2};
  Body large = {.size = 3};
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::
            INTERCEPT_ONLY_CURRENT_THREAD,
        &results);
    small.Run();
    large.Run();
  }
  EXPECT_FALSE(small.reached);
  EXPECT_TRUE(large.reached);
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results.GetTestPartResult(0).skipped());
  EXPECT_THAT(results.GetTestPartResult(0).message(),
              HasSubstr("Skipped due to small world size. (2, expected at "
                        "least 3)"));
  EXPECT_EQ(internal::TakeAnnouncedSkip(), SkipReason::kSmallWorldSize);
}

}  // namespace
}  // namespace sherd::testing
