// Saves that write only what has changed: what they write, and that whatever
// was saved is loaded, checked and recovered as if it had been written as a
// whole.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/incremental_fixture.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CaseCount;
using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::RandomSeed;
using sherd::testing::RandomSpec;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::SizeIs;

class IncrementalSaveTest : public IncrementalFixture {};

TEST_F(IncrementalSaveTest, OnlyChangedChunksAreWritten) {
  SaveChunks(9);
  Change(3);
  Change(4);
  Change(8);
  SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SaveState());
  EXPECT_GE(bytes, 3 * kChunkBytes);
  EXPECT_LE(bytes, 3 * kChunkBytes + kOverhead);
  ExpectHolds(path_, state_);
  EXPECT_THAT(DataFiles(), SizeIs(2));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(CheckpointFiles(), path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest, reader.ReadAll());
  // 0 to 2, 3 and 4, 5 to 7, 8.
  EXPECT_THAT(manifest.tensors[0].PlaceOf(0, kChunkBytes).extents, SizeIs(4));
  // From within one extent to within another.
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader slices,
                             CheckpointReader::Open(path_));
  const int64_t begin = 3 * kChunkBytes - 100, length = 4 * kChunkBytes;
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                             slices.ReadSlice("vector", {begin}, {length}));
  EXPECT_EQ(
      std::memcmp(slice.data(), &state_.tensors["vector"].bytes[begin], length),
      0);
}

TEST_F(IncrementalSaveTest, UnchangedTensorsAreNotWritten) {
  SaveChunks(4);
  for (int i = 0; i < 3; ++i) {
    SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SaveState());
    EXPECT_LE(bytes, kOverhead);
    ExpectHolds(path_, state_);
    // The first and the last.
    EXPECT_THAT(DataFiles(), SizeIs(2));
  }
}

TEST_F(IncrementalSaveTest, ExtentsNameTheFilesThatHaveTheBytes) {
  SaveChunks(16);
  for (int64_t i = 0; i < 6; ++i) {
    Change(2 * i);
    SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SaveState());
    EXPECT_LE(bytes, kChunkBytes + kOverhead);
    ExpectHolds(path_, state_);
    // Each save has a chunk that none has written again.
    EXPECT_THAT(DataFiles(), SizeIs(2 + i));
  }
}

TEST_F(IncrementalSaveTest, AChangeBackIsAChange) {
  SaveChunks(4);
  Change(1);
  ASSERT_THAT(SaveState(), IsOk());
  Change(1);
  SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SaveState());
  EXPECT_GE(bytes, kChunkBytes);
  ExpectHolds(path_, state_);
}

TEST_F(IncrementalSaveTest, ABaseThatDoesNotFitIsNotUsed) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  SaveChunks(4);
  const int64_t whole = 4 * kChunkBytes;
  const auto expect_whole = [&](const char* why) {
    SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SaveState());
    EXPECT_GE(bytes, whole) << why;
    ExpectHolds(path_, state_);
  };
  {
    // One that was removed, or cut off, is written again.
    RemovePlaced(JoinPath(path_, DataFiles()[0]));
    expect_whole("missing");
    std::filesystem::resize_file(JoinPath(path_, DataFiles()[0]), 100);
    expect_whole("cut off");
  }
  // Durable files do not refer to others.
  SHERD_ASSERT_OK_AND_ASSIGN(int64_t bytes, SaveState(/*sync=*/true));
  EXPECT_GE(bytes, whole) << "not durable";
  SHERD_ASSERT_OK_AND_ASSIGN(bytes, SaveState(/*sync=*/true));
  EXPECT_LE(bytes, kOverhead);
  SHERD_ASSERT_OK_AND_ASSIGN(bytes, SaveState(/*sync=*/false));
  EXPECT_LE(bytes, kOverhead);
  std::mt19937_64 random(3);
  state_.Add("another", kFloat32, {5}, random);
  expect_whole("another name");
  state_.tensors["vector"].dtype = kInt8;
  expect_whole("another dtype");
  state_.tensors["vector"].size = {4, kChunkBytes};
  expect_whole("other sizes");
  base_->Clear();
  expect_whole("cleared");
}

TEST_F(IncrementalSaveTest, AnotherDirectoryGetsAll) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  SaveChunks(4);
  const std::string other = path_ + "_other";
  std::filesystem::remove_all(other);
  // As if it had been copied there.
  std::filesystem::copy(path_, other, std::filesystem::copy_options::recursive);
  RunLocalRanks(1, [&](ProcessGroup&) {
    auto tensor = *ShardedTensor::Zeros(*SampleSpec(0, {4 * kChunkBytes}, 1),
                                        {4 * kChunkBytes}, {.dtype = kUInt8});
    Fill(state_.tensors["vector"], tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes,
                               Save(other, {{"vector", tensor}}, base_));
    EXPECT_GE(bytes, 4 * kChunkBytes);
  });
  ExpectHolds(other, state_);
  std::filesystem::remove_all(other);
}

TEST_F(IncrementalSaveTest, ASaveThatFailsLeavesTheBase) {
  SaveChunks(4);
  const SavedChunks* const before = base_->last();
  const std::vector<std::string> files = DataFiles();
  Change(0);
  {
    // Its last step.
    const FailFileOperation fault("rename",
                                  "*/" + std::string(kManifestFileName),
                                  absl::InternalError("injected"));
    EXPECT_THAT(SaveState(), StatusIs(absl::StatusCode::kInternal, "injected"));
  }
  EXPECT_EQ(base_->last(), before);
  EXPECT_EQ(DataFiles(), files);
  SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SaveState());
  EXPECT_GE(bytes, kChunkBytes);
  EXPECT_LE(bytes, kChunkBytes + kOverhead);
  ExpectHolds(path_, state_);
}

TEST_F(IncrementalSaveTest, StridedBoxesAddUpToTheFingerprint) {
  // Columns: each rank's box is not contiguous in the tensor, so that what a
  // chunk adds to the fingerprint is more than its CRC.
  constexpr int kRanks = 3;
  const Dims size = {1200, 900};
  std::mt19937_64 random(11);
  state_.Add("matrix", kFloat32, size, random);
  const Bases bases = EmptyBases(kRanks);
  for (int step = 0; step < 3; ++step) {
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      auto tensor = *ShardedTensor::Zeros(*SampleSpec(1, size, kRanks), size);
      Fill(state_.tensors["matrix"], tensor);
      ASSERT_THAT(Save(path_, {{"matrix", tensor}}, bases[group.rank()]),
                  IsOk());
    });
    ExpectHolds(path_, state_);
    state_.tensors["matrix"].bytes[(step * 400 + 3) * 900 * 4] ^= 1;
  }
}

TEST_F(IncrementalSaveTest, ShortPiecesOfExtentsAreReadTogether) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "reads of the index count too";
  // Eight chunks of 64 rows.
  const Dims size = {512, 1024};
  std::mt19937_64 random(13);
  state_.Add("matrix", kFloat32, size, random);
  EXPECT_THAT(SaveState(), IsOk());
  state_.tensors["matrix"].bytes[3 * kChunkBytes + 5] ^= 1;
  EXPECT_THAT(SaveState(), IsOk());
  // A row has half a page for each rank.
  const CountPassages reads("file/read", {.subject = "*.safetensors"});
  RunLocalRanks(2, [&](ProcessGroup&) {
    auto columns = *ShardedTensor::Zeros(*SampleSpec(1, size, 2), size);
    ASSERT_THAT(LoadCheckpointInto(path_, {{"matrix", &columns}}), IsOk());
    EXPECT_EQ(CountDifferent(state_.tensors["matrix"], columns), 0);
  });
  // On each rank a chunk at a time, and the CRCs of both files.
  EXPECT_LE(reads.count(), 2 * (8 + 2 + 8));
}

// Layouts, sizes, changes and the ranks' bases at random: after each of ten
// steps, and again after all of them, each step's checkpoint has the bits of
// its time, also in other layouts.
TEST_F(IncrementalSaveTest, EachStepHasTheBitsOfItsTime) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  std::mt19937_64 random(RandomSeed());
  const int64_t cases = CaseCount(2);
  for (int64_t i = 0; i < cases; ++i) {
    const int ranks = 1 + static_cast<int>(random() % 3);
    SCOPED_TRACE(absl::StrCat("case ", i, ", ranks ", ranks));
    RemoveAllPlaced(path_);
    const Bases bases = EmptyBases(ranks);
    State state;
    state.Add("empty", kInt16, {4, 0}, random);
    state.Add("large", kFloat32,
              {100 + static_cast<int64_t>(random() % 200),
               1000 + static_cast<int64_t>(random() % 1000)},
              random);
    state.Add("long", kUInt8,
              {static_cast<int64_t>(random() % (9 * kChunkBytes))}, random);
    state.Add("scalar", kComplex128, {}, random);
    state.Add("small", kBFloat16, {7, 3}, random);
    uint64_t layout = random();
    std::vector<std::pair<std::string, State>> steps;
    for (int step = 0; step < 10; ++step) {
      for (auto& [name, whole] : state.tensors) {
        for (int64_t n = random() % 8; n > 0 && !whole.bytes.empty(); --n) {
          whole.bytes[random() % whole.bytes.size()] ^= 1;
        }
      }
      // Sometimes all ranks get other shards, or one has lost its base.
      if (random() % 8 == 0) layout = random();
      if (random() % 8 == 0) bases[random() % ranks]->Clear();
      RunLocalRanks(ranks, [&](ProcessGroup& group) {
        std::mt19937_64 same(layout);
        Tensors tensors;
        for (const auto& [name, whole] : state.tensors) {
          ShardedTensor tensor =
              *ShardedTensor::Zeros(RandomSpec(whole.size, ranks, same),
                                    whole.size, {.dtype = whole.dtype});
          Fill(whole, tensor);
          tensors.emplace(name, std::move(tensor));
        }
        ASSERT_THAT(Save(path_, tensors, bases[group.rank()]), IsOk());
      });
      ExpectHolds(path_, state);
      // The links keep the files.
      const std::string kept = absl::StrCat(path_, "_step_", step);
      std::filesystem::remove_all(kept);
      std::filesystem::copy(
          path_, kept,
          std::filesystem::copy_options::recursive |
              std::filesystem::copy_options::create_hard_links);
      steps.emplace_back(kept, state);
      if (HasFailure()) return;
    }
    // clang 14 captures no names of a structured binding.
    for (const auto& step : steps) {
      const std::string& path = step.first;
      const auto& then = step.second;
      ExpectHolds(path, then);
      const uint64_t other = random();
      RunLocalRanks(
          1 + static_cast<int>(random() % 3), [&](ProcessGroup& group) {
            std::mt19937_64 same(other);
            std::map<std::string, ShardingSpecPtr> specs;
            for (const auto& [name, whole] : then.tensors) {
              specs[name] = RandomSpec(whole.size, group.size(), same);
            }
            SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded,
                                       LoadCheckpoint(path, specs));
            for (const auto& [name, whole] : then.tensors) {
              EXPECT_EQ(CountDifferent(whole, loaded.at(name)), 0) << name;
            }
          });
      std::filesystem::remove_all(path);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd
