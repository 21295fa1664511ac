// Programs that end without FlushSaves.

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using ::testing::ExitedWithCode;

class AsyncExitTest : public ::testing::Test {
 protected:
  AsyncExitTest()
      : path_(JoinPath(
            ::testing::TempDir(),
            std::string("async_exit_") + ::testing::UnitTest::GetInstance()
                                             ->current_test_info()
                                             ->name())) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  }

  // The whole of a program.
  void SaveAndExit() const {
    const auto group = Init({.backend = "local", .rank = 0, .world_size = 1});
    if (!group.ok()) std::abort();
    // Otherwise the end of the thread is the end of the group.
    [[maybe_unused]] static const auto* const outlives_all =
        new std::shared_ptr<ProcessGroup>(*group);
    auto spec = ChunkShardingSpec::Create(0, {"rank:0/cpu"});
    auto tensor = ShardedTensor::Zeros(*spec, {2000, 700});
    const auto save = SaveCheckpointAsync(path_, {{"t", *tensor}});
    std::exit(save.ok() ? 0 : 1);
  }

  const std::string path_;
};

TEST_F(AsyncExitTest, TheSaveThatRunsIsFinished) {
  std::filesystem::remove_all(path_);
  EXPECT_EXIT(SaveAndExit(), ExitedWithCode(0), "");
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(AsyncExitTest, AnUnreportedErrorIsLogged) {
  std::filesystem::remove_all(path_);
  EXPECT_EXIT(
      {
        const FailFileOperation fault("create", "*/shard-*",
                                      absl::InternalError("injected fault"),
                                      {.optional = true});
        SaveAndExit();
      },
      ExitedWithCode(0), "nothing asked for its result: .*injected fault");
}

}  // namespace
}  // namespace sherd
