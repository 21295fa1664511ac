// What a checkpoint of version 2 proves by itself: damage is found and named,
// one file is checked alone, and a lost manifest is rebuilt.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/write_checkpoint.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;

std::vector<TensorToWrite> Tensors() {
  const std::vector<Box> pinwheel = {{{0, 0}, {1, 2}},
                                     {{0, 2}, {2, 1}},
                                     {{2, 1}, {1, 2}},
                                     {{1, 0}, {2, 1}},
                                     {{1, 1}, {1, 1}}};
  return {
      {"columns", kFloat32,
       SavedLayout::Grid({5, 6}, {{}, {.cells = 3, .step = 2}}), 1},
      {"complex", kComplex128,
       SavedLayout::Grid({3, 2}, {{.cells = 2, .step = 2}, {}}), 2},
      {"empty", kInt64, SavedLayout::Whole({0, 4}), 3},
      {"pinwheel@1", kBFloat16, SavedLayout::FromBoxes({3, 3}, pinwheel), 4},
      {"step", kUInt64, SavedLayout::Whole({}), 5},
      {"uneven", kUInt8,
       SavedLayout::Grid({9}, {{.cells = 3, .cuts = {0, 1, 1, 9}}}), 6}};
}

class CheckpointProofTest : public ::testing::Test {
 protected:
  CheckpointProofTest() {
    std::filesystem::remove_all(path_);
    EXPECT_THAT(
        WriteCheckpoint(path_, Tensors(), {.ranks = 2, .chunk_bytes = 16}),
        IsOk());
  }
  ~CheckpointProofTest() override { std::filesystem::remove_all(path_); }

  // All but the mark, which each save leaves.
  std::vector<std::string> Files() const {
    std::vector<std::string> names = *FileSystem::Posix().List(path_);
    std::erase(names, kCommittedFileName);
    return names;
  }
  std::string PathOf(const std::string& name) const {
    return JoinPath(path_, name);
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  // Calls `check` with the file damaged in many ways: a bit of each byte but
  // most of the padding, and its end.
  void ForEachDamage(
      const std::string& name,
      const std::function<void(const std::string& damage)>& check) {
    const std::string bytes = Read(PathOf(name));
    for (size_t i = 0; i < bytes.size(); ++i) {
      // A long run of equal bytes is padding, whose every byte is like the
      // others.
      if (i > 2 && i + 3 < bytes.size() && i % 97 != 0 && bytes[i] == ' ' &&
          bytes[i - 1] == ' ' && bytes[i + 1] == ' ') {
        continue;
      }
      // Any bit: their CRC is that of the byte.
      const int bit = static_cast<int>(i % 8);
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      Write(PathOf(name), damaged);
      check(absl::StrCat(name, " bit ", bit, " of byte ", i));
      if (i % 13 != 0) continue;
      Write(PathOf(name), bytes.substr(0, i));
      check(absl::StrCat(name, " cut to ", i));
    }
    Write(PathOf(name), bytes + "x");
    check(absl::StrCat(name, " longer"));
    Write(PathOf(name), bytes);
  }

  const std::string path_ = JoinPath(::testing::TempDir(), "proof");
};

TEST_F(CheckpointProofTest, IsSoundAndReadByName) {
  SHERD_ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                             VerifyCheckpoint(path_));
  EXPECT_EQ(report.tensors, 6);
  EXPECT_EQ(report.files, 2);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  for (const TensorToWrite& tensor : Tensors()) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole,
                               reader.ReadTensor(tensor.name));
    const Dims zeros(whole.dim(), 0);
    EXPECT_EQ(CountWrong(whole, zeros, whole.sizes(), tensor.seed), 0)
        << tensor.name;
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                             reader.ReadSlice("columns", {1, 1}, {3, 4}));
  EXPECT_EQ(CountWrong(slice, {1, 1}, {5, 6}, 1), 0);
  EXPECT_THAT(reader.ReadTensor("other"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path_), HasSubstr("it has 6"))));
}

TEST_F(CheckpointProofTest, EveryDamageIsFoundAndItsFileNamed) {
  for (const std::string& name : Files()) {
    ForEachDamage(name, [&](const std::string& damage) {
      const auto report = VerifyCheckpoint(path_, {.threads = 1});
      ASSERT_FALSE(report.ok()) << damage;
      ASSERT_THAT(std::string(report.status().message()),
                  HasSubstr(PathOf(name)))
          << damage;
    });
  }
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(CheckpointProofTest, AFileAloneProvesItself) {
  for (const std::string& name : Files()) {
    if (name == kManifestFileName) continue;
    EXPECT_THAT(VerifyDataFile(PathOf(name)), IsOk());
    ForEachDamage(name, [&](const std::string& damage) {
      const auto report = VerifyDataFile(PathOf(name));
      ASSERT_FALSE(report.ok()) << damage;
      ASSERT_THAT(std::string(report.status().message()),
                  HasSubstr(PathOf(name)))
          << damage;
    });
  }
}

TEST_F(CheckpointProofTest, DamageNamesTensorAndOffset) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             ReadManifest(FileSystem::Posix(), path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestTensor* tensor,
                             manifest.Find("columns"));
  const SavedExtent extent = tensor->PlaceOf(1, 16).extents[0];
  const ManifestFile& file = manifest.files[extent.file];
  // In the second chunk.
  const int64_t offset = file.data_begin + extent.data_offset + 16;
  std::string bytes = Read(PathOf(file.name));
  bytes[offset + 3] = static_cast<char>(bytes[offset + 3] ^ 1);
  Write(PathOf(file.name), bytes);
  const auto damaged =
      StatusIs(kLoss, AllOf(HasSubstr(file.name), HasSubstr("\"columns\""),
                            HasSubstr(absl::StrCat("from offset ", offset))));
  EXPECT_THAT(VerifyCheckpoint(path_), damaged);
  EXPECT_THAT(VerifyDataFile(PathOf(file.name)), damaged);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  EXPECT_THAT(reader.ReadTensor("columns"), damaged);
  EXPECT_THAT(reader.ReadTensor("step"), IsOk());
}

// Both are intact, but of another save: only what they say of each other shows
// it.
TEST_F(CheckpointProofTest, AFileOfAnotherSaveIsFound) {
  const std::string other = path_ + ".other";
  std::vector<TensorToWrite> tensors = Tensors();
  tensors[4].seed = 77;
  ASSERT_THAT(WriteCheckpoint(other, tensors, {.ranks = 2, .chunk_bytes = 16}),
              IsOk());
  const std::string name = Files()[1];
  Write(PathOf(name), Read(JoinPath(other, name)));
  EXPECT_THAT(VerifyDataFile(PathOf(name)), IsOk());
  EXPECT_THAT(VerifyCheckpoint(path_),
              StatusIs(kLoss, AllOf(HasSubstr(name), HasSubstr("manifest"))));
  std::filesystem::remove_all(other);
}

TEST_F(CheckpointProofTest, AWrongFingerprintIsFound) {
  SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest,
                             ReadManifest(FileSystem::Posix(), path_));
  *manifest.tensors[0].fingerprint ^= 1;
  Write(PathOf(kManifestFileName), *EncodeManifest(manifest));
  EXPECT_THAT(VerifyCheckpoint(path_),
              StatusIs(kLoss, AllOf(HasSubstr("\"columns\""),
                                    HasSubstr("fingerprint"))));
}

TEST_F(CheckpointProofTest, MetadataThatDiffersFromTheManifestIsFound) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest intact,
                             ReadManifest(FileSystem::Posix(), path_));
  const std::vector<std::function<void(Manifest&)>> changes = {
      [](Manifest& m) { m.tensors[0].requires_grad = true; },
      [](Manifest& m) { m.placements[0] = "rank:7/cpu"; },
      [](Manifest& m) { m.world_size = 3; }};
  for (const auto& change : changes) {
    Manifest manifest = intact;
    change(manifest);
    Write(PathOf(kManifestFileName), *EncodeManifest(manifest));
    EXPECT_THAT(VerifyCheckpoint(path_), StatusIs(kLoss, "manifest"));
  }
}

TEST_F(CheckpointProofTest, SeveralExtentsOfAShardAreRead) {
  // "step" of the manifest below is half in a file of another save.
  const std::string earlier = "0000000000000001";
  ASSERT_THAT(
      WriteCheckpoint(path_, {{"bytes", kUInt8, SavedLayout::Whole({64}), 6}},
                      {.ranks = 1,
                       .chunk_bytes = 16,
                       .save_id = earlier,
                       .manifest = false}),
      IsOk());
  ASSERT_THAT(
      WriteCheckpoint(path_, {{"bytes", kUInt8, SavedLayout::Whole({64}), 6}},
                      {.ranks = 1, .chunk_bytes = 16}),
      IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest,
                             ReadManifest(FileSystem::Posix(), path_));
  ManifestFile file = manifest.files[0];
  file.name = absl::StrCat("shard-00000-of-00001.", earlier, ".safetensors");
  SHERD_ASSERT_OK_AND_ASSIGN(
      const CheckedDataFile checked,
      CheckDataFile(FileSystem::Posix(), PathOf(file.name)));
  manifest.files = {checked.file};
  manifest.tensors[0].runs[0].extents = {{0, 0, 16, 1}, {0, 16, 48, 2}};
  Write(PathOf(kManifestFileName), *EncodeManifest(manifest));
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  for (int64_t begin = 0; begin < 60; begin += 7) {
    for (int64_t size = 1; begin + size <= 64; size += 9) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                                 reader.ReadSlice("bytes", {begin}, {size}));
      EXPECT_EQ(CountWrong(slice, {begin}, {64}, 6), 0);
    }
  }
  // By ranks, as it is and converted; the part of rank 1 of 5 is in both.
  RunLocalRanks(5, [&](ProcessGroup&) {
    for (const DType as : {kUInt8, kInt32}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor loaded,
          ShardedTensor::Zeros(
              *ChunkShardingSpec::Create(0, PlacementsOnRanks(5)), {64},
              {.dtype = as}));
      ASSERT_THAT(LoadCheckpointInto(path_, {{"bytes", &loaded}}, nullptr,
                                     {.convert = true}),
                  IsOk());
      for (const Shard& shard : loaded.local_shards()) {
        SHERD_ASSERT_OK_AND_ASSIGN(const Tensor bytes, shard.tensor.To(kUInt8));
        EXPECT_EQ(CountWrong(bytes, shard.metadata.offsets, {64}, 6), 0);
      }
    }
  });
}

TEST_F(CheckpointProofTest, ALostManifestIsRebuilt) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest saved,
                             ReadManifest(FileSystem::Posix(), path_));
  EXPECT_THAT(RecoverManifest(path_),
              StatusIs(absl::StatusCode::kAlreadyExists));
  for (const bool removed : {true, false}) {
    if (removed) {
      std::filesystem::remove(PathOf(kManifestFileName));
    } else {
      std::filesystem::resize_file(PathOf(kManifestFileName), 40);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const RecoverReport report,
                               RecoverManifest(path_));
    EXPECT_EQ(report.tensors, 6);
    EXPECT_EQ(report.files, 2);
    EXPECT_EQ(report.save_id, saved.save_id);
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Manifest rebuilt,
                               ReadManifest(FileSystem::Posix(), path_));
    EXPECT_EQ(rebuilt.files, saved.files);
    for (size_t t = 0; t < saved.tensors.size(); ++t) {
      EXPECT_EQ(rebuilt.tensors[t].name, saved.tensors[t].name);
      EXPECT_EQ(rebuilt.tensors[t].dtype, saved.tensors[t].dtype);
      EXPECT_EQ(rebuilt.tensors[t].fingerprint, saved.tensors[t].fingerprint);
    }
  }
  // The lease and the staged manifest are gone.
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(CheckpointProofTest, MissingAndDamagedFilesAreNamed) {
  std::filesystem::remove(PathOf(kManifestFileName));
  const std::vector<std::string> names = Files();
  const std::string bytes = Read(PathOf(names[1]));
  std::filesystem::remove(PathOf(names[1]));
  EXPECT_THAT(
      RecoverManifest(path_),
      StatusIs(kLoss, AllOf(HasSubstr("2 data files, of which 1"),
                            HasSubstr("missing are those of ranks 1"))));
  std::string damaged = bytes;
  damaged[damaged.size() - 60] ^= 1;
  Write(PathOf(names[1]), damaged);
  EXPECT_THAT(RecoverManifest(path_), StatusIs(kLoss, HasSubstr(names[1])));
  EXPECT_EQ(Files().size(), 2u);
  // Of another save, under this one's name.
  const std::string other = path_ + ".other";
  ASSERT_THAT(
      WriteCheckpoint(other,
                      {{"step", kUInt64, SavedLayout::Grid({4}, {{2, 2, {}}})}},
                      {.ranks = 2, .chunk_bytes = 16}),
      IsOk());
  Write(PathOf(names[1]), Read(JoinPath(other, names[1])));
  EXPECT_THAT(RecoverManifest(path_),
              StatusIs(kLoss, AllOf(HasSubstr(names[1]), HasSubstr("step"))));
  std::filesystem::remove_all(other);
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
  EXPECT_THAT(RecoverManifest(path_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CheckpointProofTest, TheNewestSaveThatIsCompleteIsTaken) {
  std::filesystem::remove(PathOf(kManifestFileName));
  const std::string newer = "28c251e97a0589a9";
  const std::vector<TensorToWrite> tensors = {
      {"other", kUInt64, SavedLayout::Grid({4}, {{2, 2, {}}}), 9}};
  ASSERT_THAT(
      WriteCheckpoint(path_, tensors, {.save_id = newer, .manifest = false}),
      IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const RecoverReport report,
                             RecoverManifest(path_));
  EXPECT_EQ(report.save_id, newer);
  std::filesystem::remove(PathOf(kManifestFileName));
  std::filesystem::remove(
      PathOf(absl::StrCat("shard-00000-of-00002.", newer, ".safetensors")));
  SHERD_ASSERT_OK_AND_ASSIGN(const RecoverReport older, RecoverManifest(path_));
  EXPECT_EQ(older.save_id, "18c251e97a0589a9");
  ASSERT_EQ(older.passed_over.size(), 1u);
  EXPECT_THAT(older.passed_over[0], HasSubstr("missing are those of ranks 0"));
}

TEST_F(CheckpointProofTest, ASaveThatRunsIsNotDisturbed) {
  std::filesystem::remove(PathOf(kManifestFileName));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto lease,
      CheckpointLease::Take(FileSystem::Posix(), path_, "28c251e97a0589a9"));
  EXPECT_THAT(RecoverManifest(path_), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(CheckpointProofTest, AnErrorLeavesNoManifestAndNothingElse) {
  std::filesystem::remove(PathOf(kManifestFileName));
  for (const char* operation : {"create", "write", "sync", "rename"}) {
    const FailFileOperation fault(operation, "*manifest.sherd*",
                                  absl::UnavailableError("injected"));
    EXPECT_THAT(RecoverManifest(path_),
                StatusIs(absl::StatusCode::kUnavailable))
        << operation;
    EXPECT_EQ(Files().size(), 2u) << operation;
  }
  EXPECT_THAT(RecoverManifest(path_), IsOk());
}

TEST_F(CheckpointProofTest, AFileThatIsLostIsOneProblem) {
  // Each file has more than one shard.
  const std::vector<std::string> names = Files();
  for (const bool removed : {true, false}) {
    if (removed) {
      std::filesystem::remove(PathOf(names[1]));
    } else {
      Write(PathOf(names[1]), "cut");
    }
    for (const int threads : {1, 3}) {
      const auto report = VerifyCheckpoint(path_, {.threads = threads});
      EXPECT_THAT(report, StatusIs(kLoss, names[1]));
      EXPECT_THAT(std::string(report.status().message()),
                  ::testing::Not(HasSubstr("more problem")));
    }
  }
}

TEST_F(CheckpointProofTest, ALostFileIsLookedForOnce) {
  SHERD_ASSERT_OK_AND_ASSIGN(ManifestReader manifest,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  ExtentReader reader(std::move(manifest), FileSystem::Posix());
  const std::string name = Files()[1];
  std::filesystem::remove(PathOf(name));
  const CountPassages opens("file/open_for_read", {.subject = PathOf(name)});
  const absl::Status first = reader.Open(0);
  EXPECT_THAT(first, StatusIs(kLoss, "is missing"));
  EXPECT_EQ(reader.Open(0), first);
  EXPECT_EQ(opens.count(), 1);
}

TEST_F(CheckpointProofTest, AReaderBelievesNoSizeThatNoFileConfirms) {
  SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest,
                             ReadManifest(FileSystem::Posix(), path_));
  ManifestTensor& step = manifest.tensors[4];
  constexpr int64_t kElements = int64_t{1} << 45;
  step.layout = SavedLayout::Whole({kElements});
  step.runs[0].extents[0].bytes =
      kElements * static_cast<int64_t>(SizeOf(step.dtype));
  Write(PathOf(kManifestFileName), *EncodeManifest(manifest));
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path_));
  EXPECT_THAT(reader.ReadTensor("step"),
              StatusIs(kLoss, AllOf(HasSubstr(kManifestFileName),
                                    HasSubstr("are said to be at offset"))));
}

TEST_F(CheckpointProofTest, ARecoveryHasANumberOfItsOwn) {
  std::filesystem::remove(PathOf(kManifestFileName));
  // Of a save that ended early, and could switch to it still.
  const std::string staged = "manifest.sherd.0000000000000001.tmp";
  Write(PathOf(staged), "x");
  EXPECT_THAT(RecoverManifest(path_), IsOk());
  EXPECT_FALSE(std::filesystem::exists(PathOf(staged)));
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(CheckpointProofTest, RecoveredFilesAreMadeDurableFirst) {
  std::filesystem::remove(PathOf(kManifestFileName));
  for (const std::string& name : Files()) {
    const FailFileOperation fault("sync", PathOf(name),
                                  absl::UnavailableError("injected"));
    EXPECT_THAT(RecoverManifest(path_),
                StatusIs(absl::StatusCode::kUnavailable));
  }
  {
    const FailFileOperation fault("sync_directory", "*",
                                  absl::UnavailableError("injected"));
    EXPECT_THAT(RecoverManifest(path_),
                StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(CheckpointProofTest, FilesOfVersion1AreNotRecovered) {
  std::filesystem::remove_all(path_);
  std::filesystem::copy("serialization/testdata/v1/checkpoint", path_);
  std::filesystem::remove(PathOf(kManifestFileName));
  EXPECT_THAT(RecoverManifest(path_), StatusIs(absl::StatusCode::kNotFound));
}

// A file may say anything of how many ranks there were.
TEST_F(CheckpointProofTest, VeryManyRanksTakeNoMemory) {
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
  constexpr int32_t kRanks = std::numeric_limits<int32_t>::max();
  DataFileContents contents;
  contents.save_id = "18c251e97a0589a9";
  contents.world_size = kRanks;
  contents.rank = kRanks - 1;
  contents.files = 2;
  std::string bytes = *EncodeDataFileHeader(contents);
  bytes += EncodeCrcTable({Crc32c(AsBytes(bytes))});
  Write(PathOf("shard-00000-of-00002.18c251e97a0589a9.safetensors"), bytes);
  EXPECT_THAT(RecoverManifest(path_),
              StatusIs(kLoss, "ranks among 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"));
}

}  // namespace
}  // namespace sherd
