#include "sherd/serialization/manifest/manifest.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/serialization/kits/sample_manifest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;

TEST(ManifestTest, ASoundManifestIsValid) {
  EXPECT_THAT(ValidateManifest(SampleManifest()), IsOk());
  Manifest nothing;
  EXPECT_THAT(ValidateManifest(nothing), IsOk());
}

TEST(ManifestTest, AnEmptyShardMayLieAnywhere) {
  Manifest manifest = SampleManifest();
  Dims& offsets = manifest.tensors[0].shards[0].offsets;
  for (const Dims& where : {Dims{7, 0}, Dims{7, 1}}) {
    offsets = where;
    EXPECT_THAT(ValidateManifest(manifest), IsOk());
  }
  offsets = {-1, 0};
  EXPECT_THAT(ValidateManifest(manifest),
              StatusIs(absl::StatusCode::kDataLoss, "is not inside [0, 5]"));
}

TEST(ManifestTest, TensorsAreFoundByName) {
  const Manifest manifest = SampleManifest();
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestTensor* weight,
                             manifest.Find("weight"));
  EXPECT_EQ(weight->sizes, (Dims{4, 6}));
  EXPECT_THAT(manifest.Find("wei"), StatusIs(absl::StatusCode::kInvalidArgument,
                                             "no tensor \"wei\""));
  EXPECT_THAT(manifest.Find(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ManifestTest, KeysOfShardsTellTensorAndPlaceApart) {
  EXPECT_EQ(ShardKey("w", {2, 0}), "w@2,0");
  EXPECT_EQ(ShardKey("s", {}), "s@");
  EXPECT_EQ(ShardKey("a@1", {0}), "a@1@0");
}

struct Damage {
  const char* what;
  std::function<void(Manifest&)> apply;
  const char* message;
};

std::ostream& operator<<(std::ostream& out, const Damage& damage) {
  return out << damage.what;
}

class ManifestDamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(ManifestDamageTest, IsRefusedByName) {
  Manifest manifest = SampleManifest();
  GetParam().apply(manifest);
  EXPECT_THAT(ValidateManifest(manifest),
              StatusIs(absl::StatusCode::kDataLoss, GetParam().message));
}

// The sample has the tensors "empty", "scalar" and "weight", in that order;
// see sample_manifest.h.
ManifestTensor& Weight(Manifest& m) { return m.tensors[2]; }

INSTANTIATE_TEST_SUITE_P(All, ManifestDamageTest,
                         ::
                             testing::Values(Damage{"writer",
                                                    [](Manifest& m) {
                                                      m.writer = "\xff";
                                                    },
                                                    "the writer"},
                                             Damage{"long_writer",
                                                    [](Manifest& m) {
                                                      m.writer = std::string(
                                                          1025, 'x');
                                                    },
                                                    "the writer"},
                                             Damage{"save_id",
                                                    [](Manifest& m) {
                                                      m.save_id = "\xc0";
                                                    },
                                                    "save id"},
                                             Damage{"world",
                                                    [](Manifest& m) {
                                                      m.world_size = 0;
                                                    },
                                                    "world size"},
                                             Damage{"placement_text",
                                                    [](Manifest& m) {
                                                      m.placements[0] = "\xff";
                                                    },
                                                    "a placement"},
                                             Damage{"chunk_0",
                                                    [](Manifest& m) {
                                                      m.chunk_bytes = 0;
                                                    },
                                                    "chunks have 0"},
                                             Damage{"chunk_negative",
                                                    [](Manifest& m) {
                                                      m.chunk_bytes = -1;
                                                    },
                                                    "chunks have -1"},
                                             Damage{"chunk_huge",
                                                    [](Manifest& m) {
                                                      m.chunk_bytes =
                                                          kMaxChunkBytes + 1;
                                                    },
                                                    "chunks have 67108865"},
                                             Damage{"file_outside",
                                                    [](Manifest& m) {
                                                      m.files[0].name =
                                                          "../secret";
                                                    },
                                                    "a file name"},
                                             Damage{"file_absolute",
                                                    [](Manifest& m) {
                                                      m.files[0].name =
                                                          "/etc/passwd";
                                                    },
                                                    "a file name"},
                                             Damage{"file_dot",
                                                    [](Manifest& m) {
                                                      m.files[0].name = "..";
                                                    },
                                                    "a file name"},
                                             Damage{"file_empty",
                                                    [](Manifest& m) {
                                                      m.files[0].name = "";
                                                    },
                                                    "a file name"},
                                             Damage{"file_nul",
                                                    [](Manifest& m) {
                                                      m.files[0].name =
                                                          std::string("a\0b",
                                                                      3);
                                                    },
                                                    "a file name"},
                                             Damage{"file_twice",
                                                    [](Manifest& m) {
                                                      m.files[1].name =
                                                          m.files[0].name;
                                                    },
                                                    "appears twice"},
                                             Damage{"data_begin",
                                                    [](Manifest& m) {
                                                      m.files[0].data_begin =
                                                          1 << 20;
                                                    },
                                                    "begins at offset 1048576"},
                                             Damage{"file_longer",
                                                    [](Manifest& m) {
                                                      m.files[0].size += 1;
                                                    },
                                                    "1 bytes from offset"},
                                             Damage{"file_shorter",
                                                    [](Manifest& m) {
                                                      m.files[0].size -= 1;
                                                    },
                                                    "tensor \"weight\""},
                                             Damage{"name_empty",
                                                    [](Manifest& m) {
                                                      m.tensors[0].name = "";
                                                    },
                                                    "a tensor name of 0"},
                                             Damage{"name_utf8",
                                                    [](Manifest& m) {
                                                      m.tensors[0].name =
                                                          "\xff";
                                                    },
                                                    "not UTF-8"},
                                             Damage{"name_long",
                                                    [](Manifest& m) {
                                                      m.tensors[2].name =
                                                          std::string(32769,
                                                                      'x');
                                                    },
                                                    "a tensor name of 32769"},
                                             Damage{"names_out_of_order",
                                                    [](Manifest& m) {
                                                      std::swap(m.tensors[0],
                                                                m.tensors[1]);
                                                    },
                                                    "expected each name once, "
                                                    "in order"},
                                             Damage{"name_twice",
                                                    [](Manifest& m) {
                                                      m.tensors[1].name =
                                                          m.tensors[0].name;
                                                    },
                                                    "expected each name once"},
                                             Damage{"size_negative",
                                                    [](Manifest& m) {
                                                      Weight(m).sizes[0] = -4;
                                                    },
                                                    "tensor \"weight\""},
                                             Damage{"size_overflow",
                                                    [](Manifest& m) {
                                                      m.tensors[0].sizes = {
                                                          0, int64_t{1} << 40,
                                                          int64_t{1} << 40};
                                                    },
                                                    "tensor \"empty\""},
                                             Damage{"dimensions",
                                                    [](Manifest& m) {
                                                      m.tensors[0].sizes =
                                                          Dims(65, 0);
                                                    },
                                                    "tensor \"empty\""},
                                             Damage{"chunk_dim",
                                                    [](Manifest& m) {
                                                      Weight(m).chunk_dim = 2;
                                                    },
                                                    "dimension 2 of 2"},
                                             Damage{"chunk_dim_enumerable",
                                                    [](Manifest& m) {
                                                      m.tensors[1].chunk_dim =
                                                          1;
                                                    },
                                                    "dimension 1"},
                                             Damage{
                                                 "gap",
                                                 [](Manifest& m) {
                                                   Weight(m).shards.pop_back();
                                                 },
                                                 "tensor \"weight\""},
                                             Damage{"gap_inside",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .sizes[0] -= 1;
                                                    },
                                                    "tensor \"weight\""},
                                             Damage{"overlap",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[1]
                                                          .offsets[0] -= 1;
                                                    },
                                                    "tensor \"weight\""},
                                             Damage{"outside",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[1]
                                                          .offsets[0] += 1;
                                                    },
                                                    "is not inside [4, 6]"},
                                             Damage{"outside_far",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[1]
                                                          .offsets[0] =
                                                          INT64_MAX;
                                                    },
                                                    "is not inside"},
                                             Damage{"offset_negative",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .offsets[1] = -1;
                                                    },
                                                    "is not inside"},
                                             Damage{"rank_of_shard",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .offsets.push_back(0);
                                                    },
                                                    "is not inside"},
                                             Damage{"placement",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .placement = 9;
                                                    },
                                                    "placement 9 of 2"},
                                             Damage{"placement_negative",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .placement = -1;
                                                    },
                                                    "placement -1"},
                                             Damage{"no_file",
                                                    [](Manifest& m) {
                                                      Weight(m).shards[0].file =
                                                          -1;
                                                    },
                                                    "in file -1 of 2"},
                                             Damage{"file_index",
                                                    [](Manifest& m) {
                                                      Weight(m).shards[0].file =
                                                          2;
                                                    },
                                                    "in file 2 of 2"},
                                             Damage{
                                                 "file_for_nothing",
                                                 [](Manifest& m) {
                                                   m.tensors[0].shards[0].file =
                                                       0;
                                                 },
                                                 "is empty, but has a place"},
                                             Damage{"in_header",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .file_offset = 0;
                                                    },
                                                    "at offset 0 of file"},
                                             Damage{"past_the_file",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[0]
                                                          .file_offset =
                                                          INT64_MAX;
                                                    },
                                                    "at offset "
                                                    "9223372036854775807"},
                                             Damage{"same_bytes",
                                                    [](Manifest& m) {
                                                      Weight(m).shards[1].file =
                                                          Weight(m)
                                                              .shards[0]
                                                              .file;
                                                      Weight(m)
                                                          .shards[1]
                                                          .file_offset =
                                                          Weight(m)
                                                              .shards[0]
                                                              .file_offset;
                                                    },
                                                    "an overlap or a hole"},
                                             Damage{"crcs_missing",
                                                    [](Manifest& m) {
                                                      m.chunk_crc32c.pop_back();
                                                    },
                                                    "CRCs for"},
                                             Damage{"crcs_too_many",
                                                    [](Manifest& m) {
                                                      m.chunk_crc32c.push_back(
                                                          0);
                                                    },
                                                    "CRCs for"},
                                             Damage{"first_chunk",
                                                    [](Manifest& m) {
                                                      Weight(m)
                                                          .shards[1]
                                                          .first_chunk = 0;
                                                    },
                                                    "has its CRCs from 0 on"}),
                         [](const ::testing::TestParamInfo<Damage>& info) {
                           return std::string(info.param.what);
                         });

}  // namespace
}  // namespace sherd
