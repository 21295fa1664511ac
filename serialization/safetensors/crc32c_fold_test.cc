#include "sherd/serialization/safetensors/crc32c_fold.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {
namespace {

// Of a block; a sixteenth of it is too short for any.
constexpr size_t kMostBytes = 8000;

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// By pieces that are too short to be folded.
uint32_t InShortPieces(absl::Span<const std::byte> data, uint32_t state) {
  while (!data.empty()) {
    const size_t n = std::min(data.size(), kMostBytes / 16);
    state = LinearCrc32c(data.first(n), state);
    data.remove_prefix(n);
  }
  return state;
}

TEST(Crc32cFoldTest, LongDataHasTheCrcOfItsShortPieces) {
  const std::vector<std::byte> bytes = RandomBytes(5 * kMostBytes);
  std::mt19937 random(8);
  for (int i = 0; i < 300; ++i) {
    const size_t begin = random() % 64;
    const size_t size = random() % (bytes.size() - begin);
    const uint32_t state = i % 3 == 0 ? 0 : static_cast<uint32_t>(random());
    const auto data = absl::MakeConstSpan(bytes).subspan(begin, size);
    ASSERT_EQ(LinearCrc32c(data, state), InShortPieces(data, state))
        << "bytes " << begin << " to " << begin + size << ", state " << state;
  }
}

TEST(Crc32cFoldTest, BlocksHaveTheCrcOfTheirShortPieces) {
  if (internal::SupportedCrc32cFolds().empty()) {
    GTEST_SKIP() << "no such instructions";
  }
  for (const internal::Crc32cFold& fold : internal::SupportedCrc32cFolds()) {
    SCOPED_TRACE(fold.name);
    ASSERT_LE(fold.block_bytes, kMostBytes);
    const std::vector<std::byte> bytes = RandomBytes(3 * fold.block_bytes + 1);
    for (const size_t blocks : {0, 1, 2, 3}) {
      // Unaligned too.
      const auto data = absl::MakeConstSpan(bytes).subspan(
          blocks == 3 ? 1 : 0, blocks * fold.block_bytes);
      EXPECT_EQ(fold.run(data.data(), blocks, 5), InShortPieces(data, 5))
          << blocks << " blocks";
    }
  }
}

TEST(Crc32cFoldTest, EveryBitOfABlockCounts) {
  if (internal::SupportedCrc32cFolds().empty()) {
    GTEST_SKIP() << "no such instructions";
  }
  for (const internal::Crc32cFold& fold : internal::SupportedCrc32cFolds()) {
    std::vector<std::byte> block = RandomBytes(fold.block_bytes);
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] ^= std::byte{1};
      ASSERT_EQ(fold.run(block.data(), 1, 5), InShortPieces(block, 5))
          << fold.name << ", byte " << i;
    }
  }
}

}  // namespace
}  // namespace sherd
