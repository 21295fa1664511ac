// Asynchronous saves of tensors on devices, which run nothing until it is
// waited for.

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::CallAt;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::LeaveOutSyncs;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::Contains;
using ::testing::Not;

constexpr int kDevices = 3;

Device Cuda(int index) { return {DeviceType::kCuda, index}; }

// Chunks of rows; those of rank r are on "cuda:r", of odd ranks on the host if
// `both`.
ShardingSpecPtr Rows(int ranks, bool both = false) {
  return ChunkShardingSpec::Create(0, PlacementsOnRanks(ranks))
      .value()
      ->WithPlacements([&](const Placement& placement) {
        const int rank = *placement.rank();
        return Placement::OnRank(rank,
                                 both && rank % 2 == 1 ? Device() : Cuda(rank));
      });
}

class AsyncDeviceTest : public ::testing::Test {
 protected:
  AsyncDeviceTest()
      : devices_(FakeDevice::Install(kDevices)),
        path_(JoinPath(
            ::testing::TempDir(),
            absl::StrCat("async_device_", ::testing::UnitTest::GetInstance()
                                              ->current_test_info()
                                              ->name()))) {
    std::filesystem::remove_all(path_);
  }

  ~AsyncDeviceTest() override {
    devices_.RunAll();
    EXPECT_EQ(devices_.live_blocks(), 0);
    EXPECT_EQ(devices_.live_events(), 0);
    EXPECT_EQ(devices_.live_streams(), 0);
  }

  using Tensors = std::map<std::string, ShardedTensor>;

  // Some long, some short, and one whose shards are not contiguous. Nothing of
  // it has run when this returns.
  static Tensors MakeTensors(const ShardingSpecPtr& spec) {
    Tensors tensors;
    for (const auto& [name, size] : std::map<std::string, Dims>{
             {"bias", {7}}, {"scale", {5, 1}}, {"weight", {300, 101}}}) {
      auto tensor = ShardedTensor::Empty(spec, size);
      EXPECT_THAT(tensor, IsOk());
      FillPattern(*tensor);
      tensors.emplace(name, *std::move(tensor));
    }
    auto view = tensors.at("weight").Narrow(1, 1, 50);
    EXPECT_THAT(view, IsOk());
    tensors.emplace("view", *std::move(view));
    return tensors;
  }

  void ExpectPatterns(int ranks) const {
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      const auto rows =
          ChunkShardingSpec::Create(0, PlacementsOnRanks(ranks)).value();
      SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded,
                                 LoadCheckpoint(path_, {{"bias", rows},
                                                        {"scale", rows},
                                                        {"view", rows},
                                                        {"weight", rows}}));
      for (const auto& [name, tensor] : loaded) {
        if (name != "view") {
          EXPECT_TRUE(HasPattern(tensor)) << name;
        }
      }
      const Dims whole = {300, 101};
      EXPECT_TRUE(HasPattern(loaded.at("view"), {0, 1}, whole));
    });
  }

  FakeDevice& devices_;
  const LeaveOutSyncs no_syncs_;
  const std::string path_;
};

TEST_F(AsyncDeviceTest, SavesTheValuesThatWereQueuedBeforeTheCall) {
  for (const bool both : {false, true}) {
    // All copied, in waves, and written from where they are.
    for (const int64_t budget : {0, 60'000, 1}) {
      RunLocalRanks(kDevices, [&](ProcessGroup&) {
        Tensors tensors = MakeTensors(Rows(kDevices, both));
        auto save = SaveCheckpointAsync(path_, tensors, nullptr,
                                        {.staging_budget = budget});
        ASSERT_THAT(save, IsOk());
        ASSERT_THAT(save->Copied(), IsOk());
        for (auto& [name, tensor] : tensors) {
          ASSERT_THAT(tensor.Fill(0.5f), IsOk());
        }
        devices_.RunAll();
        EXPECT_THAT(save->Durable(), IsOk());
      });
      ExpectPatterns(2);
    }
  }
}

TEST_F(AsyncDeviceTest, CopiesRunOnAStreamOfTheirOwnAndCopiedWaitsForThem) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    Tensors tensors = MakeTensors(Rows(1));
    absl::Notification copied;
    const CallAt gate("file/create_directories",
                      [&] { copied.WaitForNotification(); });
    const DeviceStream own = devices_.CreateStream(0, false).value();
    {
      // What was queued here is what the copies wait for.
      const ScopedStream current(own);
      ASSERT_THAT(tensors.at("bias").Fill(2.f), IsOk());
      FillPattern(tensors.at("bias"));
      devices_.TakeQueued();
      devices_.TakeRun();
      auto save = SaveCheckpointAsync(path_, tensors);
      ASSERT_THAT(save, IsOk());
      const auto queued = devices_.TakeQueued();
      EXPECT_EQ(std::count(queued.begin(), queued.end(), "copy"), 1)
          << "short shards and the view share a launch";
      EXPECT_EQ(std::count(queued.begin(), queued.end(), "copy_bytes"), 1)
          << "a long shard is copied as it is";
      EXPECT_THAT(devices_.TakeRun(), Not(Contains("copy_bytes")));
      devices_.Stop({Cuda(0), nullptr});
      EXPECT_THAT(save->Copied(), IsOk());
      EXPECT_THAT(devices_.TakeRun(), Contains("copy_bytes"));
      copied.Notify();
      EXPECT_THAT(save->Durable(), IsOk());
    }
    devices_.DestroyStream(own);
  });
}

TEST_F(AsyncDeviceTest, PinnedMemoryAndStreamsAreUsedAgain) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const Tensors tensors = MakeTensors(Rows(1));
    const auto save = [&] {
      auto handle = SaveCheckpointAsync(path_, tensors);
      ASSERT_THAT(handle, IsOk());
      ASSERT_THAT(handle->Durable(), IsOk());
    };
    save();
    const int pinned = devices_.live_pooled_blocks();
    const int streams = devices_.live_streams();
    const int events = devices_.live_events();
    for (int i = 0; i < 10; ++i) save();
    EXPECT_EQ(devices_.live_pooled_blocks(), pinned);
    EXPECT_EQ(devices_.live_streams(), streams);
    // A save's event goes back after its end, when the next may have taken one.
    EXPECT_LE(devices_.live_events(), events + 1);
    EXPECT_THAT(FlushSaves(), IsOk());
    EXPECT_LT(devices_.live_streams(), streams);
  });
}

TEST_F(AsyncDeviceTest, ADeviceThatFailsIsTheErrorOfAllHandles) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const Tensors tensors = MakeTensors(Rows(1));
    devices_.RunAll();
    auto good = SaveCheckpointAsync(path_, tensors);
    ASSERT_THAT(good, IsOk());
    ASSERT_THAT(good->Durable(), IsOk());
    devices_.FailWith(absl::FailedPreconditionError("illegal address"));
    auto save = SaveCheckpointAsync(path_, tensors);
    ASSERT_THAT(save, IsOk());
    const auto failed =
        StatusIs(absl::StatusCode::kFailedPrecondition, "illegal address");
    EXPECT_THAT(save->Copied(), failed);
    EXPECT_THAT(save->Durable(), failed);
    devices_.FailWith(absl::OkStatus());
    auto next = SaveCheckpointAsync(path_, tensors);
    ASSERT_THAT(next, IsOk());
    EXPECT_THAT(next->Durable(), IsOk());
  });
  ExpectPatterns(1);
}

}  // namespace
}  // namespace sherd
