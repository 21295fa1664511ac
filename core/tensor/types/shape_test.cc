#include "sherd/core/tensor/shape.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(NumElementsTest, IsTheProductOfTheSizes) {
  EXPECT_EQ(*NumElements({}), 1);
  EXPECT_EQ(*NumElements({7}), 7);
  EXPECT_EQ(*NumElements({3, 4, 5}), 60);
  EXPECT_EQ(*NumElements({3, 0, 5}), 0);
  EXPECT_EQ(*NumElements({kMax}), kMax);
  EXPECT_EQ(*NumElements(Dims(64, 1)), 1);
  for (const Dims& sizes : {Dims{}, Dims{7}, Dims{3, 4, 5}, Dims{3, 0, 5}}) {
    EXPECT_EQ(Volume(sizes), *NumElements(sizes)) << FormatDims(sizes);
    EXPECT_EQ(CheckedVolume(sizes), *NumElements(sizes)) << FormatDims(sizes);
  }
}

TEST(ElementOffsetTest, CountsElementsInMemory) {
  EXPECT_EQ(ElementOffset({}, {}), 0);
  EXPECT_EQ(ElementOffset({1, 2, 3}, {20, 5, 1}), 33);
  EXPECT_EQ(ElementOffset({1, 2}, {-3, 7}), 11);
  // Memory of the box at [4, 2] of a larger tensor.
  EXPECT_EQ(ElementOffset({4, 2}, {4, 2}, {5, 1}), 0);
  EXPECT_EQ(ElementOffset({6, 3}, {4, 2}, {5, 1}), 11);
  EXPECT_EQ(ElementOffset({3, 1}, {4, 2}, {5, 1}), -6);
  // Row-major order is that of the offsets.
  const Dims strides = ContiguousStrides({2, 3, 4});
  int64_t expected = 0;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(ElementOffset({i, j, k}, strides), expected++);
      }
    }
  }
}

TEST(NumElementsTest, RefusesWhatNoTensorCanBe) {
  const struct {
    Dims sizes;
    const char* message;
  } kCases[] = {
      {{-1}, "must not be negative, got [-1]"},
      {{3, -2, 0}, "must not be negative"},
      {{kMax, 2}, "does not fit in 64 bits"},
      {{kMax, 2, -1}, "does not fit in 64 bits"},
      {{-1, kMax, 2}, "must not be negative"},
      {{int64_t{1} << 32, int64_t{1} << 31}, "does not fit in 64 bits"},
      {{0, int64_t{1} << 40, int64_t{1} << 40}, "does not fit in 64 bits"},
      {Dims(65, 1), "at most 64 dimensions, got 65"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(NumElements(c.sizes),
                StatusIs(absl::StatusCode::kInvalidArgument, c.message))
        << FormatDims(c.sizes);
    EXPECT_EQ(CheckedVolume(c.sizes), std::nullopt) << FormatDims(c.sizes);
  }
}

TEST(NumBytesTest, MultipliesBySizeAndRefusesOverflow) {
  EXPECT_EQ(*NumBytes({3, 4}, kComplex128), 192);
  EXPECT_EQ(*NumBytes({}, kBool), 1);
  EXPECT_EQ(*NumBytes({kMax}, kInt8), kMax);
  EXPECT_THAT(NumBytes({kMax / 2}, kFloat32),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "bytes of [4611686018427387903] of float32"));
}

TEST(ContiguousStridesTest, AreRowMajor) {
  EXPECT_THAT(ContiguousStrides({}), ElementsAre());
  EXPECT_THAT(ContiguousStrides({5}), ElementsAre(1));
  EXPECT_THAT(ContiguousStrides({2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(ContiguousStrides({2, 0, 4}), ElementsAre(4, 4, 1));
}

TEST(IsContiguousTest, IgnoresStridesWithoutEffect) {
  EXPECT_TRUE(IsContiguous({}, {}));
  EXPECT_TRUE(IsContiguous({3, 4}, {4, 1}));
  EXPECT_TRUE(IsContiguous({1, 4}, {99, 1}));
  EXPECT_TRUE(IsContiguous({4, 1}, {1, 99}));
  EXPECT_TRUE(IsContiguous({0, 4}, {7, 7}));
  EXPECT_TRUE(IsContiguous({4, 0}, {7, 7}));
  EXPECT_FALSE(IsContiguous({3, 4}, {1, 3}));
  EXPECT_FALSE(IsContiguous({3, 4}, {5, 1}));
  EXPECT_FALSE(IsContiguous({3, 4}, {4, 2}));
  EXPECT_FALSE(IsContiguous({2}, {0}));
  EXPECT_FALSE(IsContiguous({2}, {-1}));
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_FALSE(IsContiguous({kHuge, kHuge, 2}, {0, 0, 3}));
}

// Counts the places that the indices reach.
bool ReallyNonOverlapping(const Dims& sizes, const Dims& strides) {
  std::vector<int64_t> places = {0};
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t place : places) {
      for (int64_t i = 0; i < sizes[d]; ++i) {
        next.push_back(place + i * strides[d]);
      }
    }
    places = next;
  }
  return std::set<int64_t>(places.begin(), places.end()).size() ==
         places.size();
}

TEST(IsNonOverlappingTest, NeverClaimsMoreThanIsTrue) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int claimed = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Dims sizes;
    Dims strides;
    for (uint32_t d = random() % 4; d > 0; --d) {
      sizes.push_back(random() % 4);
      strides.push_back(static_cast<int64_t>(random() % 17) - 4);
    }
    if (IsNonOverlapping(sizes, strides)) {
      ++claimed;
      EXPECT_TRUE(ReallyNonOverlapping(sizes, strides))
          << FormatDims(sizes) << FormatDims(strides);
    }
  }
  EXPECT_GT(claimed, 0);
}

TEST(IsNonOverlappingTest, AcceptsEveryViewOfAContiguousTensor) {
  EXPECT_TRUE(IsNonOverlapping({}, {}));
  EXPECT_TRUE(IsNonOverlapping({3, 4}, {4, 1}));
  EXPECT_TRUE(IsNonOverlapping({4, 3}, {1, 4}));
  EXPECT_TRUE(IsNonOverlapping({2, 2, 2}, {100, 3, 10}));
  EXPECT_TRUE(IsNonOverlapping({1}, {0}));
  EXPECT_TRUE(IsNonOverlapping({0, 5}, {0, 0}));
  EXPECT_FALSE(IsNonOverlapping({2}, {0}));
  EXPECT_FALSE(IsNonOverlapping({3, 3}, {1, 1}));
  EXPECT_FALSE(IsNonOverlapping({3, 3}, {2, 1}));
  EXPECT_TRUE(IsNonOverlapping({2, 2}, {kMax, 1}));
}

TEST(NormalizeDimTest, CountsNegativeDimensionsFromTheEnd) {
  EXPECT_EQ(*NormalizeDim(0, 3), 0);
  EXPECT_EQ(*NormalizeDim(2, 3), 2);
  EXPECT_EQ(*NormalizeDim(-1, 3), 2);
  EXPECT_EQ(*NormalizeDim(-3, 3), 0);
  for (int64_t dim : {int64_t{3}, int64_t{-4}, kMax, -kMax}) {
    EXPECT_THAT(NormalizeDim(dim, 3),
                StatusIs(absl::StatusCode::kOutOfRange, "in [-3, 2], got"));
  }
  EXPECT_THAT(NormalizeDim(0, 0),
              StatusIs(absl::StatusCode::kOutOfRange, "no dimensions"));
}

TEST(FormatDimsTest, LooksLikeAList) {
  EXPECT_EQ(FormatDims({}), "[]");
  EXPECT_EQ(FormatDims({3, 4}), "[3, 4]");
}

}  // namespace
}  // namespace sherd
