#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Checkpoints of tensors on devices, which run nothing until it is waited for.

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::LeaveOutSyncs;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr int kDevices = 4;

Device Cuda(int index) { return {DeviceType::kCuda, index}; }

// Where the shards of a tensor are.
enum class Places { kHost, kDevices, kBoth };

ShardingSpecPtr Placed(const ShardingSpecPtr& spec, Places places) {
  int count = 0;
  return spec->WithPlacements([&](const Placement& placement) {
    const int rank = *placement.rank();
    const bool here = places == Places::kHost ||
                      (places == Places::kBoth && count++ % 2 == 0);
    return Placement::OnRank(rank, here ? Device() : Cuda(rank));
  });
}

class DeviceCheckpointTest : public ::testing::Test {
 protected:
  DeviceCheckpointTest() : devices_(FakeDevice::Install(kDevices)) {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = absl::StrCat("device_checkpoint_", info->name());
    for (char& c : name) c = c == '/' ? '_' : c;
    path_ = JoinPath(::testing::TempDir(), name);
    std::filesystem::remove_all(path_);
  }

  ~DeviceCheckpointTest() override {
    devices_.RunAll();
    EXPECT_EQ(devices_.live_blocks(), 0);
  }

  FakeDevice& devices_;
  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

// Ranks that save, and where; ranks that load, where, and whether they trade
// what they read.
using Parameters = std::tuple<int, Places, int, Places, bool>;

class DeviceRoundTripTest : public DeviceCheckpointTest,
                            public ::testing::WithParamInterface<Parameters> {};

TEST_P(DeviceRoundTripTest, HoldsTheSameElements) {
  const auto [savers, from, loaders, to, trade] = GetParam();
  RunLocalRanks(savers, [&, savers = savers, from = from](ProcessGroup&) {
    std::map<std::string, ShardedTensor> tensors;
    int i = 0;
    for (const SampleTensor& sample : SampleTensors()) {
      const auto spec =
          Placed(SampleSpec(i, sample.size, savers).value(), from);
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Empty(spec, sample.size, {.dtype = sample.dtype}));
      FillPattern(tensor, i);
      tensors.emplace(sample.name, std::move(tensor));
      ++i;
    }
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
  });
  RunLocalRanks(
      loaders, [&, loaders = loaders, to = to, trade = trade](ProcessGroup&) {
        std::map<std::string, ShardingSpecPtr> specs;
        int i = 0;
        for (const SampleTensor& sample : SampleTensors()) {
          specs.emplace(
              sample.name,
              Placed(SampleSpec(i + 1, sample.size, loaders).value(), to));
          ++i;
        }
        LoadOptions options;
        if (trade) options.min_read_bytes = 1 << 20;
        SHERD_ASSERT_OK_AND_ASSIGN(
            const auto loaded, LoadCheckpoint(path_, specs, nullptr, options));
        i = 0;
        for (const SampleTensor& sample : SampleTensors()) {
          const ShardedTensor& tensor = loaded.at(sample.name);
          EXPECT_EQ(*tensor.spec(), *specs.at(sample.name));
          EXPECT_TRUE(HasPattern(tensor, i)) << sample.name;
          ++i;
        }
      });
}

TEST_F(DeviceCheckpointTest, AnIncrementHasTheChunksThatChanged) {
  // 16 chunks of 64 rows.
  const Dims size = {1024, 1024};
  RunLocalRanks(1, [&](ProcessGroup&) {
    const auto spec = Placed(SampleSpec(0, size, 1).value(), Places::kDevices);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(spec, size));
    FillPattern(tensor, 1);
    const auto base = std::make_shared<SaveBase>();
    const auto save = [&] {
      Saver saver({.path = path_,
                   .tensors = std::make_shared<const SaveJob::Tensors>(
                       SaveJob::Tensors{{"x", tensor}}),
                   .group = *DefaultGroup(),
                   .base = base});
      EXPECT_THAT(saver.Run(), IsOk());
      return saver.stats().file_bytes;
    };
    save();
    SHERD_ASSERT_OK_AND_ASSIGN(
        Tensor row,
        tensor.local_shards()[0].tensor.Narrow({512, 0}, {1, 1024}));
    ASSERT_THAT(row.Fill(7.0F), IsOk());
    const int64_t bytes = save();
    EXPECT_GE(bytes, kChunkBytes);
    EXPECT_LE(bytes, kChunkBytes + (16 << 10));
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path_));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, reader.ReadTensor("x"));
    EXPECT_TRUE(
        HasPattern(*whole.Narrow({0, 0}, {512, 1024}), {0, 0}, size, 1));
    EXPECT_TRUE(
        HasPattern(*whole.Narrow({513, 0}, {511, 1024}), {513, 0}, size, 1));
    EXPECT_EQ(whole.data_as<float>()[512 * 1024], 7.0F);
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor there,
                               Tensor::Empty({100, 200}, {.device = Cuda(0)}));
    EXPECT_THAT(reader.ReadInto("x", {513, 7}, there), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor here, there.To(Device()));
    EXPECT_TRUE(HasPattern(here, {513, 7}, size, 1));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, DeviceRoundTripTest,
    ::testing::Values(Parameters{3, Places::kDevices, 3, Places::kDevices,
                                 false},
                      Parameters{2, Places::kDevices, 4, Places::kHost, true},
                      Parameters{4, Places::kHost, 3, Places::kDevices, true},
                      Parameters{3, Places::kBoth, 2, Places::kBoth, false},
                      Parameters{1, Places::kDevices, 2, Places::kBoth, true}));

// An optimizer has thousands of them; a wait for the device for each would take
// longer than all the rest.
TEST_F(DeviceCheckpointTest, ManySmallTensorsShareCopies) {
  constexpr int kTensors = 500;
  const Dims size = {40, 6};
  RunLocalRanks(1, [&](ProcessGroup&) {
    const auto spec = Placed(SampleSpec(0, size, 1).value(), Places::kDevices);
    std::map<std::string, ShardedTensor> tensors;
    std::map<std::string, ShardedTensor*> destinations;
    std::vector<ShardedTensor> loaded;
    for (int i = 0; i < kTensors; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                                 ShardedTensor::Empty(spec, size));
      FillPattern(tensor, i);
      tensors.emplace(absl::StrCat("t", i), std::move(tensor));
      SHERD_ASSERT_OK_AND_ASSIGN(loaded.emplace_back(),
                                 ShardedTensor::Empty(spec, size));
    }
    for (int i = 0; i < kTensors; ++i) {
      destinations.emplace(absl::StrCat("t", i), &loaded[i]);
    }
    const auto copies = [&] {
      const std::vector<std::string> queued = devices_.TakeQueued();
      return std::count(queued.begin(), queued.end(), "copy") +
             std::count(queued.begin(), queued.end(), "copy_bytes");
    };
    copies();
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    EXPECT_EQ(copies(), 1);
    ASSERT_THAT(
        SaveCheckpoint(path_, tensors, nullptr, {.check_replicas = true}),
        IsOk());
    EXPECT_EQ(copies(), 1);
    CheckpointStats stats;
    ASSERT_THAT(
        LoadCheckpointInto(path_, destinations, nullptr, {.stats = &stats}),
        IsOk());
    EXPECT_EQ(copies(), 1);
    for (int i = 0; i < kTensors; ++i) {
      EXPECT_TRUE(HasPattern(loaded[i], i)) << i;
    }
  });
}

// More than goes through pinned memory at once, in one run and in columns.
TEST_F(DeviceCheckpointTest, LargeShardsPassInBlocks) {
  const Dims size = {2200, 501};
  RunLocalRanks(2, [&](ProcessGroup&) {
    const auto rows =
        Placed(ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value(),
               Places::kDevices);
    const auto columns =
        Placed(ChunkShardingSpec::Create(1, PlacementsOnRanks(2)).value(),
               Places::kDevices);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(rows, size, {.dtype = kComplex128}));
    FillPattern(tensor);
    // A view whose shards are not contiguous.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               tensor.Narrow(1, 1, 500));
    ASSERT_THAT(SaveCheckpoint(path_, {{"whole", tensor}, {"view", view}}),
                IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto loaded,
        LoadCheckpoint(path_, {{"whole", columns}, {"view", columns}}));
    EXPECT_TRUE(HasPattern(loaded.at("whole")));
    EXPECT_TRUE(HasPattern(loaded.at("view"), {0, 1}, size));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto again,
                               LoadCheckpoint(path_, {{"whole", rows}}));
    EXPECT_TRUE(HasPattern(again.at("whole")));
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(DeviceCheckpointTest, ValuesAreConvertedOnTheirWayToADevice) {
  const Dims size = {1100, 1003};
  RunLocalRanks(2, [&](ProcessGroup&) {
    const auto rows =
        Placed(ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value(),
               Places::kDevices);
    const auto columns =
        Placed(ChunkShardingSpec::Create(1, PlacementsOnRanks(2)).value(),
               Places::kDevices);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(rows, size, 2.5, {.dtype = kFloat32}));
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
    for (const ShardingSpecPtr& spec : {rows, columns}) {
      for (const int64_t min_read_bytes : {1, 1 << 20}) {
        SHERD_ASSERT_OK_AND_ASSIGN(
            ShardedTensor loaded,
            ShardedTensor::Empty(spec, size, {.dtype = kInt64}));
        ASSERT_THAT(LoadCheckpointInto(
                        path_, {{"t", &loaded}}, nullptr,
                        {.convert = true, .min_read_bytes = min_read_bytes}),
                    IsOk());
        for (const Shard& shard : loaded.local_shards()) {
          SHERD_ASSERT_OK_AND_ASSIGN(const Tensor host,
                                     shard.tensor.To(Device()));
          SHERD_ASSERT_OK_AND_ASSIGN(
              const Tensor twos,
              Tensor::Full(host.sizes(), 2, {.dtype = kInt64}));
          EXPECT_TRUE(host.Equal(twos));
        }
      }
    }
  });
}

TEST_F(DeviceCheckpointTest, ReplicasShareTheReadOfOneRank) {
  RunLocalRanks(3, [&](ProcessGroup&) {
    const auto rows =
        Placed(ChunkShardingSpec::Create(0, PlacementsOnRanks(3)).value(),
               Places::kDevices);
    const DeviceMesh mesh = {
        .shape = {3},
        .placements = {Placement::OnRank(0, Cuda(0)), Placement::OnRank(1),
                       Placement::OnRank(2, Cuda(2))}};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto everywhere,
        MeshShardingSpec::FromPlacements(mesh, {MeshPlacement::Replicate()}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(rows, {64, 33}));
    FillPattern(tensor);
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded,
                               LoadCheckpoint(path_, {{"t", everywhere}}));
    EXPECT_TRUE(HasPattern(loaded.at("t")));
  });
}

TEST_F(DeviceCheckpointTest, DamageIsFound) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows =
        Placed(ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value(),
               Places::kDevices);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Ones(rows, {512, 33}));
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
    if (group.rank() == 0) {
      for (const auto& entry : std::filesystem::directory_iterator(path_)) {
        if (entry.path().extension() != ".safetensors") continue;
        std::fstream file(entry.path());
        file.seekp(-5, std::ios::end);
        file.put('x');
      }
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(LoadCheckpoint(path_, {{"t", rows}}),
                StatusIs(absl::StatusCode::kDataLoss, "damaged"));
  });
}

TEST_F(DeviceCheckpointTest, ADeviceThatFailsIsTheErrorOfAllRanks) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const auto one =
        Placed(ChunkShardingSpec::Create(0, PlacementsOnRanks(1)).value(),
               Places::kDevices);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Ones(one, {512, 33}));
    devices_.FailWith(absl::FailedPreconditionError("illegal address"));
    EXPECT_THAT(
        SaveCheckpoint(path_, {{"t", tensor}}),
        StatusIs(absl::StatusCode::kFailedPrecondition, "illegal address"));
    devices_.FailWith(absl::OkStatus());
    EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
  });
}

TEST_F(DeviceCheckpointTest, SafetensorsAreReadAndWrittenOnDevices) {
  FileSystem& files = FileSystem::Posix();
  const Dims size = {1100, 520};
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                             PatternTensor(size, kFloat64).To(Cuda(1)));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor turned, tensor.Transpose(0, 1));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto writer,
      SafetensorsWriter::Create(
          files, path_,
          {{"plain", kFloat64, size}, {"turned", kFloat64, {520, 1100}}}));
  ASSERT_THAT(writer->Write("plain", tensor), IsOk());
  ASSERT_THAT(writer->Write("turned", turned), IsOk());
  ASSERT_THAT(writer->Finish(/*sync=*/false), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                             SafetensorsFile::Open(files, path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, file.ReadTensor("plain"));
  EXPECT_TRUE(HasPattern(on_host, {0, 0}, size));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor back,
      Tensor::Empty(size, {.dtype = kFloat64, .device = Cuda(2)}));
  ASSERT_THAT(file.ReadTensorInto("turned", back.Transpose(0, 1).value()),
              IsOk());
  EXPECT_TRUE(HasPattern(back, {0, 0}, size));
}

}  // namespace
}  // namespace sherd
