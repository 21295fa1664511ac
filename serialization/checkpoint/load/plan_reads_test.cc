#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint/load/load_plan.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CaseCount;
using sherd::testing::RandomSeed;
using sherd::testing::RandomShards;
using sherd::testing::RandomSize;

constexpr int64_t kChunk = 100;

std::vector<Box> RandomBoxes(const Dims& sizes, std::mt19937_64& random) {
  std::vector<Box> boxes;
  for (const ShardMetadata& shard : RandomShards(sizes, {0, 1, 2}, random)) {
    boxes.push_back({shard.offsets, shard.sizes});
  }
  return boxes;
}

// A float32 tensor whose shards lie in several files at random offsets, some of
// them in two extents.
ManifestTensor Place(const SavedLayout& layout, std::mt19937_64& random) {
  ManifestTensor tensor;
  tensor.name = "t";
  tensor.layout = layout;
  for (int64_t i = 0; i < layout.size(); ++i) {
    const int64_t elements = layout.VolumeAt(i);
    SavedShardPlace place;
    int64_t left = elements * 4;
    while (left > 0) {
      const int64_t bytes = random() % 3 == 0 && left > 4 ? left / 8 * 4 : left;
      place.extents.push_back(
          {.file = static_cast<int32_t>(random() % 3),
           .data_offset = static_cast<int64_t>(random() % 1000) * 4,
           .bytes = bytes});
      left -= bytes;
    }
    AppendPlace(std::move(place), kChunk, tensor.runs);
  }
  return tensor;
}

// The row-major numbers in `outer` of the elements of `inner`, row-major.
std::vector<int64_t> NumbersIn(const Box& outer, const Box& inner) {
  std::vector<int64_t> numbers;
  const Dims strides = ContiguousStrides(outer.sizes);
  for (int64_t i = 0; i < Volume(inner); ++i) {
    int64_t left = i;
    int64_t at = 0;
    for (size_t d = inner.sizes.size(); d-- > 0;) {
      at += (inner.offsets[d] - outer.offsets[d] + left % inner.sizes[d]) *
            strides[d];
      left /= inner.sizes[d];
    }
    numbers.push_back(at);
  }
  return numbers;
}

bool AreConsecutive(const std::vector<int64_t>& numbers) {
  return numbers.back() - numbers.front() + 1 ==
         static_cast<int64_t>(numbers.size());
}

std::vector<ShardRead> PlanAll(const ManifestTensor& saved, int32_t tensor,
                               const std::vector<Box>& wanted) {
  std::vector<ShardRead> reads;
  for (size_t i = 0; i < wanted.size(); ++i) {
    PlanReads(saved, kChunk, tensor, wanted[i], static_cast<int32_t>(i), reads);
  }
  return reads;
}

TEST(PlanReadsTest, AReadKnowsWhetherItIsOneRunInBoth) {
  std::mt19937_64 random(RandomSeed());
  int runs = 0;
  int others = 0;
  for (int64_t round = 0; round < CaseCount(300); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const Dims sizes = RandomSize(3, 200, random);
    const ManifestTensor saved = Place(
        SavedLayout::FromBoxes(sizes, RandomBoxes(sizes, random)), random);
    const std::vector<Box> wanted = RandomBoxes(sizes, random);
    for (const ShardRead& read : PlanAll(saved, 0, wanted)) {
      const Box from = saved.layout.BoxAt(read.saved);
      const Box& to = wanted[static_cast<size_t>(read.wanted)];
      const auto common = Intersect(from, to);
      ASSERT_TRUE(common.has_value());
      const std::vector<int64_t> in_saved = NumbersIn(from, *common);
      const std::vector<int64_t> in_wanted = NumbersIn(to, *common);
      EXPECT_EQ(read.from, in_saved.front());
      EXPECT_EQ(read.to, in_wanted.front());
      const bool is_run = AreConsecutive(in_saved) && AreConsecutive(in_wanted);
      EXPECT_EQ(read.elements, is_run ? Volume(*common) : 0);
      ++(is_run ? runs : others);
    }
  }
  EXPECT_GT(runs, 0);
  EXPECT_GT(others, 0);
}

TEST(PlanReadsTest, RepeatedReadsAreThoseOfAPlanOfTheirOwn) {
  std::mt19937_64 random(RandomSeed());
  for (int64_t round = 0; round < CaseCount(300); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const Dims sizes = RandomSize(3, 200, random);
    const SavedLayout layout =
        SavedLayout::FromBoxes(sizes, RandomBoxes(sizes, random));
    const std::vector<Box> wanted = RandomBoxes(sizes, random);
    // Reads of another tensor come first.
    std::vector<ShardRead> reads(2);
    const std::vector<ShardRead> first =
        PlanAll(Place(layout, random), 0, wanted);
    reads.insert(reads.end(), first.begin(), first.end());
    const ManifestTensor second = Place(layout, random);
    RepeatReads(second, kChunk, 1, 2, reads.size(), reads);
    reads.erase(reads.begin(),
                reads.begin() + static_cast<int64_t>(2 + first.size()));
    EXPECT_EQ(reads, PlanAll(second, 1, wanted));
  }
}

}  // namespace
}  // namespace sherd
