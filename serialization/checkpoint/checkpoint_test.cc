#include "sherd/serialization/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/sample_lease.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::FaultOptions;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::SlowRankAt;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Tensors = std::map<std::string, ShardedTensor>;

// Tensor number i of SampleTensors() in layout number `layout` + i, holding
// what FillSample(seed + i) gives.
Tensors MakeTensors(int layout, int ranks, int seed) {
  Tensors tensors;
  int i = 0;
  for (const SampleTensor& sample : SampleTensors()) {
    const auto spec = SampleSpec(layout + i, sample.size, ranks);
    EXPECT_THAT(spec, IsOk());
    auto tensor =
        ShardedTensor::Zeros(*spec, sample.size, {.dtype = sample.dtype});
    EXPECT_THAT(tensor, IsOk());
    FillSample(*tensor, seed + i);
    tensors.emplace(sample.name, *std::move(tensor));
    ++i;
  }
  return tensors;
}

std::map<std::string, ShardingSpecPtr> MakeSpecs(int layout, int ranks) {
  std::map<std::string, ShardingSpecPtr> specs;
  int i = 0;
  for (const SampleTensor& sample : SampleTensors()) {
    specs.emplace(sample.name, *SampleSpec(layout + i, sample.size, ranks));
    ++i;
  }
  return specs;
}

std::map<std::string, ShardedTensor*> Pointers(Tensors& tensors) {
  std::map<std::string, ShardedTensor*> pointers;
  for (auto& [name, tensor] : tensors) pointers.emplace(name, &tensor);
  return pointers;
}

void ExpectSamples(const Tensors& tensors, int seed) {
  int i = 0;
  for (const SampleTensor& sample : SampleTensors()) {
    ASSERT_TRUE(tensors.contains(sample.name));
    const ShardedTensor& tensor = tensors.at(sample.name);
    EXPECT_EQ(tensor.dtype(), sample.dtype);
    EXPECT_EQ(CountWrong(tensor, seed + i), 0) << sample.name;
    ++i;
  }
}

// Whether the checkpoint, read by one process, holds the samples of `seed`.
bool HoldsSamples(const CheckpointReader& reader, int seed) {
  int i = 0;
  for (const SampleTensor& sample : SampleTensors()) {
    const auto tensor = reader.ReadTensor(sample.name);
    if (!tensor.ok()) return false;
    const Dims zeros(sample.size.size(), 0);
    if (CountWrong(*tensor, zeros, sample.size, seed + i) != 0) return false;
    ++i;
  }
  return true;
}

// Above those of the CRC tables of a few small files, each read by every rank.
constexpr int64_t kMostTableBytes = 4096;

// That the ranks read so many bytes of elements.
void ExpectRead(const CheckpointStats& stats, int64_t bytes) {
  EXPECT_GT(stats.file_bytes, bytes);
  EXPECT_LE(stats.file_bytes, bytes + kMostTableBytes);
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = absl::StrCat("checkpoint_", info->name());
    for (char& c : name) c = c == '/' ? '_' : c;
    path_ = JoinPath(::testing::TempDir(), name);
    std::filesystem::remove_all(path_);
  }

  void Save(int ranks, int layout, int seed) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(layout, ranks, seed)),
                  IsOk());
    });
  }

  void ExpectHolds(int seed) {
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path_));
    EXPECT_TRUE(HoldsSamples(reader, seed));
  }

  // All but the mark, which each save leaves.
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.insert(entry.path().filename().string());
    }
    names.erase(kCommittedFileName);
    return names;
  }

  FileSystem& files_ = FileSystem::Posix();
  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

struct Worlds {
  int save;
  int load;
};

class CheckpointWorldsTest : public CheckpointTest,
                             public ::testing::WithParamInterface<Worlds> {};

TEST_P(CheckpointWorldsTest, EveryLayoutLoadsIntoEveryOther) {
  const int save_ranks = GetParam().save;
  const int load_ranks = GetParam().load;
  for (int layout = 0; layout < 5; ++layout) {
    SCOPED_TRACE(absl::StrCat("layout ", layout));
    const int seed = 100 * layout;
    Save(save_ranks, layout, seed);
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    RunLocalRanks(load_ranks, [&](ProcessGroup&) {
      // Layout 0 to 0, 1 to 3, 2 to 6, …: many pairs over the tensors.
      CheckpointStats stats;
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensors loaded,
          LoadCheckpoint(path_, MakeSpecs(3 * layout, load_ranks), nullptr,
                         {.stats = &stats}));
      ExpectSamples(loaded, seed);
      // Small tensors are read by pages, each by the ranks that need some of
      // it.
      EXPECT_GE(stats.file_bytes, stats.tensor_bytes);
      EXPECT_LE(stats.file_bytes,
                stats.tensor_bytes * load_ranks + kMostTableBytes);
      // Into memory that is there already, in yet another layout.
      Tensors warm = MakeTensors(layout + 1, load_ranks, 12345);
      ASSERT_THAT(LoadCheckpointInto(path_, Pointers(warm)), IsOk());
      ExpectSamples(warm, seed);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    From1To4, CheckpointWorldsTest,
    ::testing::Values(Worlds{1, 1}, Worlds{1, 2}, Worlds{1, 3}, Worlds{1, 4},
                      Worlds{2, 1}, Worlds{2, 2}, Worlds{2, 3}, Worlds{2, 4},
                      Worlds{3, 1}, Worlds{3, 2}, Worlds{3, 3}, Worlds{3, 4},
                      Worlds{4, 1}, Worlds{4, 2}, Worlds{4, 3}, Worlds{4, 4}),
    [](const ::testing::TestParamInfo<Worlds>& info) {
      return absl::StrCat(info.param.save, "To", info.param.load);
    });

TEST_F(CheckpointTest, ShortPiecesAreTradedBetweenRanks) {
  // Columns of 2 int64 from rows of 6: runs of 16 bytes, 9000 for each rank.
  const Dims size = {9000, 6};
  const auto rows = ChunkShardingSpec::Create(0, PlacementsOnRanks(3));
  const auto columns = ChunkShardingSpec::Create(1, PlacementsOnRanks(3));
  RunLocalRanks(3, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(*rows, size, {.dtype = kInt64}));
    FillSample(tensor, 5);
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
    for (const int64_t min_read_bytes : {1, 1024}) {
      CheckpointStats stats;
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensors loaded,
          LoadCheckpoint(path_, {{"t", *columns}}, nullptr,
                         {.min_read_bytes = min_read_bytes, .stats = &stats}));
      EXPECT_EQ(CountWrong(loaded.at("t"), 5), 0);
      // Of short pieces the pages are read, and each rank needs some of each.
      ExpectRead(stats,
                 min_read_bytes == 1 ? 9000 * 6 * 8 * 3 - 288 : 9000 * 6 * 8);
      EXPECT_EQ(stats.exchanged_bytes,
                min_read_bytes == 1 ? 0 : 9000 * 6 * 8 * 2 / 3);
      EXPECT_EQ(stats.exchanges, min_read_bytes == 1 ? 0 : 1);
    }
  });
}

// Element (r, c) is 1024 * r + c + `first`.
void Count(const ShardedTensor& tensor, int64_t first, bool fill,
           int64_t& wrong) {
  for (const Shard& shard : tensor.local_shards()) {
    Tensor copy = shard.tensor;
    int64_t* next = static_cast<int64_t*>(copy.data());
    for (int64_t r = 0; r < shard.metadata.sizes[0]; ++r) {
      for (int64_t c = 0; c < shard.metadata.sizes[1]; ++c, ++next) {
        const int64_t value = 1024 * (shard.metadata.offsets[0] + r) +
                              shard.metadata.offsets[1] + c + first;
        if (fill) *next = value;
        wrong += *next == value ? 0 : 1;
      }
    }
  }
}

// 8 MiB on four ranks, all of it on each or half of it on two.
absl::StatusOr<ShardedTensor> LargeReplicas(bool halves, int64_t first) {
  const DeviceMesh mesh = {{2, 2}, PlacementsOn({2, 0, 3, 1})};
  std::vector<std::vector<int>> cuts;
  if (halves) cuts = {{}, {1}};
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                         MeshShardingSpec::Create(mesh, cuts));
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensor tensor,
      ShardedTensor::Zeros(spec, {1024, 1024}, {.dtype = kInt64}));
  int64_t wrong = 0;
  Count(tensor, first, /*fill=*/true, wrong);
  return tensor;
}

TEST_F(CheckpointTest, ReplicasAreSavedOnceByAllThatHoldThem) {
  RunLocalRanks(4, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor all,
                               LargeReplicas(false, 3));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor half,
                               LargeReplicas(true, 4));
    Tensors tensors = {{"all", all}, {"half", half}};
    // Small ones stay whole.
    for (int i = 0; i < 8; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr spec,
                                 SampleSpec(7, {100}, 4));
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor small,
          ShardedTensor::Zeros(spec, {100}, {.dtype = kInt64}));
      FillSample(small, 10 + i);
      tensors.emplace(absl::StrCat("small", i), small);
    }
    CheckpointStats stats;
    ASSERT_THAT(SaveCheckpoint(path_, tensors, nullptr, {.stats = &stats}),
                IsOk());
    EXPECT_EQ(stats.tensor_bytes, 2 * (8 << 20) + 8 * 800);
    int64_t written = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() != ".safetensors") continue;
      written += static_cast<int64_t>(entry.file_size());
    }
    EXPECT_EQ(stats.file_bytes, written) << "headers too, on every rank";
    for (const char* name : {"all", "half"}) {
      const int64_t first = name[0] == 'a' ? 3 : 4;
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensors loaded,
          LoadCheckpoint(path_, {{name, *ChunkShardingSpec::Create(
                                            0, PlacementsOnRanks(4))}}));
      int64_t wrong = 0;
      Count(loaded.at(name), first, /*fill=*/false, wrong);
      EXPECT_EQ(wrong, 0) << name;
    }
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             reader.manifest().ReadAll());
  ASSERT_EQ(manifest.files.size(), 4u);
  for (const ManifestFile& file : manifest.files) {
    // Half of "all" or half of "half", and two small ones.
    EXPECT_EQ(file.size - file.data_begin,
              (4 << 20) + 2 * 800 + CrcTableBytes(file.chunks));
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    EXPECT_EQ(tensor.num_shards(),
              absl::StartsWith(tensor.name, "small") ? 1 : 2);
  }
}

// Placements name ranks of the job, files those of the group.
TEST_F(CheckpointTest, SomeRanksSaveAndAllLoad) {
  const Dims size = {9, 4};
  RunLocalRanks(4, [&](ProcessGroup& world) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const std::shared_ptr<ProcessGroup> some,
        world.Split(world.rank() % 3 == 0 ? 0 : 1, -world.rank()));
    if (world.rank() % 3 == 0) {
      EXPECT_EQ(some->world_ranks()[0], 3);
      const auto spec = MeshShardingSpec::FromPlacements(
          {{2}, PlacementsOn({0, 3})}, {MeshPlacement::Shard(0)});
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(*spec, size, {.dtype = kInt32, .group = some}));
      FillSample(tensor, 8);
      ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}, some), IsOk());
    }
    ASSERT_THAT(world.Barrier(), IsOk());
    const auto columns =
        ChunkShardingSpec::Create(1, PlacementsOn({1, 3, 0, 2}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors loaded,
                               LoadCheckpoint(path_, {{"t", *columns}}));
    EXPECT_EQ(CountWrong(loaded.at("t"), 8), 0);
    // And on the other ranks alone, the whole of it on each.
    if (world.rank() % 3 == 0) return;
    const auto both = MeshShardingSpec::Create({{2}, PlacementsOn({1, 2})}, {});
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors again,
                               LoadCheckpoint(path_, {{"t", *both}}, some));
    EXPECT_EQ(CountWrong(again.at("t"), 8), 0);
    EXPECT_EQ(again.at("t").local_shards().size(), 1u);
  });
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             reader.manifest().ReadAll());
  EXPECT_EQ(manifest.world_size, 2);
  EXPECT_THAT(manifest.placements,
              ::testing::ElementsAre("rank:3/cpu", "rank:0/cpu"));
  // The first rows are rank 0's, which is the group's second.
  const SavedShardPlace first = manifest.tensors[0].PlaceOf(0, kChunkBytes);
  EXPECT_THAT(manifest.files[first.extents[0].file].name,
              HasSubstr("shard-00001-of-00002"));
}

TEST_F(CheckpointTest, TensorsThatAreNotOfTheGroupAreRefused) {
  RunLocalRanks(2, [&](ProcessGroup& world) {
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> first,
                               world.NewGroup({0}));
    const auto on_first = *ChunkShardingSpec::Create(0, {"rank:0/cpu"});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor elsewhere,
        ShardedTensor::Zeros(on_first, {4}, {.group = first}));
    EXPECT_THAT(SaveCheckpoint(path_, {{"t", elsewhere}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "tensor \"t\" belongs to the group"));
    if (world.rank() == 1) {
      EXPECT_THAT(SaveCheckpoint(path_, {{"t", elsewhere}}, first),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                               on_first->BuildMetadata({4}, {}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor alone,
                               ShardedTensor::WithoutGroup({}, metadata));
    EXPECT_THAT(SaveCheckpoint(path_, {{"t", alone}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "tensor \"t\" belongs to no group"));
  });
}

TEST_F(CheckpointTest, ReplicasAreReadOnceAndHandedOn) {
  RunLocalRanks(4, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor rows,
        ShardedTensor::Zeros(
            *ChunkShardingSpec::Create(0, PlacementsOnRanks(4)), {1024, 1024},
            {.dtype = kInt64}));
    int64_t wrong = 0;
    Count(rows, 3, /*fill=*/true, wrong);
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", rows}}), IsOk());
    for (const bool halves : {false, true}) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor loaded,
                                 LargeReplicas(halves, 77));
      CheckpointStats stats;
      ASSERT_THAT(LoadCheckpointInto(path_, {{"t", &loaded}}, nullptr,
                                     {.stats = &stats}),
                  IsOk());
      Count(loaded, 3, /*fill=*/false, wrong);
      EXPECT_EQ(wrong, 0);
      ExpectRead(stats, 8 << 20);
      // The part that each rank holds and has not read itself.
      EXPECT_EQ(stats.exchanged_bytes, (halves ? 8 : 3 * 8) << 20);
    }
  });
}

TEST_F(CheckpointTest, ASaveReplacesAndRemovesTheFormerOne) {
  Save(3, 0, 1);
  const std::set<std::string> first = Files();
  Save(2, 1, 2);
  const std::set<std::string> second = Files();
  ExpectHolds(2);
  EXPECT_EQ(second.size(), 3u);
  for (const std::string& name : second) {
    EXPECT_EQ(first.contains(name), name == kManifestFileName) << name;
  }
}

TEST_F(CheckpointTest, ForeignFilesStayAndLeftoversGo) {
  files_.CreateDirectories(path_).IgnoreError();
  const auto touch = [&](const std::string& name) {
    std::ofstream(JoinPath(path_, name)) << "x";
  };
  touch("notes.txt");
  touch("model.safetensors");
  touch("shard-00000-of-00001.safetensors");
  touch("shard-00000-of-00004.0123456789abcdef.safetensors");
  touch("manifest.sherd.123.tmp");
  Save(1, 0, 1);
  const std::set<std::string> names = Files();
  EXPECT_EQ(names.size(), 5u);
  EXPECT_TRUE(names.contains("notes.txt"));
  EXPECT_TRUE(names.contains("model.safetensors"));
  EXPECT_TRUE(names.contains("shard-00000-of-00001.safetensors"));
}

TEST_F(CheckpointTest, DataFilesAreSafetensorsWithAlignedData) {
  Save(2, 0, 40);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             reader.manifest().ReadAll());
  EXPECT_EQ(manifest.world_size, 2);
  ASSERT_EQ(manifest.files.size(), 2u);
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (int64_t i = 0; i < tensor.num_shards(); ++i) {
      const Box shard = tensor.layout.BoxAt(i);
      const SavedShardPlace place = tensor.PlaceOf(i, manifest.chunk_bytes);
      if (place.extents.empty()) continue;
      const std::string& name = manifest.files[place.extents[0].file].name;
      SHERD_ASSERT_OK_AND_ASSIGN(
          const SafetensorsFile file,
          SafetensorsFile::Open(files_, JoinPath(path_, name)));
      EXPECT_EQ(file.data_begin() % 4096, 0);
      const std::string key = ShardKey(tensor.name, shard.offsets);
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor stored, file.ReadTensor(key));
      SHERD_ASSERT_OK_AND_ASSIGN(
          Tensor read,
          reader.ReadSlice(tensor.name, shard.offsets, shard.sizes));
      if (tensor.dtype == kComplex128) {
        SHERD_ASSERT_OK_AND_ASSIGN(read, read.ViewAsReal());
      } else if (tensor.dtype == kComplex32) {
        // Of which there is no view as real numbers.
        ASSERT_EQ(read.nbytes(), stored.nbytes());
        EXPECT_EQ(std::memcmp(read.data(), stored.data(),
                              static_cast<size_t>(read.nbytes())),
                  0);
        continue;
      }
      EXPECT_TRUE(read.BitwiseEqual(stored)) << key;
    }
  }
}

TEST_F(CheckpointTest, AReaderReadsTensorsAndSlices) {
  Save(3, 2, 70);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  EXPECT_TRUE(HoldsSamples(reader, 70));
  // "large" is number 6 of the samples.
  const Dims offsets = {17, 100}, size = {300, 513};
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                             reader.ReadSlice("large", offsets, {251, 301}));
  EXPECT_EQ(CountWrong(slice, offsets, size, 76), 0);
  EXPECT_THAT(reader.ReadSlice("large", {0, 500}, {1, 14}),
              StatusIs(absl::StatusCode::kOutOfRange, "\"large\""));
  EXPECT_THAT(reader.ReadSlice("large", {0}, {1}),
              StatusIs(absl::StatusCode::kInvalidArgument, "2 dimensions"));
  EXPECT_THAT(reader.ReadTensor("absent"),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"absent\""));
}

// Names are no paths, and not only text without zeros.
TEST_F(CheckpointTest, NamesThatLookLikePathsLeadNowhere) {
  const std::vector<std::string> names = {"..",
                                          "../../../tmp/x",
                                          "/etc/passwd",
                                          "a/../b",
                                          "C:\\x",
                                          "a\nb",
                                          ".",
                                          "manifest.sherd",
                                          "lease.sherd",
                                          "a\"b",
                                          "\u00e9",
                                          std::string("a\0b", 3),
                                          std::string(1, '\0')};
  RunLocalRanks(2, [&](ProcessGroup&) {
    Tensors tensors;
    std::map<std::string, ShardingSpecPtr> specs;
    for (size_t i = 0; i < names.size(); ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(*SampleSpec(0, {5, 3}, 2), {5, 3}));
      FillSample(tensor, static_cast<int>(i));
      specs.emplace(names[i], tensor.spec());
      tensors.emplace(names[i], std::move(tensor));
    }
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors loaded,
                               LoadCheckpoint(path_, specs));
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(CountWrong(loaded.at(names[i]), static_cast<int>(i)), 0);
    }
  });
  EXPECT_EQ(Files().size(), 3) << "a manifest, and a file of each rank";
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
  std::filesystem::remove(JoinPath(path_, kManifestFileName));
  EXPECT_THAT(RecoverManifest(path_), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  for (size_t i = 0; i < names.size(); ++i) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               reader.ReadTensor(names[i]));
    EXPECT_EQ(CountWrong(tensor, {0, 0}, {5, 3}, static_cast<int>(i)), 0);
  }
}

// As on a file system that is mounted read-only, or of another user.
TEST_F(CheckpointTest, ADirectoryThatMayNotBeWrittenIsNamedAndCanBeLoaded) {
  Save(2, 0, 70);
  const std::set<std::string> before = Files();
  std::list<FailFileOperation> read_only;
  for (const char* operation : {"create", "write", "rename", "rename_new",
                                "remove", "create_directories"}) {
    read_only.emplace_back(operation, path_ + "*",
                           ErrnoStatus(EROFS, operation, path_),
                           FaultOptions{.times = 1000, .optional = true});
  }
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 2, 71)),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("save \""), HasSubstr("rank 0"),
                               HasSubstr("Read-only file system"))));
    EXPECT_THAT(LoadCheckpoint(path_, MakeSpecs(1, 2)), IsOk());
  });
  EXPECT_EQ(Files(), before);
  ExpectHolds(70);
}

TEST_F(CheckpointTest, AReaderReadsIntoMemoryOfTheCaller) {
  Save(3, 2, 70);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  const Dims offsets = {17, 100}, sizes = {251, 301};
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                             reader.ReadSlice("large", offsets, sizes));
  const DType dtype = slice.dtype();
  // A part of a larger one, whose other elements stay.
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor whole,
                             Tensor::Zeros({260, 310}, {.dtype = dtype}));
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor part, whole.Narrow({3, 4}, sizes));
  EXPECT_THAT(reader.ReadInto("large", offsets, part), IsOk());
  EXPECT_TRUE(part.BitwiseEqual(slice));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor before,
                             whole.Narrow({0, 0}, {3, 310}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor zeros,
                             Tensor::Zeros({3, 310}, {.dtype = dtype}));
  EXPECT_TRUE(before.BitwiseEqual(zeros));

  EXPECT_THAT(reader.ReadInto("large", {60, 0}, part),
              StatusIs(absl::StatusCode::kOutOfRange, "\"large\""));
  EXPECT_THAT(reader.ReadInto("absent", offsets, part),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"absent\""));
  const DType other = dtype == kInt64 ? kInt32 : kInt64;
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor of_other,
                             Tensor::Zeros(sizes, {.dtype = other}));
  EXPECT_THAT(reader.ReadInto("large", offsets, of_other),
              StatusIs(absl::StatusCode::kInvalidArgument, Name(other)));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor coinciding,
      Tensor::FromStorageStrided(whole.storage(), 0, {2, 3}, {0, 1}, dtype));
  EXPECT_THAT(reader.ReadInto("large", offsets, coinciding),
              StatusIs(absl::StatusCode::kInvalidArgument, "coincide"));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto mapped,
      Storage::MapFile(JoinPath(path_, "manifest.sherd"), 0, SizeOf(dtype)));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor read_only,
                             Tensor::FromStorage(mapped, 0, {1, 1}, dtype));
  EXPECT_THAT(reader.ReadInto("large", offsets, read_only),
              StatusIs(absl::StatusCode::kFailedPrecondition, "read-only"));
}

TEST_F(CheckpointTest, ASliceReadsOnlyTheChunksItNeeds) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(*ChunkShardingSpec::Create(0, {"rank:0/cpu"}),
                             {2048, 1024}));
    FillSample(tensor, 3);
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
  });
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  const CountPassages reads("file/read");
  // One row of 4 KiB.
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor row,
                             reader.ReadSlice("t", {1000, 0}, {1, 1024}));
  EXPECT_EQ(CountWrong(row, {1000, 0}, {2048, 1024}, 3), 0);
  // A chunk, and the CRCs of the file.
  EXPECT_EQ(reads.bytes(), (256u << 10) + CrcTableBytes(32));
}

TEST_F(CheckpointTest, SomeTensorsMayBeLoadedAlone) {
  Save(2, 0, 9);
  RunLocalRanks(2, [&](ProcessGroup&) {
    auto specs = MakeSpecs(1, 2);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensors loaded,
        LoadCheckpoint(path_, {{"weight", specs.at("weight")}}));
    EXPECT_EQ(loaded.size(), 1u);
    EXPECT_EQ(CountWrong(loaded.at("weight"), 9 + 3), 0);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors none, LoadCheckpoint(path_, {}));
    EXPECT_TRUE(none.empty());
  });
}

TEST_F(CheckpointTest, ACheckpointWithoutTensorsIsValid) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(SaveCheckpoint(path_, Tensors()), IsOk());
  });
  SHERD_ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                             VerifyCheckpoint(path_));
  EXPECT_EQ(report.tensors, 0);
}

TEST_F(CheckpointTest, LoadingWhatDoesNotFitIsRefusedByName) {
  Save(2, 0, 1);
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows = *ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
    EXPECT_THAT(LoadCheckpoint(path_, {{"absent", rows}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "\"absent\""));
    EXPECT_THAT(LoadCheckpoint(path_ + ".none", {{"weight", rows}}),
                StatusIs(absl::StatusCode::kNotFound, "is not a checkpoint"));
    EXPECT_THAT(LoadCheckpoint(path_, {{"scalar", rows}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "\"scalar\""));
    EXPECT_THAT(LoadCheckpoint(path_, {{"weight", nullptr}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "\"weight\""));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor wrong_size,
                               ShardedTensor::Zeros(rows, {65, 35}));
    EXPECT_THAT(
        LoadCheckpointInto(path_, {{"weight", &wrong_size}}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"weight\" as float32 [65, 34]"),
                       HasSubstr("the destination is float32 [65, 35]"))));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor wrong_dtype,
        ShardedTensor::Zeros(rows, {65, 34}, {.dtype = kInt32}));
    EXPECT_THAT(LoadCheckpointInto(path_, {{"weight", &wrong_dtype}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "int32"));
    ShardedTensor undefined;
    EXPECT_THAT(LoadCheckpointInto(path_, {{"weight", &undefined}}),
                StatusIs(absl::StatusCode::kFailedPrecondition, "weight"));
    EXPECT_THAT(LoadCheckpointInto(path_, {{"weight", nullptr}}),
                StatusIs(absl::StatusCode::kFailedPrecondition, "weight"));
    // The group is still of use.
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(CheckpointTest, DestinationsThatShareMemoryAreRefusedAndUntouched) {
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows = *ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor saved,
                               ShardedTensor::Full(rows, {6, 4}, 5));
    ASSERT_THAT(SaveCheckpoint(path_, {{"a", saved}, {"b", saved}}), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor both,
                               ShardedTensor::Zeros(rows, {6, 8}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor left, both.Narrow(1, 0, 4));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor right, both.Narrow(1, 4, 4));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor middle, both.Narrow(1, 3, 4));
    EXPECT_THAT(LoadCheckpointInto(path_, {{"a", &left}, {"b", &left}}),
                StatusIs(kInvalid,
                         "rank 0: the destinations of tensors \"a\" and \"b\" "
                         "share memory"));
    // On one rank only.
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor apart,
                               ShardedTensor::Zeros(rows, {6, 4}));
    const absl::Status status = LoadCheckpointInto(
        path_, {{"a", &middle}, {"b", group.rank() == 1 ? &right : &apart}});
    EXPECT_THAT(status, StatusIs(kInvalid));
    EXPECT_EQ(ErrorRank(status), 1);
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor row, Tensor::Zeros({1, 4}));
    std::vector<Shard> shards;
    for (int64_t i = 3 * group.rank(); i < 3 * group.rank() + 3; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          Shard shard, Shard::FromTensorAndOffsets(row, {i, 0}, group.rank()));
      shards.push_back(std::move(shard));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor repeated,
                               ShardedTensor::FromLocalShards(shards, {6, 4}));
    EXPECT_THAT(LoadCheckpointInto(path_, {{"a", &repeated}}),
                StatusIs(kInvalid, "tensor \"a\" lie in the same memory"));
    EXPECT_TRUE(both.local_tensor()->Equal(*Tensor::Zeros({3, 8})));
    EXPECT_TRUE(row.Equal(*Tensor::Zeros({1, 4})));
    // Two halves of one tensor share none.
    EXPECT_THAT(LoadCheckpointInto(path_, {{"a", &left}, {"b", &right}}),
                IsOk());
    EXPECT_TRUE(both.local_tensor()->Equal(*Tensor::Full({3, 8}, 5.0f)));
  });
}

TEST_F(CheckpointTest, RanksThatDisagreeGetTheSameErrorWithTheRank) {
  Save(2, 0, 1);
  for (const int odd : {0, 2}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      const auto rows = *ChunkShardingSpec::Create(0, PlacementsOnRanks(3));
      const auto columns = *ChunkShardingSpec::Create(1, PlacementsOnRanks(3));
      const bool is_odd = group.rank() == odd;
      const auto expect = [&](const absl::Status& status,
                              const std::string& operation,
                              const std::string& odd_value,
                              const std::string& other_value) {
        EXPECT_THAT(
            status,
            StatusIs(absl::StatusCode::kInvalidArgument,
                     AllOf(HasSubstr(absl::StrCat("rank ", odd, " passed ",
                                                  odd_value)),
                           HasSubstr(absl::StrCat(" passed ", other_value)))));
        EXPECT_THAT(std::string(status.message()),
                    StartsWith(absl::StrCat(operation, " \"", path_)));
        const ErrorInfo info = GetErrorInfo(status);
        EXPECT_EQ(info.failed_rank, odd);
        EXPECT_EQ(info.operation, absl::StrCat(operation, "_checkpoint"));
        EXPECT_EQ(info.group, group.name());
      };
      expect(
          LoadCheckpoint(path_, {{"weight", is_odd ? columns : rows}}).status(),
          "load", "tensor \"weight\" with a shard of [65, 12]",
          "tensor \"weight\" with a shard of [22, 34]");
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                                 ShardedTensor::Zeros(rows, {4, 4}));
      expect(SaveCheckpoint(path_, {{is_odd ? "a" : "b", tensor}}), "save",
             "tensor \"a\" of float32 [4, 4]",
             "tensor \"b\" of float32 [4, 4]");
      expect(SaveCheckpoint(is_odd ? path_ + "2" : path_, {{"a", tensor}}),
             "save", absl::StrCat("path ", path_, "2; rank"),
             absl::StrCat("path ", path_, ";"));
      expect(SaveCheckpoint(path_, {{"a", tensor}}, nullptr, {.sync = is_odd}),
             "save", "sync true", "sync false");
      const std::string bad_name = is_odd ? "\xff" : "a";
      const absl::Status refused = SaveCheckpoint(path_, {{bad_name, tensor}});
      EXPECT_THAT(refused,
                  StatusIs(absl::StatusCode::kInvalidArgument, "UTF-8"));
      EXPECT_EQ(ErrorRank(refused), odd);
      EXPECT_FALSE(IsRankFailure(refused)) << "it was an argument of its own";
    });
  }
  ExpectHolds(1);
}

TEST_F(CheckpointTest, ARankWithAFullDiskIsNamedAndHasNotFailed) {
  const int kRanks = 3;
  const FailFileOperation fault(
      "reserve", "*", absl::ResourceExhaustedError("No space left on device"),
      {.rank = 1});
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const absl::Status status =
        SaveCheckpoint(path_, MakeTensors(1, kRanks, 1));
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kResourceExhausted,
                         absl::StrCat("save \"", path_, "\": rank 1: ")));
    EXPECT_EQ(ErrorRank(status), 1);
    EXPECT_EQ(FailedRank(status), std::nullopt);
    EXPECT_THAT(group.Barrier(), IsOk()) << "the group stays usable";
  });
}

// Damage

void FlipBit(const std::string& path, int64_t offset, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  char byte = 0;
  file.read(&byte, 1);
  byte = static_cast<char>(byte ^ (1 << bit));
  file.seekp(offset);
  file.write(&byte, 1);
  ASSERT_TRUE(file.good()) << path << " " << offset;
}

TEST_F(CheckpointTest, AFlippedBitAnywhereIsFoundByNameOfFile) {
  Save(2, 1, 30);
  const auto rows = *ChunkShardingSpec::Create(0, {"rank:0/cpu"});
  for (const std::string& name : Files()) {
    const std::string path = JoinPath(path_, name);
    const int64_t size = static_cast<int64_t>(std::filesystem::file_size(path));
    // All of the manifest, and every 997th byte of the rest.
    const int64_t step = name == kManifestFileName ? 1 : 997;
    for (int64_t offset = 0; offset < size; offset += step) {
      SCOPED_TRACE(absl::StrCat(name, " ", offset));
      FlipBit(path, offset, static_cast<int>(offset % 8));
      EXPECT_THAT(VerifyCheckpoint(path_),
                  AnyOf(StatusIs(absl::StatusCode::kDataLoss, name),
                        // The bytes with the version.
                        StatusIs(absl::StatusCode::kUnimplemented, name)));
      FlipBit(path, offset, static_cast<int>(offset % 8));
    }
  }
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(CheckpointTest, LoadingDamagedDataNamesFileTensorAndOffset) {
  Save(2, 0, 30);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             reader.manifest().ReadAll());
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestTensor* large,
                             manifest.Find("large"));
  const SavedExtent extent = large->PlaceOf(1, kChunkBytes).extents[0];
  const ManifestFile& saved = manifest.files[extent.file];
  const std::string file = saved.name;
  const int64_t file_offset = saved.data_begin + extent.data_offset;
  // In the second chunk.
  FlipBit(JoinPath(path_, file), file_offset + (256 << 10) + 77, 3);
  const auto damaged =
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr(file), HasSubstr("\"large\""),
                     HasSubstr(absl::StrCat(file_offset + (256 << 10)))));
  EXPECT_THAT(VerifyCheckpoint(path_), damaged);
  EXPECT_THAT(reader.ReadTensor("large"), damaged);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (int kind = 0; kind < 5; ++kind) {
      RunLocalRanks(ranks, [&](ProcessGroup& group) {
        const Dims size = {300, 513};
        const auto spec = SampleSpec(kind, size, ranks);
        EXPECT_THAT(LoadCheckpoint(path_, {{"large", *spec}}), damaged);
        // By exchange.
        EXPECT_THAT(LoadCheckpoint(path_, {{"large", *spec}}, nullptr,
                                   {.min_read_bytes = 1 << 30}),
                    damaged);
        // Others are as good as ever.
        EXPECT_THAT(
            LoadCheckpoint(path_, {{"bias", *SampleSpec(0, {7}, ranks)}}),
            IsOk());
        EXPECT_THAT(group.Barrier(), IsOk());
      });
    }
  }
}

TEST_F(CheckpointTest, ShortenedLengthenedAndMissingFilesAreNamed) {
  Save(2, 0, 30);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestFile* second,
                             reader.manifest().FileAt(1));
  const std::string name = second->name;
  const std::string file = JoinPath(path_, name);
  const auto size = std::filesystem::file_size(file);
  const auto expect = [&](absl::StatusCode code, const std::string& what) {
    EXPECT_THAT(VerifyCheckpoint(path_), StatusIs(code, HasSubstr(what)));
    RunLocalRanks(2, [&](ProcessGroup&) {
      EXPECT_THAT(LoadCheckpoint(path_, MakeSpecs(1, 2)),
                  StatusIs(code, HasSubstr(what)));
    });
  };
  std::filesystem::resize_file(file, size - 1);
  expect(absl::StatusCode::kDataLoss, absl::StrCat(name, " has ", size - 1));
  std::filesystem::resize_file(file, size + 1);
  expect(absl::StatusCode::kDataLoss, absl::StrCat(name, " has ", size + 1));
  std::filesystem::resize_file(file, 0);
  expect(absl::StatusCode::kDataLoss, absl::StrCat(name, " has 0"));
  std::filesystem::remove(file);
  // Not kNotFound, at which a program would begin afresh and replace it.
  expect(absl::StatusCode::kDataLoss, absl::StrCat(name, " is missing"));
  EXPECT_THAT(reader.ReadTensor("large"),
              StatusIs(absl::StatusCode::kDataLoss, name));
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(true));
}

TEST_F(CheckpointTest, ExistenceIsThatOfTheManifest) {
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(false));
  ASSERT_THAT(files_.CreateDirectories(path_), IsOk());
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(false));
  Save(1, 0, 1);
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(true));
  const std::string manifest = JoinPath(path_, kManifestFileName);
  EXPECT_THAT(CheckpointExists(manifest), IsOkAndHolds(true));
  EXPECT_THAT(CheckpointExists(JoinPath(manifest, "below")),
              IsOkAndHolds(false));
  {
    const FailFileOperation fault("kind", manifest,
                                  absl::InternalError("injected fault"));
    EXPECT_THAT(CheckpointExists(path_),
                StatusIs(absl::StatusCode::kInternal, "injected fault"));
  }
  std::filesystem::resize_file(manifest, 3);
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(true));
}

// A program that begins afresh would remove what `sherd recover` needs.
TEST_F(CheckpointTest, ALostManifestIsNotTakenForNoCheckpoint) {
  Save(2, 0, 1);
  std::filesystem::remove(JoinPath(path_, kManifestFileName));
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(true));
  const auto lost = StatusIs(absl::StatusCode::kDataLoss,
                             AllOf(HasSubstr("manifest is missing"),
                                   HasSubstr("`sherd recover " + path_ + "`")));
  EXPECT_THAT(CheckpointReader::Open(path_), lost);
  EXPECT_THAT(VerifyCheckpoint(path_), lost);
  const std::set<std::string> before = Files();
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(LoadCheckpoint(path_, MakeSpecs(1, 2)), lost);
    // A save that fails leaves what is there, and nothing of its own.
    const FailFileOperation fault("rename", JoinPath(path_, kManifestFileName),
                                  absl::InternalError("injected fault"));
    EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 2, 5)),
                StatusIs(absl::StatusCode::kInternal, "injected fault"));
  });
  EXPECT_EQ(Files(), before);
  ASSERT_THAT(RecoverManifest(path_), IsOk());
  ExpectHolds(1);
  // One that succeeds replaces it, as one that is damaged.
  std::filesystem::remove(JoinPath(path_, kManifestFileName));
  Save(1, 0, 7);
  ExpectHolds(7);
  EXPECT_EQ(Files().size(), 2u) << ::testing::PrintToString(Files());
  // Without data nothing is lost.
  for (const std::string& name : Files()) {
    std::filesystem::remove(JoinPath(path_, name));
  }
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(false));
  EXPECT_THAT(CheckpointReader::Open(path_),
              StatusIs(absl::StatusCode::kNotFound));
  // Then data files of a save that ends early are not what is left of one.
  RunLocalRanks(1, [&](ProcessGroup&) {
    const FailFileOperation fault("rename", JoinPath(path_, kManifestFileName),
                                  absl::InternalError("injected fault"));
    EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 1, 5)),
                StatusIs(absl::StatusCode::kInternal, "injected fault"));
  });
  EXPECT_FALSE(std::filesystem::exists(JoinPath(path_, kCommittedFileName)));
}

TEST_F(CheckpointTest, ACheckpointThatCannotBeMarkedIsSavedAndMarkedLater) {
  const std::string mark = JoinPath(path_, kCommittedFileName);
  {
    const FailFileOperation fault("create", mark,
                                  absl::InternalError("injected fault"));
    Save(1, 0, 1);
  }
  EXPECT_FALSE(std::filesystem::exists(mark));
  ExpectHolds(1);
  Save(1, 0, 2);
  EXPECT_TRUE(std::filesystem::exists(mark));
  ExpectHolds(2);
}

// As to a disk that is not mounted.
TEST_F(CheckpointTest, ALinkThatLeadsNowhereIsNotTakenForAMissingManifest) {
  Save(2, 0, 1);
  const std::string manifest = JoinPath(path_, kManifestFileName);
  const std::string away = path_ + "_away";
  std::filesystem::remove(away);
  std::filesystem::rename(manifest, away + ".gone");
  std::filesystem::create_symlink(away, manifest);
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr(manifest), HasSubstr("remove the link")));
  EXPECT_THAT(CheckpointExists(path_), refused);
  EXPECT_THAT(CheckpointReader::Open(path_), refused);
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(LoadCheckpoint(path_, MakeSpecs(1, 2)), refused);
  });
  std::filesystem::rename(away + ".gone", away);
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(true));
  ExpectHolds(1);
}

// The first save of a job ends between the two looks.
TEST_F(CheckpointTest, AManifestThatAppearsMeanwhileIsFound) {
  Save(1, 0, 1);
  const std::string manifest = JoinPath(path_, kManifestFileName);
  const std::string aside = path_ + "_aside";
  const auto appear = [&] { std::filesystem::rename(aside, manifest); };
  std::filesystem::rename(manifest, aside);
  {
    const CallAt at("file/list", appear, {.subject = path_});
    EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(true));
  }
  std::filesystem::rename(manifest, aside);
  const CallAt at("file/list", appear, {.subject = path_});
  ExpectHolds(1);
}

// As where one host has not mounted the disk.
TEST_F(CheckpointTest, OneThatOnlySomeRanksFindIsNotTakenForMissing) {
  Save(3, 0, 1);
  const auto expect_refused = [&](int blind) {
    const absl::Status missing = absl::NotFoundError("No such file");
    const FailFileOperation no_file("open_for_read",
                                    JoinPath(path_, kManifestFileName), missing,
                                    {.times = 1000, .rank = blind});
    const FailFileOperation no_directory("list", path_, missing,
                                         {.times = 1000, .rank = blind});
    RunLocalRanks(3, [&](ProcessGroup&) {
      const auto loaded = LoadCheckpoint(path_, MakeSpecs(1, 3));
      EXPECT_THAT(loaded, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "another rank finds it"));
      EXPECT_EQ(ErrorRank(loaded.status()), blind);
    });
  };
  expect_refused(0);
  expect_refused(2);
  // Nor is one that the others find damaged.
  std::filesystem::resize_file(JoinPath(path_, kManifestFileName), 3);
  expect_refused(0);
}

TEST_F(CheckpointTest, ItIsNotMissingIfARankFailsBeforeItReports) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    std::optional<CallAt> at;
    if (group.rank() == 1) {
      // When the ranks look again.
      at.emplace(
          "file/open_for_read",
          [&] { group.Abort(absl::CancelledError("stopped")); },
          FaultOptions{.nth = 2, .rank = 1});
    }
    const auto loaded = LoadCheckpoint(path_, MakeSpecs(1, 2));
    ASSERT_FALSE(loaded.ok());
    EXPECT_FALSE(absl::IsNotFound(loaded.status())) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()),
                AllOf(StartsWith("load \""), HasSubstr("stopped")));
  });
}

TEST_F(CheckpointTest, APipeInPlaceOfAFileIsRefusedOnAllRanks) {
  Save(2, 0, 30);
  const std::set<std::string> before = Files();
  for (const std::string& name : before) {
    SCOPED_TRACE(name);
    const std::string file = JoinPath(path_, name);
    std::filesystem::rename(file, path_ + ".aside");
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    // A data file that cannot be one is lost.
    const auto refused = StatusIs(
        name == kManifestFileName ? absl::StatusCode::kInvalidArgument
                                  : absl::StatusCode::kDataLoss,
        AllOf(HasSubstr(name), HasSubstr("pipe"), HasSubstr("regular file")));
    EXPECT_THAT(VerifyCheckpoint(path_), refused);
    RunLocalRanks(2, [&](ProcessGroup& group) {
      EXPECT_THAT(LoadCheckpoint(path_, MakeSpecs(1, 2)), refused);
      if (name == kManifestFileName) {
        EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 2, 1)), refused);
      }
      EXPECT_THAT(group.Barrier(), IsOk());
    });
    std::filesystem::remove(file);
    std::filesystem::rename(path_ + ".aside", file);
  }
  const std::set<std::string> after = Files();
  EXPECT_TRUE(
      std::includes(after.begin(), after.end(), before.begin(), before.end()));
  ExpectHolds(30);
}

// A second checkpoint in another directory, which a test puts in the place of
// the first one.
class ReplacedCheckpointTest : public CheckpointTest {
 protected:
  ReplacedCheckpointTest() {
    std::filesystem::remove_all(other_);
    Save(2, 0, 1);
    std::swap(path_, other_);
    Save(2, 1, 2);
    std::swap(path_, other_);
  }

  // As a save does: first the data files, and those of the former one last.
  void Replace() {
    std::set<std::string> former = Files();
    for (const auto& entry : std::filesystem::directory_iterator(other_)) {
      if (entry.path().filename() != kManifestFileName) {
        std::filesystem::copy(
            entry.path(), path_,
            std::filesystem::copy_options::overwrite_existing);
      }
    }
    std::filesystem::rename(JoinPath(other_, kManifestFileName),
                            JoinPath(path_, kManifestFileName));
    former.erase(kManifestFileName);
    for (const std::string& name : former) {
      std::filesystem::remove(JoinPath(path_, name));
    }
  }

  std::string other_ = path_ + "_other";
};

TEST_F(ReplacedCheckpointTest, ALoadStartsOver) {
  const CallAt replace("file/open_for_read", [this] { Replace(); },
                       {.subject = "*/shard-*"});
  RunLocalRanks(2, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors loaded,
                               LoadCheckpoint(path_, MakeSpecs(0, 2)));
    ExpectSamples(loaded, 2);
  });
}

TEST_F(ReplacedCheckpointTest, AVerificationStartsOver) {
  const CallAt replace("file/open_for_read", [this] { Replace(); },
                       {.subject = "*/shard-*"});
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(ReplacedCheckpointTest, AnOpenReaderOfAReplacedOneIsDataLoss) {
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  Replace();
  EXPECT_THAT(reader.ReadTensor("large"),
              StatusIs(absl::StatusCode::kDataLoss, "open it again"));
}

// Failing file operations

TEST_F(CheckpointTest, WhicheverOperationFailsTheOldOrTheNewOneIsWhole) {
  const int kRanks = 3;
  Save(kRanks, 0, 1000);
  int old_seed = 1000;
  for (int rank = 0; rank < kRanks; ++rank) {
    bool hit = true;
    for (int64_t call = 1; hit; ++call) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", call ", call));
      const int new_seed = old_seed + 50;
      const FailFileOperation fault(
          "*", "*", absl::InternalError("injected fault"),
          {.nth = call, .rank = rank, .optional = true});
      int failed = 0;
      absl::StatusCode code = absl::StatusCode::kOk;
      absl::Mutex mutex;
      RunLocalRanks(kRanks, [&](ProcessGroup&) {
        const absl::Status status =
            SaveCheckpoint(path_, MakeTensors(1, kRanks, new_seed));
        absl::MutexLock lock(&mutex);
        if (!status.ok()) {
          ++failed;
          EXPECT_EQ(ErrorRank(status), rank) << status;
          EXPECT_FALSE(IsRankFailure(status)) << status;
          code = status.code();
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("injected fault"));
        }
      });
      hit = fault.happened();
      EXPECT_TRUE(failed == 0 || failed == kRanks) << failed;
      SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                                 CheckpointReader::Open(path_));
      const bool is_new = HoldsSamples(reader, new_seed);
      EXPECT_TRUE(is_new || HoldsSamples(reader, old_seed));
      // The code tells which of the two it is.
      EXPECT_EQ(code, is_new && failed == 0 ? absl::StatusCode::kOk
                      : is_new              ? absl::StatusCode::kUnknown
                                            : absl::StatusCode::kInternal);
      EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
      if (is_new) old_seed = new_seed;
    }
  }
  // A save that succeeds removes the remains of the failures.
  Save(kRanks, 0, 1);
  EXPECT_EQ(Files().size(), kRanks + 1u);
}

TEST_F(CheckpointTest, WhicheverOperationOfAFirstSaveFailsTheNextOneWorks) {
  const std::string nested = JoinPath(path_, "new/checkpoint");
  bool hit = true;
  for (int64_t call = 1; hit; ++call) {
    SCOPED_TRACE(absl::StrCat("call ", call));
    std::filesystem::remove_all(path_);
    RunLocalRanks(1, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(*ChunkShardingSpec::Create(0, {"rank:0/cpu"}),
                               {100}));
      FillSample(tensor, 3);
      absl::Status status;
      {
        const FailFileOperation fault(
            "*", "*", absl::InternalError("injected fault"),
            {.nth = call, .rank = 0, .optional = true});
        status = SaveCheckpoint(nested, {{"t", tensor}});
        hit = fault.happened();
      }
      EXPECT_TRUE(status.ok() || hit) << status;
      EXPECT_THAT(CheckpointExists(nested),
                  IsOkAndHolds(status.ok() || absl::IsUnknown(status)));
      ASSERT_THAT(SaveCheckpoint(nested, {{"t", tensor}}), IsOk());
      EXPECT_THAT(VerifyCheckpoint(nested), IsOk());
    });
  }
}

TEST_F(CheckpointTest, AManifestThatCannotBeReadNowKeepsItsDataFiles) {
  Save(2, 0, 1);
  const std::set<std::string> before = Files();
  const std::string manifest = JoinPath(path_, kManifestFileName);
  const auto fail_to_save = [&] {
    const FailFileOperation full(
        "reserve", "*", absl::ResourceExhaustedError("disk full"), {.rank = 1});
    RunLocalRanks(2, [&](ProcessGroup&) {
      EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(1, 2, 2)),
                  StatusIs(absl::StatusCode::kResourceExhausted));
    });
  };
  for (const char* operation : {"open_for_read", "size", "read", "kind"}) {
    SCOPED_TRACE(operation);
    {
      const FailFileOperation fault(operation, manifest,
                                    absl::InternalError("Stale file handle"),
                                    {.times = 1000, .optional = true});
      fail_to_save();
    }
    ExpectHolds(1);
  }
  // It may also be a link, to a disk that is away.
  const std::string away = path_ + "_away";
  std::filesystem::rename(manifest, away + ".gone");
  std::filesystem::create_symlink(away, manifest);
  fail_to_save();
  std::filesystem::rename(away + ".gone", away);
  ExpectHolds(1);
  std::filesystem::remove(manifest);
  std::filesystem::rename(away, manifest);
  // Remains of the failed ones are removed by the next that sees the manifest.
  fail_to_save();
  EXPECT_EQ(Files(), before);
}

// A directory may be listed without a file that another host has just renamed.
TEST_F(CheckpointTest, LeftoversStayIfItIsUnknownWhetherThereIsAManifest) {
  ASSERT_THAT(files_.CreateDirectories(path_), IsOk());
  const std::string leftover =
      "shard-00000-of-00004.0123456789abcdef.safetensors";
  std::ofstream(JoinPath(path_, leftover)) << "x";
  {
    const FailFileOperation unknown(
        "open_for_read", JoinPath(path_, kManifestFileName),
        absl::InternalError("Input/output error"), {.times = 2});
    const FailFileOperation full("create", "*.safetensors",
                                 absl::ResourceExhaustedError("disk full"));
    RunLocalRanks(1, [&](ProcessGroup&) {
      EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 1, 1)),
                  StatusIs(absl::StatusCode::kResourceExhausted));
    });
  }
  EXPECT_TRUE(Files().contains(leftover));
  Save(1, 0, 1);
  EXPECT_FALSE(Files().contains(leftover));
}

TEST_F(CheckpointTest, ASwitchThatMayNotLastIsReportedAndKeepsBothCheckpoints) {
  Save(2, 0, 1);
  const std::set<std::string> before = Files();
  {
    // The first is for the data file.
    const FailFileOperation fault("sync_directory", path_,
                                  absl::InternalError("Input/output error"),
                                  {.nth = 2, .rank = 0});
    RunLocalRanks(2, [&](ProcessGroup&) {
      EXPECT_THAT(
          SaveCheckpoint(path_, MakeTensors(1, 2, 2)),
          StatusIs(absl::StatusCode::kUnknown,
                   AllOf(HasSubstr("the new checkpoint has replaced the old"),
                         HasSubstr("loss of power"),
                         HasSubstr("Input/output error"))));
    });
  }
  ExpectHolds(2);
  const std::set<std::string> after = Files();
  EXPECT_TRUE(
      std::includes(after.begin(), after.end(), before.begin(), before.end()))
      << "files of the former one, which may come back";
  Save(2, 2, 3);
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(CheckpointTest, EachRankMakesDurableWhatItCreates) {
  const int kRanks = 3;
  const std::string nested = JoinPath(path_, "a/b");
  for (int rank = 0; rank < kRanks; ++rank) {
    std::filesystem::remove_all(path_);
    // Each rank its data file; rank 0 also the directories and the manifest.
    const CountPassages data(
        "file/sync", {.rank = rank, .subject = nested + "/*.safetensors"});
    const CountPassages manifest(
        "file/sync", {.rank = rank, .subject = nested + "/manifest.sherd*"});
    const CountPassages names("file/sync_directory",
                              {.rank = rank, .subject = nested});
    const CountPassages parents("file/sync_directory",
                                {.rank = rank, .subject = path_ + "*/.."});
    RunLocalRanks(kRanks, [&](ProcessGroup&) {
      EXPECT_THAT(SaveCheckpoint(nested, MakeTensors(1, kRanks, 1)), IsOk());
    });
    EXPECT_EQ(data.count(), 1);
    EXPECT_EQ(manifest.count(), rank == 0 ? 1 : 0);
    EXPECT_EQ(names.count(), rank == 0 ? 2 : 1);
    EXPECT_EQ(parents.count(), rank == 0 ? 3 : 0);
  }
}

TEST_F(CheckpointTest, AnErrorAtClosingIsAnErrorOfTheSave) {
  Save(2, 0, 1);
  for (const char* file : {"*/shard-00001*", "*/manifest.sherd*"}) {
    const FailFileOperation fault("close", file,
                                  absl::ResourceExhaustedError("quota"));
    RunLocalRanks(2, [&](ProcessGroup&) {
      EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(1, 2, 2)),
                  StatusIs(absl::StatusCode::kResourceExhausted, "quota"));
    });
    ExpectHolds(1);
  }
}

TEST_F(CheckpointTest, WhicheverOperationOfALoadFailsAllRanksNameTheRank) {
  const int kRanks = 3;
  Save(2, 0, 1);
  for (int rank = 0; rank < kRanks; ++rank) {
    bool hit = true;
    for (int64_t call = 1; hit; ++call) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", call ", call));
      const FailFileOperation fault(
          "*", "*", absl::InternalError("injected fault"),
          {.nth = call, .rank = rank, .optional = true});
      RunLocalRanks(kRanks, [&](ProcessGroup& group) {
        LoadOptions options;
        // Some tensors by exchange.
        options.min_read_bytes = 3000;
        const auto loaded =
            LoadCheckpoint(path_, MakeSpecs(1, kRanks), nullptr, options);
        // Wait until the rank that counts has passed its last operation.
        ASSERT_THAT(group.Barrier(), IsOk());
        if (fault.happened()) {
          EXPECT_THAT(loaded,
                      StatusIs(absl::StatusCode::kInternal, "injected fault"));
          EXPECT_EQ(ErrorRank(loaded.status()), rank);
          EXPECT_FALSE(IsRankFailure(loaded.status()));
          EXPECT_THAT(std::string(loaded.status().message()),
                      StartsWith("load \""));
        } else {
          ASSERT_THAT(loaded, IsOk());
          ExpectSamples(*loaded, 1);
        }
      });
      hit = fault.happened();
    }
  }
}

TEST_F(CheckpointTest, AFullDiskIsReportedWithBothNumbersBeforeWriting) {
  class FullDisk final : public FileSystem {
   public:
    absl::StatusOr<std::unique_ptr<File>> OpenForRead(
        const std::string& path) override {
      return Posix().OpenForRead(path);
    }
    absl::StatusOr<std::unique_ptr<File>> Create(
        const std::string& path) override {
      if (absl::StrContains(path, kLeaseFileName)) return Posix().Create(path);
      ADD_FAILURE() << "created a file";
      return absl::InternalError("created a file");
    }
    absl::Status CreateDirectories(const std::string& path) override {
      return Posix().CreateDirectories(path);
    }
    absl::Status Rename(const std::string&, const std::string&) override {
      return absl::InternalError("renamed a file");
    }
    absl::Status RenameNew(const std::string& from,
                           const std::string& to) override {
      return Posix().RenameNew(from, to);
    }
    absl::Status Remove(const std::string& path) override {
      EXPECT_TRUE(absl::StrContains(path, kLeaseFileName)) << path;
      return Posix().Remove(path);
    }
    absl::Status RemoveAll(const std::string&) override {
      return absl::InternalError("removed files");
    }
    absl::StatusOr<std::vector<std::string>> List(
        const std::string& path) override {
      return Posix().List(path);
    }
    absl::Status SyncDirectory(const std::string&) override {
      return absl::OkStatus();
    }
    absl::StatusOr<FileKind> KindOf(const std::string& path) override {
      return Posix().KindOf(path);
    }
    absl::StatusOr<int64_t> FreeBytes(const std::string&) override {
      return 1000;
    }
  };
  FullDisk disk;
  RunLocalRanks(2, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Zeros(
            *ChunkShardingSpec::Create(0, PlacementsOnRanks(2)), {1001},
            {.dtype = kUInt8}));
    EXPECT_THAT(
        SaveCheckpoint(path_, {{"t", tensor}}, nullptr, {.files = &disk}),
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("needs 1001 bytes"),
                       HasSubstr("only 1000 are free"))));
  });
}

// A tensor of 4 MiB per rank: 16 writes or reads.
absl::StatusOr<ShardedTensor> LargeTensor(int ranks, int seed) {
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr spec,
      ChunkShardingSpec::Create(0, PlacementsOnRanks(ranks)));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor tensor,
                         ShardedTensor::Zeros(spec, {ranks * 1024, 1024}));
  FillSample(tensor, seed);
  return tensor;
}

TEST_F(CheckpointTest, LargeFilesAreSyncedInBetween) {
  const CountPassages syncs("file/sync", {.subject = "*shard*"});
  RunLocalRanks(1, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor, LargeTensor(1, 1));
    EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}, nullptr,
                               {.max_unsynced_bytes = 1 << 20}),
                IsOk());
  });
  // The header is a write of its own.
  EXPECT_EQ(syncs.count(), 4 + 1);
}

// Rank 1 of two is slow, in all longer than the timeout.
class SlowDiskTest : public CheckpointTest {
 protected:
  static constexpr absl::Duration kTimeout = absl::Seconds(3);
  static constexpr absl::Duration kSlowCall = absl::Milliseconds(450);
  static constexpr int kSlowCalls = 8;

  void SaveLarge() {
    RunLocalRanks(2, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor, LargeTensor(2, 1));
      EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}, nullptr,
                                 {.timeout = kTimeout}),
                  IsOk());
    });
  }

  // Loads it cut along `dim`.
  void LoadLarge(int dim, int64_t min_read_bytes) {
    const SlowRankAt slow(
        "file/read", 1, kSlowCall,
        {.nth = 2, .times = kSlowCalls, .subject = "*shard*"});
    RunLocalRanks(2, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensors loaded,
          LoadCheckpoint(
              path_,
              {{"t", *ChunkShardingSpec::Create(dim, PlacementsOnRanks(2))}},
              nullptr,
              {.min_read_bytes = min_read_bytes, .timeout = kTimeout}));
      EXPECT_EQ(CountWrong(loaded.at("t"), 1), 0);
    });
  }
};

TEST_F(SlowDiskTest, RanksWaitForAWriterAsLongAsItMakesProgress) {
  const SlowRankAt slow("file/write", 1, kSlowCall,
                        {.nth = 2, .times = kSlowCalls, .subject = "*shard*"});
  SaveLarge();
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(SlowDiskTest, RanksWaitForAReaderAsLongAsItMakesProgress) {
  SaveLarge();
  LoadLarge(/*dim=*/0, /*min_read_bytes=*/1);
}

TEST_F(SlowDiskTest, RanksWaitForAnExchangeAsLongAsAllRead) {
  SaveLarge();
  LoadLarge(/*dim=*/1, /*min_read_bytes=*/1 << 30);
}

TEST_F(SlowDiskTest, RanksWaitForAManifestAsLongAsItIsRead) {
  // Names of 12 sections.
  std::map<std::string, ShardingSpecPtr> specs;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    Tensors tensors;
    for (int i = 10; i < 50; ++i) {
      const std::string name = absl::StrCat(i, std::string(20'000, 'n'));
      const ShardingSpecPtr spec =
          *ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                                 ShardedTensor::Zeros(spec, {2}));
      tensors.emplace(name, std::move(tensor));
      if (group.rank() == 0) specs.emplace(name, spec);
    }
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
  });
  const CountPassages reads("file/read", {.rank = 1, .subject = "*manifest*"});
  const SlowRankAt slow("file/read", 1, kSlowCall,
                        {.times = kSlowCalls, .subject = "*manifest*"});
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(LoadCheckpoint(path_, specs, nullptr, {.timeout = kTimeout}),
                IsOk());
  });
  EXPECT_GE(reads.count(), kSlowCalls);
}

TEST_F(SlowDiskTest, ARankThatMakesNoProgressIsNamed) {
  for (const bool saves : {true, false}) {
    SCOPED_TRACE(saves);
    SaveLarge();
    absl::Notification gave_up;
    const CallAt stuck(saves ? "file/write" : "file/read",
                       [&] { gave_up.WaitForNotification(); },
                       {.nth = 3, .rank = 1, .subject = "*shard*"});
    RunLocalRanks(2, [&](ProcessGroup& group) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor, LargeTensor(2, 1));
      ASSERT_THAT(group.Barrier(), IsOk());
      constexpr absl::Duration kShort = absl::Milliseconds(300);
      const absl::Status status =
          saves ? SaveCheckpoint(path_, {{"t", tensor}}, nullptr,
                                 {.timeout = kShort})
                : LoadCheckpointInto(path_, {{"t", &tensor}}, nullptr,
                                     {.timeout = kShort});
      EXPECT_FALSE(status.ok());
      if (group.rank() == 1) return;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
      EXPECT_EQ(FailedRank(status), 1) << status;
      EXPECT_THAT(std::string(status.message()),
                  StartsWith(saves ? "save \"" : "load \""));
      gave_up.Notify();
    });
  }
}

// Of ranks 0 and 1, and of 2 and 3, as two jobs.
class TwoJobsTest : public CheckpointTest {
 protected:
  // Job `first` begins, and while it writes, the other one tries to save.
  void SaveAtOnce(int first) {
    absl::Notification holds, refused;
    RunLocalRanks(4, [&](ProcessGroup& world) {
      const int job = world.rank() / 2;
      SHERD_ASSERT_OK_AND_ASSIGN(const auto group,
                                 world.Split(job, world.rank()));
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                 MakeTensor(group, job));
      const CallAt at("file/reserve",
                      [&] {
                        if (!holds.HasBeenNotified()) holds.Notify();
                        refused.WaitForNotification();
                      },
                      {.rank = 2 * first, .optional = true});
      ASSERT_THAT(world.Barrier(), IsOk());
      if (job == first) {
        EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}, group), IsOk());
        return;
      }
      holds.WaitForNotification();
      const absl::Status status = SaveCheckpoint(path_, {{"t", tensor}}, group);
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kAborted,
                           AllOf(HasSubstr("rank 0: "),
                                 HasSubstr("lease.sherd is held by process "),
                                 HasSubstr("wait until it is done"))));
      EXPECT_FALSE(IsRankFailure(status)) << status;
      EXPECT_THAT(group->Barrier(), IsOk()) << "the group stays usable";
      if (group->rank() == 0) refused.Notify();
    });
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    ExpectSavedBy(first);
    EXPECT_EQ(Files().size(), 3u);
  }

  absl::StatusOr<ShardedTensor> MakeTensor(
      const std::shared_ptr<ProcessGroup>& group, int job) {
    SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                           MeshShardingSpec::FromPlacements(
                               {{2}, PlacementsOn({2 * job, 2 * job + 1})},
                               {MeshPlacement::Shard(0)}));
    SHERD_ASSIGN_OR_RETURN(ShardedTensor tensor,
                           ShardedTensor::Zeros(spec, kSize, {.group = group}));
    FillSample(tensor, 10 + job);
    return tensor;
  }

  void ExpectSavedBy(int job) {
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path_));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader.ReadTensor("t"));
    EXPECT_EQ(CountWrong(tensor, {0, 0}, kSize, 10 + job), 0);
  }

  const Dims kSize = {100, 33};
};

TEST_F(TwoJobsTest, TheFirstOfTwoSavesGoesOnAndTheOtherIsRefused) {
  SaveAtOnce(0);
  SaveAtOnce(1);
  // The lease is released: each may save again.
  SaveAtOnce(1);
  SaveAtOnce(0);
}

// What another job does at `point` of a save once it has taken the lease over,
// at the beginning of its own save: see CheckpointLease.
void TakeOver(FileSystem& files, const std::string& path) {
  const std::string text = EncodeLease(SampleLease());
  EXPECT_THAT(
      WriteFileAtomically(
          files, JoinPath(path, kLeaseFileName),
          absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                         text.size())),
      IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names,
                             files.List(path));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "manifest.sherd.")) {
      EXPECT_THAT(files.Remove(JoinPath(path, name)), IsOk());
    }
  }
}

TEST_F(CheckpointTest, ASaveThatLostItsLeaseDoesNotSwitch) {
  struct Row {
    const char* point;
    const char* subject;
  };
  for (const Row& row : {
           Row{"file/reserve", "*"},
           Row{"file/create", "*manifest.sherd.*"},
           Row{"file/write", "*manifest.sherd.*"},
           // After the check.
           Row{"file/rename", "*manifest.sherd"},
       }) {
    SCOPED_TRACE(row.point);
    std::filesystem::remove_all(path_);
    Save(2, 0, 1);
    const std::set<std::string> before = Files();
    const CallAt at(row.point, [&] { TakeOver(files_, path_); },
                    {.rank = 0, .subject = row.subject});
    RunLocalRanks(2, [&](ProcessGroup& group) {
      EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(1, 2, 2)),
                  StatusIs(absl::StatusCode::kAborted,
                           AllOf(HasSubstr("this save has lost"),
                                 HasSubstr("node-7.cluster"))));
      EXPECT_THAT(group.Barrier(), IsOk());
    });
    ExpectHolds(1);
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    // The other's lease stays, and nothing of this save.
    std::set<std::string> after = Files();
    EXPECT_EQ(after.erase(kLeaseFileName), 1u);
    EXPECT_EQ(after, before);
  }
}

// It takes the lease over between the switch and the removal of the old files.
TEST_F(CheckpointTest, AfterItsSwitchASaveRemovesNothingOfTheNextOne) {
  Save(2, 0, 1);
  const std::string other = "shard-00000-of-00001.00112233445566ff.safetensors";
  const CallAt at("file/remove",
                  [&] {
                    TakeOver(files_, path_);
                    std::ofstream(JoinPath(path_, other)) << "x";
                  },
                  {.subject = "*shard*"});
  Save(2, 1, 2);
  ExpectHolds(2);
  EXPECT_TRUE(Files().contains(other));
  EXPECT_TRUE(Files().contains(kLeaseFileName)) << "it is the next one's";
  EXPECT_EQ(Files().size(), 5u);
}

TEST_F(CheckpointTest, AStagedManifestThatCannotBeRemovedIsAnError) {
  Save(1, 0, 1);
  std::ofstream(JoinPath(path_, "manifest.sherd.0123456789abcdef.tmp")) << "x";
  const FailFileOperation fault("remove", "*manifest.sherd.*",
                                absl::InternalError("injected fault"));
  RunLocalRanks(1, [&](ProcessGroup&) {
    EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 1, 2)),
                StatusIs(absl::StatusCode::kInternal, "injected fault"));
  });
  ExpectHolds(1);
}

TEST_F(CheckpointTest, ReadersIgnoreTheLease) {
  Save(2, 0, 1);
  std::ofstream(JoinPath(path_, kLeaseFileName)) << "damaged";
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
  ExpectHolds(1);
  RunLocalRanks(2, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors loaded,
                               LoadCheckpoint(path_, MakeSpecs(1, 2)));
    ExpectSamples(loaded, 1);
  });
  EXPECT_TRUE(Files().contains(kLeaseFileName));
}

// As on some network file systems.
TEST_F(CheckpointTest, WhereDirectoriesHaveNoSyncASaveWithoutItLeavesNoFiles) {
  const FailFileOperation no_sync(
      "sync_directory", path_,
      absl::UnimplementedError("syncing directory: Invalid argument"),
      {.times = 1000});
  const auto save = [&](int seed) {
    return SaveCheckpoint(path_, MakeTensors(0, 2, seed), nullptr,
                          {.sync = false});
  };
  for (const int seed : {1, 2}) {
    RunLocalRanks(2, [&](ProcessGroup&) { EXPECT_THAT(save(seed), IsOk()); });
    EXPECT_EQ(Files().size(), 3u);
    ExpectHolds(seed);
  }
  const std::set<std::string> before = Files();
  std::ofstream(
      JoinPath(path_, "shard-00000-of-00004.0123456789abcdef.safetensors"))
      << "x";
  {
    const FailFileOperation full(
        "reserve", "*", absl::ResourceExhaustedError("disk full"), {.rank = 1});
    RunLocalRanks(2, [&](ProcessGroup&) {
      EXPECT_THAT(save(3), StatusIs(absl::StatusCode::kResourceExhausted));
    });
  }
  EXPECT_EQ(Files(), before) << "the leftover is gone too";
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(0, 2, 3)),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("Invalid argument"),
                               HasSubstr("sync=false"))));
  });
  EXPECT_EQ(Files(), before);
}

// Another error may pass, and the directory be synced later.
TEST_F(CheckpointTest, OldFilesStayWhereTheSyncOfTheirDirectoryFails) {
  Save(2, 0, 1);
  {
    const FailFileOperation fault("sync_directory", path_,
                                  absl::InternalError("Input/output error"),
                                  {.times = 1000});
    RunLocalRanks(2, [&](ProcessGroup&) {
      EXPECT_THAT(
          SaveCheckpoint(path_, MakeTensors(0, 2, 2), nullptr, {.sync = false}),
          IsOk());
    });
  }
  ExpectHolds(2);
  EXPECT_EQ(Files().size(), 5u);
}

TEST_F(CheckpointTest, SavingWithoutSyncMakesNoSyncs) {
  const CountPassages syncs("file/sync");
  const CountPassages parents("file/sync_directory", {.subject = "*/.."});
  RunLocalRanks(1, [&](ProcessGroup&) {
    EXPECT_THAT(
        SaveCheckpoint(path_, MakeTensors(0, 1, 5), nullptr, {.sync = false}),
        IsOk());
  });
  EXPECT_EQ(syncs.count(), 0);
  EXPECT_EQ(parents.count(), 0);
  ExpectHolds(5);
}

}  // namespace
}  // namespace sherd
