#include "sherd/testing/conformance/conformance_data.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kCanaryBytes = 64;
constexpr std::byte kCanary{0xc3};

// Sebastiano Vigna's splitmix64: every step is a good hash of its number.
uint64_t Hash(uint64_t number) {
  uint64_t z = number + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

template <typename T>
constexpr bool kIsComplex = false;
template <typename T>
constexpr bool kIsComplex<std::complex<T>> = true;

template <typename T>
constexpr bool kIsSmallFloat = false;
template <typename Format>
constexpr bool kIsSmallFloat<sherd::internal::SmallFloat<Format>> = true;

// Precision of a type that rounds; its largest exponent does not matter.
template <typename T>
constexpr int Digits() {
  if constexpr (kIsSmallFloat<T>) {
    return T::kDigits;
  } else {
    return std::numeric_limits<T>::digits;
  }
}

// Exponent of the smallest normal number as frexp counts: 2^(n - 1).
template <typename T>
constexpr int MinExponent() {
  if constexpr (std::is_same_v<T, Float16>) return -13;
  if constexpr (std::is_same_v<T, Float8E4M3>) return -5;
  if constexpr (std::is_same_v<T, Float8E5M2>) return -13;
  if constexpr (std::is_same_v<T, BFloat16>) return -125;
  if constexpr (std::is_floating_point_v<T>) {
    return std::numeric_limits<T>::min_exponent;
  }
  return 0;
}

template <typename T>
long double Ulp(long double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0L, std::max(exponent, MinExponent<T>()) - Digits<T>());
}

// A number for sums: as many bits as fit if 16 of them are to be summed exactly
// in the accumulator's type (float for the small ones).
template <typename T>
double Addend(uint64_t random) {
  constexpr int kBits = kIsSmallFloat<T> ? Digits<T>() : Digits<T>() - 5;
  const int64_t magnitude =
      1 + static_cast<int64_t>((random >> 1) % ((uint64_t{1} << kBits) - 1));
  const int64_t number = (random & 1) != 0 ? -magnitude : magnitude;
  // Below 2 in magnitude: the sum of 16 ranks fits into every type.
  return std::ldexp(static_cast<double>(number), 1 - kBits);
}

// A number for products: 3^16 needs 26 bits, and 8 ranks only half of them.
double Factor(uint64_t random) {
  static constexpr double kFactors[] = {1, -1, 1.5, -1.5, 0.5, 2, -0.75, 1.25};
  return kFactors[random % 8];
}

template <typename T>
T Element(ReduceOp op, uint64_t random) {
  if constexpr (std::is_same_v<T, bool>) {
    // Mostly values that do not decide, so that results differ among elements.
    const bool rare = random % 4 == 0;
    const bool wants_true = op == ReduceOp::kProduct || op == ReduceOp::kMin ||
                            op == ReduceOp::kBand;
    return wants_true ? !rare : rare;
  } else if constexpr (std::is_integral_v<T>) {
    // An average is that of a sum that fits.
    if (op == ReduceOp::kAvg) {
      constexpr int kRange = std::is_signed_v<T> ? 15 : 31;
      const int number = static_cast<int>(random % (kRange + 1));
      return static_cast<T>(std::is_signed_v<T> && (random >> 32 & 1) != 0
                                ? -(number / 2)
                                : number / 2);
    }
    return static_cast<T>(random >> 13);
  } else if constexpr (kIsComplex<T>) {
    using Part = typename T::value_type;
    if (op == ReduceOp::kProduct) {
      static constexpr int kParts[] = {1, -1, 2, -2};
      return {static_cast<Part>(kParts[random % 4]),
              static_cast<Part>(kParts[random >> 8 & 3])};
    }
    return {static_cast<Part>(Addend<Part>(random)),
            static_cast<Part>(Addend<Part>(Hash(random)))};
  } else {
    return T(op == ReduceOp::kProduct ? Factor(random) : Addend<T>(random));
  }
}

template <typename T>
T ElementOf(ReduceOp op, uint64_t call, int rank, size_t index) {
  return Element<T>(
      op, Hash(Hash(call * 1024 + static_cast<uint64_t>(rank)) + index));
}

// Wide enough to be exact.
template <typename T>
auto Widen(T value) {
  if constexpr (kIsComplex<T>) {
    return std::complex<long double>(value);
  } else if constexpr (kIsSmallFloat<T>) {
    return static_cast<long double>(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<long double>(value);
  } else {
    return static_cast<__int128>(value);
  }
}

template <typename Wide>
Wide Combine(ReduceOp op, Wide a, Wide b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return a + b;
    case ReduceOp::kProduct:
      if constexpr (std::is_same_v<Wide, __int128>) {
        // Wrap intermediate results at 64 bits.
        // NOLINTNEXTLINE(bugprone-misplaced-widening-cast)
        return static_cast<__int128>(static_cast<uint64_t>(a) *
                                     static_cast<uint64_t>(b));
      } else {
        return a * b;
      }
    default:
      break;
  }
  if constexpr (!kIsComplex<Wide>) {
    if (op == ReduceOp::kMin) return std::min(a, b);
    if (op == ReduceOp::kMax) return std::max(a, b);
  }
  if constexpr (std::is_same_v<Wide, __int128>) {
    if (op == ReduceOp::kBand) return a & b;
    if (op == ReduceOp::kBor) return a | b;
    if (op == ReduceOp::kBxor) return a ^ b;
  }
  return a;
}

template <typename T>
T Narrow(decltype(Widen(T())) value) {
  if constexpr (kIsComplex<T>) {
    return T(value);
  } else if constexpr (kIsSmallFloat<T>) {
    return T(static_cast<double>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else {
    return static_cast<T>(static_cast<uint64_t>(value));
  }
}

template <typename T>
auto ReduceExactly(ReduceOp op, uint64_t call, int ranks, size_t index) {
  auto result = Widen(ElementOf<T>(op, call, 0, index));
  for (int rank = 1; rank < ranks; ++rank) {
    result = Combine(op, result, Widen(ElementOf<T>(op, call, rank, index)));
  }
  if (op == ReduceOp::kAvg) result /= decltype(result)(ranks);
  return result;
}

// How far the real number `got` may be from `exact`.
template <typename T>
long double Slack(ReduceOp op, int ranks, Rounding rounding,
                  long double exact) {
  const bool computes =
      op == ReduceOp::kSum || op == ReduceOp::kProduct || op == ReduceOp::kAvg;
  if (!computes) return 0;
  if (rounding == Rounding::kEachStep && kIsSmallFloat<T>) {
    // Half a unit of the largest partial result at each step.
    const long double largest = op == ReduceOp::kProduct
                                    ? std::fabs(exact)
                                    : static_cast<long double>(2 * ranks);
    return ranks * Ulp<T>(largest) / 2;
  }
  if (rounding == Rounding::kEachStep && op == ReduceOp::kAvg) {
    // Each addend, below 2, was multiplied by a rounded 1 / ranks.
    return (ranks + 1) * Ulp<T>(1);
  }
  // A quotient may be rounded twice.
  return op == ReduceOp::kAvg ? Ulp<T>(exact) : 0;
}

template <typename T>
bool IsReduced(ReduceOp op, uint64_t call, int ranks, size_t index,
               Rounding rounding, T got) {
  const auto exact = ReduceExactly<T>(op, call, ranks, index);
  const T expected = Narrow<T>(exact);
  if (got == expected) return true;
  if constexpr (kIsComplex<T>) {
    using Part = typename T::value_type;
    return std::fabs(static_cast<long double>(got.real()) - exact.real()) <=
               Slack<Part>(op, ranks, rounding, exact.real()) &&
           std::fabs(static_cast<long double>(got.imag()) - exact.imag()) <=
               Slack<Part>(op, ranks, rounding, exact.imag());
  } else if constexpr (std::is_integral_v<T>) {
    return false;
  } else {
    return std::fabs(Widen(got) - Widen(expected)) <=
           Slack<T>(op, ranks, rounding, exact);
  }
}

template <typename T>
std::string ToText(T value) {
  if constexpr (kIsComplex<T>) {
    return absl::StrCat(value.real(), "+", value.imag(), "i");
  } else if constexpr (kIsSmallFloat<T>) {
    return absl::StrCat(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, double>) {
    return absl::StrCat(value);
  } else {
    return absl::StrCat(+value);
  }
}

template <typename T>
T Load(ConstBytes bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
absl::Status CheckElements(ReduceOp op, uint64_t call, int ranks, size_t first,
                           Rounding rounding, ConstBytes bytes) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    if constexpr (std::is_same_v<T, bool>) {
      // Any other byte is not a bool.
      if (static_cast<uint8_t>(bytes[i]) > 1) {
        return absl::InternalError(absl::StrCat("element ", i, " is the byte ",
                                                static_cast<int>(bytes[i]),
                                                ", expected 0 or 1"));
      }
    }
    const T got = Load<T>(bytes, i);
    if (IsReduced<T>(op, call, ranks, first + i, rounding, got)) continue;
    std::string inputs;
    for (int rank = 0; rank < ranks; ++rank) {
      absl::StrAppend(&inputs, rank == 0 ? "" : ", ",
                      ToText(ElementOf<T>(op, call, rank, first + i)));
    }
    return absl::InternalError(absl::StrCat(
        "wrong result: element ", i, " of ", bytes.size() / sizeof(T), " is ",
        ToText(got), ", expected ",
        ToText(Narrow<T>(ReduceExactly<T>(op, call, ranks, first + i))), " of ",
        inputs));
  }
  return absl::OkStatus();
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t size, size_t shift)
    : size_(size),
      begin_(0),
      memory_(size + shift + 3 * kCanaryBytes, kCanary) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  begin_ = kCanaryBytes + (kCanaryBytes - address % kCanaryBytes) + shift;
  std::fill_n(memory_.begin() + static_cast<ptrdiff_t>(begin_), size,
              kUntouched);
}

absl::Status GuardedBuffer::CheckCanaries() const {
  const auto begin = memory_.begin() + static_cast<ptrdiff_t>(begin_);
  const auto end = begin + static_cast<ptrdiff_t>(size_);
  const auto hurt = [](std::byte byte) { return byte != kCanary; };
  if (const auto at = std::find_if(end, memory_.end(), hurt);
      at != memory_.end()) {
    return absl::InternalError(absl::StrCat("a write past the end: byte ",
                                            at - begin, " of a buffer of ",
                                            size_, " bytes was written"));
  }
  if (const auto at = std::find_if(memory_.begin(), begin, hurt); at != begin) {
    return absl::InternalError(
        absl::StrCat("a write before the beginning: byte ", at - begin,
                     " of a buffer of ", size_, " bytes was written"));
  }
  return absl::OkStatus();
}

absl::Status CheckUntouched(ConstBytes bytes) {
  const auto at = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) {
    return byte != GuardedBuffer::kUntouched;
  });
  if (at == bytes.end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("byte ", at - bytes.begin(), " of ",
                                          bytes.size(),
                                          " was written, expected none to be"));
}

uint64_t MessageKey(uint64_t call, int from, int to) {
  return Hash(call * 65536 + static_cast<uint64_t>(from) * 256 +
              static_cast<uint64_t>(to));
}

void FillMessage(uint64_t key, MutableBytes bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = Hash(key + i);
    std::memcpy(bytes.data() + i, &word,
                std::min(sizeof(word), bytes.size() - i));
  }
}

absl::Status CheckMessage(uint64_t key, ConstBytes bytes) {
  std::vector<std::byte> expected(bytes.size());
  FillMessage(key, absl::MakeSpan(expected));
  if (bytes.empty() ||
      std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0) {
    return absl::OkStatus();
  }
  const auto at = std::mismatch(bytes.begin(), bytes.end(), expected.begin());
  const bool missing = *at.first == GuardedBuffer::kUntouched;
  return absl::InternalError(absl::StrCat(
      "wrong result: byte ", at.first - bytes.begin(), " of ", bytes.size(),
      missing ? " was not written" : " differs from what was sent"));
}

bool HasReduction(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kAvg:
      return dtype != kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !IsComplex(dtype);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !IsComplex(dtype) && !IsFloatingPoint(dtype);
    default:
      return true;
  }
}

void FillElements(DType dtype, ReduceOp op, uint64_t call, int rank,
                  size_t first, MutableBytes bytes) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
      const T value = ElementOf<T>(op, call, rank, first + i);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
}

absl::Status CheckReduced(DType dtype, ReduceOp op, uint64_t call, int ranks,
                          size_t first, Rounding rounding, ConstBytes bytes) {
  return DispatchDType(dtype, [&](auto tag) {
    return CheckElements<typename decltype(tag)::type>(op, call, ranks, first,
                                                       rounding, bytes);
  });
}

}  // namespace sherd::testing::internal
