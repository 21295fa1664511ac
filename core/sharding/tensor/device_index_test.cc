#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/kits/fake_device_backend.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Devices with and without an index, where they meet: in groups that have a
// device for each rank, and in those that have none.

namespace sherd {
namespace {

using ::sherd::testing::CompareDevices;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RegisterFakeDeviceBackend;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardedTensorEq;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::Not;

constexpr int kRanks = 3;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

ShardingSpecPtr On(std::vector<Placement> placements, int dim = 0) {
  return ChunkShardingSpec::Create(dim, std::move(placements)).value();
}

ShardingSpecPtr OnHost() { return On(PlacementsOnRanks(kRanks)); }
ShardingSpecPtr OnAnyGpu() { return On(PlacementsOnRanks(kRanks, "cuda")); }
// "rank:r/cuda:r".
ShardingSpecPtr OnOwnGpus() {
  return On(PlacementsOnRanks(kRanks, "cuda", kRanks));
}
// "rank:r/cuda:(r + 1)".
ShardingSpecPtr OnNextGpus() {
  return On({"rank:0/cuda:1", "rank:1/cuda:2", "rank:2/cuda:0"});
}

Device Gpu(int index) { return {DeviceType::kCuda, index % kRanks}; }

Device DeviceOfShard(const ShardedTensor& tensor) {
  return tensor.local_shards()[0].tensor.device();
}

ShardedTensor Pattern(const ShardingSpecPtr& spec) {
  const ShardedTensor tensor = ShardedTensor::Empty(spec, {9, 4}).value();
  FillPattern(tensor);
  return tensor;
}

// Expects all layout information of `tensor` to match `spec`.
void ExpectLaidOut(const ShardedTensor& tensor, const ShardingSpecPtr& spec) {
  EXPECT_EQ(*tensor.spec(), *spec);
  EXPECT_EQ(
      tensor.metadata().shards,
      spec->BuildMetadata(tensor.size(), tensor.metadata().properties)->shards);
  for (const Shard& shard : tensor.local_shards()) {
    EXPECT_EQ(shard.metadata.placement->device(), shard.tensor.device());
  }
}

// By the backend of the group.
class DeviceIndexTest : public ::testing::TestWithParam<std::string> {
 protected:
  DeviceIndexTest() : devices_(FakeDevice::Install(kRanks)) {
    RegisterFakeDeviceBackend();
  }
  ~DeviceIndexTest() override { DeviceRuntime::SetLoader(nullptr); }

  // On each rank, whose current device is that with the rank's number.
  void RunRanks(const std::function<void(ProcessGroup&)>& body) {
    RunLocalRanks(kRanks,
                  [&](ProcessGroup& group) {
                    ASSERT_THAT(devices_.SetCurrentDevice(group.rank()),
                                IsOk());
                    body(group);
                    EXPECT_THAT(group.Barrier(), IsOk());
                  },
                  {.backend = GetParam()});
  }

  FakeDevice& devices_;
};

TEST_P(DeviceIndexTest, EachRankNamesADeviceOfItsOwn) {
  RunRanks([](ProcessGroup& group) {
    const ShardedTensor tensor = Pattern(OnHost());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor own,
        tensor.To(Device{DeviceType::kCuda, group.rank()}));
    ExpectLaidOut(own, OnOwnGpus());
    EXPECT_TRUE(HasPattern(own));
    EXPECT_THAT(own.local_tensor(),
                IsOkAndHolds(TensorEq(tensor.local_tensor(),
                                      CompareDevices::kNotAtAll)));
    EXPECT_THAT(tensor.local_tensor(),
                IsOkAndHolds(AllOf(
                    Not(TensorEq(own.local_tensor())),
                    TensorEq(own.local_tensor(), CompareDevices::kNotAtAll))));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor next,
                               own.To(Gpu(group.rank() + 1)));
    ExpectLaidOut(next, OnNextGpus());
    EXPECT_TRUE(HasPattern(next));
    // Shards that stay share their memory.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor mixed,
        own.To(Gpu(group.rank() == 1 ? 2 : group.rank())));
    ExpectLaidOut(mixed,
                  On({"rank:0/cuda:0", "rank:1/cuda:2", "rank:2/cuda:2"}));
    EXPECT_EQ(mixed.local_shards()[0].tensor.data() ==
                  own.local_shards()[0].tensor.data(),
              group.rank() != 1);
    // Some name an index, some do not.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor some,
        own.To(group.rank() == 0 ? Device("cuda:1") : Device("cuda")));
    ExpectLaidOut(some,
                  On({"rank:0/cuda:1", "rank:1/cuda:1", "rank:2/cuda:2"}));
    EXPECT_TRUE(HasPattern(some));
  });
}

TEST_P(DeviceIndexTest, WithoutAnIndexThePlacementsGetIt) {
  RunRanks([](ProcessGroup&) {
    const ShardedTensor tensor = Pattern(OnHost());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor on_gpus, tensor.Cuda());
    ExpectLaidOut(on_gpus, OnOwnGpus());
    EXPECT_THAT(Equal(on_gpus, Pattern(OnOwnGpus())), IsOkAndHolds(true));
    // On any device of the type, it stays.
    const ShardedTensor next = Pattern(OnNextGpus());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor same, next.Cuda());
    ExpectLaidOut(same, OnNextGpus());
    EXPECT_EQ(same.local_shards()[0].tensor.data(),
              next.local_shards()[0].tensor.data());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor back, next.Cpu());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor again, back.Cuda());
    EXPECT_THAT(Equal(again, Pattern(OnOwnGpus())), IsOkAndHolds(true));
    EXPECT_THAT(Equal(again, next), IsOkAndHolds(false));
  });
}

TEST_P(DeviceIndexTest, TextStandsForADevice) {
  RunRanks([](ProcessGroup& group) {
    const ShardedTensor tensor = Pattern(OnHost());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor first, tensor.To("cuda:0"));
    ExpectLaidOut(first, On(PlacementsOnRanks(kRanks, "cuda:0")));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor meta,
                               first.To({.dtype = kFloat64, .device = "meta"}));
    EXPECT_TRUE(meta.is_meta());
    EXPECT_THAT(first.To(kFloat64)->local_tensor(),
                IsOkAndHolds(Not(
                    TensorEq(meta.local_tensor(), CompareDevices::kNotAtAll))));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor host, first.To("cpu:0"));
    ExpectLaidOut(host, OnHost());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor plain,
                               Tensor::Ones({2}, {.device = "cuda:1"}));
    EXPECT_EQ(plain.device(), Gpu(1));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor moved, plain.To("cuda:2"));
    EXPECT_EQ(moved.device(), Gpu(2));
    EXPECT_THAT(plain.To("cuda:"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "Invalid device string: 'cuda:'"));
    // On one rank only, and the same error on all.
    EXPECT_THAT(tensor.To(group.rank() == 1 ? "cuda:x" : "cuda:1"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "rank 1: Invalid device string: 'cuda:x'"));
  });
}

TEST_P(DeviceIndexTest, RanksNameOneType) {
  RunRanks([](ProcessGroup& group) {
    const ShardedTensor tensor = Pattern(OnHost());
    EXPECT_THAT(tensor.To(group.rank() == 2 ? "meta" : "cuda"),
                StatusIs(kInvalid, "rank 2"));
    // A device that one of them does not have.
    EXPECT_THAT(tensor.To(Device(DeviceType::kCuda,
                                 group.rank() == 1 ? 99 : group.rank())),
                StatusIs(absl::StatusCode::kOutOfRange, "rank 1"));
  });
}

TEST_P(DeviceIndexTest, WhatHasNoIndexIsWhereItsTensorsAre) {
  RunRanks([&](ProcessGroup& group) {
    const ShardedTensor any = Pattern(OnAnyGpu());
    const ShardedTensor own = Pattern(OnOwnGpus());
    EXPECT_EQ(DeviceOfShard(any), Gpu(group.rank()));
    EXPECT_THAT(any, ShardedTensorEq(own));
    EXPECT_THAT(Equal(any, own), IsOkAndHolds(true));
    EXPECT_THAT(Equal(own, any), IsOkAndHolds(true));
    // Not for their layouts.
    EXPECT_THAT(Apply(BinaryOp::kSub, any, own),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "expected one in host memory"));
    ShardedTensor zeros = ShardedTensor::Zeros(OnOwnGpus(), {9, 4}).value();
    ASSERT_THAT(zeros.CopyFrom(any), IsOk());
    EXPECT_TRUE(HasPattern(zeros));
    EXPECT_THAT(Equal(any, Pattern(OnNextGpus())), IsOkAndHolds(false));
    EXPECT_THAT(Equal(any, Pattern(OnNextGpus()),
                      {.layouts = CompareLayouts::kNotAtAll}),
                IsOkAndHolds(true));
    // A shard that stays in place moves nothing.
    ShardedTensor moved = own;
    const void* const data = moved.local_shards()[0].tensor.data();
    ASSERT_THAT(moved.Reshard(OnAnyGpu()), IsOk());
    EXPECT_EQ(moved.local_shards()[0].tensor.data(), data);
    EXPECT_EQ(moved.local_shards()[0].metadata,
              moved.metadata()
                  .shards[static_cast<size_t>(moved.local_shard_indices()[0])]);
    ASSERT_THAT(moved.Reshard(OnOwnGpus()), IsOk());
    EXPECT_EQ(moved.local_shards()[0].tensor.data(), data);
    ExpectLaidOut(moved, OnOwnGpus());
    // A copy is on the device of the original, whatever the current device.
    ASSERT_THAT(devices_.SetCurrentDevice(0), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, any.Clone());
    EXPECT_EQ(DeviceOfShard(copy), Gpu(group.rank()));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor wide, any.To(kFloat64));
    EXPECT_EQ(DeviceOfShard(wide), Gpu(group.rank()));
  });
}

TEST_P(DeviceIndexTest, LocalShardsDetermineTheirDevices) {
  RunRanks([](ProcessGroup& group) {
    const int rank = group.rank();
    const ShardedTensor own = Pattern(OnOwnGpus());
    const Shard mine = {
        own.local_shards()[0].tensor,
        {{3 * rank, 0}, {3, 4}, Placement::OnRank(rank, "cuda")}};
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor together,
                               ShardedTensor::FromLocalShards({mine}, {9, 4}));
    ExpectLaidOut(together, OnOwnGpus());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor of_tensor,
        ShardedTensor::FromLocalTensor(mine.tensor, OnAnyGpu(), {9, 4}));
    EXPECT_THAT(Equal(together, of_tensor), IsOkAndHolds(true));
    // The list has no index, the spec does; and the reverse.
    const ShardedTensorMetadata no_index =
        OnAnyGpu()->BuildMetadata({9, 4}, {}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor by_spec,
                               ShardedTensor::FromLocalShardsAndMetadata(
                                   {mine}, no_index, {}, OnOwnGpus()));
    ExpectLaidOut(by_spec, OnOwnGpus());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor by_list,
                               ShardedTensor::FromLocalShardsAndMetadata(
                                   {mine}, own.metadata(), {}, OnAnyGpu()));
    EXPECT_THAT(Equal(by_list, own), IsOkAndHolds(true));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor alone,
        ShardedTensor::WithoutGroup({own.local_shards()[0]}, no_index));
    EXPECT_EQ(alone.local_shards()[0].metadata,
              no_index.shards[static_cast<size_t>(rank)]);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, DeviceIndexTest,
                         ::testing::Values("local",
                                           "cpu:local,cuda:fake_device"),
                         [](const auto& info) {
                           return info.param == "local" ? "OnHost"
                                                        : "OnDevices";
                         });

// A group with a device for each rank knows all of them.
TEST(DevicesOfRanksTest, AreStoredInPlaceOfNone) {
  FakeDevice::Install(kRanks);
  RegisterFakeDeviceBackend();
  RunLocalRanks(
      kRanks,
      [](ProcessGroup& group) {
        EXPECT_THAT(group.devices(),
                    ::testing::ElementsAre(Gpu(0), Gpu(1), Gpu(2)));
        // The current device is the first on all of them.
        ExpectLaidOut(Pattern(OnAnyGpu()), OnOwnGpus());
        ShardedTensor tensor = Pattern(OnHost());
        ASSERT_THAT(tensor.Reshard(On(PlacementsOnRanks(kRanks, "cuda"), 1)),
                    IsOk());
        ExpectLaidOut(tensor, On(PlacementsOnRanks(kRanks, "cuda", kRanks), 1));
        EXPECT_TRUE(HasPattern(tensor));
        SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({1, 2}));
        if (pair->is_member()) {
          EXPECT_THAT(pair->devices(), ::testing::ElementsAre(Gpu(1), Gpu(2)));
        } else {
          EXPECT_TRUE(pair->devices().empty());
        }
        EXPECT_THAT(group.Barrier(), IsOk());
      },
      {.backend = "cpu:local,cuda:fake_device"});
  DeviceRuntime::SetLoader(nullptr);
}

// Pinned memory

TEST(PinnedShardsTest, MatchTheMetadata) {
  FakeDevice& devices = FakeDevice::Install(1);
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto shards = [&](bool pinned) {
      const Tensor tensor =
          Tensor::Zeros(
              {2, 4}, {.allocator = pinned ? devices.PinnedMemory() : nullptr})
              .value();
      return std::vector<Shard>{Shard::FromTensorAndOffsets(
                                    tensor, {2 * group.rank(), 0}, group.rank())
                                    .value()};
    };
    const ShardingSpecPtr spec = On(PlacementsOnRanks(2));
    for (const bool said : {false, true}) {
      for (const bool is : {false, true}) {
        const ShardedTensorOptions options = {.pin_memory = said};
        const ShardedTensorMetadata metadata =
            spec->BuildMetadata({4, 4}, {.pin_memory = said}).value();
        const absl::Status statuses[] = {
            ShardedTensor::FromLocalShards(shards(is), {4, 4}, options)
                .status(),
            ShardedTensor::FromLocalTensor(shards(is)[0].tensor, spec, {4, 4},
                                           options)
                .status(),
            ShardedTensor::FromLocalShardsAndMetadata(shards(is), metadata)
                .status()};
        for (const absl::Status& status : statuses) {
          if (said == is) {
            EXPECT_THAT(status, IsOk());
          } else {
            EXPECT_THAT(status, StatusIs(kInvalid, "pin_memory"));
          }
        }
      }
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
  DeviceRuntime::SetLoader(nullptr);
}

// Where nothing can be pinned, pin_memory gives ordinary memory.
TEST(PinnedShardsTest, NeedNoDevice) {
  RunLocalRanks(1, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Shard shard,
        Shard::FromTensorAndOffsets(Tensor::Zeros({4}).value(), {0}, 0));
    EXPECT_THAT(
        ShardedTensor::FromLocalShards({shard}, {4}, {.pin_memory = true}),
        IsOk());
  });
}

}  // namespace
}  // namespace sherd
