#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_statistics.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Sharded tensors on the devices of four ranks: what is not the same there as
// in host memory.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class DeviceTensorTest : public sherd::testing::PlacedFixture<
                             sherd::testing::PersistentDistributedTest> {
 protected:
  Device Own() { return DeviceOf(rank()); }
  DeviceRuntime& runtime() {
    return *DeviceRuntime::For(DeviceType::kCuda).value();
  }

  ShardingSpecPtr OnHost(int dim) {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(4)).value();
  }

  ShardedTensor Pattern(const ShardingSpecPtr& spec, const Dims& size,
                        DType dtype = kFloat32) {
    const ShardedTensor tensor =
        ShardedTensor::Empty(spec, size, {.dtype = dtype}).value();
    FillPattern(tensor);
    return tensor;
  }
};

// Moves

SHERD_DIST_TEST_F(DeviceTensorTest, ShardsMoveFromDeviceToDevice) {
  for (const DType dtype : {kInt8, kBFloat16, kFloat32, kComplex128}) {
    for (const int64_t staging : {int64_t{1} << 20, int64_t{512}}) {
      SCOPED_TRACE(absl::StrCat(Name(dtype), " staging ", staging));
      ShardedTensor tensor = Pattern(Chunks(0), {26, 31}, dtype);
      ReshardStats stats;
      ASSERT_THAT(
          tensor.Reshard(Chunks(1, {2, 0, 3, 1}),
                         {.max_staging_bytes = staging, .stats = &stats}),
          IsOk());
      EXPECT_EQ(stats.strategy, TransferStrategy::kDeviceMessages);
      EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
      EXPECT_LE(stats.staging_bytes, staging);
      EXPECT_EQ(stats.rounds > 1, staging == 512);
      EXPECT_EQ(tensor.local_shards()[0].tensor.device(), Own());
      EXPECT_TRUE(HasPattern(tensor));
    }
  }
}

// Nothing waits for the devices: earlier and later work is queued, too.
SHERD_DIST_TEST_F(DeviceTensorTest, MovesAreInTheOrderOfTheStream) {
  SHERD_ASSERT_OK_AND_ASSIGN(const DeviceStream stream,
                             runtime().CreateStream(Own().index));
  {
    const ScopedStream scope(stream);
    ShardedTensor rows = Pattern(Chunks(0), {40, 24});
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor columns,
                               ShardedTensor::Zeros(Chunks(1), {40, 24}));
    for (const int64_t staging : {int64_t{1} << 20, int64_t{512}}) {
      ASSERT_THAT(rows.ReshardInto(columns, {.max_staging_bytes = staging}),
                  IsOk());
      // The source is free to change.
      ASSERT_THAT(rows.Fill(-1), IsOk());
      ASSERT_THAT(columns.ReshardInto(rows, {.max_staging_bytes = staging}),
                  IsOk());
      ASSERT_THAT(columns.Fill(0), IsOk());
    }
    EXPECT_TRUE(HasPattern(rows));
    // Memory that is freed while it is in use.
    ASSERT_THAT(rows.Reshard(Chunks(1)), IsOk());
    ASSERT_THAT(rows.Reshard(Chunks(0)), IsOk());
    EXPECT_TRUE(HasPattern(rows));
  }
  ASSERT_THAT(group().Synchronize(), IsOk());
  ASSERT_THAT(runtime().Synchronize(stream), IsOk());
  runtime().DestroyStream(stream);
}

SHERD_DIST_TEST_F(DeviceTensorTest, DevicesAndHostMemoryMix) {
  const ShardingSpecPtr mixed =
      ChunkShardingSpec::Create(
          0, {Placement::OnRank(0), At(1), At(2), Placement::OnRank(3)})
          .value();
  std::vector<Placement> elsewhere;
  for (int r = 0; r < 4; ++r) {
    elsewhere.push_back(Placement::OnRank(r, DeviceOf(r + 1)));
  }
  const ShardingSpecPtr neighbours =
      ChunkShardingSpec::Create(1, elsewhere).value();
  for (const auto& [from, to] :
       {std::pair(OnHost(0), Chunks(1)), std::pair(Chunks(1), OnHost(1)),
        std::pair(mixed, Chunks(0)), std::pair(Chunks(0), mixed),
        std::pair(mixed, neighbours), std::pair(neighbours, Chunks(1))}) {
    SCOPED_TRACE(absl::StrCat(from->ToString(), " to ", to->ToString()));
    ShardedTensor tensor = Pattern(from, {9, 13});
    ReshardStats stats;
    ASSERT_THAT(tensor.Reshard(to, {.max_staging_bytes = 256, .stats = &stats}),
                IsOk());
    EXPECT_NE(stats.strategy, TransferStrategy::kDeviceMessages);
    EXPECT_LE(stats.staging_bytes, 256);
    EXPECT_TRUE(HasPattern(tensor));
  }
}

SHERD_DIST_TEST_F(DeviceTensorTest, ASmallerGroupMovesOnItsDevicesToo) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group().NewGroup({1, 2}));
  if (!pair->is_member()) return;
  EXPECT_EQ(pair->device(), group().device());
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, {2, 1}), {6, 5}, {.group = pair}));
  FillPattern(tensor);
  ReshardStats stats;
  ASSERT_THAT(tensor.Reshard(Chunks(1, {1, 2}), {.stats = &stats}), IsOk());
  EXPECT_EQ(stats.strategy, TransferStrategy::kDeviceMessages);
  EXPECT_TRUE(HasPattern(tensor));
}

// The whole

SHERD_DIST_TEST_F(DeviceTensorTest, TheWholeIsWhereTheShardsAre) {
  const ShardedTensor tensor = Pattern(Chunks(0, {0, 2, 3}), {10, 6});
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor everywhere, tensor.AllGather());
  // Also on rank 1, which has no shard.
  EXPECT_EQ(everywhere.device(), Own());
  EXPECT_TRUE(HasPattern(everywhere, {0, 0}, {10, 6}));
  const ShardedTensor on_host = Pattern(OnHost(1), {10, 6});
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor there, on_host.AllGather());
  EXPECT_TRUE(there.device().is_cpu());
  for (const bool out_on_host : {false, true}) {
    for (const ShardedTensor* source : {&tensor, &on_host}) {
      Tensor out;
      if (rank() == 1) {
        out = Tensor::Zeros({6, 10}, {.device = out_on_host ? Device() : Own()})
                  .value()
                  .Transpose(0, 1)
                  .value();
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, source->Gather(1, out));
      if (rank() == 1) {
        EXPECT_EQ(whole.data(), out.data());
        EXPECT_TRUE(HasPattern(out, {0, 0}, {10, 6}));
      }
    }
  }
}

SHERD_DIST_TEST_F(DeviceTensorTest, ATensorOnADeviceIsCut) {
  Tensor whole;
  if (rank() == 3) whole = PatternTensor({11, 7}, kInt32).To(Own()).value();
  for (const auto& spec : {Chunks(0), Chunks(1), OnHost(0)}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardTensor(whole, spec, 3));
    EXPECT_TRUE(HasPattern(tensor));
  }
}

// Copies

SHERD_DIST_TEST_F(DeviceTensorTest, ToAnotherDeviceAndBack) {
  const ShardedTensor on_host = Pattern(OnHost(0), {10, 6});
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor on_device, on_host.Cuda());
  EXPECT_EQ(on_device.local_shards()[0].tensor.device(), Own());
  EXPECT_TRUE(HasPattern(on_device));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor same, on_device.Cuda());
  EXPECT_EQ(same.local_shards()[0].tensor.data(),
            on_device.local_shards()[0].tensor.data());
  // All on one.
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor on_first,
                             on_device.To(DeviceOf(0)));
  EXPECT_EQ(on_first.local_shards()[0].tensor.device(), DeviceOf(0));
  EXPECT_TRUE(HasPattern(on_first));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor wide, on_device.To(kFloat64));
  EXPECT_EQ(wide.device(), Own());
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor back,
                             wide.To({.dtype = kFloat32, .device = Device()}));
  EXPECT_TRUE(HasPattern(back));
  EXPECT_EQ(*back.spec(), *OnHost(0));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor clone, on_first.Clone());
  EXPECT_EQ(clone.device(), DeviceOf(0));
  EXPECT_NE(clone.local_shards()[0].tensor.data(),
            on_first.local_shards()[0].tensor.data());
  EXPECT_TRUE(HasPattern(clone));
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor into,
                             ShardedTensor::Zeros(OnHost(0), {10, 6}));
  EXPECT_THAT(into.CopyFrom(on_first),
              StatusIs(absl::StatusCode::kFailedPrecondition, "same metadata"));
  ASSERT_THAT(on_first.ReshardInto(into), IsOk());
  EXPECT_TRUE(HasPattern(into));
}

SHERD_DIST_TEST_F(DeviceTensorTest, PlacementsSayTheDeviceOfEveryRank) {
  for (int r = 0; r < world_size(); ++r) {
    EXPECT_EQ(group().devices()[static_cast<size_t>(r)], DeviceOf(r));
  }
  const ShardedTensor expected = Pattern(Chunks(0), {10, 6});
  const ShardedTensor on_host = Pattern(OnHost(0), {10, 6});
  for (const absl::StatusOr<ShardedTensor>& moved :
       {on_host.Cuda(), on_host.To(Own()), on_host.To("cuda")}) {
    ASSERT_THAT(moved, IsOk());
    EXPECT_EQ(*moved->spec(), *Chunks(0));
    EXPECT_THAT(Equal(*moved, expected), IsOkAndHolds(true));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr anywhere,
      ChunkShardingSpec::Create(0, PlacementsOnRanks(4, "cuda")));
  EXPECT_EQ(Pattern(anywhere, {10, 6}).metadata(), expected.metadata());
  ShardedTensor resharded = Pattern(OnHost(1), {10, 6});
  ASSERT_THAT(resharded.Reshard(anywhere), IsOk());
  EXPECT_THAT(Equal(resharded, expected), IsOkAndHolds(true));
}

SHERD_DIST_TEST_F(DeviceTensorTest, PinnedShardsAreWhatDevicesReach) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      ShardedTensor::Empty(OnHost(0), {10, 8}, {.pin_memory = true}));
  EXPECT_THAT(runtime().Locate(tensor.local_shards()[0].tensor.data()),
              IsOkAndHolds(Device()));
  FillPattern(tensor);
  ASSERT_THAT(tensor.Reshard(OnHost(1)), IsOk());
  EXPECT_TRUE(tensor.is_pinned());
  EXPECT_THAT(runtime().Locate(tensor.local_shards()[0].tensor.data()),
              IsOkAndHolds(Device()));
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(DeviceTensorTest, RandomNumbersAreThoseOfTheHost) {
  const RandomOptions random = {.stream = RandomStream::kGlobal};
  ManualSeed(77);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor here,
      ShardedTensor::Rand(Chunks(0), {7, 9}, {.dtype = kFloat32}, random));
  ManualSeed(77);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor there,
      ShardedTensor::Rand(OnHost(1), {7, 9}, {.dtype = kFloat32}, random));
  EXPECT_THAT(Equal(here, there, {.layouts = CompareLayouts::kNotAtAll}),
              IsOkAndHolds(true));
}

// Computations

SHERD_DIST_TEST_F(DeviceTensorTest, AreComparedAndMeasured) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor sevens,
                             ShardedTensor::Full(Chunks(0), {10, 6}, 7));
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor others,
                             ShardedTensor::Full(Chunks(0), {10, 6}, 7));
  EXPECT_THAT(Equal(sevens, others), IsOkAndHolds(true));
  if (rank() == 2) {
    Tensor shard = others.local_shards()[0].tensor.Narrow(1, 3, 1).value();
    ASSERT_THAT(shard.Fill(8), IsOk());
  }
  EXPECT_THAT(Equal(sevens, others), IsOkAndHolds(false));
  EXPECT_THAT(AllClose(sevens, others, {.rtol = 0.5}), IsOkAndHolds(true));
  EXPECT_THAT(Max(others), IsOkAndHolds(TensorEq(Tensor::Scalar(8.0f))));
  EXPECT_THAT(Sum(sevens), IsOkAndHolds(TensorEq(Tensor::Scalar(420.0))));
}

// Memory of another stream than the one that adds up.
SHERD_DIST_TEST_F(DeviceTensorTest, SummandsMayBeDestroyedWhileTheyAreAdded) {
  SHERD_ASSERT_OK_AND_ASSIGN(const DeviceStream stream,
                             runtime().CreateStream(Own().index));
  Tensor sum;
  {
    PartialTensor partial =
        PartialTensor::Create(
            Tensor::Ones({1000}, {.dtype = kInt32, .device = Own()}).value())
            .value();
    ASSERT_THAT(runtime().Synchronize({Own(), nullptr}), IsOk());
    const ScopedStream scope(stream);
    SHERD_ASSERT_OK_AND_ASSIGN(sum, partial.AllReduce());
    partial = PartialTensor();
    EXPECT_THAT(sum, TensorEq(Tensor::Full(
                         {1000}, 4, {.dtype = kInt32, .device = Own()})));
  }
  ASSERT_THAT(group().Synchronize(), IsOk());
  runtime().DestroyStream(stream);
}

SHERD_DIST_TEST_F(DeviceTensorTest, SummandsAreAddedUp) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor summand,
      Tensor::Full({6, 8}, rank() + 1, {.dtype = kInt32, .device = Own()}));
  SHERD_ASSERT_OK_AND_ASSIGN(const PartialTensor partial,
                             PartialTensor::Create(summand));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor sum, partial.AllReduce());
  EXPECT_THAT(sum, TensorEq(Tensor::Full({6, 8}, 10,
                                         {.dtype = kInt32, .device = Own()})));
  for (const auto& spec : {Chunks(1), OnHost(0)}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor shards,
                               partial.Reshard(spec));
    EXPECT_EQ(*shards.spec(), *spec);
    EXPECT_THAT(
        shards.local_shards()[0].tensor,
        TensorEq(Tensor::Full(shards.local_shards()[0].tensor.sizes(), 10,
                              {.dtype = kInt32, .device = shards.device()})));
  }
}

// Refused calls

// Memory of a device that has none left.
class NoMemory final : public Allocator {
 public:
  explicit NoMemory(Device device) : device_(device) {}
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("the device is full");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "full"; }
  Device device() const override { return device_; }

 private:
  const Device device_;
};

SHERD_DIST_TEST_F(DeviceTensorTest, ErrorsAreTheSameOnAllRanks) {
  ShardedTensor tensor = Pattern(Chunks(0), {8, 6});
  const void* const data = tensor.local_shards()[0].tensor.data();
  // A device that is not there, on one rank.
  const ShardingSpecPtr nowhere =
      ChunkShardingSpec::Create(
          1,
          {At(0), Placement::OnRank(1, {DeviceType::kCuda, 99}), At(2), At(3)})
          .value();
  EXPECT_THAT(
      tensor.Reshard(nowhere),
      ::testing::AllOf(StatusIs(absl::StatusCode::kOutOfRange, "rank 1"),
                       HasErrorRank(1)));
  EXPECT_THAT(tensor.To(Device{DeviceType::kCuda, 99}),
              StatusIs(absl::StatusCode::kOutOfRange));
  NoMemory full(Own());
  EXPECT_THAT(
      tensor.Reshard(Chunks(1), {.allocator = rank() == 2 ? &full : nullptr}),
      ::testing::AllOf(
          StatusIs(absl::StatusCode::kResourceExhausted, "device is full"),
          HasErrorRank(2)));
  EXPECT_THAT(tensor.Clone(rank() == 2 ? &full : nullptr),
              ::testing::AllOf(StatusIs(absl::StatusCode::kResourceExhausted),
                               HasErrorRank(2)));
  Tensor out;
  if (rank() == 0) {
    out = Tensor::Empty({8, 6}, {.device = {DeviceType::kMeta}}).value();
  }
  EXPECT_THAT(tensor.Gather(0, out),
              StatusIs(absl::StatusCode::kFailedPrecondition, "meta"));
  // Everything is as before.
  EXPECT_EQ(tensor.local_shards()[0].tensor.data(), data);
  EXPECT_TRUE(HasPattern(tensor));
  EXPECT_THAT(tensor.Reshard(Chunks(1)), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(DeviceTensorTest, ShardsAreWhereTheirPlacementsSay) {
  const Tensor on_host = Tensor::Zeros({2, 4}).value();
  const Shard mine = {on_host, {{2 * rank(), 0}, {2, 4}, At(rank())}};
  EXPECT_THAT(ShardedTensor::FromLocalShards({mine}, {8, 4}),
              StatusIs(kInvalid,
                       "Local shard tensor device does not match with local "
                       "Shard's placement"));
}

SHERD_DIST_TEST_F(DeviceTensorTest, SummandsInDifferentMemoryAreRefused) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor summand,
      Tensor::Ones({4}, {.device = rank() == 1 ? Device() : Own()}));
  SHERD_ASSERT_OK_AND_ASSIGN(const PartialTensor partial,
                             PartialTensor::Create(summand));
  EXPECT_THAT(partial.AllReduce(), StatusIs(kInvalid, "device"));
}

}  // namespace
}  // namespace sherd
