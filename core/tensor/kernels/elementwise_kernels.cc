#include "sherd/core/tensor/kernels/elementwise_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <type_traits>

#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/float_types.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define SHERD_INLINE inline __attribute__((always_inline))

// The next loop has no dependence between its steps: operands are the output or
// apart from it.
#if defined(__clang__)
#define SHERD_INDEPENDENT \
  _Pragma("clang loop vectorize(assume_safety) interleave(enable)")
#else
#define SHERD_INDEPENDENT _Pragma("GCC ivdep")
#endif

#if defined(__x86_64__)
#define SHERD_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define SHERD_TARGET_AVX2
#endif

namespace sherd::internal {
namespace {

template <typename T>
struct ComputeImpl {
  using Type = T;
};
template <>
struct ComputeImpl<bool> {
  using Type = uint8_t;
};
template <typename Format>
struct ComputeImpl<SmallFloat<Format>> {
  using Type = float;
};
template <typename T>
using ComputeOf = typename ComputeImpl<T>::Type;

template <typename C>
constexpr bool kIsComplex = false;
template <typename T>
constexpr bool kIsComplex<std::complex<T>> = true;

// The unsigned type in which integers are computed modulo 2^n: never narrower
// than int, to which narrower ones would be promoted.
template <typename C>
using Modular = std::conditional_t<(sizeof(C) > 4), uint64_t, uint32_t>;

// Functors: what happens to one element. `kBool` is set for bools, which are
// bytes here. Comparisons are joined by | so that they need no branch.

template <typename C>
SHERD_INLINE C Negative(C a) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(Modular<C>{0} - static_cast<Modular<C>>(a));
  } else {
    return -a;
  }
}

template <typename C>
SHERD_INLINE C Product(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<Modular<C>>(a) *
                          static_cast<Modular<C>>(b));
  } else {
    return a * b;
  }
}

template <typename C>
SHERD_INLINE C IntegerPower(C base, C exponent) {
  C result = 1;
  while (exponent != 0) {
    if ((exponent & 1) != 0) result = Product(result, base);
    base = Product(base, base);
    exponent = static_cast<C>(exponent >> 1);
  }
  return result;
}

struct Not {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (kBool) return a == 0;
    if constexpr (std::is_integral_v<C>) return static_cast<C>(~a);
    return a;
  }
};
struct Neg {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return Negative(a);
  }
};
struct Square {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return Product(a, a);
  }
};
struct Abs {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (std::is_floating_point_v<C>) return std::fabs(a);
    if constexpr (std::is_signed_v<C>) return a < 0 ? Negative(a) : a;
    return a;
  }
};
struct Sign {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (kIsComplex<C>) {
      return a;
    } else if constexpr (std::is_integral_v<C>) {
      return static_cast<C>((a > 0) - (a < C{0}));
    } else {
      const C negative = a < 0 ? C{-1} : a;
      return a > 0 ? C{1} : negative;
    }
  }
};
struct Relu {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (kIsComplex<C>) {
      return a;
    } else {
      return a < C{0} ? C{0} : a;
    }
  }
};
struct Floor {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (std::is_floating_point_v<C>) return std::floor(a);
    return a;
  }
};
struct Ceil {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (std::is_floating_point_v<C>) return std::ceil(a);
    return a;
  }
};
struct Round {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    if constexpr (std::is_floating_point_v<C>) return std::nearbyint(a);
    return a;
  }
};
struct Reciprocal {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return C{1} / a;
  }
};
struct Sqrt {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return std::sqrt(a);
  }
};
struct Exp {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return std::exp(a);
  }
};
struct Log {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return std::log(a);
  }
};
struct Sin {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return std::sin(a);
  }
};
struct Cos {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return std::cos(a);
  }
};
struct Tanh {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return std::tanh(a);
  }
};
struct Sigmoid {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a) {
    return C{1} / (C{1} + std::exp(-a));
  }
};

struct Add {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (kBool) {
      return (a | b) != 0;
    } else if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(static_cast<Modular<C>>(a) +
                            static_cast<Modular<C>>(b));
    } else {
      return a + b;
    }
  }
};
struct Sub {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(static_cast<Modular<C>>(a) -
                            static_cast<Modular<C>>(b));
    } else {
      return a - b;
    }
  }
};
struct Mul {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (kBool) return (a != 0) & (b != 0);
    return Product(a, b);
  }
};
struct Div {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (std::is_integral_v<C> && std::is_signed_v<C>) {
      // The lowest number by -1 would trap.
      return b == -1 ? Negative(a) : static_cast<C>(a / b);
    } else {
      return a / b;
    }
  }
};
struct Min {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (kBool) {
      return (a != 0) & (b != 0);
    } else if constexpr (kIsComplex<C>) {
      return a;
    } else {
      return ((a < b) | (a != a)) ? a : b;
    }
  }
};
struct Max {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (kBool) {
      return (a | b) != 0;
    } else if constexpr (kIsComplex<C>) {
      return a;
    } else {
      return ((a > b) | (a != a)) ? a : b;
    }
  }
};
struct Pow {
  template <bool kBool, typename C>
  static SHERD_INLINE C Do(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return IntegerPower(a, b);
    } else {
      return std::pow(a, b);
    }
  }
};

// Loops over contiguous numbers of the compute type. A function without a
// target of its own is inlined into one with a target and vectorised for that.

template <typename C>
using UnaryLoop = void (*)(C* out, const C* a, int64_t count);
template <typename C>
using BinaryLoop = void (*)(C* out, const C* a, const C* b, int64_t count);

template <typename Op, bool kBool, typename C>
SHERD_INLINE void UnaryBody(C* out, const C* a, int64_t count) {
  SHERD_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    out[i] = Op::template Do<kBool, C>(a[i]);
  }
}
template <typename Op, bool kBool, typename C>
SHERD_INLINE void BinaryBody(C* out, const C* a, const C* b, int64_t count) {
  SHERD_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    out[i] = Op::template Do<kBool, C>(a[i], b[i]);
  }
}

template <ElementwiseTarget kTarget>
struct Loops {
  template <typename Op, bool kBool, typename C>
  static void Unary(C* out, const C* a, int64_t count) {
    UnaryBody<Op, kBool, C>(out, a, count);
  }
  template <typename Op, bool kBool, typename C>
  static void Binary(C* out, const C* a, const C* b, int64_t count) {
    BinaryBody<Op, kBool, C>(out, a, b, count);
  }
};
template <>
struct Loops<ElementwiseTarget::kAvx2> {
  template <typename Op, bool kBool, typename C>
  SHERD_TARGET_AVX2 static void Unary(C* out, const C* a, int64_t count) {
    UnaryBody<Op, kBool, C>(out, a, count);
  }
  template <typename Op, bool kBool, typename C>
  SHERD_TARGET_AVX2 static void Binary(C* out, const C* a, const C* b,
                                       int64_t count) {
    BinaryBody<Op, kBool, C>(out, a, b, count);
  }
};

template <typename Op, bool kBool, typename C>
UnaryLoop<C> UnaryFor(ElementwiseTarget target) {
  return target == ElementwiseTarget::kAvx2
             ? Loops<ElementwiseTarget::kAvx2>::Unary<Op, kBool, C>
             : Loops<ElementwiseTarget::kBaseline>::Unary<Op, kBool, C>;
}
template <typename Op, bool kBool, typename C>
BinaryLoop<C> BinaryFor(ElementwiseTarget target) {
  return target == ElementwiseTarget::kAvx2
             ? Loops<ElementwiseTarget::kAvx2>::Binary<Op, kBool, C>
             : Loops<ElementwiseTarget::kBaseline>::Binary<Op, kBool, C>;
}

template <bool kBool, typename C>
UnaryLoop<C> FindLoop(ElementwiseTarget target, UnaryOp op) {
  switch (op) {
    case UnaryOp::kNot:
      return UnaryFor<Not, kBool, C>(target);
    case UnaryOp::kNeg:
      return UnaryFor<Neg, kBool, C>(target);
    case UnaryOp::kSquare:
      return UnaryFor<Square, kBool, C>(target);
    case UnaryOp::kAbs:
      return UnaryFor<Abs, kBool, C>(target);
    case UnaryOp::kSign:
      return UnaryFor<Sign, kBool, C>(target);
    case UnaryOp::kRelu:
      return UnaryFor<Relu, kBool, C>(target);
    case UnaryOp::kFloor:
      return UnaryFor<Floor, kBool, C>(target);
    case UnaryOp::kCeil:
      return UnaryFor<Ceil, kBool, C>(target);
    case UnaryOp::kRound:
      return UnaryFor<Round, kBool, C>(target);
    default:
      break;
  }
  if constexpr (!std::is_integral_v<C>) {
    switch (op) {
      case UnaryOp::kReciprocal:
        return UnaryFor<Reciprocal, kBool, C>(target);
      case UnaryOp::kSqrt:
        return UnaryFor<Sqrt, kBool, C>(target);
      case UnaryOp::kExp:
        return UnaryFor<Exp, kBool, C>(target);
      case UnaryOp::kLog:
        return UnaryFor<Log, kBool, C>(target);
      case UnaryOp::kSin:
        return UnaryFor<Sin, kBool, C>(target);
      case UnaryOp::kCos:
        return UnaryFor<Cos, kBool, C>(target);
      case UnaryOp::kTanh:
        return UnaryFor<Tanh, kBool, C>(target);
      case UnaryOp::kSigmoid:
        return UnaryFor<Sigmoid, kBool, C>(target);
      default:
        break;
    }
  }
  SHERD_CHECK(false) << "unary operation " << static_cast<int32_t>(op);
  return nullptr;
}

template <bool kBool, typename C>
BinaryLoop<C> FindLoop(ElementwiseTarget target, BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return BinaryFor<Add, kBool, C>(target);
    case BinaryOp::kSub:
      return BinaryFor<Sub, kBool, C>(target);
    case BinaryOp::kMul:
      return BinaryFor<Mul, kBool, C>(target);
    case BinaryOp::kDiv:
      return BinaryFor<Div, kBool, C>(target);
    case BinaryOp::kMin:
      return BinaryFor<Min, kBool, C>(target);
    case BinaryOp::kMax:
      return BinaryFor<Max, kBool, C>(target);
    case BinaryOp::kPow:
      return BinaryFor<Pow, kBool, C>(target);
  }
  SHERD_CHECK(false) << "binary operation " << static_cast<int32_t>(op);
  return nullptr;
}

// Floats of 8 and 16 bits: DecodeSmallFloat and EncodeSmallFloat of
// float_types.h without branches.

// `yes` or `no`, computed and not jumped to: a loop with a jump stays scalar.
SHERD_INLINE uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = uint32_t{0} - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

template <typename Format>
SHERD_INLINE float Decode(typename Format::Bits code) {
  constexpr int kTotalBits = 8 * sizeof(code);
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr uint32_t kSignMask = uint32_t{1} << (kTotalBits - 1);
  constexpr uint32_t kQuiet = Format::kHasInfinity ? 0x7f800000 : 0x7fc00000;
  const uint32_t sign = (code & kSignMask) << (32 - kTotalBits);
  const uint32_t magnitude = code & (kSignMask - 1);
  const uint32_t shifted = magnitude << kDropped;
  if constexpr (Format::kBias == 127) {
    return std::bit_cast<float>(sign | shifted);
  } else {
    constexpr float kSmallest = std::bit_cast<float>(
        uint32_t{128 - Format::kBias - Format::kMantissaBits} << 23);
    const uint32_t subnormal = std::bit_cast<uint32_t>(
        static_cast<float>(static_cast<int32_t>(magnitude)) * kSmallest);
    const uint32_t normal = shifted + (uint32_t{127 - Format::kBias} << 23);
    const uint32_t finite =
        Select(magnitude >> Format::kMantissaBits == 0, subnormal, normal);
    return std::bit_cast<float>(sign | Select(magnitude > Format::kMaxFinite,
                                              shifted | kQuiet, finite));
  }
}

template <typename Format>
SHERD_INLINE typename Format::Bits Encode(float value) {
  using Bits = typename Format::Bits;
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr uint32_t kMaxFinite = Format::kMaxFinite;
  constexpr uint32_t kMinNormal = uint32_t{128 - Format::kBias} << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (8 * sizeof(Bits) - 1);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rebased = magnitude - (uint32_t{127 - Format::kBias} << 23);
  rebased +=
      ((uint32_t{1} << (kDropped - 1)) - 1) + ((rebased >> kDropped) & 1);
  uint32_t result = rebased >> kDropped;
  result = std::min(result, kMaxFinite + 1);
  if constexpr (Format::kBias != 127) {
    // In a sum with this number, the last bit is the smallest subnormal's: the
    // addition rounds.
    constexpr uint32_t kMagicBits =
        uint32_t{128 - Format::kBias - Format::kMantissaBits + 23} << 23;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) +
                                std::bit_cast<float>(kMagicBits)) -
        kMagicBits;
    result = Select(magnitude < kMinNormal, subnormal, result);
  }
  uint32_t nan = kMaxFinite + 1;
  if constexpr (Format::kHasInfinity) {
    nan |= (uint32_t{1} << (Format::kMantissaBits - 1)) |
           ((magnitude & 0x7fffff) >> kDropped);
  }
  result = Select(magnitude > 0x7f800000, nan, result);
  return static_cast<Bits>(sign | result);
}

template <typename Format>
SHERD_INLINE void DecodeBody(float* out, const typename Format::Bits* codes,
                             int64_t count) {
  SHERD_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = Decode<Format>(codes[i]);
}
template <typename Format>
SHERD_INLINE void EncodeBody(typename Format::Bits* out, const float* values,
                             int64_t count) {
  SHERD_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = Encode<Format>(values[i]);
}

#if defined(__x86_64__)
// The processor's own conversion of float16 has the same bits: of NaNs too, as
// both quiet them on the way back.
__attribute__((target("avx2,f16c"))) void DecodeHalves(float* out,
                                                       const uint16_t* codes,
                                                       int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(eight));
  }
  for (; i < count; ++i) out[i] = Decode<Float16Format>(codes[i]);
}
__attribute__((target("avx2,f16c"))) void EncodeHalves(uint16_t* out,
                                                       const float* values,
                                                       int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight =
        _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), eight);
  }
  for (; i < count; ++i) out[i] = Encode<Float16Format>(values[i]);
}
#endif

template <ElementwiseTarget kTarget>
struct Codec {
  template <typename Format>
  static void DecodeAll(float* out, const typename Format::Bits* codes,
                        int64_t count) {
    DecodeBody<Format>(out, codes, count);
  }
  template <typename Format>
  static void EncodeAll(typename Format::Bits* out, const float* values,
                        int64_t count) {
    EncodeBody<Format>(out, values, count);
  }
};
template <>
struct Codec<ElementwiseTarget::kAvx2> {
  template <typename Format>
  SHERD_TARGET_AVX2 static void DecodeAll(float* out,
                                          const typename Format::Bits* codes,
                                          int64_t count) {
#if defined(__x86_64__)
    if constexpr (std::is_same_v<Format, Float16Format>) {
      return DecodeHalves(out, codes, count);
    }
#endif
    DecodeBody<Format>(out, codes, count);
  }
  template <typename Format>
  SHERD_TARGET_AVX2 static void EncodeAll(typename Format::Bits* out,
                                          const float* values, int64_t count) {
#if defined(__x86_64__)
    if constexpr (std::is_same_v<Format, Float16Format>) {
      return EncodeHalves(out, values, count);
    }
#endif
    EncodeBody<Format>(out, values, count);
  }
};

// How elements of T become numbers of the compute type and return.
template <typename T>
struct Transport {
  using C = ComputeOf<T>;
  using Stored = C;
  static constexpr bool kDirect = true;
  static void Load(ElementwiseTarget, C* out, const Stored* from, int64_t n) {
    std::copy_n(from, n, out);
  }
  static void Store(ElementwiseTarget, Stored* to, const C* in, int64_t n) {
    std::copy_n(in, n, to);
  }
};
template <typename Format>
struct Transport<SmallFloat<Format>> {
  using C = float;
  using Stored = typename Format::Bits;
  static constexpr bool kDirect = false;
  static void Load(ElementwiseTarget target, C* out, const Stored* from,
                   int64_t n) {
    if (target == ElementwiseTarget::kAvx2) {
      Codec<ElementwiseTarget::kAvx2>::DecodeAll<Format>(out, from, n);
    } else {
      Codec<ElementwiseTarget::kBaseline>::DecodeAll<Format>(out, from, n);
    }
  }
  static void Store(ElementwiseTarget target, Stored* to, const C* in,
                    int64_t n) {
    if (target == ElementwiseTarget::kAvx2) {
      Codec<ElementwiseTarget::kAvx2>::EncodeAll<Format>(to, in, n);
    } else {
      Codec<ElementwiseTarget::kBaseline>::EncodeAll<Format>(to, in, n);
    }
  }
};

template <typename T>
struct BlockBuffer {
  std::array<ComputeOf<T>, kElementwiseBlock> values;
  std::array<typename Transport<T>::Stored, kElementwiseBlock> stored;
};

// The block of an operand that begins at element `first`, where it is or
// brought into `buffer`.
template <typename T>
const ComputeOf<T>* LoadBlock(ElementwiseTarget target,
                              const RunOperand& operand, int64_t first,
                              int64_t count, BlockBuffer<T>& buffer) {
  using Stored = typename Transport<T>::Stored;
  if (operand.step == kConstantStep) {
    return reinterpret_cast<const ComputeOf<T>*>(operand.at);
  }
  const std::byte* at = operand.at + first * operand.step;
  const auto* from = reinterpret_cast<const Stored*>(at);
  if (operand.step != sizeof(Stored)) {
    for (int64_t i = 0; i < count; ++i) {
      buffer.stored[i] =
          *reinterpret_cast<const Stored*>(at + i * operand.step);
    }
    from = buffer.stored.data();
  }
  if constexpr (Transport<T>::kDirect) return from;
  Transport<T>::Load(target, buffer.values.data(), from, count);
  return buffer.values.data();
}

// Puts the block where it belongs, if it was not computed there.
template <typename T>
void StoreBlock(ElementwiseTarget target, std::byte* out, int64_t out_step,
                int64_t first, int64_t count, BlockBuffer<T>& buffer) {
  using Stored = typename Transport<T>::Stored;
  std::byte* const at = out + first * out_step;
  if (out_step == sizeof(Stored)) {
    Transport<T>::Store(target, reinterpret_cast<Stored*>(at),
                        buffer.values.data(), count);
    return;
  }
  Transport<T>::Store(target, buffer.stored.data(), buffer.values.data(),
                      count);
  for (int64_t i = 0; i < count; ++i) {
    *reinterpret_cast<Stored*>(at + i * out_step) = buffer.stored[i];
  }
}

// Calls `loop(out, first, count)` for the blocks of a run.
template <typename T, typename Loop>
void ForEachBlock(ElementwiseTarget target, std::byte* out, int64_t out_step,
                  int64_t count, const Loop& loop) {
  using C = ComputeOf<T>;
  const bool in_place =
      Transport<T>::kDirect && (out_step == static_cast<int64_t>(sizeof(C)));
  BlockBuffer<T> buffer;
  for (int64_t first = 0; first < count; first += kElementwiseBlock) {
    const int64_t n = std::min(kElementwiseBlock, count - first);
    if (in_place) {
      loop(reinterpret_cast<C*>(out) + first, first, n);
    } else {
      loop(buffer.values.data(), first, n);
      StoreBlock<T>(target, out, out_step, first, n, buffer);
    }
  }
}

ElementwiseTarget DetectTarget() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c =
      __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (has_f16c && __builtin_cpu_supports("avx2")) {
    return ElementwiseTarget::kAvx2;
  }
#endif
  return ElementwiseTarget::kBaseline;
}

}  // namespace

ElementwiseTarget BestElementwiseTarget() {
  // Asking the processor takes microseconds in a virtual machine.
  static const ElementwiseTarget best = DetectTarget();
  return best;
}

DType ComputeDType(DType dtype) {
  if (dtype == kBool) return kUInt8;
  return IsFloatingPoint(dtype) && SizeOf(dtype) <= 2 ? kFloat32 : dtype;
}

void RunElementwise(ElementwiseTarget target, UnaryOp op, DType dtype,
                    std::byte* out, int64_t out_step, RunOperand a,
                    int64_t count) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeOf<T>;
    const UnaryLoop<C> loop = FindLoop<std::is_same_v<T, bool>, C>(target, op);
    BlockBuffer<T> buffer;
    ForEachBlock<T>(target, out, out_step, count,
                    [&](C* to, int64_t first, int64_t n) {
                      loop(to, LoadBlock<T>(target, a, first, n, buffer), n);
                    });
  });
}

void RunElementwise(ElementwiseTarget target, BinaryOp op, DType dtype,
                    std::byte* out, int64_t out_step, RunOperand a,
                    RunOperand b, int64_t count) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeOf<T>;
    const BinaryLoop<C> loop = FindLoop<std::is_same_v<T, bool>, C>(target, op);
    BlockBuffer<T> a_buffer;
    BlockBuffer<T> b_buffer;
    ForEachBlock<T>(target, out, out_step, count,
                    [&](C* to, int64_t first, int64_t n) {
                      loop(to, LoadBlock<T>(target, a, first, n, a_buffer),
                           LoadBlock<T>(target, b, first, n, b_buffer), n);
                    });
  });
}

void DecodeSmallFloats(ElementwiseTarget target, DType dtype,
                       const std::byte* from, float* out, int64_t count) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!Transport<T>::kDirect) {
      using Stored = typename Transport<T>::Stored;
      Transport<T>::Load(target, out, reinterpret_cast<const Stored*>(from),
                         count);
    } else {
      SHERD_CHECK(false) << "DecodeSmallFloats of " << Name(dtype);
    }
  });
}

}  // namespace sherd::internal
