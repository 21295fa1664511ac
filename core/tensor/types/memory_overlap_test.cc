#include "sherd/core/tensor/types/memory_overlap.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {
namespace {

using ::testing::Optional;
using ::testing::Pair;

// A box that owns what MemoryAccess borrows. Addresses are numbers here:
// nothing is touched.
struct OwnedAccess {
  uintptr_t begin = 1 << 20;
  size_t element_size = 4;
  Dims sizes;
  Dims strides;
  Access access = Access::kRead;

  MemoryAccess Get() const {
    return {.access = access,
            .data = reinterpret_cast<const void*>(begin),
            .element_size = element_size,
            .sizes = sizes,
            .strides = strides};
  }
};

// Every byte that the box touches.
std::set<uintptr_t> BytesOf(const OwnedAccess& box) {
  std::vector<uintptr_t> elements = {box.begin};
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    std::vector<uintptr_t> next;
    for (const uintptr_t element : elements) {
      for (int64_t i = 0; i < box.sizes[d]; ++i) {
        next.push_back(element + static_cast<uintptr_t>(
                                     i * box.strides[d] *
                                     static_cast<int64_t>(box.element_size)));
      }
    }
    elements = std::move(next);
  }
  std::set<uintptr_t> bytes;
  for (const uintptr_t element : elements) {
    for (size_t b = 0; b < box.element_size; ++b) bytes.insert(element + b);
  }
  return bytes;
}

bool ReallyShareMemory(const OwnedAccess& a, const OwnedAccess& b) {
  const std::set<uintptr_t> bytes = BytesOf(b);
  for (const uintptr_t byte : BytesOf(a)) {
    if (bytes.count(byte) > 0) return true;
  }
  return false;
}

// A view of the memory of one small tensor: narrowed, every other index, with
// its dimensions in any order, of elements of 4 bytes or of halves of them.
OwnedAccess RandomView(std::mt19937& random) {
  OwnedAccess box;
  int64_t stride = 1;
  for (const int64_t size : {6, 5, 4}) {
    const int64_t step = 1 + random() % 2;
    const int64_t begin = static_cast<int64_t>(random()) % size;
    const int64_t most = (size - begin + step - 1) / step;
    box.begin += static_cast<uintptr_t>(begin * stride * 4);
    box.sizes.push_back(static_cast<int64_t>(random()) % (most + 1));
    if (random() % 8 != 0 && box.sizes.back() == 0) box.sizes.back() = 1;
    box.strides.push_back(step * stride);
    stride *= size;
  }
  for (size_t d = 2; d > 0; --d) {
    const size_t other = random() % (d + 1);
    std::swap(box.sizes[d], box.sizes[other]);
    std::swap(box.strides[d], box.strides[other]);
  }
  if (random() % 4 == 0) {
    box.element_size = 2;
    for (int64_t& s : box.strides) s *= 2;
    if (random() % 2 == 0) box.begin += 2;
  }
  return box;
}

// Any strides at all.
OwnedAccess RandomBox(std::mt19937& random) {
  OwnedAccess box;
  box.begin += random() % 64;
  box.element_size = 1 + random() % 5;
  for (uint32_t d = random() % 4; d > 0; --d) {
    box.sizes.push_back(random() % 5);
    box.strides.push_back(static_cast<int64_t>(random() % 25) - 8);
  }
  return box;
}

std::mt19937 SeededRandom(uint32_t& seed) {
  seed = std::random_device{}();
  return std::mt19937(seed);
}

TEST(MayShareMemoryTest, IsExactForViewsOfOneTensor) {
  uint32_t seed;
  std::mt19937 random = SeededRandom(seed);
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  int shared = 0;
  int apart_in_one_range = 0;
  for (int i = 0; i < 4000; ++i) {
    const OwnedAccess a = RandomView(random);
    const OwnedAccess b = RandomView(random);
    const bool expected = ReallyShareMemory(a, b);
    ASSERT_EQ(MayShareMemory(a.Get(), b.Get()), expected) << "case " << i;
    ASSERT_EQ(MayShareMemory(b.Get(), a.Get()), expected) << "case " << i;
    shared += expected ? 1 : 0;
    apart_in_one_range += !expected && a.begin / 256 == b.begin / 256 ? 1 : 0;
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(apart_in_one_range, 100);
}

TEST(MayShareMemoryTest, NeverTakesSharedMemoryForDisjoint) {
  uint32_t seed;
  std::mt19937 random = SeededRandom(seed);
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  int shared = 0;
  int found_apart = 0;
  for (int i = 0; i < 4000; ++i) {
    const OwnedAccess a = RandomBox(random);
    const OwnedAccess b = RandomBox(random);
    const bool found = MayShareMemory(a.Get(), b.Get());
    if (ReallyShareMemory(a, b)) {
      ++shared;
      ASSERT_TRUE(found) << "case " << i;
    }
    found_apart += found ? 0 : 1;
  }
  EXPECT_GT(shared, 300);
  EXPECT_GT(found_apart, 300);
}

TEST(MayShareMemoryTest, DistinguishesLargeViewsByTheirElements) {
  constexpr int64_t kPitch = int64_t{1} << 20;
  const OwnedAccess left = {.sizes = {kPitch, 1000}, .strides = {kPitch, 1}};
  OwnedAccess right = left;
  right.begin += 1000 * 4;
  EXPECT_FALSE(MayShareMemory(left.Get(), right.Get()));
  right.begin -= 4;
  EXPECT_TRUE(MayShareMemory(left.Get(), right.Get()));
  // Rows of one against columns of the other.
  OwnedAccess column = {.sizes = {kPitch}, .strides = {kPitch}};
  column.begin += 1000 * 4;
  EXPECT_FALSE(MayShareMemory(left.Get(), column.Get()));
  column.begin -= 4;
  EXPECT_TRUE(MayShareMemory(left.Get(), column.Get()));
  // Real and imaginary parts.
  OwnedAccess real = {.sizes = {kPitch}, .strides = {2}};
  OwnedAccess imaginary = real;
  imaginary.begin += 4;
  EXPECT_FALSE(MayShareMemory(real.Get(), imaginary.Get()));
  // From the last element backwards.
  imaginary.begin += (kPitch - 1) * 8;
  imaginary.strides = {-2};
  EXPECT_FALSE(MayShareMemory(real.Get(), imaginary.Get()));
  imaginary.begin -= 4;
  EXPECT_TRUE(MayShareMemory(real.Get(), imaginary.Get()));
}

TEST(MayShareMemoryTest, GivesUpOnStridesThatTakeTooLong) {
  // Apart, since the sum is never 1 more than a multiple of 2; but no number of
  // these dimensions is smaller than all that follow can make up for.
  OwnedAccess a = {.element_size = 1};
  for (int64_t d = 0; d < 20; ++d) {
    a.sizes.push_back(1000);
    a.strides.push_back(1'000'002 + 2 * d * d);
  }
  OwnedAccess b = {.begin = a.begin + 1'000'001, .element_size = 1};
  EXPECT_FALSE(MayShareMemory(a.Get(), b.Get()));
  a.strides.push_back(1'000'003);
  a.sizes.push_back(2);
  EXPECT_TRUE(MayShareMemory(a.Get(), a.Get()));
  b.begin += 500'000'000;
  (void)MayShareMemory(a.Get(), b.Get());  // Ends.
}

TEST(MayShareMemoryTest, AViewWithoutElementsSharesNoMemory) {
  const OwnedAccess some = {.sizes = {4}, .strides = {1}};
  const OwnedAccess empty = {.sizes = {4, 0}, .strides = {1, 1}};
  EXPECT_FALSE(MayShareMemory(some.Get(), empty.Get()));
  EXPECT_FALSE(MayShareMemory(empty.Get(), empty.Get()));
  EXPECT_FALSE(MayShareMemory(some.Get(), MemoryAccess()));
  const auto* at = reinterpret_cast<const void*>(some.begin);
  EXPECT_FALSE(
      MayShareMemory(some.Get(), AccessToBytes(at, 0, Access::kWrite)));
  EXPECT_TRUE(MayShareMemory(some.Get(), AccessToBytes(at, 1, Access::kWrite)));
  const Tensor meta = Tensor::Empty({4}, {.device = "meta"}).value();
  EXPECT_FALSE(MayShareMemory(AccessToTensor(meta, Access::kRead),
                              AccessToTensor(meta, Access::kWrite)));
}

TEST(IsSameMemoryTest, DisregardsStridesThatAreNeverTaken) {
  const OwnedAccess a = {.sizes = {3, 1, 4}, .strides = {4, 77, 1}};
  OwnedAccess b = {.sizes = {3, 1, 4}, .strides = {4, 4, 1}};
  EXPECT_TRUE(IsSameMemory(a.Get(), b.Get()));
  b.strides[0] = 5;
  EXPECT_FALSE(IsSameMemory(a.Get(), b.Get()));
  b = a;
  b.begin += 4;
  EXPECT_FALSE(IsSameMemory(a.Get(), b.Get()));
}

// The pairs that FindConflict may name.
std::set<std::pair<size_t, size_t>> ConflictsOf(
    const std::vector<OwnedAccess>& boxes) {
  std::set<std::pair<size_t, size_t>> conflicts;
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size(); ++j) {
      if (boxes[i].access == Access::kRead &&
          boxes[j].access == Access::kRead) {
        continue;
      }
      if (ReallyShareMemory(boxes[i], boxes[j])) conflicts.emplace(i, j);
    }
  }
  return conflicts;
}

TEST(FindConflictTest, NamesAPairIfAndOnlyIfThereIsOne) {
  uint32_t seed;
  std::mt19937 random = SeededRandom(seed);
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  int with = 0;
  int without = 0;
  for (int i = 0; i < 500; ++i) {
    std::vector<OwnedAccess> boxes;
    std::vector<MemoryAccess> accesses;
    for (uint32_t n = random() % 24; n > 0; --n) {
      boxes.push_back(RandomView(random));
      // Small ones, mostly in tensors of their own.
      if (random() % 4 != 0) boxes.back().begin += (random() % 64) * 480;
      boxes.back().access = random() % 2 == 0 ? Access::kRead : Access::kWrite;
    }
    for (const OwnedAccess& box : boxes) accesses.push_back(box.Get());
    const auto expected = ConflictsOf(boxes);
    const std::optional<std::pair<size_t, size_t>> found =
        FindConflict(accesses);
    ASSERT_EQ(found.has_value(), !expected.empty()) << "case " << i;
    if (found) {
      ASSERT_EQ(expected.count(*found), 1u) << "case " << i;
    }
    (found ? with : without) += 1;
  }
  EXPECT_GT(with, 50);
  EXPECT_GT(without, 50);
}

TEST(FindConflictTest, ReadsMayShareMemoryAndWritesMayNot) {
  std::vector<std::byte> memory(100);
  const auto access = [&](size_t begin, size_t size, Access kind) {
    return AccessToBytes(memory.data() + begin, size, kind);
  };
  EXPECT_EQ(FindConflict({}), std::nullopt);
  EXPECT_EQ(
      FindConflict({access(0, 50, Access::kRead), access(0, 50, Access::kRead),
                    access(50, 50, Access::kWrite)}),
      std::nullopt);
  EXPECT_THAT(FindConflict({access(50, 10, Access::kWrite),
                            access(0, 100, Access::kRead),
                            access(0, 50, Access::kWrite)}),
              Optional(Pair(1, 2)));
  EXPECT_THAT(FindConflict({access(10, 1, Access::kWrite),
                            access(40, 10, Access::kRead),
                            access(10, 1, Access::kWrite)}),
              Optional(Pair(0, 2)));
}

TEST(FindConflictTest, NamesAnAccessThatWritesAnElementTwice) {
  OwnedAccess repeated = {.sizes = {3, 2}, .strides = {0, 1}};
  EXPECT_EQ(FindConflict({repeated.Get()}), std::nullopt);
  repeated.access = Access::kWrite;
  const OwnedAccess other = {.begin = 5 << 20, .sizes = {1}, .strides = {1}};
  EXPECT_THAT(FindConflict({other.Get(), repeated.Get()}),
              Optional(Pair(1, 1)));
}

TEST(FindConflictTest, TakesLittleTimeForManyBuffers) {
  // Written ones in any order, each beside the next, among reads of the same.
  constexpr size_t kMany = 50'000;
  std::vector<MemoryAccess> accesses;
  for (size_t i = 0; i < kMany; ++i) {
    const size_t place = i * 7919 % kMany;
    accesses.push_back(AccessToBytes(
        reinterpret_cast<const void*>((size_t{1} << 30) + place * 8), 8,
        Access::kWrite));
    accesses.push_back(
        AccessToBytes(reinterpret_cast<const void*>(size_t{1} << 20), 1 << 19,
                      Access::kRead));
  }
  EXPECT_EQ(FindConflict(accesses), std::nullopt);
  accesses[12345].data = accesses[0].data;
  EXPECT_TRUE(FindConflict(accesses).has_value());
}

}  // namespace
}  // namespace sherd::internal
