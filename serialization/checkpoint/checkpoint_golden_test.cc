// Every later build reads what versions 1 and 2 wrote, and writes version 2 as
// it was.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/golden_checkpoint.h"
#include "sherd/serialization/kits/golden_tensors.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using ::testing::ElementsAreArray;

constexpr char kVersion1[] = "serialization/testdata/v1/checkpoint";
constexpr char kVersion2[] = "serialization/testdata/v2/checkpoint";

void ExpectTensor(const CheckpointReader& reader, const SampleTensor& sample,
                  int seed) {
  SCOPED_TRACE(sample.name);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                             reader.ReadTensor(sample.name));
  EXPECT_EQ(tensor.dtype(), sample.dtype);
  EXPECT_EQ(Dims(tensor.sizes().begin(), tensor.sizes().end()), sample.size);
  const Dims zeros(sample.size.size(), 0);
  EXPECT_EQ(CountWrong(tensor, zeros, sample.size, seed), 0);
}

void ExpectSafetensors(const std::string& path) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             ReadManifest(FileSystem::Posix(), path));
  for (const ManifestFile& file : manifest.files) {
    EXPECT_THAT(
        SafetensorsFile::Open(FileSystem::Posix(), JoinPath(path, file.name)),
        IsOk());
  }
}

TEST(CheckpointGoldenTest, Version1IsReadAndSound) {
  SHERD_ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                             VerifyCheckpoint(kVersion1));
  EXPECT_EQ(report.tensors, 5);
  EXPECT_EQ(report.files, 2);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(kVersion1));
  EXPECT_EQ(reader.manifest().summary().world_size, 2);
  int seed = kGoldenSeed;
  for (const SampleTensor& sample : GoldenTensors()) {
    ExpectTensor(reader, sample, seed++);
  }
}

TEST(CheckpointGoldenTest, Version2IsReadAndSound) {
  SHERD_ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                             VerifyCheckpoint(kVersion2));
  EXPECT_EQ(report.tensors,
            static_cast<int64_t>(GoldenCheckpointTensors().size()));
  EXPECT_EQ(report.files, kGoldenRanks);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(kVersion2));
  EXPECT_EQ(reader.manifest().summary().version, 2u);
  EXPECT_EQ(reader.manifest().summary().world_size, kGoldenRanks);
  EXPECT_EQ(reader.manifest().summary().save_id, kGoldenSaveId);
  int seed = kGoldenSeed;
  for (const GoldenTensor& golden : GoldenCheckpointTensors()) {
    ExpectTensor(reader, golden, seed++);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto saved,
                               reader.manifest().Find(golden.name));
    EXPECT_EQ(saved->requires_grad, golden.requires_grad);
  }
}

TEST(CheckpointGoldenTest, Version2IsLoadedByOtherRanksIntoOtherLayouts) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const std::vector<GoldenTensor> goldens = GoldenCheckpointTensors();
    std::map<std::string, ShardingSpecPtr> specs;
    int layout = 3;
    for (const GoldenTensor& golden : goldens) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          specs[golden.name], SampleSpec(layout++, golden.size, group.size()));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded,
                               LoadCheckpoint(kVersion2, specs));
    int seed = kGoldenSeed;
    for (const GoldenTensor& golden : goldens) {
      EXPECT_EQ(loaded.at(golden.name).dtype(), golden.dtype);
      EXPECT_EQ(CountWrong(loaded.at(golden.name), seed++), 0) << golden.name;
    }
  });
}

TEST(CheckpointGoldenTest, DataFilesAreSafetensorsAndThoseOfVersion2Proofs) {
  ExpectSafetensors(kVersion1);
  ExpectSafetensors(kVersion2);
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             ReadManifest(FileSystem::Posix(), kVersion2));
  for (const ManifestFile& file : manifest.files) {
    EXPECT_THAT(VerifyDataFile(JoinPath(kVersion2, file.name)), IsOk());
  }
}

TEST(CheckpointGoldenTest, ASaveWritesTheBytesOfVersion2) {
  FileSystem& files = FileSystem::Posix();
  const std::string path = ::testing::TempDir() + "/golden";
  ASSERT_THAT(files.RemoveAll(path), IsOk());
  RunLocalRanks(kGoldenRanks, [&](ProcessGroup&) {
    EXPECT_THAT(SaveGoldenCheckpoint(path), IsOk());
  });
  SHERD_ASSERT_OK_AND_ASSIGN(const auto names, files.List(kVersion2));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto written, files.List(path));
  ASSERT_THAT(written, ElementsAreArray(names));
  constexpr int64_t kMaxBytes = int64_t{1} << 20;
  for (const std::string& name : names) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const std::string golden,
        ReadFile(files, JoinPath(kVersion2, name), kMaxBytes));
    SHERD_ASSERT_OK_AND_ASSIGN(
        std::string bytes, ReadFile(files, JoinPath(path, name), kMaxBytes));
    if (name == kManifestFileName) {
      // The writer may have another version of its own.
      SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest,
                                 DecodeManifest(bytes, name));
      SHERD_ASSERT_OK_AND_ASSIGN(const Manifest before,
                                 DecodeManifest(golden, name));
      manifest.writer = before.writer;
      SHERD_ASSERT_OK_AND_ASSIGN(bytes, EncodeManifest(manifest));
    }
    EXPECT_TRUE(bytes == golden) << name;
  }
}

}  // namespace
}  // namespace sherd
