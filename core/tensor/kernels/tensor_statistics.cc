#include "sherd/core/tensor/kernels/tensor_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/elementwise_kernels.h"
#include "sherd/core/tensor/kernels/strided_loop.h"
#include "sherd/core/tensor/types/element_cast.h"

namespace sherd {
namespace {

using internal::ForEachRun;

// Numbers that are converted at a time.
constexpr int64_t kBlock = 2048;

constexpr uint64_t kSignBit = uint64_t{1} << 63;

absl::Status CheckReadable(const Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::FailedPreconditionError("the tensor is undefined");
  }
  SHERD_RETURN_IF_ERROR(CheckComputed(tensor.dtype()));
  if (tensor.device().is_cpu()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the tensor is on ", tensor.device().ToString(),
      "; expected one in host memory",
      tensor.device().is_meta() ? "" : ": move it there with To(Device())"));
}

absl::Status CheckNotInteger(const Tensor& tensor) {
  if (IsFloatingPoint(tensor.dtype()) || IsComplex(tensor.dtype())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a floating-point or complex dtype is expected, got ",
                   Name(tensor.dtype()), "; convert with To()"));
}

// Calls `body(address, step, count)` for the runs of the tensor.
template <typename Body>
void ForEachElementRun(const Tensor& tensor, const Body& body) {
  ForEachRun<1>(tensor.sizes(),
                {{{static_cast<const std::byte*>(tensor.data()),
                   tensor.strides(), tensor.element_size()}}},
                [&](const auto& at, const auto& steps, int64_t count) {
                  body(at[0], steps[0], count);
                  return true;
                });
}

// Elements `step` bytes apart as doubles.
void ToDoubles(DType dtype, const std::byte* at, int64_t step, double* out,
               int64_t count) {
  if (step != static_cast<int64_t>(SizeOf(dtype)) || IsComplex(dtype)) {
    CastElements(dtype, at, step, kFloat64, out, count);
  } else if (dtype == kFloat64) {
    std::memcpy(out, at, static_cast<size_t>(count) * sizeof(double));
  } else if (dtype == kFloat32) {
    const auto* from = reinterpret_cast<const float*>(at);
    for (int64_t i = 0; i < count; ++i) out[i] = from[i];
  } else {
    std::array<float, kBlock> block;
    internal::DecodeSmallFloats(internal::BestElementwiseTarget(), dtype, at,
                                block.data(), count);
    for (int64_t i = 0; i < count; ++i) out[i] = block[i];
  }
}

// Calls `body` with spans of the elements, as numbers of T, whose dtype is
// `dtype`.
template <typename T, typename Body>
void ForEachConverted(const Tensor& tensor, DType dtype, const Body& body) {
  std::array<T, kBlock> block;
  ForEachElementRun(
      tensor, [&](const std::byte* at, int64_t step, int64_t count) {
        for (int64_t i = 0; i < count; i += kBlock) {
          const int64_t n = std::min(kBlock, count - i);
          const std::byte* const from = at + i * step;
          if constexpr (std::is_same_v<T, double>) {
            ToDoubles(tensor.dtype(), from, step, block.data(), n);
          } else {
            CastElements(tensor.dtype(), from, step, dtype, block.data(), n);
          }
          body(absl::MakeSpan(block.data(), static_cast<size_t>(n)));
        }
      });
}

template <typename T>
absl::int128 SumOfRun(const std::byte* at, int64_t step, int64_t count) {
  // Narrow integers add up in 64 bits, wide ones by halves.
  constexpr int64_t kUnchecked = int64_t{1} << 31;
  absl::int128 total = 0;
  for (int64_t first = 0; first < count; first += kUnchecked) {
    const int64_t end = std::min(count, first + kUnchecked);
    int64_t low = 0;
    int64_t high = 0;
    for (int64_t i = first; i < end; ++i) {
      const T value = *reinterpret_cast<const T*>(at + i * step);
      if constexpr (sizeof(T) == 8) {
        low += static_cast<int64_t>(static_cast<uint64_t>(value) & 0xffffffff);
        high += static_cast<int64_t>(value >> 32);
      } else {
        low += static_cast<int64_t>(value);
      }
    }
    total += absl::int128(low) + absl::int128(high) * (int64_t{1} << 32);
  }
  return total;
}

void AddIntegers(const Tensor& tensor, ExactSum& sum) {
  DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      ForEachElementRun(tensor,
                        [&](const std::byte* at, int64_t step, int64_t count) {
                          if constexpr (std::is_same_v<T, bool>) {
                            int64_t trues = 0;
                            for (int64_t i = 0; i < count; ++i) {
                              trues += at[i * step] != std::byte{0};
                            }
                            sum.Add(absl::int128(trues));
                          } else {
                            sum.Add(SumOfRun<T>(at, step, count));
                          }
                        });
    }
  });
}

// Order

// Doubles as integers in the same order, NaN at both ends.
inline __attribute__((always_inline)) int64_t KeyOf(double value) {
  const int64_t bits = std::bit_cast<int64_t>(value);
  return bits ^ ((bits >> 63) & std::numeric_limits<int64_t>::max());
}
double ValueOf(int64_t key) {
  return std::bit_cast<double>(
      key ^ ((key >> 63) & std::numeric_limits<int64_t>::max()));
}

template <typename Integer>
uint64_t PositionOf(Integer value) {
  if constexpr (std::is_signed_v<Integer>) {
    return static_cast<uint64_t>(static_cast<int64_t>(value)) ^ kSignBit;
  } else {
    return static_cast<uint64_t>(value);
  }
}

inline __attribute__((always_inline)) void WidenBody(
    absl::Span<const double> values, int64_t& smallest, int64_t& largest) {
  int64_t low = smallest;
  int64_t high = largest;
  for (const double value : values) {
    const int64_t key = KeyOf(value);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  smallest = low;
  largest = high;
}
void WidenBaseline(absl::Span<const double> values, int64_t& smallest,
                   int64_t& largest) {
  WidenBody(values, smallest, largest);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) void WidenAvx2(absl::Span<const double> values,
                                               int64_t& smallest,
                                               int64_t& largest) {
  WidenBody(values, smallest, largest);
}
#endif
void Widen(absl::Span<const double> values, int64_t& smallest,
           int64_t& largest) {
#if defined(__x86_64__)
  if (internal::BestElementwiseTarget() == internal::ElementwiseTarget::kAvx2) {
    return WidenAvx2(values, smallest, largest);
  }
#endif
  WidenBaseline(values, smallest, largest);
}

OrderedRange RangeOfReals(const Tensor& tensor) {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  int64_t largest = std::numeric_limits<int64_t>::min();
  ForEachConverted<double>(tensor, kFloat64,
                           [&](absl::Span<const double> values) {
                             Widen(values, smallest, largest);
                           });
  const double infinity = std::numeric_limits<double>::infinity();
  if (tensor.numel() > 0 &&
      (smallest < KeyOf(-infinity) || largest > KeyOf(infinity))) {
    return {.smallest = 0, .largest = UINT64_MAX};
  }
  return {.smallest = PositionOf(smallest), .largest = PositionOf(largest)};
}

template <typename T>
OrderedRange RangeOfIntegers(const Tensor& tensor) {
  OrderedRange range;
  ForEachElementRun(
      tensor, [&](const std::byte* at, int64_t step, int64_t count) {
        T smallest = std::numeric_limits<T>::max();
        T largest = std::numeric_limits<T>::min();
        for (int64_t i = 0; i < count; ++i) {
          T value;
          if constexpr (std::is_same_v<T, bool>) {
            value = at[i * step] != std::byte{0};
          } else {
            value = *reinterpret_cast<const T*>(at + i * step);
          }
          smallest = std::min(smallest, value);
          largest = std::max(largest, value);
        }
        range.smallest = std::min(range.smallest, PositionOf(smallest));
        range.largest = std::max(range.largest, PositionOf(largest));
      });
  return range;
}

// Powers

void DivideAndRaise(absl::Span<double> values, double p, double divisor) {
  if (p == 0) {
    for (double& x : values) x = x != 0 ? 1 : 0;
    return;
  }
  if (divisor != 1) {
    for (double& x : values) x /= divisor;
  }
  if (p == 1) {
    for (double& x : values) x = std::fabs(x);
  } else if (p == 2) {
    for (double& x : values) x *= x;
  } else {
    for (double& x : values) x = std::pow(std::fabs(x), p);
  }
}

// Calls `body` with spans of the magnitudes, or of something else with the same
// one, such as the number itself.
template <typename Body>
void ForEachMagnitude(const Tensor& tensor, const Body& body) {
  if (!IsComplex(tensor.dtype())) {
    ForEachConverted<double>(tensor, kFloat64, body);
    return;
  }
  std::array<double, kBlock> magnitudes;
  ForEachConverted<std::complex<double>>(
      tensor, kComplex128, [&](absl::Span<const std::complex<double>> values) {
        for (size_t i = 0; i < values.size(); ++i) {
          magnitudes[i] = std::hypot(values[i].real(), values[i].imag());
          // hypot prefers infinity.
          if (std::isnan(values[i].real()) || std::isnan(values[i].imag())) {
            magnitudes[i] = std::numeric_limits<double>::quiet_NaN();
          }
        }
        body(absl::MakeSpan(magnitudes.data(), values.size()));
      });
}

}  // namespace

absl::Status AddElements(const Tensor& tensor, ExactSum& real,
                         ExactSum& imaginary) {
  SHERD_RETURN_IF_ERROR(CheckReadable(tensor));
  if (IsComplex(tensor.dtype())) {
    std::array<double, kBlock> parts;
    ForEachConverted<std::complex<double>>(
        tensor, kComplex128,
        [&](absl::Span<const std::complex<double>> values) {
          const size_t n = values.size();
          for (size_t i = 0; i < n; ++i) parts[i] = values[i].real();
          real.Add(absl::MakeConstSpan(parts.data(), n));
          for (size_t i = 0; i < n; ++i) parts[i] = values[i].imag();
          imaginary.Add(absl::MakeConstSpan(parts.data(), n));
        });
  } else if (IsFloatingPoint(tensor.dtype())) {
    ForEachConverted<double>(
        tensor, kFloat64,
        [&](absl::Span<const double> values) { real.Add(values); });
  } else {
    AddIntegers(tensor, real);
  }
  return absl::OkStatus();
}

absl::Status AddPowers(const Tensor& tensor, double p, double divisor,
                       ExactSum& sum) {
  SHERD_RETURN_IF_ERROR(CheckReadable(tensor));
  SHERD_RETURN_IF_ERROR(CheckNotInteger(tensor));
  if (IsComplex(tensor.dtype()) && p == 2) {
    // Part by part: the root of the square would be rounded once more.
    SHERD_ASSIGN_OR_RETURN(const Tensor parts, tensor.ViewAsReal());
    return AddPowers(parts, p, divisor, sum);
  }
  ForEachMagnitude(tensor, [&](absl::Span<double> values) {
    DivideAndRaise(values, p, divisor);
    sum.Add(values);
  });
  return absl::OkStatus();
}

absl::StatusOr<double> LargestMagnitude(const Tensor& tensor) {
  SHERD_RETURN_IF_ERROR(CheckReadable(tensor));
  SHERD_RETURN_IF_ERROR(CheckNotInteger(tensor));
  // Magnitudes are ordered like their bits, NaN above infinity.
  uint64_t largest = 0;
  ForEachMagnitude(tensor, [&](absl::Span<const double> values) {
    for (const double value : values) {
      largest = std::max(largest, std::bit_cast<uint64_t>(value) & ~kSignBit);
    }
  });
  return std::bit_cast<double>(largest);
}

absl::StatusOr<OrderedRange> RangeOf(const Tensor& tensor) {
  SHERD_RETURN_IF_ERROR(CheckReadable(tensor));
  if (IsComplex(tensor.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("complex numbers have no order: ", Name(tensor.dtype())));
  }
  if (tensor.numel() == 0) return OrderedRange();
  if (IsFloatingPoint(tensor.dtype())) return RangeOfReals(tensor);
  return DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) return RangeOfIntegers<T>(tensor);
    return OrderedRange();
  });
}

Scalar NumberAt(uint64_t position, DType dtype) {
  return DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      return Scalar(static_cast<T>(static_cast<int64_t>(position ^ kSignBit)));
    } else if constexpr (std::is_integral_v<T>) {
      return Scalar(static_cast<T>(position));
    } else {
      const double value = ValueOf(static_cast<int64_t>(position ^ kSignBit));
      return Scalar(static_cast<T>(
          std::isnan(value) ? std::numeric_limits<double>::quiet_NaN()
                            : value));
    }
  });
}

}  // namespace sherd
