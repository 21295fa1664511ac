// Saves that write only what has changed: what they write, and that whatever
// was saved is loaded, checked and recovered as if it had been written as a
// whole.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors/crc32c.h"
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
using sherd::testing::IsOkAndHolds;
using sherd::testing::RandomSeed;
using sherd::testing::RandomSpec;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Tensors = std::map<std::string, ShardedTensor>;
// Of each rank.
using Bases = std::vector<std::shared_ptr<SaveBase>>;

// Of a file: the header, and the CRCs of a few chunks.
constexpr int64_t kOverhead = 16 << 10;

Bases EmptyBases(int ranks) {
  Bases bases;
  for (int r = 0; r < ranks; ++r) bases.push_back(std::make_shared<SaveBase>());
  return bases;
}

// Of this rank; returns the bytes of all files.
absl::StatusOr<int64_t> Save(const std::string& path, const Tensors& tensors,
                             std::shared_ptr<SaveBase> base,
                             bool sync = false) {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         DefaultGroup());
  Saver saver({.path = path,
               .tensors = std::make_shared<const Tensors>(tensors),
               .group = group,
               .options = {.sync = sync},
               .base = std::move(base)});
  SHERD_RETURN_IF_ERROR(saver.Run());
  return saver.file_bytes();
}

// The elements of whole tensors, as the ranks of a test agree on them.
struct State {
  struct Whole {
    DType dtype;
    Dims size;
    std::string bytes;
  };
  std::map<std::string, Whole> tensors;

  void Add(const std::string& name, DType dtype, const Dims& size,
           std::mt19937_64& random) {
    Whole& whole = tensors[name] = {dtype, size, ""};
    whole.bytes.resize(static_cast<size_t>(Volume(size)) * SizeOf(dtype));
    for (char& byte : whole.bytes) byte = static_cast<char>(random() % 2);
  }
};

void Fill(const State::Whole& from, ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    ForEachElement(shard.tensor, shard.metadata.offsets, tensor.size(),
                   [&](std::byte* element, int64_t index) {
                     const size_t n = SizeOf(from.dtype);
                     std::memcpy(element, &from.bytes[index * n], n);
                   });
  }
}

int64_t CountDifferent(const State::Whole& expected,
                       const ShardedTensor& tensor) {
  int64_t different = 0;
  for (const Shard& shard : tensor.local_shards()) {
    ForEachElement(
        shard.tensor, shard.metadata.offsets, tensor.size(),
        [&](std::byte* element, int64_t index) {
          const size_t n = SizeOf(expected.dtype);
          different += std::memcmp(element, &expected.bytes[index * n], n) != 0;
        });
  }
  return different;
}

void ExpectHolds(const std::string& path, const State& state) {
  EXPECT_THAT(VerifyCheckpoint(path), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path));
  for (const auto& [name, whole] : state.tensors) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader.ReadTensor(name));
    ASSERT_EQ(tensor.nbytes(), static_cast<int64_t>(whole.bytes.size()));
    EXPECT_TRUE(
        whole.bytes.empty() ||
        std::memcmp(tensor.data(), whole.bytes.data(), whole.bytes.size()) == 0)
        << name;
  }
}

class IncrementalSaveTest : public ::testing::Test {
 protected:
  IncrementalSaveTest()
      : path_(CheckpointPlace(JoinPath(
            ::testing::TempDir(),
            absl::StrCat("incremental_", ::testing::UnitTest::GetInstance()
                                             ->current_test_info()
                                             ->name())))) {
    RemoveAllPlaced(path_);
  }
  ~IncrementalSaveTest() override { RemoveAllPlaced(path_); }

  // The older ones first.
  std::vector<std::string> DataFiles() const {
    std::vector<std::string> names;
    const auto all = CheckpointFiles().List(path_);
    for (const std::string& name : *all) {
      if (absl::StartsWith(name, "shard-")) names.push_back(name);
    }
    return names;
  }

  // A vector of bytes in as many chunks on one rank, saved once.
  void SaveChunks(int64_t chunks) {
    std::mt19937_64 random(7);
    state_.Add("vector", kUInt8, {chunks * kChunkBytes}, random);
    EXPECT_THAT(SaveState(), IsOk());
  }

  // The state, on one rank.
  absl::StatusOr<int64_t> SaveState(bool sync = false) {
    absl::StatusOr<int64_t> bytes = absl::UnknownError("not run");
    RunLocalRanks(1, [&](ProcessGroup&) {
      Tensors tensors;
      for (const auto& [name, whole] : state_.tensors) {
        ShardedTensor& tensor =
            tensors
                .emplace(name, *ShardedTensor::Zeros(
                                   *SampleSpec(0, whole.size, 1), whole.size,
                                   {.dtype = whole.dtype}))
                .first->second;
        Fill(whole, tensor);
      }
      bytes = Save(path_, tensors, base_, sync);
    });
    return bytes;
  }

  void Change(int64_t chunk) {
    state_.tensors["vector"].bytes[chunk * kChunkBytes + 5] ^= 1;
  }

  static void FlipBit(const std::string& path, int64_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(offset);
    file.put(byte);
  }

  const std::string path_;
  State state_;
  std::shared_ptr<SaveBase> base_ = std::make_shared<SaveBase>();
};

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

TEST_F(IncrementalSaveTest, DamageInAnEarlierFileIsNamed) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  SaveChunks(4);
  const std::string old_file = DataFiles()[0];
  Change(1);
  ASSERT_THAT(SaveState(), IsOk());
  const std::string old_path = JoinPath(path_, old_file);
  const int64_t data = 4096;
  // Where nothing refers to it any more, damage does not matter.
  FlipBit(old_path, data + kChunkBytes + 100);
  ExpectHolds(path_, state_);
  FlipBit(old_path, data + 2 * kChunkBytes + 100);
  const auto names_it = StatusIs(
      absl::StatusCode::kDataLoss,
      AllOf(HasSubstr(old_file), HasSubstr("tensor \"vector\""),
            HasSubstr(absl::StrCat("from offset ", data + 2 * kChunkBytes))));
  EXPECT_THAT(VerifyCheckpoint(path_), names_it);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  EXPECT_THAT(reader.ReadTensor("vector"), names_it);
  RunLocalRanks(1, [&](ProcessGroup&) {
    auto tensor = *ShardedTensor::Zeros(*SampleSpec(0, {4 * kChunkBytes}, 1),
                                        {4 * kChunkBytes}, {.dtype = kUInt8});
    EXPECT_THAT(LoadCheckpointInto(path_, {{"vector", &tensor}}), names_it);
  });
  RemovePlaced(old_path);
  EXPECT_THAT(VerifyCheckpoint(path_),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(old_file), HasSubstr("missing"))));
}

TEST_F(IncrementalSaveTest, MetadataThatDiffersFromTheManifestIsFound) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  SaveChunks(4);
  Change(1);
  ASSERT_THAT(SaveState(), IsOk());
  const std::string file = DataFiles()[1];
  EXPECT_THAT(VerifyDataFile(JoinPath(path_, file)), IsOk());
  // A manifest that says another place of the first chunk.
  const std::string manifest_path = JoinPath(path_, kManifestFileName);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(CheckpointFiles(), path_));
  SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest, reader.ReadAll());
  SavedExtents& extents = manifest.tensors[0].runs[0].extents;
  ASSERT_THAT(extents, SizeIs(3));
  extents[0].data_offset += kChunkBytes;
  extents[0].first_chunk += 1;
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  std::ofstream(manifest_path, std::ios::binary) << bytes;
  EXPECT_THAT(VerifyCheckpoint(path_),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(file),
                             HasSubstr("the metadata and the manifest differ "
                                       "about tensor \"vector\""))));
}

TEST_F(IncrementalSaveTest, ALostManifestIsRebuilt) {
  std::mt19937_64 random(5);
  state_.Add("empty", kFloat32, {0, 3}, random);
  state_.Add("kept", kFloat64, {7}, random);
  state_.Add("small", kInt32, {3}, random);
  SaveChunks(5);
  const std::string first = DataFiles()[0];
  Change(0);
  ASSERT_THAT(SaveState(), IsOk());
  Change(2);
  state_.tensors["small"].bytes[1] ^= 1;
  ASSERT_THAT(SaveState(), IsOk());
  EXPECT_THAT(DataFiles(), SizeIs(3));
  const std::string manifest_path = JoinPath(path_, kManifestFileName);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(CheckpointFiles(), path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest before, reader.ReadAll());
  RemovePlaced(manifest_path);
  SHERD_ASSERT_OK_AND_ASSIGN(const RecoverReport report,
                             RecoverManifest(path_));
  EXPECT_THAT(report.passed_over, IsEmpty());
  EXPECT_EQ(report.save_id, before.save_id);
  ExpectHolds(path_, state_);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader again,
                             ManifestReader::Open(CheckpointFiles(), path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest after, again.ReadAll());
  for (size_t t = 0; t < before.tensors.size(); ++t) {
    EXPECT_EQ(after.tensors[t].fingerprint, before.tensors[t].fingerprint);
  }
  // Without a file that it refers to, the save is not complete.
  RemovePlaced(manifest_path);
  RemovePlaced(JoinPath(path_, first));
  EXPECT_THAT(
      RecoverManifest(path_),
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr(first), HasSubstr("is missing, to which"))));
}

TEST_F(IncrementalSaveTest, ARecoveryChecksWhereExtentsAre) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  SaveChunks(4);
  Change(1);
  ASSERT_THAT(SaveState(), IsOk());
  RemovePlaced(JoinPath(path_, kManifestFileName));
  const std::string path = JoinPath(path_, DataFiles()[1]);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckedDataFile checked,
                             CheckDataFile(CheckpointFiles(), path));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string bytes,
      ReadFile(CheckpointFiles(), path, int64_t{1} << 30));
  const auto as_bytes = [](const std::string& text) {
    return absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                          text.size());
  };
  const std::vector<std::function<void(SavedExtent&)>> changes = {
      [](SavedExtent& extent) { extent.data_offset += 1; },
      [](SavedExtent& extent) { extent.data_offset += kChunkBytes; },
      [](SavedExtent& extent) { extent.first_chunk += 1; },
      [](SavedExtent& extent) {
        extent.data_offset = 4 * kChunkBytes;
        extent.first_chunk = 5;
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    // The header with another place, and the CRCs that go with it.
    DataFileContents contents = checked.contents;
    ASSERT_THAT(contents.split[0].extents, SizeIs(3));
    changes[i](contents.split[0].extents[2]);
    std::string front = *EncodeDataFileHeader(contents);
    ASSERT_EQ(front.size(), checked.file.data_begin);
    const std::string data =
        bytes.substr(front.size(), static_cast<size_t>(kChunkBytes));
    const std::string table =
        EncodeCrcTable({Crc32c(as_bytes(front)), Crc32c(as_bytes(data))});
    std::ofstream(path, std::ios::binary) << front << data << table;
    EXPECT_THAT(VerifyDataFile(path), IsOk());
    EXPECT_THAT(RecoverManifest(path_),
                IsOkAndHolds(::testing::Field(
                    &RecoverReport::passed_over,
                    ElementsAre(HasSubstr("which has no such chunks")))))
        << i;
    RemovePlaced(JoinPath(path_, kManifestFileName));
  }
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
    for (const auto& [path, then] : steps) {
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
