#ifndef SHERD_CORE_TENSOR_RANDOM_RANDOM_MATH_H_
#define SHERD_CORE_TENSOR_RANDOM_RANDOM_MATH_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "sherd/core/tensor/device/host_device.h"

// The numbers of random.h, for the host and for GPUs: uniform numbers are the
// same bit by bit, as long as the compiler fuses no multiplication with an
// addition (-ffp-contract=off, --fmad=false).
namespace sherd::internal {

struct PhiloxBlock {
  uint32_t words[4];
};

// Philox4x32-10; see random.h.
SHERD_HD PhiloxBlock Philox(PhiloxBlock counter, uint32_t key_0,
                            uint32_t key_1) {
  uint32_t* const x = counter.words;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = uint64_t{0xd2511f53} * x[0];
    const uint64_t product_1 = uint64_t{0xcd9e8d57} * x[2];
    x[0] = static_cast<uint32_t>(product_1 >> 32) ^ x[1] ^ key_0;
    x[1] = static_cast<uint32_t>(product_1);
    x[2] = static_cast<uint32_t>(product_0 >> 32) ^ x[3] ^ key_1;
    x[3] = static_cast<uint32_t>(product_0);
    key_0 += 0x9e3779b9;
    key_1 += 0xbb67ae85;
  }
  return counter;
}

// Block `position` of the stream of `seed`.
SHERD_HD PhiloxBlock RandomBlock(uint64_t seed, uint64_t position) {
  return Philox({{static_cast<uint32_t>(position),
                  static_cast<uint32_t>(position >> 32), 0, 0}},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// How one real part is drawn: in the arithmetic of `Compute`, from kWords words
// of a block, with kDigits bits of precision.
template <typename T>
struct RandomTraits {
  using Compute = float;
  static constexpr int kWords = 1;
  static constexpr int kDigits = T::kDigits;
};
template <>
struct RandomTraits<float> {
  using Compute = float;
  static constexpr int kWords = 1;
  static constexpr int kDigits = 24;
};
template <>
struct RandomTraits<double> {
  using Compute = double;
  static constexpr int kWords = 2;
  static constexpr int kDigits = 53;
};

// Part p of a stream comes from its block p / kPartsPerBlock.
template <typename T>
inline constexpr int kPartsPerBlock = 4 / RandomTraits<T>::kWords;

SHERD_HD uint64_t JoinWords(uint32_t low, uint32_t high) {
  return (uint64_t{high} << 32) | low;
}

// Uniform in [low, high).
template <typename T>
class UniformDraw {
 public:
  using Traits = RandomTraits<T>;
  using Compute = typename Traits::Compute;

  SHERD_HD UniformDraw(double low, double high)
      : low_(static_cast<Compute>(static_cast<T>(low))),
        high_(static_cast<Compute>(static_cast<T>(high))),
        width_(high_ - low_) {}

  // Whether bounds and width are numbers of the types involved.
  bool IsFinite() const {
    return std::isfinite(low_) && std::isfinite(high_) && std::isfinite(width_);
  }

  // The kPartsPerBlock parts of a block.
  SHERD_HD void Draw(const PhiloxBlock& block, T* out) const {
    for (int part = 0; part < kPartsPerBlock<T>; ++part) {
      const uint32_t* const words = block.words + part * Traits::kWords;
      Compute unit;
      if constexpr (Traits::kWords == 1) {
        unit = static_cast<Compute>(words[0] >> (32 - Traits::kDigits));
      } else {
        unit = static_cast<Compute>(JoinWords(words[0], words[1]) >>
                                    (64 - Traits::kDigits));
      }
      unit *= Compute{1} / static_cast<Compute>(uint64_t{1} << Traits::kDigits);
      const T value = static_cast<T>(low_ + unit * width_);
      // Rounding may reach the bound that is excluded.
      out[part] =
          static_cast<Compute>(value) < high_ ? value : static_cast<T>(low_);
    }
  }

 private:
  Compute low_;
  Compute high_;
  Compute width_;
};

// Normal, by Box and Muller's transformation: parts 2k and 2k + 1 are the two
// results of one application.
template <typename T>
class NormalDraw {
 public:
  using Traits = RandomTraits<T>;
  using Compute = typename Traits::Compute;

  SHERD_HD NormalDraw(double mean, double stddev)
      : mean_(static_cast<Compute>(mean)),
        stddev_(static_cast<Compute>(stddev)) {}

  SHERD_HD void Draw(const PhiloxBlock& block, T* out) const {
    for (int part = 0; part < kPartsPerBlock<T>; part += 2) {
      const uint32_t* const words = block.words + part * Traits::kWords;
      Compute radius_unit;
      Compute angle_unit;
      if constexpr (Traits::kWords == 1) {
        radius_unit = (static_cast<Compute>(words[0]) + 1) * 0x1p-32f;
        angle_unit = static_cast<Compute>(words[1]) * 0x1p-32f;
      } else {
        radius_unit =
            (static_cast<Compute>(JoinWords(words[0], words[1]) >> 11) + 1) *
            0x1p-53;
        angle_unit =
            static_cast<Compute>(JoinWords(words[2], words[3]) >> 11) * 0x1p-53;
      }
      const Compute radius = std::sqrt(-2 * std::log(radius_unit));
      const Compute angle =
          2 * static_cast<Compute>(3.14159265358979323846) * angle_unit;
      out[part] = static_cast<T>(mean_ + stddev_ * (radius * std::cos(angle)));
      out[part + 1] =
          static_cast<T>(mean_ + stddev_ * (radius * std::sin(angle)));
    }
  }

 private:
  Compute mean_;
  Compute stddev_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_RANDOM_RANDOM_MATH_H_
