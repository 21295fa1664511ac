#include "sherd/serialization/safetensors/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "sherd/serialization/safetensors/crc32c_fold.h"

namespace sherd {
namespace {

// Polynomials modulo P are kept with the coefficient of x^0 in the top bit, as
// the CRC itself is.
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t kOne = uint32_t{1} << 31;

constexpr uint32_t TimesX(uint32_t a) {
  return (a & 1) != 0 ? (a >> 1) ^ kPolynomial : a >> 1;
}

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) product ^= b;
    b = TimesX(b);
  }
  return product;
}

// Entry k is x^(8 * 2^k): one more byte, two more, four more, ….
constexpr std::array<uint32_t, 64> kBytePowers = [] {
  std::array<uint32_t, 64> powers = {};
  uint32_t power = kOne >> 8;
  for (uint32_t& entry : powers) {
    entry = power;
    power = Multiply(power, power);
  }
  return powers;
}();

// x^(8 * bytes).
uint32_t BytePower(uint64_t bytes) {
  uint32_t power = kOne;
  for (int k = 0; bytes != 0; bytes >>= 1, ++k) {
    if ((bytes & 1) != 0) power = Multiply(kBytePowers[k], power);
  }
  return power;
}

}  // namespace

uint32_t LinearCrc32c(absl::Span<const std::byte> data, uint32_t state) {
  static const absl::Span<const internal::Crc32cFold> folds =
      internal::SupportedCrc32cFolds();
  if (!folds.empty() && data.size() >= folds[0].block_bytes) {
    const size_t blocks = data.size() / folds[0].block_bytes;
    state = folds[0].run(data.data(), blocks, state);
    data.remove_prefix(blocks * folds[0].block_bytes);
  }
  // ISA-L's function neither inverts the start value nor the result, and takes
  // an int.
  constexpr size_t kMaxCall = size_t{1} << 30;
  while (!data.empty()) {
    const size_t n = std::min(data.size(), kMaxCall);
    // It reads the buffer, but is declared without const.
    auto* bytes =
        reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data.data()));
    state = crc32_iscsi(bytes, static_cast<int>(n), state);
    data.remove_prefix(n);
  }
  return state;
}

uint32_t Crc32c(absl::Span<const std::byte> data, uint32_t seed) {
  return ~LinearCrc32c(data, ~seed);
}

uint32_t CombineCrc32c(uint32_t a, uint32_t b, uint64_t b_bytes) {
  return Multiply(BytePower(b_bytes), a) ^ b;
}

void LinearCrc32cShift::Fill(uint64_t bytes, Power& power) {
  power.bytes = bytes;
  // The factor times x^0, x^1, …, which are the bits from the top.
  uint32_t product = BytePower(bytes);
  for (int bit = 31; bit >= 0; --bit) {
    std::array<uint32_t, 16>& group = power.table[bit / 4];
    const uint32_t place = uint32_t{1} << (bit % 4);
    for (uint32_t i = 0; i < 16; ++i) {
      if ((i & place) != 0) group[i] ^= product;
    }
    product = TimesX(product);
  }
}

uint32_t LinearCrc32cShift::operator()(uint32_t state, uint64_t bytes) {
  if (state == 0 || bytes == 0) return state;
  const Power* power = nullptr;
  for (const Power& known : powers_) {
    if (known.bytes == bytes) power = &known;
  }
  if (power == nullptr) {
    Power& replaced = powers_[next_];
    next_ = (next_ + 1) % powers_.size();
    replaced = Power();
    Fill(bytes, replaced);
    power = &replaced;
  }
  uint32_t product = 0;
  for (int group = 0; group < 8; ++group) {
    product ^= power->table[group][(state >> (4 * group)) & 15];
  }
  return product;
}

uint32_t Crc32cFromLinear(uint32_t linear, uint64_t bytes) {
  return ~(linear ^ Multiply(BytePower(bytes), ~uint32_t{0}));
}

uint32_t LinearFromCrc32c(uint32_t crc, uint64_t bytes) {
  return ~crc ^ Multiply(BytePower(bytes), ~uint32_t{0});
}

}  // namespace sherd
