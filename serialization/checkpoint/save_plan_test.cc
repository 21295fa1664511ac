#include "sherd/serialization/checkpoint/save_plan.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/safetensors_header.h"
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
  a.layout = SavedLayoutKind::kChunk;
  a.shards = {{{{0, 0}, {4, 3}}, 1, "rank:1/cpu"},
              {{{4, 0}, {1, 3}}, 0, "rank:0/cpu"},
              {{{8, 0}, {0, 3}}, 2, "rank:2/cpu"}};
  TensorToSave s;
  s.name = "s";
  s.dtype = kComplex128;
  s.requires_grad = true;
  s.shards = {{{{}, {}}, 1, "rank:1/cpu"}};
  return {a, s};
}

TEST(SavePlanTest, TheManifestPutsEveryShardWhereItsRankPutsIt) {
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestV1 manifest,
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
      const ManifestTensorV1& tensor = manifest.tensors[place.index.tensor];
      const ManifestShardV1& shard = tensor.shards[place.index.shard];
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

// A tensor that three ranks hold, and a part of it that two hold.
TensorToSave Replicas(int64_t rows) {
  TensorToSave tensor;
  tensor.name = "r";
  tensor.dtype = kInt64;
  tensor.sizes = {rows, 2};
  tensor.shards = {{{{0, 0}, {rows, 1}}, 2, "rank:2/cpu", 0},
                   {{{0, 1}, {rows, 1}}, 0, "rank:0/cpu", 1},
                   {{{0, 0}, {rows, 1}}, 1, "rank:1/cpu", 2},
                   {{{0, 1}, {rows, 1}}, 1, "rank:1/cpu", 3},
                   {{{0, 0}, {rows, 1}}, 0, "rank:0/cpu", 4}};
  return tensor;
}

TEST(SavePlanTest, SmallReplicasAreLeftToRanksInTurn) {
  std::vector<int64_t> load(3);
  std::vector<TensorToSave> tensors;
  for (const char* name : {"a", "b", "c"}) {
    TensorToSave tensor = Replicas(10);
    tensor.name = name;
    AssignReplicaOwners(tensor, absl::MakeSpan(load));
    EXPECT_EQ(tensor.shards.size(), 2u);
    for (const ShardToSave& shard : tensor.shards) {
      EXPECT_EQ(shard.placement, absl::StrCat("rank:", shard.rank, "/cpu"));
      EXPECT_EQ(Replicas(10).shards[shard.held].rank, shard.rank);
    }
    tensors.push_back(tensor);
  }
  EXPECT_EQ(load, (std::vector<int64_t>{160, 160, 160}));
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestV1 manifest,
                             PlanManifest(tensors, 3, kId));
  EXPECT_THAT(ValidateManifest(manifest), IsOk());
}

TEST(SavePlanTest, LargeReplicasAreWrittenInPartsByAllThatHoldThem) {
  std::vector<int64_t> load(3);
  const int64_t rows = 2'000'001;
  TensorToSave tensor = Replicas(rows);
  AssignReplicaOwners(tensor, absl::MakeSpan(load));
  // 16 MB among three ranks, and among two.
  EXPECT_EQ(tensor.shards.size(), 5u);
  for (const ShardToSave& shard : tensor.shards) {
    const ShardToSave held = Replicas(rows).shards[shard.held];
    EXPECT_EQ(held.rank, shard.rank);
    EXPECT_EQ(held.offsets[1], shard.offsets[1]);
    EXPECT_GE(shard.sizes[0] * 8, int64_t{4} << 20);
  }
  EXPECT_EQ(load[0] + load[1] + load[2], rows * 16);
  SHERD_ASSERT_OK_AND_ASSIGN(const ManifestV1 manifest,
                             PlanManifest({tensor}, 3, kId));
  EXPECT_THAT(ValidateManifest(manifest), IsOk());
}

TEST(SavePlanTest, WithoutReplicasNothingChanges) {
  std::vector<int64_t> load(3);
  for (const TensorToSave& tensor : Tensors()) {
    TensorToSave same = tensor;
    AssignReplicaOwners(same, absl::MakeSpan(load));
    ASSERT_EQ(same.shards.size(), tensor.shards.size());
    for (size_t i = 0; i < same.shards.size(); ++i) {
      EXPECT_EQ(same.shards[i].offsets, tensor.shards[i].offsets);
      EXPECT_EQ(same.shards[i].sizes, tensor.shards[i].sizes);
      EXPECT_EQ(same.shards[i].rank, tensor.shards[i].rank);
    }
  }
  EXPECT_EQ(load, (std::vector<int64_t>{6, 24 + 16, 0}));
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
        "lease.sherd", "lease.sherd.1.tmp", "lease.sherd.0123456789abcdef",
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
