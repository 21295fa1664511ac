#include "sherd/serialization/manifest/manifest_codec_v1.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/kits/sample_manifest_v1.h"
#include "sherd/serialization/proto/checkpoint.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Proto = checkpoint::v1::Manifest;

const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;

void AppendNumber(uint64_t value, int bytes, std::string& text) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
}

// Puts `message` into the frame of a manifest, with the correct CRC.
std::string Framed(const std::string& message, uint32_t version = 1) {
  std::string text("SHERD\r\n\x1a");
  AppendNumber(version, 4, text);
  AppendNumber(message.size(), 8, text);
  text += message;
  AppendNumber(
      Crc32c(absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                            text.size())),
      4, text);
  return text;
}

Proto SampleProto() {
  const std::string bytes = *EncodeManifestV1(SampleManifestV1());
  Proto proto;
  EXPECT_TRUE(proto.ParseFromString(bytes.substr(20, bytes.size() - 24)));
  return proto;
}

TEST(ManifestCodecV1Test, SurvivesEncodingAndDecoding) {
  const ManifestV1 manifest = SampleManifestV1();
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                             EncodeManifestV1(manifest));
  EXPECT_EQ(*EncodeManifestV1(manifest), bytes);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestV1 again,
                             DecodeManifestV1(bytes, "m"));
  EXPECT_EQ(again, manifest);
}

TEST(ManifestCodecV1Test, ReadsTheGoldenFileOfVersion1) {
  std::ifstream file("serialization/testdata/v1/manifest.sherd",
                     std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)),
                          std::istreambuf_iterator<char>());
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestV1 manifest,
                             DecodeManifestV1(bytes, "golden"));
  EXPECT_EQ(manifest, SampleManifestV1());
}

TEST(ManifestCodecV1Test, EveryFlippedBitAndEveryTruncationIsSeen) {
  const std::string bytes = *EncodeManifestV1(SampleManifestV1());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(DecodeManifestV1(damaged, "m").ok()) << i << " " << bit;
    }
    EXPECT_THAT(DecodeManifestV1(bytes.substr(0, i), "m"), StatusIs(kLoss))
        << i;
  }
  EXPECT_THAT(DecodeManifestV1(bytes + "x", "m"),
              StatusIs(kLoss, "claims at offset 12"));
}

TEST(ManifestCodecV1Test, DamageIsReportedWithPathAndBothCrcs) {
  std::string bytes = *EncodeManifestV1(SampleManifestV1());
  bytes[40] = static_cast<char>(bytes[40] ^ 4);
  EXPECT_THAT(DecodeManifestV1(bytes, "dir/manifest.sherd"),
              StatusIs(kLoss, AllOf(StartsWith("dir/manifest.sherd"),
                                    HasSubstr("its CRC-32C at offset"))));
}

TEST(ManifestCodecV1Test, ALaterVersionIsRefusedWithBothVersions) {
  EXPECT_THAT(DecodeManifestV1(Framed("", 3), "m"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "has version 3, this build reads 1 to 2"));
  EXPECT_THAT(DecodeManifestV1(Framed("", 0), "m"),
              StatusIs(absl::StatusCode::kUnimplemented, "version 0"));
}

TEST(ManifestCodecV1Test, AFileOfAnotherKindIsRefused) {
  EXPECT_THAT(DecodeManifestV1("", "m"),
              StatusIs(kLoss, "not a checkpoint manifest: 0 bytes"));
  EXPECT_THAT(DecodeManifestV1(std::string(100, '{'), "m"),
              StatusIs(kLoss, "not a checkpoint manifest"));
  EXPECT_THAT(DecodeManifestV1(Framed("\xff\xff\xff"), "m"),
              StatusIs(kLoss, "not a message of the expected form"));
}

TEST(ManifestCodecV1Test, EncodingRefusesWhatDecodingWould) {
  ManifestV1 manifest = SampleManifestV1();
  manifest.tensors[2].shards.pop_back();
  EXPECT_THAT(EncodeManifestV1(manifest),
              StatusIs(absl::StatusCode::kInvalidArgument, "weight"));
}

struct Damage {
  const char* what;
  void (*apply)(Proto&);
  const char* message;
};

std::ostream& operator<<(std::ostream& out, const Damage& damage) {
  return out << damage.what;
}

class ManifestColumnsTest : public ::testing::TestWithParam<Damage> {};

TEST_P(ManifestColumnsTest, AreRefusedByName) {
  Proto proto = SampleProto();
  GetParam().apply(proto);
  EXPECT_THAT(DecodeManifestV1(Framed(proto.SerializeAsString()), "m"),
              StatusIs(kLoss, GetParam().message));
}

constexpr uint64_t kHuge = ~uint64_t{0};

INSTANTIATE_TEST_SUITE_P(
    All, ManifestColumnsTest,
    ::testing::Values(
        Damage{"file_size", [](Proto& p) { p.add_file_size(1); },
               "3 entries in file_size, expected 2"},
        Damage{"file_data_begin", [](Proto& p) { p.clear_file_data_begin(); },
               "0 entries in file_data_begin"},
        Damage{"file_crc", [](Proto& p) { p.add_file_header_crc32c(1); },
               "file_header_crc32c"},
        Damage{"file_name", [](Proto& p) { p.add_file_name("x"); },
               "file_size, expected 3"},
        Damage{"dtypes", [](Proto& p) { p.add_tensor_dtype(1); },
               "tensor_dtype, expected 3"},
        Damage{"ranks", [](Proto& p) { p.add_tensor_rank(1); }, "tensor_rank"},
        Damage{"flags", [](Proto& p) { p.add_tensor_flags(1); },
               "tensor_flags"},
        Damage{"layouts", [](Proto& p) { p.add_tensor_layout(0); },
               "tensor_layout"},
        Damage{"shard_counts", [](Proto& p) { p.add_tensor_shards(0); },
               "tensor_shards"},
        Damage{"shard_count", [](Proto& p) { p.set_tensor_shards(0, 9); },
               "shard_file, expected 12"},
        Damage{"shard_count_overflow",
               [](Proto& p) {
                 p.set_tensor_shards(0, UINT32_MAX);
                 p.set_tensor_shards(1, UINT32_MAX);
               },
               "shard_file, expected 8589934592"},
        Damage{"shard_offsets_in_file",
               [](Proto& p) { p.add_shard_file_offset(0); },
               "shard_file_offset"},
        Damage{"shard_placements", [](Proto& p) { p.add_shard_placement(0); },
               "shard_placement"},
        Damage{"sizes_missing",
               [](Proto& p) { p.mutable_tensor_size()->RemoveLast(); },
               "3 entries in tensor_size, expected 4"},
        Damage{"sizes_left", [](Proto& p) { p.add_tensor_size(1); },
               "5 entries in tensor_size, expected 4"},
        Damage{"offsets_missing", [](Proto& p) { p.clear_shard_offset(); },
               "0 entries in shard_offset"},
        Damage{"box_sizes_left", [](Proto& p) { p.add_shard_size(1); },
               "shard_size, expected 6"},
        Damage{"crcs", [](Proto& p) { p.add_chunk_crc32c(1); },
               "6 entries in chunk_crc32c, expected 5"},
        Damage{"few_crcs", [](Proto& p) { p.clear_chunk_crc32c(); },
               "0 entries in chunk_crc32c"},
        Damage{"dtype", [](Proto& p) { p.set_tensor_dtype(0, 21); },
               "21 in tensor_dtype"},
        Damage{"dtype_negative",
               [](Proto& p) { p.set_tensor_dtype(0, UINT32_MAX); },
               "in tensor_dtype"},
        Damage{"rank", [](Proto& p) { p.set_tensor_rank(0, 65); },
               "65 in tensor_rank, expected at most 64"},
        Damage{"flag", [](Proto& p) { p.set_tensor_flags(0, 2); },
               "2 in tensor_flags"},
        Damage{"layout", [](Proto& p) { p.set_tensor_layout(0, 3); },
               "3 in tensor_layout"},
        Damage{"world", [](Proto& p) { p.set_world_size(UINT32_MAX); },
               "world size"},
        Damage{"chunk", [](Proto& p) { p.set_chunk_bytes(0); },
               "chunks have 0"},
        Damage{"chunk_huge", [](Proto& p) { p.set_chunk_bytes(kHuge); },
               "in chunk_bytes"},
        Damage{"chunk_1", [](Proto& p) { p.set_chunk_bytes(1); }, "expected"},
        Damage{"file_size_huge", [](Proto& p) { p.set_file_size(0, kHuge); },
               "in file_size, expected less than 2^63"},
        Damage{"size_huge", [](Proto& p) { p.set_tensor_size(2, kHuge); },
               "in tensor_size, expected less than 2^63"},
        Damage{"offset_huge", [](Proto& p) { p.set_shard_offset(2, kHuge); },
               "in shard_offset, expected less than 2^63"},
        Damage{"file_index", [](Proto& p) { p.set_shard_file(1, 3); },
               "names file 3 of 2"},
        Damage{"placement", [](Proto& p) { p.set_shard_placement(1, 2); },
               "placement 2 of 2"},
        Damage{"name", [](Proto& p) { p.set_tensor_name(2, "\xff\xfe"); },
               "not UTF-8"},
        Damage{"path", [](Proto& p) { p.set_file_name(0, "../x"); },
               "a file name"}),
    [](const ::testing::TestParamInfo<Damage>& info) {
      return std::string(info.param.what);
    });

}  // namespace
}  // namespace sherd
