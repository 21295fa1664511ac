#include "sherd/serialization/manifest/manifest_v1.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/serialization/kits/sample_manifest_v1.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;

TEST(ManifestTest, ASoundManifestIsValid) {
  EXPECT_THAT(ValidateManifestV1(SampleManifestV1()), IsOk());
  ManifestV1 nothing;
  EXPECT_THAT(ValidateManifestV1(nothing), IsOk());
}

TEST(ManifestTest, AnEmptyShardMayLieAnywhere) {
  ManifestV1 manifest = SampleManifestV1();
  Dims& offsets = manifest.tensors[0].shards[0].offsets;
  for (const Dims& where : {Dims{7, 0}, Dims{7, 1}}) {
    offsets = where;
    EXPECT_THAT(ValidateManifestV1(manifest), IsOk());
  }
  offsets = {-1, 0};
  EXPECT_THAT(ValidateManifestV1(manifest),
              StatusIs(absl::StatusCode::kDataLoss, "is not inside [0, 5]"));
}

TEST(ManifestTest, KeysOfShardsDistinguishTensorsAndPlaces) {
  EXPECT_EQ(ShardKey("w", {2, 0}), "w@2,0");
  EXPECT_EQ(ShardKey("s", {}), "s@");
  EXPECT_EQ(ShardKey("a@1", {0}), "a@1@0");
}

struct Damage {
  const char* what;
  std::function<void(ManifestV1&)> apply;
  const char* message;
};

std::ostream& operator<<(std::ostream& out, const Damage& damage) {
  return out << damage.what;
}

class ManifestDamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(ManifestDamageTest, IsRefusedByName) {
  ManifestV1 manifest = SampleManifestV1();
  GetParam().apply(manifest);
  EXPECT_THAT(ValidateManifestV1(manifest),
              StatusIs(absl::StatusCode::kDataLoss, GetParam().message));
}

// The sample has the tensors "empty", "scalar" and "weight", in that order;
// see sample_manifest.h.
ManifestTensorV1& Weight(ManifestV1& m) { return m.tensors[2]; }

INSTANTIATE_TEST_SUITE_P(All, ManifestDamageTest,
                         ::testing::Values(Damage{"writer",
                                                  [](ManifestV1& m) {
                                                    m.writer = "\xff";
                                                  },
                                                  "the writer"},
                                           Damage{"long_writer",
                                                  [](ManifestV1& m) {
                                                    m.writer =
                                                        std::string(1025, 'x');
                                                  },
                                                  "the writer"},
                                           Damage{"save_id",
                                                  [](ManifestV1& m) {
                                                    m.save_id = "\xc0";
                                                  },
                                                  "save id"},
                                           Damage{"world",
                                                  [](ManifestV1& m) {
                                                    m.world_size = 0;
                                                  },
                                                  "world size"},
                                           Damage{"placement_text",
                                                  [](ManifestV1& m) {
                                                    m.placements[0] = "\xff";
                                                  },
                                                  "a placement"},
                                           Damage{"chunk_0",
                                                  [](ManifestV1& m) {
                                                    m.chunk_bytes = 0;
                                                  },
                                                  "chunks have 0"},
                                           Damage{"chunk_negative",
                                                  [](ManifestV1& m) {
                                                    m.chunk_bytes = -1;
                                                  },
                                                  "chunks have -1"},
                                           Damage{"chunk_huge",
                                                  [](ManifestV1& m) {
                                                    m.chunk_bytes =
                                                        kMaxChunkBytes + 1;
                                                  },
                                                  "chunks have 67108865"},
                                           Damage{"file_outside",
                                                  [](ManifestV1& m) {
                                                    m.files[0].name =
                                                        "../secret";
                                                  },
                                                  "a file name"},
                                           Damage{"file_absolute",
                                                  [](ManifestV1& m) {
                                                    m.files[0].name =
                                                        "/etc/passwd";
                                                  },
                                                  "a file name"},
                                           Damage{"file_dot",
                                                  [](ManifestV1& m) {
                                                    m.files[0].name = "..";
                                                  },
                                                  "a file name"},
                                           Damage{"file_empty",
                                                  [](ManifestV1& m) {
                                                    m.files[0].name = "";
                                                  },
                                                  "a file name"},
                                           Damage{"file_nul",
                                                  [](ManifestV1& m) {
                                                    m.files[0].name =
                                                        std::string("a\0b", 3);
                                                  },
                                                  "a file name"},
                                           Damage{"file_twice",
                                                  [](ManifestV1& m) {
                                                    m.files[1].name =
                                                        m.files[0].name;
                                                  },
                                                  "appears twice"},
                                           Damage{"data_begin",
                                                  [](ManifestV1& m) {
                                                    m.files[0].data_begin =
                                                        1 << 20;
                                                  },
                                                  "begins at offset 1048576"},
                                           Damage{"file_longer",
                                                  [](ManifestV1& m) {
                                                    m.files[0].size += 1;
                                                  },
                                                  "1 bytes from offset"},
                                           Damage{"file_shorter",
                                                  [](ManifestV1& m) {
                                                    m.files[0].size -= 1;
                                                  },
                                                  "tensor \"weight\""},
                                           Damage{"name_empty",
                                                  [](ManifestV1& m) {
                                                    m.tensors[0].name = "";
                                                  },
                                                  "a tensor name of 0"},
                                           Damage{"name_utf8",
                                                  [](ManifestV1& m) {
                                                    m.tensors[0].name = "\xff";
                                                  },
                                                  "not UTF-8"},
                                           Damage{"name_long",
                                                  [](ManifestV1& m) {
                                                    m.tensors[2].name =
                                                        std::string(32769, 'x');
                                                  },
                                                  "a tensor name of 32769"},
                                           Damage{"names_out_of_order",
                                                  [](ManifestV1& m) {
                                                    std::swap(m.tensors[0],
                                                              m.tensors[1]);
                                                  },
                                                  "expected each name once, "
                                                  "in order"},
                                           Damage{"name_twice",
                                                  [](ManifestV1& m) {
                                                    m.tensors[1].name =
                                                        m.tensors[0].name;
                                                  },
                                                  "expected each name once"},
                                           Damage{"size_negative",
                                                  [](ManifestV1& m) {
                                                    Weight(m).sizes[0] = -4;
                                                  },
                                                  "tensor \"weight\""},
                                           Damage{"size_overflow",
                                                  [](ManifestV1& m) {
                                                    m.tensors[0].sizes = {
                                                        0, int64_t{1} << 40,
                                                        int64_t{1} << 40};
                                                  },
                                                  "tensor \"empty\""},
                                           Damage{"dimensions",
                                                  [](ManifestV1& m) {
                                                    m.tensors[0].sizes =
                                                        Dims(65, 0);
                                                  },
                                                  "tensor \"empty\""},
                                           Damage{"chunk_dim",
                                                  [](ManifestV1& m) {
                                                    Weight(m).chunk_dim = 2;
                                                  },
                                                  "dimension 2 of 2"},
                                           Damage{"chunk_dim_enumerable",
                                                  [](ManifestV1& m) {
                                                    m.tensors[1].chunk_dim = 1;
                                                  },
                                                  "dimension 1"},
                                           Damage{"gap",
                                                  [](ManifestV1& m) {
                                                    Weight(m).shards.pop_back();
                                                  },
                                                  "tensor \"weight\""},
                                           Damage{
                                               "gap_inside",
                                               [](ManifestV1& m) {
                                                 Weight(m).shards[0].sizes[0] -=
                                                     1;
                                               },
                                               "tensor \"weight\""},
                                           Damage{"overlap",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[1]
                                                        .offsets[0] -= 1;
                                                  },
                                                  "tensor \"weight\""},
                                           Damage{"outside",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[1]
                                                        .offsets[0] += 1;
                                                  },
                                                  "is not inside [4, 6]"},
                                           Damage{"outside_far",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[1]
                                                        .offsets[0] = INT64_MAX;
                                                  },
                                                  "is not inside"},
                                           Damage{"offset_negative",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[0]
                                                        .offsets[1] = -1;
                                                  },
                                                  "is not inside"},
                                           Damage{"rank_of_shard",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[0]
                                                        .offsets.push_back(0);
                                                  },
                                                  "is not inside"},
                                           Damage{
                                               "placement",
                                               [](ManifestV1& m) {
                                                 Weight(m).shards[0].placement =
                                                     9;
                                               },
                                               "placement 9 of 2"},
                                           Damage{
                                               "placement_negative",
                                               [](ManifestV1& m) {
                                                 Weight(m).shards[0].placement =
                                                     -1;
                                               },
                                               "placement -1"},
                                           Damage{"no_file",
                                                  [](ManifestV1& m) {
                                                    Weight(m).shards[0].file =
                                                        -1;
                                                  },
                                                  "in file -1 of 2"},
                                           Damage{"file_index",
                                                  [](ManifestV1& m) {
                                                    Weight(m).shards[0].file =
                                                        2;
                                                  },
                                                  "in file 2 of 2"},
                                           Damage{
                                               "file_for_nothing",
                                               [](ManifestV1& m) {
                                                 m.tensors[0].shards[0].file =
                                                     0;
                                               },
                                               "is empty, but has a place"},
                                           Damage{"in_header",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[0]
                                                        .file_offset = 0;
                                                  },
                                                  "at offset 0 of file"},
                                           Damage{"past_the_file",
                                                  [](ManifestV1& m) {
                                                    Weight(m)
                                                        .shards[0]
                                                        .file_offset =
                                                        INT64_MAX;
                                                  },
                                                  "at offset "
                                                  "9223372036854775807"},
                                           Damage{"same_bytes",
                                                  [](ManifestV1& m) {
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
                                                  [](ManifestV1& m) {
                                                    m.chunk_crc32c.pop_back();
                                                  },
                                                  "CRCs for"},
                                           Damage{"crcs_too_many",
                                                  [](ManifestV1& m) {
                                                    m.chunk_crc32c.push_back(0);
                                                  },
                                                  "CRCs for"},
                                           Damage{"first_chunk",
                                                  [](ManifestV1& m) {
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
