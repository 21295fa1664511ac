#include "sherd/serialization/checkpoint/save/save_plan.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/checkpoint/save/equal_shards.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/manifest_plan.h"
#include "sherd/serialization/checkpoint/save/save_layout.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;

std::shared_ptr<const std::vector<OwnerRun>> Owners(
    absl::Span<const int> ranks) {
  std::vector<OwnerRun> runs;
  for (const int rank : ranks) AppendOwner(rank, rank, runs);
  return std::make_shared<const std::vector<OwnerRun>>(std::move(runs));
}

std::vector<std::string> Placements(int ranks) {
  std::vector<std::string> texts;
  for (int r = 0; r < ranks; ++r) texts.push_back(absl::StrCat("rank:", r));
  return texts;
}

// [rows, columns] in `chunks` of rows.
SavedLayout Rows(int64_t rows, int64_t columns, int64_t chunks) {
  SavedLayout::Axis axis;
  axis.cells = chunks;
  axis.step = (rows + chunks - 1) / chunks;
  return SavedLayout::Grid({rows, columns}, {axis, {}});
}

TensorLayout Tensor(std::string name, DType dtype, SavedLayout layout,
                    absl::Span<const int> ranks) {
  TensorLayout tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.layout = std::move(layout);
  tensor.owners = Owners(ranks);
  return tensor;
}

// Whether PlanManifest has every shard where the plan of its rank has it.
void ExpectSamePlaces(const SaveLayout& layout) {
  ManifestPlan plan = PlanManifest(layout);
  plan.manifest = plan.WithRuns();
  EXPECT_EQ(CountFiles(layout), static_cast<int>(plan.rank_of_file.size()));
  size_t file = 0;
  std::vector<int64_t> found(layout.tensors.size());
  for (int rank = 0; rank < layout.world_size; ++rank) {
    const RankFile own = PlanRankFile(layout, rank);
    if (own.shards.empty()) continue;
    ASSERT_LT(file, plan.rank_of_file.size());
    ASSERT_EQ(plan.rank_of_file[file], rank);
    EXPECT_EQ(plan.manifest.files[file].chunks, own.chunks);
    EXPECT_EQ(plan.manifest.files[file].size,
              own.data_bytes + CrcTableBytes(own.chunks));
    int64_t offset = 0;
    int64_t chunk = 1;
    for (const FileShard& shard : own.shards) {
      const ManifestTensor& tensor = plan.manifest.tensors[shard.tensor];
      EXPECT_EQ(shard.data_offset, offset);
      EXPECT_EQ(shard.first_chunk, chunk);
      EXPECT_EQ(offset % std::min<int64_t>(4096, shard.bytes & -shard.bytes),
                0);
      EXPECT_EQ(shard.bytes, tensor.ShardBytes(shard.shard));
      const SavedShardPlace place =
          tensor.PlaceOf(shard.shard, plan.manifest.chunk_bytes);
      const SavedExtent expected = {static_cast<int32_t>(file), offset,
                                    shard.bytes, chunk};
      EXPECT_THAT(place.extents, ElementsAre(expected))
          << tensor.name << " " << shard.shard;
      EXPECT_EQ(place.placement, shard.placement);
      EXPECT_EQ(layout.placements[place.placement],
                absl::StrCat("rank:", rank));
      ++found[shard.tensor];
      offset += shard.bytes;
      chunk += NumChunks(shard.bytes, kChunkBytes);
    }
    EXPECT_EQ(own.data_bytes, offset);
    EXPECT_EQ(own.chunks, chunk - 1);
    ++file;
  }
  EXPECT_EQ(file, plan.rank_of_file.size());
  for (size_t t = 0; t < found.size(); ++t) {
    const ManifestTensor& tensor = plan.manifest.tensors[t];
    int64_t next = 0;
    for (const SavedRun& run : tensor.runs) {
      EXPECT_EQ(run.first, next);
      next += run.shards;
      if (run.extents.empty()) found[t] += run.shards;
    }
    EXPECT_EQ(next, tensor.num_shards());
    EXPECT_EQ(found[t], tensor.num_shards()) << "each shard is placed once";
  }
}

TEST(SavePlanTest, AlignmentThenSizeThenNameOrderAFile) {
  const int ranks[] = {0};
  SaveLayout layout;
  layout.placements = Placements(1);
  layout.tensors = {Tensor("a", kInt8, SavedLayout::Whole({4096 * 3}), ranks),
                    Tensor("b", kInt8, SavedLayout::Whole({2 * 5}), ranks),
                    Tensor("c", kInt8, SavedLayout::Whole({1024 * 9}), ranks),
                    Tensor("d", kInt8, SavedLayout::Whole({7}), ranks),
                    Tensor("e", kInt8, SavedLayout::Whole({4096 * 100}), ranks),
                    Tensor("f", kFloat64, SavedLayout::Whole({}), ranks),
                    Tensor("g", kInt8, SavedLayout::Whole({4096 * 3}), ranks),
                    Tensor("h", kInt8, SavedLayout::Whole({0}), ranks)};
  std::string order;
  for (const FileShard& shard : PlanRankFile(layout, 0).shards) {
    order += layout.tensors[shard.tensor].name;
  }
  EXPECT_EQ(order, "eagcfbd");
  ExpectSamePlaces(layout);
}

TEST(SavePlanTest, ChunksTakeAFewRunsHoweverManyRanksThereAre) {
  constexpr int kRanks = 1000;
  std::vector<int> ranks(kRanks);
  for (int r = 0; r < kRanks; ++r) ranks[r] = r;
  SaveLayout layout;
  layout.world_size = kRanks;
  layout.placements = Placements(kRanks);
  for (int64_t i = 0; i < 10; ++i) {
    // 4000 rows: one chunk each. Others: some shorter, and the last ones empty.
    layout.tensors.push_back(
        Tensor(absl::StrCat("t", i), kFloat32,
               Rows(i % 2 == 0 ? 4000 : 2000 + 123 * i, 8, kRanks), ranks));
    EXPECT_EQ(layout.tensors.back().owners->size(), 1u);
  }
  ExpectSamePlaces(layout);
  ManifestPlan plan = PlanManifest(layout);
  plan.manifest = plan.WithRuns();
  for (const ManifestTensor& tensor : plan.manifest.tensors) {
    // A run may end where another tensor does.
    EXPECT_LE(tensor.runs.size(), 12u) << tensor.name;
  }
  layout.tensors.resize(1);
  EXPECT_EQ(PlanManifest(layout).WithRuns().tensors[0].runs.size(), 1u);
}

TEST(SavePlanTest, RanksWithTensorsOfTheirOwnShareTheRunsOfLargerOnes) {
  constexpr int kRanks = 40;
  std::vector<int> ranks(kRanks);
  for (int r = 0; r < kRanks; ++r) ranks[r] = r;
  SaveLayout layout;
  layout.world_size = kRanks;
  layout.placements = Placements(kRanks);
  for (int64_t i = 0; i < kRanks; ++i) {
    layout.tensors.push_back(Tensor(absl::StrCat("large", 100 + i), kFloat32,
                                    Rows(4000, 128 + 128 * (i % 3), kRanks),
                                    ranks));
    layout.tensors.push_back(Tensor(absl::StrCat("own", 100 + i), kInt8,
                                    SavedLayout::Whole({2048 + 16 * i}),
                                    {ranks[i]}));
    layout.tensors.push_back(Tensor(absl::StrCat("small", 100 + i), kInt8,
                                    Rows(80, 1, kRanks), ranks));
  }
  std::sort(layout.tensors.begin(), layout.tensors.end(),
            [](const TensorLayout& a, const TensorLayout& b) {
              return a.name < b.name;
            });
  ExpectSamePlaces(layout);
  ManifestPlan plan = PlanManifest(layout);
  plan.manifest = plan.WithRuns();
  for (const ManifestTensor& tensor : plan.manifest.tensors) {
    if (absl::StartsWith(tensor.name, "small")) continue;
    EXPECT_EQ(tensor.runs.size(), 1u) << tensor.name;
  }
}

TEST(SavePlanTest, EveryFileDescribesTensorsWithoutElements) {
  const int owners[] = {1};
  const int writers[] = {0};
  SaveLayout layout;
  layout.world_size = 2;
  layout.placements = Placements(2);
  layout.tensors = {Tensor("empty", kInt8, SavedLayout::Whole({0, 3}), owners),
                    Tensor("full", kInt8, SavedLayout::Whole({3}), writers)};
  const DataFileContents contents = PlanOwnFile(layout, 0).contents;
  ASSERT_EQ(contents.tensors.size(), 2u);
  EXPECT_EQ(contents.tensors[0].name, "empty");
  EXPECT_EQ(contents.shards.size(), 1u);
}

TEST(SavePlanTest, SeveralShardsOfATensorInAFileAdvance) {
  SaveLayout layout;
  layout.world_size = 3;
  layout.placements = Placements(3);
  const int blocks[] = {0, 0, 0, 1, 1, 2};
  const int in_turn[] = {0, 1, 2, 0, 1, 2};
  layout.tensors = {Tensor("blocks", kInt16, Rows(60, 5, 6), blocks),
                    Tensor("in_turn", kInt16, Rows(59, 5, 6), in_turn)};
  ExpectSamePlaces(layout);
  EXPECT_EQ(PlanManifest(layout).WithRuns().tensors[0].runs.size(), 3u);
}

TEST(SavePlanTest, EqualShardsOfAGridAreFoundAtOnce) {
  SavedLayout::Axis rows, columns;
  rows.cells = 2;
  rows.step = 3;
  columns.cells = 3;
  columns.cuts = {0, 4, 8, 9};
  const int ranks[] = {0, 1, 2, 3, 3, 3};
  const TensorLayout tensor = Tensor(
      "t", kInt8, SavedLayout::Grid({5, 9, 2}, {rows, columns, {}}), ranks);
  std::vector<std::tuple<int, int, int, int>> parts;
  ForEachEqualShards(tensor, [&](const EqualShards& shards) {
    parts.emplace_back(shards.first, shards.shards, shards.bytes, shards.rank);
  });
  EXPECT_THAT(parts,
              ElementsAre(std::tuple(0, 2, 24, 0), std::tuple(2, 1, 6, 2),
                          std::tuple(3, 1, 16, 3), std::tuple(4, 1, 16, 3),
                          std::tuple(5, 1, 4, 3)));
}

TEST(SavePlanTest, AnyLayoutsAreWhereTheirRanksPutThem) {
  std::mt19937 random(7);
  const auto draw = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    SaveLayout layout;
    layout.world_size = 1 + draw(6);
    layout.placements = Placements(layout.world_size);
    const int tensors = draw(6);
    for (int t = 0; t < tensors; ++t) {
      Dims sizes;
      std::vector<SavedLayout::Axis> axes;
      int64_t cells = 1;
      for (int d = draw(4); d > 0; --d) {
        const int64_t size = draw(9);
        SavedLayout::Axis axis;
        axis.cells = 1 + draw(4);
        cells *= axis.cells;
        if (axis.cells > 1 && draw(2) == 0 && size > 0) {
          axis.step = (size + axis.cells - 1) / axis.cells;
        } else if (axis.cells > 1) {
          axis.cuts = {0, size};
          for (int i = 1; i < axis.cells; ++i) {
            axis.cuts.push_back(draw(static_cast<int>(size) + 1));
          }
          std::sort(axis.cuts.begin(), axis.cuts.end());
        }
        sizes.push_back(size);
        axes.push_back(axis);
      }
      std::vector<int> ranks;
      const int way = draw(4);
      for (int i = 0; i < cells; ++i) {
        ranks.push_back(way == 0   ? draw(layout.world_size)
                        : way == 1 ? i % layout.world_size
                        : way == 2
                            ? std::min(i, layout.world_size - 1)
                            : layout.world_size - 1 - i % layout.world_size);
      }
      SavedLayout grid = SavedLayout::Grid(sizes, axes);
      if (draw(3) == 0) {
        // The same boxes in any order.
        std::vector<Box> boxes;
        for (int64_t i = 0; i < cells; ++i) boxes.push_back(grid.BoxAt(i));
        std::shuffle(boxes.begin(), boxes.end(), random);
        grid = SavedLayout::Boxes(sizes, boxes);
      }
      layout.tensors.push_back(Tensor(absl::StrCat("t", t),
                                      draw(2) == 0 ? kInt8 : kFloat64,
                                      std::move(grid), ranks));
    }
    ExpectSamePlaces(layout);
  }
}

// A tensor that three ranks hold, and a part of it that two hold.
TensorToSave Replicas(int64_t rows) {
  TensorToSave tensor;
  tensor.name = "r";
  tensor.dtype = kInt64;
  tensor.sizes = {rows, 2};
  tensor.shards = {{{{0, 0}, {rows, 1}}, 2, 0},
                   {{{0, 1}, {rows, 1}}, 0, 1},
                   {{{0, 0}, {rows, 1}}, 1, 2},
                   {{{0, 1}, {rows, 1}}, 1, 3},
                   {{{0, 0}, {rows, 1}}, 0, 4}};
  return tensor;
}

TEST(ReplicaOwnersTest, SmallReplicasAreLeftToRanksInTurn) {
  std::vector<int64_t> load(3);
  for (const char* name : {"a", "b", "c"}) {
    TensorToSave tensor = Replicas(10);
    tensor.name = name;
    AssignReplicaOwners(tensor, absl::MakeSpan(load));
    EXPECT_EQ(tensor.shards.size(), 2u);
    for (const ShardToSave& shard : tensor.shards) {
      EXPECT_EQ(Replicas(10).shards[shard.held].rank, shard.rank);
    }
  }
  EXPECT_EQ(load, (std::vector<int64_t>{160, 160, 160}));
}

TEST(ReplicaOwnersTest, LargeReplicasAreWrittenInPartsByAllThatHoldThem) {
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
}

TEST(ReplicaOwnersTest, HostsWriteAlikeHoweverManyRanksTheyHave) {
  std::vector<int64_t> load(3);
  for (const char* name : {"a", "b", "c", "d"}) {
    TensorToSave tensor = Replicas(10);
    tensor.name = name;
    AssignReplicaOwners(tensor, absl::MakeSpan(load), {0, 0, 1});
  }
  // Rank 2 is alone on its host, and has nothing of the half that it does not
  // hold.
  EXPECT_EQ(load, (std::vector<int64_t>{240, 160, 240}));
}

TEST(ReplicaOwnersTest, WithoutReplicasNothingChanges) {
  std::vector<int64_t> load(3);
  TensorToSave tensor;
  tensor.name = "a";
  tensor.dtype = kInt16;
  tensor.sizes = {5, 3};
  tensor.shards = {{{{0, 0}, {4, 3}}, 1, 0},
                   {{{4, 0}, {1, 3}}, 0, 1},
                   {{{8, 0}, {0, 3}}, 2, 2}};
  TensorToSave same = tensor;
  AssignReplicaOwners(same, absl::MakeSpan(load));
  EXPECT_EQ(same.shards, tensor.shards);
  EXPECT_EQ(load, (std::vector<int64_t>{6, 24, 0}));
}

}  // namespace
}  // namespace sherd
