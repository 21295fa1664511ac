#include "sherd/core/tensor/kernels/strided_loop.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace internal {
namespace {

using ::testing::ElementsAre;

// Offsets in elements of the first operand, in the order visited.
std::vector<int64_t> Visit(const Dims& sizes, const Dims& strides) {
  alignas(8) static std::array<std::byte, 1 << 16> memory;
  std::vector<int64_t> offsets;
  ForEachRun<1>(
      sizes, {{{memory.data(), strides, 4}}},
      [&](const auto& at, const auto& steps, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          offsets.push_back((at[0] + i * steps[0] - memory.data()) / 4);
        }
        return true;
      });
  return offsets;
}

TEST(ForEachRunTest, VisitsElementsInRowMajorOrder) {
  EXPECT_THAT(Visit({}, {}), ElementsAre(0));
  EXPECT_THAT(Visit({3}, {5}), ElementsAre(0, 5, 10));
  EXPECT_THAT(Visit({2, 3}, {1, 2}), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(Visit({2, 1, 2}, {10, 99, 1}), ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(Visit({2, 0}, {1, 1}), ElementsAre());
  EXPECT_THAT(Visit({2, 2}, {0, 1}), ElementsAre(0, 1, 0, 1));
}

TEST(ForEachRunTest, AgreesWithNestedLoopsOnRandomShapes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 500; ++trial) {
    Dims sizes;
    Dims strides;
    for (uint32_t d = random() % 5; d > 0; --d) {
      sizes.push_back(1 + random() % 4);
      strides.push_back(random() % 50);
    }
    std::vector<int64_t> expected = {0};
    for (size_t d = 0; d < sizes.size(); ++d) {
      std::vector<int64_t> next;
      for (int64_t offset : expected) {
        for (int64_t i = 0; i < sizes[d]; ++i) {
          next.push_back(offset + i * strides[d]);
        }
      }
      expected = next;
    }
    EXPECT_EQ(Visit(sizes, strides), expected)
        << FormatDims(sizes) << FormatDims(strides);
  }
}

TEST(ForEachRunTest, ContiguousOperandsAreOneRun) {
  const Dims sizes = {3, 4, 5};
  const Dims strides = ContiguousStrides(sizes);
  std::array<std::byte, 480> memory;
  int runs = 0;
  ForEachRun<2>(sizes,
                {{{memory.data(), strides, 8}, {memory.data(), strides, 2}}},
                [&](const auto&, const auto& steps, int64_t count) {
                  ++runs;
                  EXPECT_EQ(count, 60);
                  EXPECT_THAT(steps, ElementsAre(8, 2));
                  return true;
                });
  EXPECT_EQ(runs, 1);
}

TEST(ForEachRunTest, RunsEndWhereOneOfTheOperandsJumps) {
  const Dims sizes = {3, 4};
  const Dims contiguous = {4, 1};
  const Dims gaps = {7, 1};
  std::array<std::byte, 64> memory;
  std::vector<std::array<int64_t, 2>> starts;
  ForEachRun<2>(
      sizes, {{{memory.data(), contiguous, 1}, {memory.data(), gaps, 1}}},
      [&](const auto& at, const auto&, int64_t count) {
        EXPECT_EQ(count, 4);
        starts.push_back({at[0] - memory.data(), at[1] - memory.data()});
        return true;
      });
  EXPECT_THAT(starts, ElementsAre(ElementsAre(0, 0), ElementsAre(4, 7),
                                  ElementsAre(8, 14)));
}

TEST(ForEachRunTest, StopsWhenTheBodyReturnsFalse) {
  const Dims sizes = {5, 2};
  const Dims strides = {3, 1};
  std::array<std::byte, 64> memory;
  int runs = 0;
  EXPECT_FALSE(ForEachRun<1>(
      sizes, {{{memory.data(), strides, 1}}},
      [&](const auto&, const auto&, int64_t) { return ++runs < 3; }));
  EXPECT_EQ(runs, 3);
}

}  // namespace
}  // namespace internal
}  // namespace sherd
