#include "sherd/serialization/manifest/data_file.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/kits/sample_data_file.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;

constexpr int64_t kMaxStep = std::numeric_limits<int64_t>::max();

DataFileContents Contents() {
  DataFileContents contents;
  contents.save_id = "0123456789abcdef";
  contents.world_size = 4;
  contents.rank = 2;
  contents.files = 3;
  contents.chunk_bytes = 32;
  contents.tensors = {
      {"a@b", kComplex128, {4, 3}, true, SavedLayoutKind::kChunk, 1},
      {"nothing; 5:at all=", kInt8, {0, 7}},
      {"step", kUInt64, {}}};
  contents.placements = {"rank:2/cpu", "worker;3:x/cuda:1"};
  contents.shards = {
      {{{0, 2}, {4, 1}}, 0, 0}, {{{0, 0}, {4, 1}}, 0, 1}, {{{}, {}}, 2, 1}};
  return contents;
}

SafetensorsHeader Header(const DataFileContents& contents) {
  const std::string front = *EncodeDataFileHeader(contents);
  int64_t bytes = CrcTableBytes(5);
  for (const DataFileShard& shard : contents.shards) {
    bytes += Volume(shard) *
             static_cast<int64_t>(SizeOf(contents.tensors[shard.tensor].dtype));
  }
  return *ParseSafetensorsHeader(front.substr(8), bytes, "f");
}

TEST(DataFileTest, TheHeaderSurvivesEncodingAndParsing) {
  const DataFileContents contents = Contents();
  SHERD_ASSERT_OK_AND_ASSIGN(const DataFileContents again,
                             ParseDataFileHeader(Header(contents), "f"));
  EXPECT_EQ(again, contents);
}

TEST(DataFileTest, TheStepOfASeriesSurvivesToo) {
  DataFileContents contents = Contents();
  for (const int64_t step : {int64_t{0}, int64_t{1200}, kMaxStep}) {
    contents.step = step;
    EXPECT_THAT(ParseDataFileHeader(Header(contents), "f"),
                IsOkAndHolds(contents));
  }
}

TEST(DataFileTest, MetadataThatDoesNotFitIsRefused) {
  const SafetensorsHeader intact = Header(Contents());
  const std::vector<std::function<void(SafetensorsHeader&)>> changes = {
      [](auto& h) { h.metadata.erase("sherd_format"); },
      [](auto& h) { h.metadata["sherd_format"] = "1"; },
      [](auto& h) { h.metadata["sherd_step"] = ""; },
      [](auto& h) { h.metadata["sherd_step"] = "-1"; },
      [](auto& h) { h.metadata["sherd_step"] = "01"; },
      [](auto& h) { h.metadata["sherd_step"] = "9223372036854775808"; },
      [](auto& h) { h.metadata["sherd_rank"] = "4"; },
      [](auto& h) { h.metadata["sherd_rank"] = "02"; },
      [](auto& h) { h.metadata["sherd_files"] = "5"; },
      [](auto& h) { h.metadata["sherd_world_size"] = "0"; },
      [](auto& h) { h.metadata["sherd_chunk_bytes"] = "16"; },
      [](auto& h) { h.metadata["sherd_chunk_bytes"] = "99999999999999999999"; },
      [](auto& h) { h.metadata["sherd_tensors"] += ";"; },
      [](auto& h) { h.metadata["sherd_tensors"].pop_back(); },
      [](auto& h) { h.metadata["sherd_tensors"][0] = 'X'; },
      [](auto& h) {
        h.metadata["sherd_tensors"] = "complex128[4,3]1,3;uint64[]0,0;";
      },
      [](auto& h) {
        h.metadata["sherd_tensors"] = "complex128[4,2]1,2;uint64[]0,0;";
      },
      [](auto& h) {
        h.metadata["sherd_tensors"] = "float64[4,3]1,2;uint64[]0,0;";
      },
      [](auto& h) {
        h.metadata["sherd_tensors"] = "complex128[4,3,1]1,2;uint64[]0,0;";
      },
      [](auto& h) { h.metadata["sherd_empty_tensors"] = "int8[7]0,0=1:x;"; },
      [](auto& h) { h.metadata["sherd_empty_tensors"] = "int8[0]0,0=9:x;"; },
      [](auto& h) { h.metadata["sherd_empty_tensors"] = "int8[0]0,0=4:step;"; },
      [](auto& h) { h.metadata["sherd_placements"] = "3*2:ab"; },
      [](auto& h) { h.metadata["sherd_placements"] = "2*2:ab;"; },
      [](auto& h) { h.metadata["sherd_placements"] = "4*2:ab;"; },
      [](auto& h) { h.metadata["sherd_placements"] = "0*2:ab;3*2:ab;"; },
      [](auto& h) { h.entries.back().name = "x@"; },
      [](auto& h) { h.entries.back().shape[0] += 1; },
      [](auto& h) { h.entries[0].name = "a@b@0,3"; },
      [](auto& h) { h.entries[0].name = "a@b@0"; },
      [](auto& h) { h.entries[0].name = "a"; },
      [](auto& h) { h.entries.clear(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SafetensorsHeader header = intact;
    changes[i](header);
    EXPECT_THAT(ParseDataFileHeader(header, "f"),
                StatusIs(absl::StatusCode::kDataLoss, "f: "))
        << i;
  }
  SafetensorsHeader later = intact;
  later.metadata["sherd_format"] = "3";
  EXPECT_THAT(ParseDataFileHeader(later, "f"),
              StatusIs(absl::StatusCode::kUnimplemented, "later Sherd"));
}

SafetensorsHeader IncrementHeader(const DataFileContents& contents) {
  const std::string front = *EncodeDataFileHeader(contents);
  return *ParseSafetensorsHeader(front.substr(8), kSampleIncrementBytes, "f");
}

TEST(DataFileTest, TheHeaderOfAnIncrementSurvivesEncodingAndParsing) {
  const DataFileContents contents = SampleIncrement();
  const SafetensorsHeader header = IncrementHeader(contents);
  EXPECT_EQ(header.entries[0].name, "weight@3,0+32");
  EXPECT_EQ(header.metadata.at("sherd_split_shards"),
            "4:biasbfloat16[5]0,0@0+5*10:rank:1/cpu=1:1:120:5;"
            "6:weightfloat32[6,10]1,1@3,0+3,10*10:rank:1/cpu="
            "1:1:0:1,1,1:2:64:3,1;");
  SHERD_ASSERT_OK_AND_ASSIGN(const DataFileContents again,
                             ParseDataFileHeader(header, "f"));
  EXPECT_EQ(again, contents);
}

TEST(DataFileTest, IncrementsOfVersion2AreRead) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string golden,
      ReadFile(FileSystem::Posix(),
               "serialization/testdata/v2/increment_header.safetensors",
               1 << 20));
  EXPECT_EQ(*EncodeDataFileHeader(SampleIncrement()), golden);
}

TEST(DataFileTest, SplitShardsThatDoNotFitAreRefused) {
  const SafetensorsHeader intact = IncrementHeader(SampleIncrement());
  const std::string shards = "sherd_split_shards";
  const std::string files = "sherd_earlier_files";
  const auto replace = [&](const char* from, const char* to) {
    return [=](SafetensorsHeader& h) {
      std::string& text = h.metadata[shards];
      const size_t at = text.find(from);
      ASSERT_NE(at, std::string::npos) << from;
      text.replace(at, std::string(from).size(), to);
    };
  };
  // So many tensors and chunks more, of placements that are the same.
  const auto count = [](int more, SafetensorsHeader& h) {
    h.metadata["sherd_placements"] = absl::StrCat(3 + more, "*10:rank:1/cpu;");
    h.entries.back().shape[0] += more;
  };
  const auto add_part = [&](const char* key, int64_t bytes,
                            SafetensorsHeader& h) {
    h.entries.insert(
        h.entries.begin(),
        {.name = key, .dtype_name = "U8", .shape = {bytes}, .end = bytes});
    count(1, h);
  };
  const std::vector<std::function<void(SafetensorsHeader&)>> changes = {
      // Two parts that are one, a shard that is not split, a part that is not
      // there.
      [&](auto& h) {
        replace("=1:1:0:1,1,", "=1,1,")(h);
        add_part("weight@3,0+0", 32, h);
      },
      [&](auto& h) {
        replace("=1:1:120:5", "=1")(h);
        h.metadata["sherd_tensors"].insert(0, "bfloat16[5]0,0;");
        add_part("bias@0+0", 10, h);
      },
      [&](auto& h) {
        h.entries.erase(h.entries.begin());
        count(-1, h);
      },
      replace("weightfloat32[6,10]1,1", "weightfloat32[6,10]0,1"),
      [&](auto& h) { h.metadata.erase(shards); },
      [&](auto& h) { h.metadata.erase(files); },
      [&](auto& h) { h.metadata[shards] = ""; },
      [&](auto& h) { h.metadata[shards] += ";"; },
      [&](auto& h) { h.metadata[shards].pop_back(); },
      // Twice, or not in order.
      [&](auto& h) { h.metadata[shards] += h.metadata[shards]; },
      [&](auto& h) { h.metadata[files] = "../x;y;"; },
      [&](auto& h) { h.metadata[files] = "x;x;"; },
      [&](auto& h) { h.metadata[files] = "x;"; },
      [&](auto& h) { h.metadata[files] = "x;y"; },
      // Other tensors, or boxes outside of them.
      replace("4:bias", "5:empty"), replace("bfloat16[5]", "bfloat16[4]"),
      replace("@0+5", "@1+5"), replace("@0+5", "@0+0"),
      replace("weightfloat32", "weightfloat64"), replace("@3,0", "@2,0"),
      // Extents that are not the shard, or of no file.
      replace("=1:1:120:5", "=2:1:120:5"), replace("=1:1:120:5", "=1"),
      replace("=1:1:120:5", "=1:0:120:5"), replace("=1:1:120:5", "=1:3:120:5"),
      replace("=1:1:120:5", "=1:1:120:0"),
      replace("=1:1:120:5", "=1:1:4611686018427387904:5"),
      replace("=1:1:120:5", "=1:1:120:67108865"),
      replace("=1:1:120:5", "=1:1:0120:5"),
      replace(",1:2:64:3,1;", ",1:2:64:3;"),
      replace(",1:2:64:3,1;", ",1:2:64:3,2;"),
      replace(",1:2:64:3,1;", ",1:2:64:3,1,1;"), replace(",1,1:2:64:3", ",1,1"),
      replace(",1,1:2:64:3", ",2"),
      // Tensors that are others than the extents say.
      [](auto& h) { h.entries[0].dtype_name = "I8"; },
      [](auto& h) {
        h.entries[0].shape = {4, 8};
      },
      [](auto& h) { h.entries[0].name = "weight@3,0+0"; },
      [](auto& h) { h.entries[0].name = "weight@3,0+032"; },
      [](auto& h) { h.entries[0].name = "weight@3,0"; },
      [](auto& h) { h.entries.erase(h.entries.begin()); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SafetensorsHeader header = intact;
    changes[i](header);
    EXPECT_THAT(ParseDataFileHeader(header, "f"),
                StatusIs(absl::StatusCode::kDataLoss, "f: "))
        << i;
  }
}

TEST(DataFileTest, TheNameOfTheChecksumsIsReserved) {
  DataFileContents contents = Contents();
  contents.tensors[2].name = kCrcTableName;
  EXPECT_THAT(EncodeDataFileHeader(contents),
              StatusIs(absl::StatusCode::kInvalidArgument, "rename it"));
}

TEST(DataFileTest, TheNumberOfChunksIsLimited) {
  DataFileContents contents = Contents();
  contents.chunk_bytes = 1 << 20;
  contents.tensors = {{"a", kUInt8, {kMaxFileChunks + 1}}};
  contents.shards = {{{{0}, {kMaxFileChunks + 1}}, 0, 0}};
  const std::string front = *EncodeDataFileHeader(contents);
  SafetensorsHeader header = *ParseSafetensorsHeader(
      front.substr(8), kMaxFileChunks + 1 + CrcTableBytes(65), "f");
  EXPECT_THAT(ParseDataFileHeader(header, "f"), IsOk());
  header.metadata["sherd_chunk_bytes"] = "1";
  EXPECT_THAT(
      ParseDataFileHeader(header, "f"),
      StatusIs(absl::StatusCode::kDataLoss, "67108865 chunks, expected at"));
  contents.chunk_bytes = 1;
  EXPECT_THAT(EncodeDataFileHeader(contents),
              StatusIs(absl::StatusCode::kInvalidArgument, "more ranks"));
}

}  // namespace
}  // namespace sherd
