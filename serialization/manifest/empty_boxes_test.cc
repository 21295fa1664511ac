#include "sherd/serialization/manifest/empty_boxes.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/saved_layout.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;

void ExpectAsVolumes(const SavedLayout& layout) {
  ASSERT_THAT(layout.Validate(), IsOk());
  for (int64_t first = 0; first < layout.size(); ++first) {
    EmptyBoxes boxes(layout, first);
    for (int64_t i = first; i < layout.size(); ++i, boxes.Next()) {
      ASSERT_EQ(boxes.is_empty(), layout.VolumeAt(i) == 0)
          << "box " << i << " from " << first;
    }
  }
}

SavedLayout::Axis RandomAxis(int64_t size, std::mt19937& random) {
  if (random() % 3 == 0) return {};
  const int64_t cells = 2 + random() % 4;
  if (random() % 2 == 0) {
    const int64_t least = std::max<int64_t>(1, (size + cells - 1) / cells);
    return {.cells = cells,
            .step = least + static_cast<int64_t>(random() % 3),
            .cuts = {}};
  }
  std::vector<int64_t> cuts = {0, size};
  while (cuts.size() < static_cast<size_t>(cells + 1)) {
    cuts.push_back(static_cast<int64_t>(random()) % (size + 1));
  }
  std::sort(cuts.begin(), cuts.end());
  return {.cells = cells, .step = 0, .cuts = std::move(cuts)};
}

TEST(EmptyBoxesTest, AreThoseWithoutElements) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Dims sizes;
    std::vector<SavedLayout::Axis> axes;
    for (size_t d = random() % 4; d > 0; --d) {
      sizes.push_back(static_cast<int64_t>(random() % 7));
      axes.push_back(RandomAxis(sizes.back(), random));
    }
    SCOPED_TRACE(round);
    ExpectAsVolumes(SavedLayout::Grid(sizes, axes));
  }
}

TEST(EmptyBoxesTest, BoxesNeedNotFormAGrid) {
  ExpectAsVolumes(SavedLayout::Boxes(
      {4}, {{{0}, {1}}, {{1}, {0}}, {{1}, {3}}, {{4}, {0}}}));
}

}  // namespace
}  // namespace sherd
