#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/kits/fake_device_backend.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

// A device of one rank of three is full, fails or hangs while a sharded tensor
// moves: an error on every rank, and the source as it was.

namespace sherd {
namespace {

using ::sherd::testing::CallAt;
using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::FaultOptions;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RegisterFakeDeviceBackend;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr int kRanks = 3;
constexpr int kFailedRank = 1;

ShardingSpecPtr Chunks(int dim) {
  std::vector<Placement> placements;
  for (int r = 0; r < kRanks; ++r) {
    placements.push_back(Placement::OnRank(r, {DeviceType::kCuda, r}));
  }
  return ChunkShardingSpec::Create(dim, placements).value();
}

// Without and with a device part of the group.
class DeviceMoveFailuresTest : public ::testing::TestWithParam<std::string> {
 protected:
  DeviceMoveFailuresTest() : devices_(FakeDevice::Install(kRanks)) {
    RegisterFakeDeviceBackend();
  }

  static ShardedTensor Source() {
    const ShardedTensor tensor =
        ShardedTensor::Empty(Chunks(0), {30, 24}).value();
    FillPattern(tensor);
    return tensor;
  }

  FakeDevice& devices_;
};

TEST_P(DeviceMoveFailuresTest, AFullDeviceIsTheSameErrorOnAllRanks) {
  RunLocalRanks(
      kRanks,
      [&](ProcessGroup& group) {
        // The new shard, and what messages are packed in.
        for (const int64_t nth : {1, 2}) {
          ShardedTensor tensor = Source();
          const void* const data = tensor.local_shards()[0].tensor.data();
          absl::Status status;
          {
            std::optional<FailAllocationAt> fault;
            if (group.rank() == kFailedRank) {
              fault.emplace(FaultOptions{.nth = nth, .this_thread = true});
            }
            status = tensor.Reshard(Chunks(1));
          }
          EXPECT_THAT(status, ::testing::AllOf(
                                  StatusIs(absl::StatusCode::kResourceExhausted,
                                           absl::StrCat("rank ", kFailedRank)),
                                  HasErrorRank(kFailedRank)));
          EXPECT_EQ(tensor.local_shards()[0].tensor.data(), data);
          EXPECT_TRUE(HasPattern(tensor));
          EXPECT_THAT(tensor.Reshard(Chunks(1)), IsOk());
          EXPECT_TRUE(HasPattern(tensor));
        }
      },
      {.backend = GetParam()});
}

// From the `nth` collective of one rank on, each use of its devices fails.
TEST_P(DeviceMoveFailuresTest, DevicesThatFailMidwayEndTheMove) {
  for (const int64_t nth : {1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("after collective ", nth));
    RunLocalRanks(
        kRanks,
        [&](ProcessGroup& group) {
          ShardedTensor tensor = Source();
          ASSERT_THAT(group.Barrier(), IsOk());
          std::optional<CallAt> fault;
          if (group.rank() == kFailedRank) {
            fault.emplace(
                "comm/after_completion",
                [&] {
                  devices_.FailWith(absl::FailedPreconditionError("planted"));
                },
                FaultOptions{
                    .nth = nth, .rank = kFailedRank, .optional = nth > 1});
          }
          const absl::Status status = tensor.Reshard(
              Chunks(1),
              {.max_staging_bytes = 512, .timeout = absl::Seconds(20)});
          // The source stays; this rank may not know of work that others
          // queued.
          if (!status.ok()) {
            EXPECT_EQ(*tensor.spec(), *Chunks(0));
          }
          // Completions of a device part arrive at any time.
          if (fault && fault->happened() &&
              (nth == 1 || GetParam() == "local")) {
            EXPECT_FALSE(status.ok());
            EXPECT_FALSE(group.health().ok());
          }
        },
        {.backend = GetParam()});
    devices_.FailWith(absl::OkStatus());
  }
}

// Pinned memory is not given back while a device writes to it.
TEST(DeviceStagingTest, IsKeptWhileADeviceUsesItAfterAnotherFailed) {
  FakeDevice& devices = FakeDevice::Install(2);
  RunLocalRanks(1, [&](ProcessGroup&) {
    const ShardingSpecPtr on_devices =
        ChunkShardingSpec::Create(
            0, {Placement::OnRank(0, {DeviceType::kCuda, 0}),
                Placement::OnRank(0, {DeviceType::kCuda, 1})})
            .value();
    ShardedTensor tensor = ShardedTensor::Ones(on_devices, {8, 6}).value();
    devices.RunAll();
    devices.FailCopiesOn(1, absl::FailedPreconditionError("planted"));
    EXPECT_THAT(
        tensor.Reshard(
            ChunkShardingSpec::Create(1, {Placement::OnRank(0)}).value()),
        StatusIs(absl::StatusCode::kFailedPrecondition, "planted"));
    EXPECT_EQ(devices.live_pooled_blocks(), 1);
  });
  devices.RunAll();
}

// Failures where the host waits for devices. Work queued by a device part has
// deadlines of its own.
class HostMoveFailuresTest : public DeviceMoveFailuresTest {};

TEST_P(HostMoveFailuresTest, ADeviceThatHangsEndsInTheDeadline) {
  RunLocalRanks(kRanks,
                [&](ProcessGroup& group) {
                  ShardedTensor tensor = Source();
                  ASSERT_THAT(group.Barrier(), IsOk());
                  if (group.rank() == kFailedRank) {
                    devices_.Stop({{DeviceType::kCuda, kFailedRank}, nullptr});
                  }
                  const absl::Status status = tensor.Reshard(
                      Chunks(1), {.max_staging_bytes = 512,
                                  .timeout = absl::Milliseconds(300)});
                  EXPECT_FALSE(status.ok());
                  EXPECT_EQ(*tensor.spec(), *Chunks(0));
                  EXPECT_FALSE(group.health().ok());
                },
                {.backend = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Groups, HostMoveFailuresTest,
                         ::testing::Values("local"));

INSTANTIATE_TEST_SUITE_P(Groups, DeviceMoveFailuresTest,
                         ::testing::Values("local",
                                           "cpu:local,cuda:fake_device"),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.index == 0 ? "Host" : "Devices";
                         });

}  // namespace
}  // namespace sherd
