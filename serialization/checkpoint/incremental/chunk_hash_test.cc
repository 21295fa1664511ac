#include "sherd/serialization/checkpoint/incremental/chunk_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::RandomSeed;
using sherd::testing::StatusIs;

using Bytes = std::vector<std::byte>;

absl::Status NoProgress() { return absl::OkStatus(); }

// Counts how many of the hashes that were added are different ones; also their
// halves, of which a weak hash would repeat some.
struct Distinct {
  std::set<std::pair<uint64_t, uint64_t>> hashes;
  std::set<uint64_t> low, high;
  size_t count = 0;

  void Add(const Bytes& bytes) {
    const ChunkHash hash = HashChunk(bytes);
    hashes.emplace(hash.high, hash.low);
    low.insert(hash.low);
    high.insert(hash.high);
    ++count;
  }
  void Expect() const {
    EXPECT_EQ(hashes.size(), count);
    EXPECT_EQ(low.size(), count);
    EXPECT_EQ(high.size(), count);
  }
};

Bytes RandomBytes(size_t size, std::mt19937_64& random) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(ChunkHashTest, IsXxh3) {
  // Of nothing, as its authors have it.
  EXPECT_EQ(HashChunk({}), (ChunkHash{0x6001c324468d497f, 0x99aa06d3014798d8}));
}

TEST(ChunkHashTest, EveryBitCounts) {
  std::mt19937_64 random(RandomSeed());
  for (Bytes bytes : {Bytes(4096), RandomBytes(4096, random)}) {
    Distinct distinct;
    distinct.Add(bytes);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto mask = static_cast<std::byte>(1 << (bit % 8));
      bytes[bit / 8] ^= mask;
      distinct.Add(bytes);
      bytes[bit / 8] ^= mask;
    }
    distinct.Expect();
  }
}

TEST(ChunkHashTest, HalfOfTheBitsFollowEachBit) {
  std::mt19937_64 random(RandomSeed());
  Bytes bytes = RandomBytes(4096, random);
  const ChunkHash before = HashChunk(bytes);
  int64_t flipped = 0;
  const int64_t samples = 2000;
  for (int64_t i = 0; i < samples; ++i) {
    const size_t bit = random() % (8 * bytes.size());
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    bytes[bit / 8] ^= mask;
    const ChunkHash after = HashChunk(bytes);
    bytes[bit / 8] ^= mask;
    flipped += __builtin_popcountll(before.low ^ after.low) +
               __builtin_popcountll(before.high ^ after.high);
  }
  // Ten standard deviations.
  EXPECT_NEAR(static_cast<double>(flipped) / samples, 64.0, 1.3);
}

TEST(ChunkHashTest, OrderAndLengthCount) {
  std::mt19937_64 random(RandomSeed());
  const Bytes bytes = RandomBytes(4096, random);
  // Blocks of any size, also those that the hash works in, in another order.
  for (const size_t block : {1, 8, 16, 64, 256, 1024}) {
    Distinct distinct;
    distinct.Add(bytes);
    for (size_t i = 0; i + block < bytes.size(); i += block) {
      Bytes swapped = bytes;
      std::swap_ranges(swapped.begin() + i, swapped.begin() + i + block,
                       swapped.end() - block);
      if (swapped == bytes) continue;
      distinct.Add(swapped);
    }
    distinct.Expect();
  }
  // Zeros at the end are not nothing.
  Distinct lengths;
  for (size_t length = 0; length < 3000; ++length) lengths.Add(Bytes(length));
  lengths.Expect();
}

// A CRC finds none of these changes: the CRC-32C of its polynomial is 0, and it
// is linear.
TEST(ChunkHashTest, ChangesThatACrcMissesAreFound) {
  Bytes bytes(256 << 10);
  const ChunkHash before = HashChunk(bytes);
  // x^32 + …, the lowest bit of a byte first.
  const uint64_t polynomial = uint64_t{0x82f63b78} << 1 | 1;
  for (int i = 0; i < 5; ++i) {
    bytes[1000 + i] = static_cast<std::byte>(polynomial >> (8 * i));
  }
  EXPECT_FALSE(HashChunk(bytes) == before);
}

TEST(ChunkHashTest, StridesDoNotMatter) {
  const int64_t kChunk = 1000;
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor base,
                             Tensor::Empty({70, 41}, {.dtype = kInt16}));
  for (int64_t i = 0; i < base.numel(); ++i) {
    base.mutable_data_as<int16_t>()[i] = static_cast<int16_t>(7 * i);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor transposed, base.Transpose(0, 1));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor copy, transposed.Clone());
  const size_t chunks = (base.nbytes() + kChunk - 1) / kChunk;
  std::vector<ChunkHash> strided(chunks), contiguous(chunks);
  EXPECT_THAT(
      HashChunks(transposed, kChunk, NoProgress, absl::MakeSpan(strided)),
      IsOk());
  EXPECT_THAT(HashChunks(copy, kChunk, NoProgress, absl::MakeSpan(contiguous)),
              IsOk());
  EXPECT_EQ(strided, contiguous);
  const auto* data = static_cast<const std::byte*>(copy.data());
  for (size_t i = 0; i < chunks; ++i) {
    const int64_t begin = static_cast<int64_t>(i) * kChunk;
    EXPECT_EQ(strided[i],
              HashChunk({data + begin, static_cast<size_t>(std::min(
                                           kChunk, copy.nbytes() - begin))}));
  }
}

TEST(ChunkHashTest, ReportsItsProgress) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                             Tensor::Zeros({4 << 20}, {.dtype = kUInt8}));
  std::vector<ChunkHash> hashes(16);
  int calls = 0;
  const auto progress = [&] {
    return ++calls < 3 ? absl::OkStatus() : absl::AbortedError("enough");
  };
  EXPECT_THAT(HashChunks(tensor, 256 << 10, progress, absl::MakeSpan(hashes)),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace sherd
