#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/kits/write_checkpoint.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// What a load refuses before it takes memory or moves data.
class LoadLimitsTest : public ::testing::Test {
 protected:
  LoadLimitsTest() {
    path_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat(
            "load_limits_",
            ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
  }

  // "t", int32 [6, 4], by rows on two ranks.
  void Write() {
    const std::vector<Box> boxes = {{{0, 0}, {3, 4}}, {{3, 0}, {3, 4}}};
    const SavedLayout layout = SavedLayout::FromBoxes({6, 4}, boxes);
    ASSERT_THAT(
        WriteCheckpoint(
            path_,
            {{.name = "t", .dtype = kInt32, .layout = layout, .seed = 1}}, {}),
        IsOk());
  }

  void ChangeManifest(absl::FunctionRef<void(Manifest&)> change) {
    SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest,
                               ReadManifest(FileSystem::Posix(), path_));
    change(manifest);
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                               EncodeManifest(manifest));
    ASSERT_THAT(
        WriteFileAtomically(
            FileSystem::Posix(), JoinPath(path_, kManifestFileName),
            absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                           bytes.size())),
        IsOk());
  }

  ManifestFile FileOf(int32_t index) {
    return ReadManifest(FileSystem::Posix(), path_)->files[index];
  }

  // Loads "t" of these sizes into memory that has other contents; it has them
  // still if the load fails.
  void ExpectFails(const Dims& sizes, const std::string& part) {
    RunLocalRanks(2, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(
              *ChunkShardingSpec::Create(0, PlacementsOnRanks(2)), sizes,
              {.dtype = kInt32}));
      FillSample(tensor, 70);
      EXPECT_THAT(LoadCheckpointInto(path_, {{"t", &tensor}}),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(part)));
      EXPECT_EQ(CountWrong(tensor, 70), 0) << "unchanged";
    });
  }

  std::string path_;
};

TEST_F(LoadLimitsTest, AShardOutsideItsFileIsFoundBeforeDataMoves) {
  Write();
  // The last shard, so that data of the other could be read first.
  ChangeManifest([](Manifest& manifest) {
    SavedRuns runs;
    for (int64_t i = 0; i < 2; ++i) {
      SavedShardPlace place =
          manifest.tensors[0].PlaceOf(i, manifest.chunk_bytes);
      if (i == 1) place.extents[0].data_offset = 4;
      AppendPlace(std::move(place), manifest.chunk_bytes, runs);
    }
    manifest.tensors[0].runs = std::move(runs);
  });
  ExpectFails({6, 4}, "manifest.sherd");
}

TEST_F(LoadLimitsTest, ATensorLargerThanItsFilesTakesNoMemory) {
  Write();
  const int64_t rows = int64_t{1} << 36;
  ChangeManifest([&](Manifest& manifest) {
    ManifestTensor& tensor = manifest.tensors[0];
    tensor.layout = SavedLayout::Whole({rows, 4});
    SavedRun run = {.extents = {tensor.runs[0].extents[0]}};
    run.extents[0].bytes = rows * 4 * 4;
    tensor.runs = {run};
  });
  RunLocalRanks(2, [&](ProcessGroup&) {
    EXPECT_THAT(
        LoadCheckpoint(
            path_, {{"t", *ChunkShardingSpec::Create(0, PlacementsOnRanks(2))}})
            .status(),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("\"t\" has 1099511627776 bytes"),
                       HasSubstr("48 bytes of data"))));
  });
}

TEST_F(LoadLimitsTest, ADirectoryInPlaceOfADataFileIsALoss) {
  Write();
  const std::string name = JoinPath(path_, FileOf(1).name);
  std::filesystem::remove(name);
  std::filesystem::create_directory(name);
  ExpectFails({6, 4}, "expected a data file");
}

TEST_F(LoadLimitsTest, StagingMemoryIsKeptForTheNextLoadAndGivenBack) {
  constexpr int64_t kBudget = int64_t{16} << 20;
  const LoadOptions options = {.min_read_bytes = int64_t{1} << 20,
                               .memory_budget = kBudget};
  const HeapStatistics before = GetHeapStatistics();
  HeapStatistics first;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto make = [&](int dim) {
      auto tensor = ShardedTensor::Zeros(
          *ChunkShardingSpec::Create(dim, PlacementsOnRanks(2)), {1400, 1500},
          {.dtype = kInt32});
      EXPECT_THAT(tensor, IsOk());
      return *std::move(tensor);
    };
    ShardedTensor rows = make(0);
    FillSample(rows, 5);
    ASSERT_THAT(SaveCheckpoint(path_, {{"t", rows}}), IsOk());
    ShardedTensor columns = make(1);
    for (int load = 0; load < 3; ++load) {
      FillSample(columns, 70 + load);
      CheckpointStats stats;
      LoadOptions with_stats = options;
      with_stats.stats = &stats;
      ASSERT_THAT(
          LoadCheckpointInto(path_, {{"t", &columns}}, nullptr, with_stats),
          IsOk());
      EXPECT_EQ(CountWrong(columns, 5), 0);
      EXPECT_GT(stats.exchanges, 0);
      ASSERT_THAT(group.Barrier(), IsOk());
      if (load == 0 && group.rank() == 0) first = GetHeapStatistics();
      ASSERT_THAT(group.Barrier(), IsOk());
    }
  });
  const HeapStatistics after = GetHeapStatistics();
  EXPECT_GT(first.fresh_blocks + first.reused_blocks,
            before.fresh_blocks + before.reused_blocks);
  EXPECT_EQ(after.fresh_blocks, first.fresh_blocks);
  EXPECT_GT(after.reused_blocks, first.reused_blocks);
  EXPECT_LE(after.cached_bytes, after.capacity_bytes);
  SetHeapPoolCapacity(0);
  EXPECT_EQ(GetHeapStatistics().cached_bytes, size_t{0});
  SetHeapPoolCapacity(after.capacity_bytes);
}

TEST_F(LoadLimitsTest, RanksThatLeaveOutDifferentNamesGetAnError) {
  Write();
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const std::string name = absl::StrCat("absent", group.rank());
    EXPECT_THAT(
        LoadCheckpoint(
            path_,
            {{name, *ChunkShardingSpec::Create(0, PlacementsOnRanks(2))}},
            nullptr, {.strict = false})
            .status(),
        StatusIs(absl::StatusCode::kInvalidArgument, "\"absent"));
  });
}

}  // namespace
}  // namespace sherd
