#include "sherd/serialization/save_plan.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/serialization/crc32c.h"
#include "sherd/serialization/safetensors_header.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;

constexpr char kId[] = "0123456789abcdef";

// "a": int16 [5, 3], rows 0 to 3 on rank 1 and row 4 on rank 0, nothing on rank
// 2. "s": a complex128 scalar on rank 1.
std::vector<TensorToSave> Tensors() {
  TensorToSave a;
  a.name = "a";
  a.dtype = kInt16;
  a.sizes = {5, 3};
  a.layout = SavedLayout::kChunk;
  a.shards = {{{0, 0}, {4, 3}, 1, "rank:1/cpu"},
              {{4, 0}, {1, 3}, 0, "rank:0/cpu"},
              {{8, 0}, {0, 3}, 2, "rank:2/cpu"}};
  TensorToSave s;
  s.name = "s";
  s.dtype = kComplex128;
  s.requires_grad = true;
  s.shards = {{{}, {}, 1, "rank:1/cpu"}};
  return {a, s};
}

TEST(SavePlanTest, TheManifestPutsEveryShardWhereItsRankPutsIt) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             PlanManifest(Tensors(), 3, kId));
  EXPECT_THAT(ValidateManifest(manifest), IsOk());
  EXPECT_EQ(manifest.save_id, kId);
  EXPECT_EQ(manifest.world_size, 3);
  // Rank 2 has no element, and so no file.
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files[1].name,
            "shard-00001-of-00003.0123456789abcdef.safetensors");
  const auto by_rank = ShardsByRank(Tensors(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const RankFile file,
        PlanRankFile(Tensors(), by_rank[rank], rank, 3, kId));
    EXPECT_EQ(file.name.empty(), rank == 2);
    int64_t position = static_cast<int64_t>(file.header.size());
    for (const RankFile::Place& place : file.places) {
      const ManifestTensor& tensor = manifest.tensors[place.index.tensor];
      const ManifestShard& shard = tensor.shards[place.index.shard];
      EXPECT_EQ(manifest.files[shard.file].name, file.name);
      EXPECT_EQ(shard.file_offset, place.file_offset);
      EXPECT_EQ(place.file_offset, position);
      EXPECT_EQ(place.bytes, manifest.ShardBytes(tensor, shard));
      position += place.bytes;
    }
    EXPECT_EQ(file.size, position);
  }
  EXPECT_EQ(manifest.chunk_crc32c.size(), 3u);
  EXPECT_EQ(manifest.tensors[0].shards[2].file, -1);
  EXPECT_TRUE(manifest.tensors[1].requires_grad);
}

TEST(SavePlanTest, TheHeaderHasKeysAndShapesOfTheShards) {
  const auto by_rank = ShardsByRank(Tensors(), 3);
  SHERD_ASSERT_OK_AND_ASSIGN(const RankFile file,
                             PlanRankFile(Tensors(), by_rank[1], 1, 3, kId));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      ParseSafetensorsHeader(absl::string_view(file.header).substr(8), 24 + 16,
                             "header"));
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, "s@");
  EXPECT_EQ(header.entries[0].dtype_name, "F64");
  EXPECT_EQ(header.entries[0].shape, (Dims{2}));
  EXPECT_EQ(header.entries[1].name, "a@0,0");
  EXPECT_EQ(header.entries[1].shape, (Dims{4, 3}));
  EXPECT_EQ(header.metadata.at("sherd_save_id"), kId);
}

TEST(SavePlanTest, OnlyNamesOfSavesAreOurs) {
  for (const char* ours :
       {"shard-00000-of-00004.0123456789abcdef.safetensors",
        "shard-123456-of-123457.ffffffffffffffff.safetensors",
        "manifest.sherd.1.tmp"}) {
    EXPECT_TRUE(IsSaveFileName(ours)) << ours;
  }
  for (const char* other :
       {"", "manifest.sherd", "manifest.sherd.tmp", "manifest.sherd.x.tmp",
        "shard-00000-of-00004.safetensors",
        "shard-00000-of-00004.0123456789abcde.safetensors",
        "shard-00000-of-00004.0123456789abcdeg.safetensors",
        "shard-00000.0123456789abcdef.safetensors",
        "shard-00000-of-00004.0123456789abcdef.safetensors.bak",
        "a-shard-00000-of-00004.0123456789abcdef.safetensors",
        "model-00001-of-00004.safetensors", "model.safetensors"}) {
    EXPECT_FALSE(IsSaveFileName(other)) << other;
  }
}

}  // namespace
}  // namespace sherd
