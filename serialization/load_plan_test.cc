#include "sherd/serialization/load_plan.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

// Cuts [0, size) of the first dimension into equal chunks.
ManifestTensor Rows(Dims sizes, int chunks, DType dtype = kFloat32) {
  ManifestTensor tensor;
  tensor.name = "t";
  tensor.dtype = dtype;
  tensor.sizes = sizes;
  const int64_t step = (sizes[0] + chunks - 1) / chunks;
  for (int64_t begin = 0; begin < sizes[0]; begin += step) {
    ManifestShard shard;
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
        {{0, begin}, {sizes[0], std::min(step, sizes[1] - begin)}, rank});
  }
  return boxes;
}

std::vector<PlacedBox> BoxesOf(const ManifestTensor& tensor) {
  std::vector<PlacedBox> boxes;
  for (const ManifestShard& shard : tensor.shards) {
    boxes.push_back(
        {shard.offsets, shard.sizes, static_cast<int>(boxes.size())});
  }
  return boxes;
}

TEST(LoadPlanTest, EqualBoxesAreReadWholeWhoeverHasThem) {
  const ManifestTensor saved = Rows({100, 3}, 4);
  std::vector<PlacedBox> wanted = BoxesOf(saved);
  std::reverse(wanted.begin(), wanted.end());
  wanted.push_back({{100, 0}, {0, 3}, 4});
  EXPECT_EQ(ChooseLoadWay(saved, wanted, 5, 1024), LoadWay::kWhole);
  wanted[0].sizes[1] = 2;
  wanted.push_back({{75, 2}, {25, 1}, 4});
  EXPECT_EQ(ChooseLoadWay(saved, wanted, 5, 1024), LoadWay::kPieces);
}

TEST(LoadPlanTest, OnlyManyShortPiecesAreTraded) {
  // 4096 x 4096 float32 from rows to 4 columns: 4096 runs of 4 KiB a rank.
  const Dims size = {4096, 4096};
  const ManifestTensor saved = Rows(size, 4);
  EXPECT_EQ(ChooseLoadWay(saved, Columns(size, 4), 4, 4096), LoadWay::kPieces);
  EXPECT_EQ(ChooseLoadWay(saved, Columns(size, 4), 4, 4097),
            LoadWay::kExchange);
  // One rank has nobody to trade with.
  EXPECT_EQ(ChooseLoadWay(saved, Columns(size, 1), 1, 1 << 30),
            LoadWay::kPieces);
  // Few pieces are not worth the messages.
  const Dims small = {512, 16};
  EXPECT_EQ(ChooseLoadWay(Rows(small, 4), Columns(small, 4), 4, 1024),
            LoadWay::kPieces);
}

TEST(LoadPlanTest, TheReadsOfAllRanksAreEveryElementOnce) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    const Dims size = {1 + static_cast<int64_t>(random() % 20),
                       1 + static_cast<int64_t>(random() % 20)};
    const int ranks = 1 + static_cast<int>(random() % 5);
    const ManifestTensor saved = Rows(size, 1 + static_cast<int>(random() % 5));
    const std::vector<PlacedBox> wanted = Columns(size, ranks);
    std::vector<int> times(size[0] * size[1], 0);
    for (int rank = 0; rank < ranks; ++rank) {
      SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<ShardRead> reads,
                                 PlanReads(saved, wanted, rank));
      for (const ShardRead& read : reads) {
        const ManifestShard& shard = saved.shards[read.saved];
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

TEST(LoadPlanTest, PartsAreContiguousCoverAllAndAreBalanced) {
  for (const Dims& size : {Dims{10, 4}, Dims{1, 9}, Dims{1, 1, 7}, Dims{3}}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const ManifestTensor saved = Rows(size, 2);
      int64_t elements = 0;
      for (const ReadPart& part : PlanParts(saved, ranks)) {
        int64_t volume = 1;
        bool inner = false;
        for (size_t d = 0; d < size.size(); ++d) {
          const ManifestShard& shard = saved.shards[part.saved];
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
  ManifestTensor scalar;
  scalar.shards.emplace_back();
  const std::vector<ReadPart> parts = PlanParts(scalar, 3);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].box.rank, 0);
}

}  // namespace
}  // namespace sherd
