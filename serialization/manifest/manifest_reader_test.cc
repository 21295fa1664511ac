#include "sherd/serialization/manifest/manifest_reader.h"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/kits/sample_manifest.h"
#include "sherd/serialization/kits/sample_manifest_v1.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ManifestReaderTest : public ::testing::Test {
 protected:
  ManifestReaderTest() { std::filesystem::create_directories(path_); }
  ~ManifestReaderTest() override { std::filesystem::remove_all(path_); }

  void Write(const Manifest& manifest) {
    const std::string bytes = *EncodeManifest(manifest);
    size_ = static_cast<int64_t>(bytes.size());
    ASSERT_TRUE(
        WriteFileAtomically(FileSystem::Posix(), manifest_path_, AsBytes(bytes))
            .ok());
  }

  const std::string path_ = JoinPath(::testing::TempDir(), "manifest_reader");
  const std::string manifest_path_ = JoinPath(path_, kManifestFileName);
  int64_t size_ = 0;
};

// As many tensors without elements, and files.
Manifest ManyTensors(int tensors, int files) {
  Manifest manifest;
  manifest.save_id = "0123456789abcdef";
  manifest.world_size = files;
  manifest.placements = {"rank:0/cpu"};
  for (int f = 0; f < files; ++f) {
    manifest.files.push_back(
        {.name = absl::StrFormat("shard-%05d.0123456789abcdef.safetensors", f),
         .size = 4100,
         .data_begin = 4096});
  }
  for (int t = 0; t < tensors; ++t) {
    manifest.tensors.push_back(
        {.name = absl::StrFormat("model.layers.%05d.attention.weight", t),
         .fingerprint = 0,
         .layout = SavedLayout::Whole({0, 4 + t}),
         .runs = {{}}});
  }
  return manifest;
}

TEST_F(ManifestReaderTest, FindsTensorsAndFilesOfBothVersions) {
  for (const Manifest& manifest :
       {SampleManifest(), FromV1(SampleManifestV1())}) {
    Write(manifest);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ManifestReader reader,
        ManifestReader::Open(FileSystem::Posix(), path_));
    EXPECT_EQ(reader.summary(), manifest);
    EXPECT_EQ(reader.num_tensors(),
              static_cast<int64_t>(manifest.tensors.size()));
    for (const ManifestTensor& tensor : manifest.tensors) {
      SHERD_ASSERT_OK_AND_ASSIGN(const auto found, reader.Find(tensor.name));
      EXPECT_EQ(*found, tensor);
    }
    for (int32_t f = 0; f < reader.num_files(); ++f) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ManifestFile* file, reader.FileAt(f));
      EXPECT_EQ(*file, manifest.files[f]);
    }
    EXPECT_THAT(reader.FileAt(-1),
                StatusIs(absl::StatusCode::kDataLoss, manifest_path_));
    EXPECT_THAT(reader.FileAt(static_cast<int32_t>(reader.num_files())),
                StatusIs(absl::StatusCode::kDataLoss, "there is no file"));
    EXPECT_THAT(reader.Find("wei"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(manifest_path_),
                               HasSubstr("no tensor \"wei\""),
                               HasSubstr("among them empty"))));
    SHERD_ASSERT_OK_AND_ASSIGN(const Manifest all, reader.ReadAll());
    EXPECT_EQ(all, manifest);
  }
}

TEST_F(ManifestReaderTest, ASmallOneIsReadAtOnce) {
  Write(SampleManifest());
  const CountPassages reads("file/read", {.subject = manifest_path_});
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  EXPECT_THAT(reader.Find("weight"), IsOk());
  EXPECT_THAT(reader.FileAt(2), IsOk());
  EXPECT_EQ(reads.count(), 1);
  EXPECT_EQ(reader.bytes_read(), size_);
}

TEST_F(ManifestReaderTest, ALargeOneIsReadInParts) {
  Write(ManyTensors(10000, 3000));
  ASSERT_GT(size_, 600 << 10);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  EXPECT_LE(reader.bytes_read(), 20 << 10);
  for (const int t : {0, 4999, 9999}) {
    const int64_t before = reader.bytes_read();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto tensor,
        reader.Find(absl::StrFormat("model.layers.%05d.attention.weight", t)));
    EXPECT_EQ(tensor->sizes()[1], 4 + t);
    EXPECT_LE(reader.bytes_read() - before, 80 << 10) << t;
  }
  const int64_t before = reader.bytes_read();
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestFile* file, reader.FileAt(2999));
  EXPECT_EQ(file->name, "shard-02999.0123456789abcdef.safetensors");
  EXPECT_LE(reader.bytes_read() - before, 80 << 10);
}

TEST_F(ManifestReaderTest, EachReadReportsProgress) {
  Write(ManyTensors(10000, 3000));
  const CountPassages reads("file/read", {.subject = manifest_path_});
  int signs = 0;
  absl::Status answer;
  const auto after_read = [&] {
    ++signs;
    return answer;
  };
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ManifestReader reader,
      ManifestReader::Open(FileSystem::Posix(), path_, after_read));
  EXPECT_GE(reads.count(), 1);
  EXPECT_EQ(signs, reads.count() + 1) << "opening it is one";
  const int before = signs;
  ASSERT_THAT(reader.ReadAll(), IsOk());
  EXPECT_GT(signs, before + 8);
  EXPECT_EQ(signs, reads.count() + 1);
  answer = absl::AbortedError("the group has failed");
  EXPECT_THAT(reader.FileAt(2999),
              StatusIs(absl::StatusCode::kAborted, "the group has failed"));
  EXPECT_THAT(
      ManifestReader::Open(FileSystem::Posix(), path_, after_read).status(),
      StatusIs(absl::StatusCode::kAborted, "the group has failed"));
}

TEST_F(ManifestReaderTest, ManyNamesReadEachSectionOnce) {
  const Manifest manifest = ManyTensors(10000, 1);
  Write(manifest);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  std::vector<absl::string_view> names;
  for (const ManifestTensor& tensor : manifest.tensors) {
    names.push_back(tensor.name);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const auto found, reader.FindAll(names));
  ASSERT_EQ(found.size(), names.size());
  EXPECT_EQ(*found[7777], manifest.tensors[7777]);
  EXPECT_LE(reader.bytes_read(), size_ + (20 << 10));
}

TEST_F(ManifestReaderTest, NamesAreFoundInAnyOrderAndAgain) {
  const Manifest manifest = ManyTensors(3000, 1);
  Write(manifest);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  // Across sections, forward from each, backward, and the same twice.
  for (const int t : {0, 1, 2999, 0, 1, 1, 2, 1, 1500, 1501, 2999, 1502, 3}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto found,
                               reader.Find(manifest.tensors[t].name));
    EXPECT_EQ(*found, manifest.tensors[t]) << t;
    EXPECT_THAT(reader.Find(manifest.tensors[t].name + "x"),
                StatusIs(absl::StatusCode::kInvalidArgument, "no tensor"));
  }
}

TEST_F(ManifestReaderTest, SectionsAreKeptByTheirMemory) {
  Write(ManyTensors(10000, 1));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  for (int pass = 0; pass < 2; ++pass) {
    for (int t = 0; t < 10000; t += 100) {
      EXPECT_THAT(
          reader.Find(absl::StrFormat("model.layers.%05d.attention.weight", t)),
          IsOk());
    }
  }
  EXPECT_LE(reader.bytes_read(), size_ + (20 << 10));
}

TEST_F(ManifestReaderTest, AManifestThatIsReplacedStaysInView) {
  Write(ManyTensors(10000, 1));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  Write(SampleManifest());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto tensor, reader.Find("model.layers.05000.attention.weight"));
  EXPECT_EQ(tensor->sizes()[1], 5004);
}

TEST_F(ManifestReaderTest, DamageInASectionIsFoundWhenItIsRead) {
  Write(ManyTensors(10000, 1));
  std::string bytes = *ReadFile(FileSystem::Posix(), manifest_path_, 1 << 30);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(
      WriteFileAtomically(FileSystem::Posix(), manifest_path_, AsBytes(bytes))
          .ok());
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  int damaged = 0;
  for (int t = 0; t < 10000; t += 100) {
    const auto tensor =
        reader.Find(absl::StrFormat("model.layers.%05d.attention.weight", t));
    if (tensor.ok()) continue;
    ++damaged;
    EXPECT_THAT(tensor, StatusIs(absl::StatusCode::kDataLoss,
                                 AllOf(HasSubstr(manifest_path_),
                                       HasSubstr("damaged: the bytes from"))));
  }
  EXPECT_GT(damaged, 0);
  EXPECT_LT(damaged, 30);
  EXPECT_THAT(reader.ReadAll(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(ManifestReaderTest, SeveralThreadsMayAsk) {
  Write(ManyTensors(3000, 500));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestReader reader,
                             ManifestReader::Open(FileSystem::Posix(), path_));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&reader, i] {
      for (int t = i; t < 3000; t += 37) {
        const auto tensor = reader.Find(
            absl::StrFormat("model.layers.%05d.attention.weight", t));
        EXPECT_TRUE(tensor.ok() && (*tensor)->sizes()[1] == 4 + t);
        EXPECT_TRUE(reader.FileAt(t % 500).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sherd
