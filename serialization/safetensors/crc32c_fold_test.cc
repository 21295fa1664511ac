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

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// By pieces that are too short to be folded.
uint32_t InShortPieces(absl::Span<const std::byte> data, uint32_t state) {
  while (!data.empty()) {
    const size_t n = std::min(data.size(), internal::kFoldBytes / 8 - 1);
    state = LinearCrc32c(data.first(n), state);
    data.remove_prefix(n);
  }
  return state;
}

TEST(Crc32cFoldTest, LongDataHasTheCrcOfItsShortPieces) {
  const std::vector<std::byte> bytes = RandomBytes(5 * internal::kFoldBytes);
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

TEST(Crc32cFoldTest, EveryBitOfABlockCounts) {
  if (!internal::CanFoldCrc32c()) GTEST_SKIP() << "no such instructions";
  std::vector<std::byte> block = RandomBytes(internal::kFoldBytes);
  for (size_t i = 0; i < block.size(); ++i) {
    block[i] ^= std::byte{1};
    ASSERT_EQ(internal::FoldCrc32c(block.data(), 1, 5), InShortPieces(block, 5))
        << "byte " << i;
  }
}

}  // namespace
}  // namespace sherd
