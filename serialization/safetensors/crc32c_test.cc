#include "sherd/serialization/safetensors/crc32c.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                        text.size());
}

// Bit by bit from the definition, as an oracle.
uint32_t SlowCrc32c(absl::Span<const std::byte> data) {
  uint32_t state = ~uint32_t{0};
  for (const std::byte b : data) {
    state ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) {
      state = (state & 1) != 0 ? (state >> 1) ^ 0x82f63b78 : state >> 1;
    }
  }
  return ~state;
}

std::vector<std::byte> RandomBytes(size_t n, std::mt19937& random) {
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32cTest, MatchesTheVectorsOfRfc3720) {
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  std::string rising(32, '\0');
  for (int i = 0; i < 32; ++i) rising[i] = static_cast<char>(i);
  std::string falling(rising.rbegin(), rising.rend());
  EXPECT_EQ(Crc32c(Bytes(zeros)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(Bytes(ones)), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Bytes(rising)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Bytes(falling)), 0x113fdb5cu);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32cTest, EveryLengthAndAlignmentMatchesTheDefinition) {
  std::mt19937 random(1);
  const std::vector<std::byte> data = RandomBytes(3000, random);
  for (size_t start = 0; start < 9; ++start) {
    for (size_t n = 0; n < 400; ++n) {
      const auto piece = absl::MakeSpan(data).subspan(start, n);
      ASSERT_EQ(Crc32c(piece), SlowCrc32c(piece)) << start << " " << n;
    }
  }
  const auto rest = absl::MakeSpan(data).subspan(7);
  EXPECT_EQ(Crc32c(rest), SlowCrc32c(rest));
}

TEST(Crc32cTest, ASeedAndACombinationContinueACrc) {
  std::mt19937 random(2);
  const std::vector<std::byte> data = RandomBytes(1000, random);
  const auto all = absl::MakeSpan(data);
  const uint32_t whole = Crc32c(all);
  for (size_t cut = 0; cut <= all.size(); cut += 37) {
    const uint32_t a = Crc32c(all.first(cut));
    EXPECT_EQ(Crc32c(all.subspan(cut), a), whole);
    EXPECT_EQ(CombineCrc32c(a, Crc32c(all.subspan(cut)), all.size() - cut),
              whole);
  }
}

TEST(Crc32cTest, LinearPartsInAnyOrderMakeUpTheWhole) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    const size_t n = random() % 5000;
    const std::vector<std::byte> data = RandomBytes(n, random);
    const auto all = absl::MakeSpan(data);
    // Each byte belongs to one of three readers, in runs.
    std::vector<int> owner(n);
    for (size_t i = 0; i < n;) {
      const size_t run = 1 + random() % 300;
      const int who = static_cast<int>(random() % 3);
      for (size_t end = std::min(n, i + run); i < end; ++i) owner[i] = who;
    }
    uint32_t sum = 0;
    for (int who = 0; who < 3; ++who) {
      LinearCrc32cShift shift;
      uint32_t state = 0;
      size_t position = 0;
      for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && owner[end] == owner[i]) ++end;
        if (owner[i] == who) {
          state = shift(state, i - position);
          state = LinearCrc32c(all.subspan(i, end - i), state);
          position = end;
        }
        i = end;
      }
      sum ^= shift(state, n - position);
    }
    EXPECT_EQ(Crc32cFromLinear(sum, n), Crc32c(all));
    EXPECT_EQ(LinearFromCrc32c(Crc32c(all), n), sum);
  }
}

TEST(Crc32cTest, ALongShiftEqualsThatManyZeros) {
  const uint32_t state = LinearCrc32c(Bytes("sherd"));
  const std::vector<std::byte> zeros((1 << 20) + 13);
  LinearCrc32cShift shift;
  EXPECT_EQ(shift(state, zeros.size()), LinearCrc32c(zeros, state));
  // Beyond what can be tried: shifts add up.
  const uint64_t far = uint64_t{1} << 50;
  EXPECT_EQ(shift(shift(state, far), 12345), shift(state, far + 12345));
}

}  // namespace
}  // namespace sherd
