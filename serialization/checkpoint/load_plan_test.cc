#include "sherd/serialization/checkpoint/load_plan.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

// Cuts [0, size) of the first dimension into equal chunks.
ManifestTensorV1 Rows(Dims sizes, int chunks, DType dtype = kFloat32) {
  ManifestTensorV1 tensor;
  tensor.name = "t";
  tensor.dtype = dtype;
  tensor.sizes = sizes;
  const int64_t step = (sizes[0] + chunks - 1) / chunks;
  for (int64_t begin = 0; begin < sizes[0]; begin += step) {
    ManifestShardV1 shard;
    shard.offsets.assign(sizes.size(), 0);
    shard.offsets[0] = begin;
    shard.sizes = sizes;
    shard.sizes[0] = std::min(step, sizes[0] - begin);
    tensor.shards.push_back(shard);
  }
  return tensor;
}

std::vector<PlacedBox> Columns(Dims sizes, int ranks) {
  std::vector<PlacedBox> boxes;
  const int64_t step = (sizes[1] + ranks - 1) / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t begin = std::min(sizes[1], rank * step);
    boxes.push_back(
        {{{0, begin}, {sizes[0], std::min(step, sizes[1] - begin)}}, rank});
  }
  return boxes;
}

std::vector<PlacedBox> BoxesOf(const ManifestTensorV1& tensor) {
  std::vector<PlacedBox> boxes;
  for (const ManifestShardV1& shard : tensor.shards) {
    boxes.push_back(
        {{shard.offsets, shard.sizes}, static_cast<int>(boxes.size())});
  }
  return boxes;
}

TEST(LoadPlanTest, EqualBoxesAreReadWholeOnAnyRank) {
  const ManifestTensorV1 saved = Rows({100, 3}, 4);
  std::vector<PlacedBox> wanted = BoxesOf(saved);
  std::reverse(wanted.begin(), wanted.end());
  wanted.push_back({{{100, 0}, {0, 3}}, 4});
  EXPECT_EQ(ChooseReadStrategy(saved, wanted, 5, 1024), ReadStrategy::kWhole);
  wanted[0].sizes[1] = 2;
  wanted.push_back({{{75, 2}, {25, 1}}, 4});
  EXPECT_EQ(ChooseReadStrategy(saved, wanted, 5, 1024), ReadStrategy::kPieces);
}

TEST(LoadPlanTest, OnlyManyShortPiecesAreTraded) {
  // 4096 x 4096 float32 from rows to 4 columns: 4096 runs of 4 KiB a rank.
  const Dims size = {4096, 4096};
  const ManifestTensorV1 saved = Rows(size, 4);
  EXPECT_EQ(ChooseReadStrategy(saved, Columns(size, 4), 4, 4096),
            ReadStrategy::kPieces);
  EXPECT_EQ(ChooseReadStrategy(saved, Columns(size, 4), 4, 4097),
            ReadStrategy::kExchange);
  // One rank has no peer to exchange with.
  EXPECT_EQ(ChooseReadStrategy(saved, Columns(size, 1), 1, 1 << 30),
            ReadStrategy::kPieces);
  // Few pieces are not worth the messages.
  const Dims small = {512, 16};
  EXPECT_EQ(ChooseReadStrategy(Rows(small, 4), Columns(small, 4), 4, 1024),
            ReadStrategy::kPieces);
}

TEST(LoadPlanTest, TheReadsOfAllRanksAreEveryElementOnce) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    const Dims size = {1 + static_cast<int64_t>(random() % 20),
                       1 + static_cast<int64_t>(random() % 20)};
    const int ranks = 1 + static_cast<int>(random() % 5);
    const ManifestTensorV1 saved =
        Rows(size, 1 + static_cast<int>(random() % 5));
    const std::vector<PlacedBox> wanted = Columns(size, ranks);
    std::vector<int> times(size[0] * size[1], 0);
    for (int rank = 0; rank < ranks; ++rank) {
      SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<ShardRead> reads,
                                 PlanReads(saved, wanted, rank));
      for (const ShardRead& read : reads) {
        const ManifestShardV1& shard = saved.shards[read.saved];
        const PlacedBox& box = wanted[read.wanted];
        EXPECT_EQ(box.rank, rank);
        for (int64_t i = 0; i < read.sizes[0]; ++i) {
          for (int64_t j = 0; j < read.sizes[1]; ++j) {
            const int64_t row = shard.offsets[0] + read.in_saved[0] + i;
            const int64_t column = shard.offsets[1] + read.in_saved[1] + j;
            EXPECT_EQ(row, box.offsets[0] + read.in_wanted[0] + i);
            EXPECT_EQ(column, box.offsets[1] + read.in_wanted[1] + j);
            ++times[row * size[1] + column];
          }
        }
      }
    }
    EXPECT_EQ(std::count(times.begin(), times.end(), 1),
              static_cast<int64_t>(times.size()));
  }
}

// Marks, for each rank, the elements of `box` in a tensor of `columns` columns.
void Mark(const PlacedBox& box, int64_t columns,
          std::vector<std::vector<int>>& times) {
  for (int64_t i = 0; i < box.sizes[0]; ++i) {
    for (int64_t j = 0; j < box.sizes[1]; ++j) {
      ++times[static_cast<size_t>(box.rank)][static_cast<size_t>(
          (box.offsets[0] + i) * columns + box.offsets[1] + j)];
    }
  }
}

TEST(LoadPlanTest, EveryElementOfReplicasIsReadOnceAndReachesAllThatHoldIt) {
  // Two column blocks on three ranks each, large enough to be read in parts;
  // an empty one; and one that has no replica.
  const Dims size = {100, 3};
  const std::vector<PlacedBox> wanted = {
      {{{0, 0}, {100, 1}}, 0}, {{{0, 1}, {100, 1}}, 1},
      {{{0, 0}, {100, 1}}, 2}, {{{0, 1}, {100, 1}}, 0},
      {{{100, 0}, {0, 3}}, 3}, {{{0, 0}, {100, 1}}, 3},
      {{{0, 1}, {100, 1}}, 3}, {{{100, 0}, {0, 3}}, 3},
      {{{0, 2}, {100, 1}}, 1}};
  // Of 1 MiB per element the parts are of four elements at least.
  std::vector<int64_t> load(4);
  const WantedParts parts =
      DivideWanted(wanted, size_t{1} << 20, absl::MakeSpan(load));
  ASSERT_EQ(parts.boxes.size(), parts.shards.size());
  ASSERT_EQ(parts.copies.size(), parts.copy_shards.size());
  std::vector<std::vector<int>> times(4, std::vector<int>(300));
  for (size_t i = 0; i < parts.boxes.size(); ++i) {
    EXPECT_EQ(parts.boxes[i].rank, wanted[parts.shards[i]].rank);
    Mark(parts.boxes[i], 3, times);
  }
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(times[0][i] + times[1][i] + times[2][i] + times[3][i], 1);
  }
  for (size_t i = 0; i < parts.copies.size(); ++i) {
    EXPECT_EQ(parts.copies[i].rank, wanted[parts.copy_shards[i]].rank);
    Mark(parts.copies[i], 3, times);
  }
  std::vector<std::vector<int>> expected(4, std::vector<int>(300));
  for (const PlacedBox& box : wanted) Mark(box, 3, expected);
  EXPECT_EQ(times, expected);
  EXPECT_GT(parts.boxes.size(), wanted.size() - 4);
}

TEST(LoadPlanTest, WithoutReplicasTheWantedShardsAreWhatIsRead) {
  const std::vector<PlacedBox> wanted = Columns({100, 7}, 5);
  std::vector<int64_t> load(5);
  const WantedParts parts = DivideWanted(wanted, 4, absl::MakeSpan(load));
  ASSERT_EQ(parts.boxes.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(parts.shards[i], i);
    EXPECT_EQ(parts.boxes[i].offsets, wanted[i].offsets);
    EXPECT_EQ(parts.boxes[i].sizes, wanted[i].sizes);
  }
  EXPECT_TRUE(parts.copies.empty());
}

TEST(LoadPlanTest, PartsAreContiguousCoverAllAndAreBalanced) {
  for (const Dims& size : {Dims{10, 4}, Dims{1, 9}, Dims{1, 1, 7}, Dims{3}}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const ManifestTensorV1 saved = Rows(size, 2);
      int64_t elements = 0;
      for (const ReadPart& part : PlanParts(saved, ranks)) {
        int64_t volume = 1;
        bool inner = false;
        for (size_t d = 0; d < size.size(); ++d) {
          const ManifestShardV1& shard = saved.shards[part.saved];
          EXPECT_EQ(part.box.offsets[d], shard.offsets[d] + part.offsets[d]);
          EXPECT_LE(part.offsets[d] + part.box.sizes[d], shard.sizes[d]);
          // Whole in every dimension after the first that is cut.
          EXPECT_TRUE(!inner || part.box.sizes[d] == shard.sizes[d]);
          inner |= part.box.sizes[d] != 1;
          volume *= part.box.sizes[d];
        }
        EXPECT_GE(part.box.rank, 0);
        EXPECT_LT(part.box.rank, ranks);
        EXPECT_GT(volume, 0);
        elements += volume;
      }
      EXPECT_EQ(elements, *NumElements(size));
    }
  }
}

TEST(LoadPlanTest, AScalarIsOnePart) {
  ManifestTensorV1 scalar;
  scalar.shards.emplace_back();
  const std::vector<ReadPart> parts = PlanParts(scalar, 3);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].box.rank, 0);
}

}  // namespace
}  // namespace sherd
