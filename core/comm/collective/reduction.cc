#include "sherd/core/comm/reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/float_types.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace sherd {
namespace {

// The operation applied to a float after the last input.
struct Scaling {
  enum Kind { kNone, kMultiply, kDivide };
  Kind kind = kNone;
  double number = 1;
};

// Reduces the bytes [begin, end) of the arrays, whole elements.
using Kernel = void (*)(std::byte* out, const std::byte* const* ins,
                        size_t num_ins, size_t begin, size_t end,
                        Scaling scaling);

#define SHERD_VECTOR_BODY "sherd/core/comm/collective/reduction_kernels.inc"
#include "sherd/core/tensor/kernels/vector_targets.inc"  // NOLINT(build/include)

Kernel FindKernel(internal::ReductionTarget target, ReduceOp op, DType dtype) {
  switch (target) {
#if defined(__x86_64__)
    case internal::ReductionTarget::kAvx512:
      return avx512::Find(op, dtype);
    case internal::ReductionTarget::kAvx2:
      return avx2::Find(op, dtype);
#endif
    default:
      return baseline::Find(op, dtype);
  }
}

// The reciprocal of a power of two is exact, and so multiplying by it is
// dividing; vectors do it several times as fast.
Scaling ScalingFor(ReduceOp op, int divisor) {
  if (op != ReduceOp::kAvg || divisor == 1) return {};
  if ((divisor & (divisor - 1)) == 0) {
    return {Scaling::kMultiply, 1.0 / divisor};
  }
  return {Scaling::kDivide, static_cast<double>(divisor)};
}

template <typename T>
void DivideIntegers(std::byte* data, size_t bytes, int divisor) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T value;
    std::memcpy(&value, data + i, sizeof(T));
    value =
        static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
    std::memcpy(data + i, &value, sizeof(T));
  }
}

// Block by block, so that the sums are still in the cache when they are
// divided.
template <typename T>
void AverageIntegers(Kernel sum, std::byte* out, const std::byte* const* ins,
                     size_t num_ins, size_t bytes, int divisor) {
  constexpr size_t kBlock = 8192;
  for (size_t begin = 0; begin < bytes; begin += kBlock) {
    const size_t end = std::min(bytes, begin + kBlock);
    sum(out, ins, num_ins, begin, end, {});
    DivideIntegers<T>(out + begin, end - begin, divisor);
  }
}

template <typename T>
void MultiplyComplex(std::byte* out, const std::byte* const* ins,
                     size_t num_ins, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 2 * sizeof(T)) {
    T product[2];
    std::memcpy(product, ins[0] + i, sizeof(product));
    for (size_t k = 1; k < num_ins; ++k) {
      T factor[2];
      std::memcpy(factor, ins[k] + i, sizeof(factor));
      const T real = product[0] * factor[0] - product[1] * factor[1];
      product[1] = product[0] * factor[1] + product[1] * factor[0];
      product[0] = real;
    }
    std::memcpy(out + i, product, sizeof(product));
  }
}

absl::Status Undefined(ReduceOp op, DType dtype, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("the reduction ", Name(op),
                                                 " is not defined for ",
                                                 Name(dtype), ": ", why));
}

bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
}

internal::ReductionTarget DetectTarget() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c =
      __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!has_f16c || !__builtin_cpu_supports("avx2")) {
    return internal::ReductionTarget::kBaseline;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return internal::ReductionTarget::kAvx512;
  }
  return internal::ReductionTarget::kAvx2;
#else
  return internal::ReductionTarget::kBaseline;
#endif
}

}  // namespace

absl::string_view Name(ReduceOp op) {
  const auto number = static_cast<int32_t>(op);
  return IsValidReduceOp(number) ? internal::kReduceOpNames[number]
                                 : "(no reduction)";
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) {
  return out << Name(op);
}

absl::Status CheckReduction(ReduceOp op, DType dtype) {
  if (!IsValidReduceOp(static_cast<int32_t>(op)) ||
      !IsValid(static_cast<int32_t>(dtype))) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no reduction number ", static_cast<int32_t>(op),
                     " of dtype number ", static_cast<int32_t>(dtype)));
  }
  SHERD_RETURN_IF_ERROR(CheckComputed(dtype));
  if (IsBitwise(op) && (IsFloatingPoint(dtype) || IsComplex(dtype))) {
    return Undefined(op, dtype,
                     "bitwise reductions take bool or integers; view the "
                     "tensor as integers of its width, or use sum, min or max");
  }
  if ((op == ReduceOp::kMin || op == ReduceOp::kMax) && IsComplex(dtype)) {
    return Undefined(op, dtype,
                     "complex numbers have no order; reduce their real view");
  }
  if (op == ReduceOp::kAvg && dtype == kBool) {
    return Undefined(
        op, dtype,
        "the mean of truth values is undefined; use sum (or), product "
        "(and), or convert to a number");
  }
  return absl::OkStatus();
}

void Reduce(ReduceOp op, DType dtype, void* out,
            absl::Span<const void* const> ins, size_t count, int divisor) {
  internal::ReduceWith(internal::BestReductionTarget(), op, dtype, out, ins,
                       count, divisor);
}

namespace internal {

ReductionTarget BestReductionTarget() {
  static const ReductionTarget best = DetectTarget();
  return best;
}

void ReduceWith(ReductionTarget target, ReduceOp op, DType dtype, void* out,
                absl::Span<const void* const> ins, size_t count, int divisor) {
  SHERD_CHECK(CheckReduction(op, dtype).ok()) << CheckReduction(op, dtype);
  SHERD_CHECK(!ins.empty());
  SHERD_CHECK(op != ReduceOp::kAvg || divisor > 0) << divisor;
  std::byte* const to = static_cast<std::byte*>(out);
  // Any object may be seen as bytes, and so may pointers to them.
  const auto* const from =
      reinterpret_cast<const std::byte* const*>(ins.data());
  const size_t bytes = count * SizeOf(dtype);
  if (IsComplex(dtype)) {
    const bool is_double = dtype == kComplex128;
    if (op == ReduceOp::kProduct) {
      return is_double ? MultiplyComplex<double>(to, from, ins.size(), bytes)
                       : MultiplyComplex<float>(to, from, ins.size(), bytes);
    }
    dtype = is_double ? kFloat64 : kFloat32;
  }
  if (op == ReduceOp::kAvg && IsInteger(dtype)) {
    const Kernel sum = FindKernel(target, ReduceOp::kSum, dtype);
    return DispatchDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        AverageIntegers<T>(sum, to, from, ins.size(), bytes, divisor);
      }
    });
  }
  FindKernel(target, op, dtype)(to, from, ins.size(), 0, bytes,
                                ScalingFor(op, divisor));
}

}  // namespace internal
}  // namespace sherd
