#include "sherd/core/tensor/box.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// A type that extends a box.
struct Named : Box {
  int name = 0;

  friend bool operator==(const Named&, const Named&) = default;
};

TEST(BoxTest, EqualBoxesHaveEqualHashes) {
  const Box box = {{0, 2}, {4, 2}};
  EXPECT_EQ(box, (Box{{0, 2}, {4, 2}}));
  EXPECT_NE(box, (Box{{0, 3}, {4, 2}}));
  EXPECT_NE(box, (Box{{0, 2}, {4, 3}}));
  EXPECT_EQ(BoxView(box), BoxView({0, 2}, {4, 2}));
  EXPECT_FALSE(BoxView(box) == BoxView({0, 2}, {4, 1}));
  const absl::flat_hash_set<Box> boxes = {box, {{0, 2}, {4, 2}}, {{}, {}}};
  EXPECT_EQ(boxes.size(), 2u);
  EXPECT_TRUE(boxes.contains(Box(BoxView({0, 2}, {4, 2}))));
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const Box same = box;
  const absl::flat_hash_set<BoxView> views = {box, same};
  EXPECT_EQ(views.size(), 1u);
}

TEST(BoxTest, ADerivedBoxIsViewedAsTheBox) {
  const Named one = {{{1}, {2}}, 1};
  const Named other = {{{1}, {2}}, 2};
  EXPECT_NE(one, other);
  EXPECT_EQ(BoxView(one), BoxView(other));
  EXPECT_EQ(Volume(one), 2);
}

TEST(BoxTest, AViewBorrowsWhatItShows) {
  std::vector<int64_t> numbers = {1, 2, 3, 4};
  const absl::Span<const int64_t> all = numbers;
  const BoxView view(all.first(2), all.last(2));
  const Box copy(view);
  numbers[3] = 7;
  EXPECT_EQ(Volume(view), 21);
  EXPECT_EQ(Volume(copy), 12);
  EXPECT_EQ(view.end(0), 4);
  EXPECT_EQ(view.end(1), 9);
}

TEST(BoxTest, ABoxWithoutDimensionsHasOneElement) {
  const Box scalar = WholeBox({});
  EXPECT_EQ(Volume(scalar), 1);
  EXPECT_FALSE(IsEmpty(scalar));
  EXPECT_TRUE(IsValid(scalar));
  EXPECT_TRUE(Contains(scalar, {}));
  EXPECT_TRUE(IsInside(scalar, {}));
  EXPECT_EQ(Intersect(scalar, scalar), scalar);
  EXPECT_EQ(CommonVolume(scalar, scalar), 1);
  EXPECT_EQ(PartOf(scalar, OuterDim(scalar), 1, 0), scalar);
  EXPECT_EQ(FormatBox(scalar), "[] at []");
}

TEST(BoxTest, TextHasSizesAndOffsets) {
  EXPECT_EQ(FormatBox(Box{{0, 2}, {4, -1}}), "[4, -1] at [0, 2]");
  EXPECT_EQ(FormatBox(Box{{0}, {4, 2}}), "[4, 2] at [0]");
}

TEST(FindBoxDefectTest, NamesTheFirstDefectAndItsDimension) {
  const struct {
    Box box;
    BoxDefect defect;
    size_t dim;
  } kCases[] = {
      {{{0, 2}, {4, 0}}, BoxDefect::kNone, 0},
      {{{kMax}, {0}}, BoxDefect::kNone, 0},
      {{{0}, {4, 0}}, BoxDefect::kDifferentDims, 0},
      {{{0, -1}, {-1, 4}}, BoxDefect::kNegativeSize, 0},
      {{{0, -1}, {1, -4}}, BoxDefect::kNegativeOffset, 1},
      {{{0, 0, 1}, {1, 1, kMax}}, BoxDefect::kEndOverflows, 2},
      {{{0, 0}, {int64_t{1} << 32, int64_t{1} << 31}}, BoxDefect::kTooLarge, 0},
      {{Dims(65, 0), Dims(65, 1)}, BoxDefect::kTooLarge, 0},
  };
  for (const auto& c : kCases) {
    size_t dim = 0;
    EXPECT_EQ(FindBoxDefect(c.box, &dim), c.defect) << FormatBox(c.box);
    EXPECT_EQ(dim, c.dim) << FormatBox(c.box);
    EXPECT_EQ(IsValid(c.box), c.defect == BoxDefect::kNone) << FormatBox(c.box);
  }
}

TEST(IsInsideTest, TakesNumbersFromAnywhere) {
  const struct {
    Box box;
    // The first dimension outside [10, 4], as long as there are two.
    std::optional<size_t> dim;
    bool trails;
  } kCases[] = {
      {{{0, 0}, {10, 4}}, std::nullopt, true},
      {{{10, 4}, {0, 0}}, std::nullopt, true},
      {{{9, 3}, {1, 1}}, std::nullopt, true},
      {{{9, 3}, {2, 1}}, 0, false},
      {{{9, 3}, {1, 2}}, 1, false},
      {{{11, 0}, {0, 4}}, 0, true},
      {{{kMax, 0}, {0, 4}}, 0, true},
      {{{-1, 0}, {0, 4}}, 0, false},
      {{{0, 0}, {1, -1}}, 1, false},
      {{{1, 0}, {kMax, 1}}, 0, false},
      {{{kMax, kMax}, {kMax, kMax}}, 0, false},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(FindDimOutside(c.box, {10, 4}), c.dim) << FormatBox(c.box);
    EXPECT_EQ(IsInside(c.box, {10, 4}), !c.dim) << FormatBox(c.box);
    EXPECT_EQ(FindDimOutside(c.box, {10, 4}, TrailingBoxes::kAllowed),
              c.trails ? std::nullopt : c.dim)
        << FormatBox(c.box);
    EXPECT_EQ(IsInside(c.box, {10, 4}, TrailingBoxes::kAllowed), c.trails)
        << FormatBox(c.box);
  }
  for (const Box& box : {Box{{0}, {1}}, {{0}, {1, 1}}, {{0, 0}, {1}}}) {
    EXPECT_FALSE(IsInside(box, {10, 4})) << FormatBox(box);
    EXPECT_FALSE(IsInside(box, {10, 4}, TrailingBoxes::kAllowed))
        << FormatBox(box);
  }
}

TEST(IsInsideTest, ABoxTrailsOnlyWhereItIsEmpty) {
  const struct {
    Box box;
    size_t strict;
    std::optional<size_t> trailing;
  } kCases[] = {
      {{{11, 1}, {0, 4}}, 0, 1},  {{{11, 9}, {0, 0}}, 0, std::nullopt},
      {{{11, 0}, {0, 5}}, 0, 1},  {{{0, 5}, {0, 1}}, 1, 1},
      {{{11, -1}, {0, 0}}, 0, 1},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(FindDimOutside(c.box, {10, 4}), c.strict) << FormatBox(c.box);
    EXPECT_EQ(FindDimOutside(c.box, {10, 4}, TrailingBoxes::kAllowed),
              c.trailing)
        << FormatBox(c.box);
  }
}

TEST(IntersectTest, WritesToMemoryOfTheCaller) {
  Dims offsets(2), sizes(2);
  EXPECT_TRUE(Intersect(Box{{0, 2}, {4, 4}}, Box{{3, 0}, {9, 3}},
                        absl::MakeSpan(offsets), absl::MakeSpan(sizes)));
  EXPECT_THAT(offsets, ElementsAre(3, 2));
  EXPECT_THAT(sizes, ElementsAre(1, 1));
  EXPECT_FALSE(Intersect(Box{{0, 2}, {4, 4}}, Box{{4, 0}, {9, 3}},
                         absl::MakeSpan(offsets), absl::MakeSpan(sizes)));
}

TEST(PartOfTest, TheFirstPartsAreTheLongerOnes) {
  const Box box = {{1, 10}, {1, 5}};
  EXPECT_EQ(OuterDim(box), 1u);
  EXPECT_EQ(PartOf(box, 1, 3, 0), (Box{{1, 10}, {1, 2}}));
  EXPECT_EQ(PartOf(box, 1, 3, 1), (Box{{1, 12}, {1, 2}}));
  EXPECT_EQ(PartOf(box, 1, 3, 2), (Box{{1, 14}, {1, 1}}));
  EXPECT_EQ(OuterDim(Box{{0, 0}, {1, 1}}), 1u);
  EXPECT_EQ(OuterDim(Box{{0, 0, 0}, {1, 0, 3}}), 1u);
}

// Compares with one look at every element of a small tensor.
class BoxPropertiesTest : public ::testing::Test {
 protected:
  BoxPropertiesTest()
      : seed_(static_cast<uint64_t>(
            GetIntKnob(Knob::kTestSeed, 0, INT64_MAX)
                .value()
                .value_or(static_cast<int64_t>(std::random_device()())))),
        random_(seed_) {
    std::cout << "SHERD_TEST_SEED=" << seed_ << std::endl;
  }

  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  Dims DrawSizes() {
    Dims sizes(static_cast<size_t>(Draw(0, 4)));
    for (int64_t& size : sizes) size = Draw(1, 5);
    return sizes;
  }

  // Inside a tensor of these sizes.
  Box DrawBox(const Dims& tensor_sizes) {
    Box box = WholeBox(tensor_sizes);
    for (size_t d = 0; d < tensor_sizes.size(); ++d) {
      box.offsets[d] = Draw(0, tensor_sizes[d]);
      box.sizes[d] = Draw(0, tensor_sizes[d] - box.offsets[d]);
    }
    return box;
  }

  static void ForEachIndex(const Dims& sizes,
                           absl::FunctionRef<void(const Dims&)> visit) {
    Dims index(sizes.size(), 0);
    for (int64_t i = Volume(sizes); i > 0; --i) {
      visit(index);
      for (size_t d = sizes.size(); d-- > 0 && ++index[d] == sizes[d];) {
        index[d] = 0;
      }
    }
  }

  static int64_t CountElements(const Dims& tensor_sizes, const BoxView& box) {
    int64_t count = 0;
    ForEachIndex(tensor_sizes,
                 [&](const Dims& index) { count += Contains(box, index); });
    return count;
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
};

TEST_F(BoxPropertiesTest, VolumeCountsTheElements) {
  for (int i = 0; i < 500; ++i) {
    const Dims sizes = DrawSizes();
    const Box box = DrawBox(sizes);
    SCOPED_TRACE(FormatBox(box));
    EXPECT_TRUE(IsInside(box, sizes));
    EXPECT_TRUE(IsValid(box));
    EXPECT_EQ(Volume(box), CountElements(sizes, box));
    EXPECT_EQ(IsEmpty(box), Volume(box) == 0);
  }
}

TEST_F(BoxPropertiesTest, AnIntersectionHoldsTheElementsOfBoth) {
  for (int i = 0; i < 500; ++i) {
    const Dims sizes = DrawSizes();
    const Box a = DrawBox(sizes);
    const Box b = DrawBox(sizes);
    SCOPED_TRACE(::testing::Message() << FormatBox(a) << ", " << FormatBox(b));
    const std::optional<Box> common = Intersect(a, b);
    EXPECT_EQ(common, Intersect(b, a));
    int64_t count = 0;
    ForEachIndex(sizes, [&](const Dims& index) {
      const bool in_both = Contains(a, index) && Contains(b, index);
      EXPECT_EQ(common && Contains(*common, index), in_both)
          << FormatDims(index);
      count += in_both;
    });
    EXPECT_EQ(CommonVolume(a, b), count);
    EXPECT_EQ(common ? Volume(*common) : 0, count);
    EXPECT_EQ(common.has_value(), count > 0);
  }
}

TEST_F(BoxPropertiesTest, ARelativeBoxHoldsTheSameElements) {
  for (int i = 0; i < 200; ++i) {
    const Dims sizes = DrawSizes();
    const Box box = DrawBox(sizes);
    const Box around = DrawBox(sizes);
    SCOPED_TRACE(::testing::Message()
                 << FormatBox(box) << " in " << FormatBox(around));
    const Box relative = RelativeTo(around.offsets, box);
    EXPECT_EQ(relative.offsets, OffsetsFrom(around.offsets, box));
    ForEachIndex(sizes, [&](const Dims& index) {
      const Dims moved = OffsetsFrom(around.offsets, BoxView(index, sizes));
      EXPECT_EQ(Contains(relative, moved), Contains(box, index));
    });
  }
}

TEST_F(BoxPropertiesTest, PartsHoldEachElementOnceInRuns) {
  for (int i = 0; i < 200; ++i) {
    const Dims sizes = DrawSizes();
    const Box box = DrawBox(sizes);
    if (IsEmpty(box)) continue;
    const size_t dim = OuterDim(box);
    const int64_t count = sizes.empty() ? 1 : Draw(1, box.sizes[dim]);
    SCOPED_TRACE(::testing::Message() << FormatBox(box) << " in " << count);
    std::vector<Box> parts;
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back(PartOf(box, dim, count, k));
    }
    // By part, in the row-major order of the box.
    std::vector<size_t> owners;
    ForEachIndex(sizes, [&](const Dims& index) {
      if (!Contains(box, index)) return;
      const auto owner =
          std::find_if(parts.begin(), parts.end(),
                       [&](const Box& part) { return Contains(part, index); });
      ASSERT_NE(owner, parts.end());
      owners.push_back(static_cast<size_t>(owner - parts.begin()));
    });
    EXPECT_TRUE(std::is_sorted(owners.begin(), owners.end()));
    int64_t volume = 0;
    for (const Box& part : parts) {
      volume += Volume(part);
      EXPECT_LE(parts.front().sizes.size() == 0
                    ? 0
                    : parts.front().sizes[dim] - part.sizes[dim],
                1);
    }
    EXPECT_EQ(volume, Volume(box));
  }
}

}  // namespace
}  // namespace sherd
