#include "sherd/core/tensor/kernels/strided_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/testing/kits/allocation_counter.h"

namespace sherd {
namespace {

using ::sherd::testing::AllocationsOfThisThread;

constexpr unsigned char kUntouched = 0xee;

// The definition, one element at a time.
void NaiveCopy(unsigned char* dst, absl::Span<const int64_t> dst_strides,
               const unsigned char* src, absl::Span<const int64_t> src_strides,
               absl::Span<const int64_t> sizes, size_t element_size) {
  if (sizes.empty()) {
    std::memcpy(dst, src, element_size);
    return;
  }
  const int64_t bytes = static_cast<int64_t>(element_size);
  if (sizes.size() == 1) {
    for (int64_t i = 0; i < sizes[0]; ++i) {
      std::memcpy(dst + i * dst_strides[0] * bytes,
                  src + i * src_strides[0] * bytes, element_size);
    }
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i) {
    NaiveCopy(dst + i * dst_strides[0] * bytes, dst_strides.subspan(1),
              src + i * src_strides[0] * bytes, src_strides.subspan(1),
              sizes.subspan(1), element_size);
  }
}

// A layout in a buffer: where element 0 is, and how far the elements reach.
struct Placed {
  Dims strides;
  int64_t first = 0;
  int64_t extent = 1;
};

// Strides of a tensor of these sizes whose dimensions lie in memory in a random
// order, with random gaps and directions.
Placed RandomLayout(const Dims& sizes, std::mt19937& random, bool negative) {
  Placed placed;
  placed.strides.assign(sizes.size(), 1);
  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  int64_t next = random() % 3 == 0 ? 1 + random() % 3 : 1;
  for (size_t d : order) {
    placed.strides[d] = next;
    const int64_t span = next * std::max<int64_t>(sizes[d] - 1, 0);
    placed.extent += span;
    next = placed.extent + (random() % 3 == 0 ? random() % 5 : 0);
    if (negative && random() % 4 == 0) {
      placed.strides[d] = -placed.strides[d];
      placed.first += span;
    }
  }
  return placed;
}

std::vector<unsigned char> RandomBytes(size_t count, std::mt19937& random) {
  std::vector<unsigned char> bytes(count);
  // A cheaper generator than the one it starts from: there are many bytes.
  uint32_t state = static_cast<uint32_t>(random());
  for (unsigned char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return bytes;
}

// Copies between the layouts by the code under test and by definition, into
// equal buffers, and compares the whole buffers: what must not be touched too.
void CheckCopy(const Dims& sizes, const Placed& dst, const Placed& src,
               size_t element_size, std::mt19937& random,
               size_t whole_bytes = 0) {
  const int64_t bytes = static_cast<int64_t>(element_size);
  const int64_t margin = 3;  // Also makes every address odd.
  const std::vector<unsigned char> from =
      RandomBytes(static_cast<size_t>(src.extent * bytes + margin), random);
  std::vector<unsigned char> got(
      static_cast<size_t>(dst.extent * bytes + 2 * margin), kUntouched);
  std::vector<unsigned char> expected = got;
  const unsigned char* const first = from.data() + margin + src.first * bytes;
  StridedCopy(got.data() + margin + dst.first * bytes, dst.strides, first,
              src.strides, sizes, element_size, whole_bytes);
  NaiveCopy(expected.data() + margin + dst.first * bytes, dst.strides, first,
            src.strides, sizes, element_size);
  ASSERT_EQ(got, expected) << "sizes " << FormatDims(sizes) << " dst "
                           << FormatDims(dst.strides) << " src "
                           << FormatDims(src.strides) << " element "
                           << element_size;
}

Placed Contiguous(const Dims& sizes) {
  Placed placed;
  placed.strides = ContiguousStrides(sizes);
  placed.extent = 1;
  for (int64_t size : sizes) placed.extent *= size;
  return placed;
}

Placed Strided(Dims strides, int64_t extent) {
  Placed placed;
  placed.strides = std::move(strides);
  placed.extent = extent;
  return placed;
}

TEST(StridedCopyTest, AgreesWithTheDefinitionOnRandomLayouts) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const size_t kElementSizes[] = {1, 2, 3, 4, 5, 8, 12, 16, 24, 40, 100};
  for (int trial = 0; trial < 3000; ++trial) {
    Dims sizes;
    for (uint32_t d = random() % 7; d > 0; --d) {
      const uint32_t kind = random() % 12;
      sizes.push_back(kind == 0 ? 1
                                : 1 + random() % (sizes.size() < 3 ? 9 : 3));
    }
    if (!sizes.empty() && random() % 20 == 0) sizes[0] = 0;
    const Placed dst = RandomLayout(sizes, random, /*negative=*/true);
    const Placed src = RandomLayout(sizes, random, /*negative=*/true);
    CheckCopy(sizes, dst, src,
              kElementSizes[random() % std::size(kElementSizes)], random);
    if (HasFatalFailure()) return;
  }
}

// Squares that are filled, partly filled and left over, on both sides.
TEST(StridedCopyTest, TransposesEveryShapeAroundTheTile) {
  std::mt19937 random(20230);
  for (size_t element_size : {1, 2, 3, 4, 8, 16, 20, 32, 64, 72}) {
    const int64_t tile =
        std::max<int64_t>(1, 64 / static_cast<int64_t>(element_size));
    for (int64_t rows : {int64_t{2}, tile - 1, tile, tile + 1, 2 * tile + 3}) {
      for (int64_t columns :
           {int64_t{2}, tile - 1, tile, tile + 1, 3 * tile + 5}) {
        if (rows < 1 || columns < 1) continue;
        const Dims sizes = {rows, columns};
        CheckCopy(sizes, Contiguous(sizes), Strided({1, rows}, rows * columns),
                  element_size, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(StridedCopyTest, TransposesBoxesInsideLargerTensors) {
  std::mt19937 random(20231);
  for (size_t element_size : {1, 2, 4, 8, 16}) {
    const Dims sizes = {5, 150, 70};
    // [5][150 of 160][70 of 90] from [150 of 151][5 of 6][70 of 77], and from
    // the innermost two dimensions the other way round.
    CheckCopy(sizes, Strided({160 * 90, 90, 1}, 5 * 160 * 90),
              Strided({77, 6 * 77, 1}, 151 * 6 * 77), element_size, random);
    CheckCopy(sizes, Strided({160 * 90, 90, 1}, 5 * 160 * 90),
              Strided({170 * 77, 1, 170}, 5 * 170 * 77), element_size, random);
    CheckCopy(sizes, Strided({160 * 90, 90, 1}, 5 * 160 * 90),
              Strided({1, 5, 5 * 150}, 5 * 150 * 70), element_size, random);
    if (HasFatalFailure()) return;
  }
}

// Sizes that make the copy bypass the cache, to destinations that begin at
// every kind of address.
TEST(StridedCopyTest, CopiesBeyondTheCacheAreTheSame) {
  std::mt19937 random(20236);
  for (size_t element_size : {1, 2, 4, 8, 16, 3}) {
    const int64_t bytes = static_cast<int64_t>(element_size);
    const int64_t rows = 1100 + 3 * bytes;
    const int64_t columns = (int64_t{5} << 20) / rows / bytes;
    const int64_t pitch = (columns * bytes + 191) / 64 * 64 / bytes;
    const Dims sizes = {rows, columns};
    const std::vector<unsigned char> src =
        RandomBytes(static_cast<size_t>(rows * columns * bytes), random);
    for (int64_t offset : {int64_t{0}, 3 * bytes, int64_t{1}}) {
      if (offset == 1 && element_size != 4) continue;
      for (const Dims& src_strides : {Dims{columns, 1}, Dims{1, rows}}) {
        std::vector<unsigned char> got(
            static_cast<size_t>(rows * pitch * bytes + 128), kUntouched);
        std::vector<unsigned char> expected = got;
        const size_t align = -reinterpret_cast<uintptr_t>(got.data()) % 64 +
                             static_cast<size_t>(offset);
        StridedCopy(got.data() + align, {pitch, 1}, src.data(), src_strides,
                    sizes, element_size);
        NaiveCopy(expected.data() + align, {pitch, 1}, src.data(), src_strides,
                  sizes, element_size);
        ASSERT_TRUE(got == expected) << element_size << " at " << offset << " "
                                     << FormatDims(src_strides);
      }
    }
  }
}

TEST(StridedCopyTest, LargeContiguousCopiesAreTheSame) {
  std::mt19937 random(20237);
  for (const size_t megabytes : {33, 97}) {
    std::vector<unsigned char> src((megabytes << 20) + 77);
    for (size_t i = 0; i < src.size(); i += 61) {
      src[i] = static_cast<unsigned char>(random());
    }
    std::vector<unsigned char> dst(src.size() + 2, kUntouched);
    const int64_t count = static_cast<int64_t>(src.size());
    StridedCopy(dst.data() + 1, {1}, src.data(), {1}, {count}, 1);
    EXPECT_EQ(dst.front(), kUntouched);
    EXPECT_EQ(dst.back(), kUntouched);
    EXPECT_EQ(std::memcmp(dst.data() + 1, src.data(), src.size()), 0);
  }
}

TEST(StridedCopyTest, PartsOfALargeCopyAreTheSame) {
  std::mt19937 random(4);
  const size_t whole = size_t{1} << 40;
  // Runs of less and more than a line, at any place in a line.
  for (const int64_t row : {15, 16, 17, 33, 64, 127, 129, 700}) {
    const int64_t pitch = row + 5;
    const Dims sizes = {6, 60, row};
    const Placed dense = Contiguous(sizes);
    const Placed gaps = Strided({60 * pitch, pitch, 1}, 6 * 60 * pitch);
    CheckCopy(sizes, gaps, dense, 4, random, whole);
    CheckCopy(sizes, dense, gaps, 4, random, whole);
    CheckCopy(sizes, gaps, gaps, 4, random, whole);
    CheckCopy(sizes, dense, dense, 4, random, whole);
    // The last dimension is not the innermost of the source.
    CheckCopy(sizes, dense, Strided({60 * row, 1, 60}, 6 * 60 * row), 4, random,
              whole);
    CheckCopy(sizes, gaps, Strided({60 * row, 1, 60}, 6 * 60 * row), 4, random,
              whole);
  }
  // Below a part that is worth it.
  CheckCopy({3, 64}, Strided({70, 1}, 210), Contiguous({3, 64}), 4, random,
            whole);
}

TEST(StridedCopyTest, ASourceOfStrideZeroIsRepeated) {
  std::mt19937 random(20232);
  const Dims sizes = {4, 37, 3};
  for (size_t element_size : {1, 2, 4, 7, 8, 16}) {
    for (const Dims& strides :
         {Dims{0, 0, 0}, Dims{3, 0, 1}, Dims{0, 3, 1}, Dims{37, 1, 0}}) {
      CheckCopy(sizes, Contiguous(sizes), Strided(strides, 4 * 37 * 3),
                element_size, random);
      CheckCopy(sizes, Strided({1, 4, 4 * 37}, 4 * 37 * 3),
                Strided(strides, 4 * 37 * 3), element_size, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(StridedCopyTest, CopiesOneElementOfATensorWithoutDimensions) {
  std::mt19937 random(20233);
  for (size_t element_size : {1, 2, 4, 8, 16, 100}) {
    CheckCopy({}, Placed(), Placed(), element_size, random);
  }
}

TEST(StridedCopyTest, TouchesNothingWhenASizeIsZero) {
  StridedCopy(nullptr, {1}, nullptr, {1}, {0}, 8);
  StridedCopy(nullptr, {12, 4, 1}, nullptr, {1, 3, 9}, {3, 0, 4}, 4);
}

TEST(StridedCopyTest, HandlesTheLargestRank) {
  std::mt19937 random(20234);
  Dims sizes(kMaxRank, 1);
  for (int d = 0; d < kMaxRank; d += 6) sizes[d] = 2;
  CheckCopy(sizes, RandomLayout(sizes, random, false),
            RandomLayout(sizes, random, false), 4, random);
}

TEST(StridedCopyTest, AllocatesNothing) {
  std::mt19937 random(20235);
  std::vector<char> dst(1 << 16);
  const std::vector<char> src(1 << 16, 1);
  for (int rank = 0; rank <= 12; ++rank) {
    const Dims sizes(rank, 2);
    const Placed to = RandomLayout(sizes, random, false);
    const Placed from = RandomLayout(sizes, random, false);
    ASSERT_LT(std::max(to.extent, from.extent) * 4, int64_t{1} << 16);
    const int64_t before = AllocationsOfThisThread();
    StridedCopy(dst.data(), to.strides, src.data(), from.strides, sizes, 4);
    EXPECT_EQ(AllocationsOfThisThread(), before) << "rank " << rank;
  }
  EXPECT_GT(AllocationsOfThisThread(), 0);
}

TEST(IsContiguousRunTest, IsTrueIfOneMemcpyWouldDo) {
  EXPECT_TRUE(IsContiguousRun({}, {}));
  EXPECT_TRUE(IsContiguousRun({3, 20}, {20, 1}));
  EXPECT_TRUE(IsContiguousRun({1, 20}, {50, 1}));
  EXPECT_TRUE(IsContiguousRun({0, 20}, {50, 7}));
  EXPECT_FALSE(IsContiguousRun({3, 10}, {20, 1}));
  EXPECT_FALSE(IsContiguousRun({20, 3}, {1, 20}));
}

}  // namespace
}  // namespace sherd
