// Damage in the files of incremental saves, and manifests of such saves that
// are lost.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/incremental_fixture.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class IncrementalRecoverTest : public IncrementalFixture {};

TEST_F(IncrementalRecoverTest, DamageInAnEarlierFileIsNamed) {
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

TEST_F(IncrementalRecoverTest, MetadataThatDiffersFromTheManifestIsFound) {
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

TEST_F(IncrementalRecoverTest, ALostManifestIsRebuilt) {
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

TEST_F(IncrementalRecoverTest, ARecoveryChecksWhereExtentsAre) {
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
    ASSERT_EQ(static_cast<int64_t>(front.size()), checked.file.data_begin);
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

}  // namespace
}  // namespace sherd
