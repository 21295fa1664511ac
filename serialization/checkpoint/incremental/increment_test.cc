// Which chunks an increment writes; and what rank 0 makes of the lists.

#include "sherd/serialization/checkpoint/incremental/increment.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/incremental/extent_list.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"
#include "sherd/serialization/safetensors/safetensors_header.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::SizeIs;

absl::Status NoProgress() { return absl::OkStatus(); }

// Vectors of bytes on one rank, and their saves one after another, without
// files.
class Vectors {
 public:
  explicit Vectors(const std::vector<int64_t>& lengths) {
    const auto owners = std::make_shared<const std::vector<OwnerRun>>(
        std::vector<OwnerRun>{{}});
    SaveLayout layout;
    layout.placements = {"rank:0/cpu"};
    for (const int64_t bytes : lengths) {
      tensors_.push_back(*Tensor::Zeros({bytes}, {.dtype = kUInt8}));
      layout.tensors.push_back({.name = absl::StrCat("v", tensors_.size()),
                                .dtype = kUInt8,
                                .layout = SavedLayout::Whole({bytes}),
                                .owners = owners});
    }
    plan_ = std::make_shared<const SavePlan>(PlanOwnFile(layout, 0));
  }

  void Change(int64_t chunk, size_t vector = 0) {
    ++tensors_[vector].mutable_data_as<uint8_t>()[chunk * kChunkBytes];
  }

  // Returns what is written: the first chunk of each part and how many.
  std::vector<std::pair<int64_t, int64_t>> Save() {
    auto increment = Increment::Make(
        plan_, base_.last(),
        [&](const PlannedShard& shard) {
          return tensors_[static_cast<size_t>(shard.tensor)];
        },
        /*ahead=*/true, NoProgress);
    EXPECT_THAT(increment, IsOk());
    std::vector<std::pair<int64_t, int64_t>> written;
    for (const FilePart& part : increment->file().parts) {
      written.emplace_back(part.range.begin / kChunkBytes, part.chunks);
    }
    std::sort(written.begin(), written.end());
    is_planned_ = increment->EncodedExtents().empty();
    const ManifestFile file = {.name = absl::StrCat("file", ++saves_),
                               .size = 4096 + increment->file().data_bytes +
                                       CrcTableBytes(increment->file().chunks),
                               .data_begin = 4096,
                               .chunks = increment->file().chunks};
    const std::vector<uint32_t> fingerprints(increment->file().chunks);
    base_.Set(std::move(*increment).Finish("path", true, file, fingerprints));
    return written;
  }

  bool is_planned() const { return is_planned_; }
  const std::vector<ManifestFile>& files() const { return base_.last()->files; }

 private:
  std::vector<Tensor> tensors_;
  std::shared_ptr<const SavePlan> plan_;
  SaveBase base_;
  int saves_ = 0;
  bool is_planned_ = false;
};

using Written = std::vector<std::pair<int64_t, int64_t>>;

int64_t ChunksOf(const Written& written) {
  int64_t chunks = 0;
  for (const auto& [first, count] : written) chunks += count;
  return chunks;
}

// One of so many chunks and a few bytes.
Vectors OneVector(int64_t chunks) {
  return Vectors({chunks * kChunkBytes + 10});
}

TEST(IncrementTest, RunsOfChangedChunksAreWritten) {
  Vectors vector = OneVector(6);
  EXPECT_EQ(vector.Save(), (Written{{0, 7}}));
  EXPECT_TRUE(vector.is_planned());
  EXPECT_EQ(vector.Save(), Written{});
  EXPECT_FALSE(vector.is_planned());
  vector.Change(0);
  vector.Change(2);
  vector.Change(3);
  vector.Change(6);
  EXPECT_EQ(vector.Save(), (Written{{0, 1}, {2, 2}, {6, 1}}));
  for (int64_t i = 0; i < 7; ++i) vector.Change(i);
  EXPECT_EQ(vector.Save(), (Written{{0, 7}}));
  EXPECT_TRUE(vector.is_planned());
  EXPECT_THAT(vector.files(), SizeIs(1));
}

TEST(IncrementTest, AFileWithLittleDataInUseIsRewritten) {
  Vectors vector = OneVector(99);
  vector.Save();
  // More than a quarter of the first file is left: 26 and 25 chunks, and the
  // bytes at the end. Then less.
  for (int64_t i = 0; i < 73; ++i) vector.Change(i);
  EXPECT_EQ(vector.Save(), (Written{{0, 73}}));
  EXPECT_THAT(vector.files(), SizeIs(2));
  vector.Change(73);
  EXPECT_EQ(vector.Save(), (Written{{73, 1}}));
  EXPECT_THAT(vector.files(), SizeIs(3));
  vector.Change(74);
  EXPECT_EQ(vector.Save(), (Written{{74, 26}}));
  EXPECT_THAT(vector.files(), SizeIs(3));
}

TEST(IncrementTest, AShardOfVeryManyExtentsIsWrittenWhole) {
  Vectors vector = OneVector(160);
  vector.Save();
  // Each change makes two extents more, the first one: 80 of 161 chunks.
  for (int64_t i = 0; i < 40; ++i) vector.Change(4 * i);
  EXPECT_THAT(vector.Save(), SizeIs(40));
  vector.Change(2);
  EXPECT_EQ(vector.Save(), (Written{{0, 161}}));
  EXPECT_TRUE(vector.is_planned());
}

TEST(IncrementTest, AShardThatIsWrittenWholeMayLeaveLittleOfAFile) {
  Vectors vectors({160 * kChunkBytes, 10 * kChunkBytes});
  EXPECT_EQ(ChunksOf(vectors.Save()), 170);
  for (int64_t i = 0; i < 40; ++i) vectors.Change(4 * i);
  EXPECT_EQ(ChunksOf(vectors.Save()), 40);
  // Of the first file the other vector is left, 10 of 170 chunks.
  vectors.Change(2);
  EXPECT_EQ(ChunksOf(vectors.Save()), 170);
  EXPECT_THAT(vectors.files(), SizeIs(1));
}

// Each save leaves a file of which all is of use, for ever.
TEST(IncrementTest, ARankRefersToABoundedNumberOfFiles) {
  constexpr size_t kVectors = 400;
  Vectors vectors(std::vector<int64_t>(kVectors, 16));
  vectors.Save();
  // As long as a quarter of the first file is of use.
  for (size_t i = 0; i < kVectors * 3 / 4; ++i) {
    vectors.Change(0, i);
    const Written written = vectors.Save();
    if (i < kMaxEarlierFiles) {
      EXPECT_EQ(ChunksOf(written), 1) << i;
      EXPECT_THAT(vectors.files(), SizeIs(i + 2));
      continue;
    }
    // And what one of the smallest had.
    EXPECT_GE(ChunksOf(written), 2) << i;
    EXPECT_LE(ChunksOf(written), 4) << i;
    EXPECT_THAT(vectors.files(), SizeIs(1 + kMaxEarlierFiles));
  }
}

TEST(IncrementTest, AShardOfFewExtentsIsNot) {
  Vectors vector = OneVector(60);
  vector.Save();
  for (int64_t i = 0; i < 30; ++i) vector.Change(2 * i);
  EXPECT_THAT(vector.Save(), SizeIs(30));
}

TEST(IncrementTest, PartsBeginAtMultiplesOfTheirAlignment) {
  SaveLayout layout;
  layout.placements = {"rank:0/cpu"};
  const auto owners =
      std::make_shared<const std::vector<OwnerRun>>(std::vector<OwnerRun>{{}});
  std::vector<Tensor> tensors;
  // The last chunks have 6 and 64 bytes.
  for (const int64_t bytes : {3 * kChunkBytes + 6, 2 * kChunkBytes + 64}) {
    tensors.push_back(*Tensor::Zeros({bytes}, {.dtype = kUInt8}));
    layout.tensors.push_back({.name = absl::StrCat("t", layout.tensors.size()),
                              .dtype = kUInt8,
                              .layout = SavedLayout::Whole({bytes}),
                              .owners = owners});
  }
  const auto plan = std::make_shared<const SavePlan>(PlanOwnFile(layout, 0));
  const auto elements = [&](const PlannedShard& shard) {
    return tensors[static_cast<size_t>(shard.tensor)];
  };
  auto first =
      Increment::Make(plan, nullptr, elements, /*ahead=*/true, NoProgress);
  ASSERT_THAT(first, IsOk());
  const std::vector<uint32_t> fingerprints(first->file().chunks);
  const SavedChunks base = std::move(*first).Finish(
      "path", true, {.name = "x", .size = 8192, .chunks = plan->chunks},
      fingerprints);
  for (Tensor& tensor : tensors) {
    auto* data = tensor.mutable_data_as<uint8_t>();
    data[0] = data[tensor.numel() - 1] = 1;
  }
  const auto increment =
      Increment::Make(plan, &base, elements, /*ahead=*/true, NoProgress);
  ASSERT_THAT(increment, IsOk());
  std::vector<int64_t> sizes;
  for (const FilePart& part : increment->file().parts) {
    EXPECT_EQ(part.data_offset % AlignmentClass(part.range.size()), 0);
    sizes.push_back(part.range.size());
  }
  EXPECT_THAT(sizes, ElementsAre(kChunkBytes, kChunkBytes, 64, 6));
}

TEST(IncrementTest, AnErrorOfTheElementsIsPassedOn) {
  SaveLayout layout;
  layout.placements = {"rank:0/cpu"};
  layout.tensors = {{.name = "x",
                     .layout = SavedLayout::Whole({3}),
                     .owners = std::make_shared<const std::vector<OwnerRun>>(
                         std::vector<OwnerRun>{{}})}};
  const auto plan = std::make_shared<const SavePlan>(PlanOwnFile(layout, 0));
  EXPECT_THAT(Increment::Make(
                  plan, nullptr,
                  [](const PlannedShard&) -> absl::StatusOr<Tensor> {
                    return absl::InternalError("no elements");
                  },
                  /*ahead=*/true, NoProgress),
              StatusIs(absl::StatusCode::kInternal, "no elements"));
}

// A tensor in chunks on three ranks, one shard each, as planned.
Manifest PlannedManifest() {
  Manifest manifest;
  manifest.save_id = "00000000000000ff";
  manifest.world_size = 3;
  manifest.chunk_bytes = 32;
  ManifestTensor tensor = {
      .name = "a",
      .dtype = kUInt8,
      .layout = SavedLayout::Grid({192}, {{.cells = 3, .step = 64}})};
  for (int rank = 0; rank < 3; ++rank) {
    manifest.placements.push_back(absl::StrCat("rank:", rank, "/cpu"));
    manifest.files.push_back({.name = absl::StrCat("own", rank, ".ff.x")});
    AppendPlace({.placement = rank, .extents = {{rank, 0, 64, 1}}}, 32,
                tensor.runs);
  }
  manifest.tensors = {tensor};
  return manifest;
}

ManifestFile EarlierFile(int rank, const char* id) {
  return {.name = absl::StrCat("own", rank, ".", id, ".x"),
          .size = 5000,
          .data_begin = 4096,
          .chunks = 2,
          .crc32c = 0xffffffff};
}

TEST(ExtentListTest, ShardsThatNoRankHasChangedStayOneRun) {
  Manifest manifest = PlannedManifest();
  std::vector<std::string> lists;
  for (int rank = 0; rank < 3; ++rank) {
    lists.push_back(EncodeExtentList(
        {{EarlierFile(rank, "0e")}, {{0, rank, {{1, 0, 64, 1}}}}}));
  }
  ASSERT_THAT(ApplyExtentLists(lists, {0, 1, 2}, manifest), IsOk());
  ASSERT_THAT(manifest.files, SizeIs(6));
  EXPECT_EQ(manifest.files[4], EarlierFile(1, "0e"));
  ASSERT_THAT(manifest.tensors[0].runs, SizeIs(1));
  EXPECT_EQ(manifest.tensors[0].PlaceOf(2, 32),
            (SavedShardPlace{2, {{5, 0, 64, 1}}}));
}

TEST(ExtentListTest, ExtentsGetTheFilesOfTheirRanks) {
  Manifest manifest = PlannedManifest();
  const std::vector<std::string> lists = {
      "",
      EncodeExtentList({{EarlierFile(1, "0d"), EarlierFile(1, "0e")},
                        {{0, 1, {{2, 96, 32, 4}, {0, 0, 32, 1}}}}}),
      EncodeExtentList({{EarlierFile(2, "0d")}, {{0, 2, {{1, 32, 64, 2}}}}})};
  ASSERT_THAT(ApplyExtentLists(lists, {0, 1, 2}, manifest), IsOk());
  // By save, then by rank.
  ASSERT_THAT(manifest.files, SizeIs(6));
  EXPECT_EQ(manifest.files[3], EarlierFile(1, "0d"));
  EXPECT_EQ(manifest.files[4], EarlierFile(2, "0d"));
  EXPECT_EQ(manifest.files[5], EarlierFile(1, "0e"));
  const ManifestTensor& tensor = manifest.tensors[0];
  EXPECT_EQ(tensor.PlaceOf(0, 32), (SavedShardPlace{0, {{0, 0, 64, 1}}}));
  EXPECT_EQ(tensor.PlaceOf(1, 32),
            (SavedShardPlace{1, {{5, 96, 32, 4}, {1, 0, 32, 1}}}));
  EXPECT_EQ(tensor.PlaceOf(2, 32), (SavedShardPlace{2, {{4, 32, 64, 2}}}));
}

TEST(ExtentListTest, AListThatIsCutOffIsAnError) {
  const std::string list =
      EncodeExtentList({{EarlierFile(1, "0e")}, {{0, 1, {{1, 64, 64, 3}}}}});
  for (size_t n = 1; n < list.size(); ++n) {
    Manifest manifest = PlannedManifest();
    const std::vector<std::string> lists = {"", list.substr(0, n), ""};
    const absl::Status status = ApplyExtentLists(lists, {0, 1, 2}, manifest);
    // Whole items alone are a shorter list.
    if (status.ok()) {
      EXPECT_EQ(manifest.tensors, PlannedManifest().tensors) << n;
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, "rank 1"));
    }
  }
}

}  // namespace
}  // namespace sherd
