#ifndef SHERD_CORE_TENSOR_KERNELS_EXACT_SUM_H_
#define SHERD_CORE_TENSOR_KERNELS_EXACT_SUM_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

namespace sherd {

// A sum of numbers without intermediate rounding: for any order, and any
// distribution of the numbers over accumulators that are added up at the end,
// the result is the true sum, rounded once.
//
// Value. At most 2^63 numbers.
//
// Cost. 600 bytes. Adding arrays of float64 runs at about two thirds of
// the speed of memory, of smaller types at a third to a fifth.
//
// Source. A number as wide as the range of double, in limbs whose carries wait
// (Kulisch's long accumulator; Neal, "Fast exact summation using small and
// large superaccumulators", 2015). Arrays are cut into slices by magnitude,
// whose sums are exact in double (Demmel and Nguyen, "Fast reproducible
// floating-point summation", 2013).
class ExactSum {
 public:
  void Add(double value);
  void Add(absl::int128 value);
  void Add(absl::Span<const double> values);
  void Add(const ExactSum& other);

  // The sum as the nearest double, ties to even: infinity beyond the largest.
  // NaN if a NaN was added, or infinities of both signs. A sum of nothing, or
  // of zeros, is 0.
  double Round() const;

  // Whether the sum is an integer that fits in 128 bits; if so, stores it in
  // `value`.
  bool ToInteger(absl::int128& value) const;

  // For adding up accumulators of many ranks: FromWords takes the Words of all
  // of them, added element by element as 64-bit integers. For at most 2^30
  // accumulators.
  static constexpr size_t kWords = 72;
  std::array<int64_t, kWords> ToWords() const;
  static ExactSum FromWords(const std::array<int64_t, kWords>& words);

 private:
  // Numbers whose special values are counted: NaN, infinity, -infinity.
  static constexpr size_t kSpecials = 3;
  // 32 bits each, from 2^-1074 on; the last holds the sign.
  static constexpr size_t kLimbs = kWords - kSpecials;

  void AddAt(int bit, uint64_t magnitude, bool negative);
  // A whole number of strands; overwrites them.
  void AddBlock(absl::Span<double> values);
  // Leaves limbs in [0, 2^32), but for the last.
  void Normalize();
  // Drops the sign and returns whether it was negative.
  bool TakeMagnitude();

  std::array<int64_t, kLimbs> limbs_ = {};
  std::array<int64_t, kSpecials> specials_ = {};
  // Additions since Normalize.
  int64_t pending_ = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_KERNELS_EXACT_SUM_H_
