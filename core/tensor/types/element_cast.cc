#include "sherd/core/tensor/types/element_cast.h"

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

template <typename T>
constexpr bool kIsComplex = false;
template <typename T>
constexpr bool kIsComplex<std::complex<T>> = true;

template <typename T>
constexpr bool kIsSmallFloat = false;
template <typename Format>
constexpr bool kIsSmallFloat<internal::SmallFloat<Format>> = true;

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// The numbers of T that are whole lie in [-2^k, 2^k) or [0, 2^k); both ends
// are exact as double, unlike the largest int64_t itself.
template <typename T>
constexpr double RangeEnd() {
  return 2.0 * static_cast<double>(uint64_t{1}
                                   << (std::numeric_limits<T>::digits - 1));
}
template <typename T>
constexpr double RangeBegin() {
  return std::is_signed_v<T> ? -RangeEnd<T>() : 0.0;
}

template <typename To>
To LimitToInteger(double value) {
  if (value != value) return 0;
  if (value < RangeBegin<To>()) return std::numeric_limits<To>::min();
  if (value >= RangeEnd<To>()) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

template <typename To, typename From>
To Cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsComplex<From> && kIsComplex<To>) {
    using Part = typename To::value_type;
    return To(Cast<Part>(value.real()), Cast<Part>(value.imag()));
  } else if constexpr (kIsComplex<From>) {
    if constexpr (std::is_same_v<To, bool>) {
      return value != From(0);
    } else {
      return Cast<To>(value.real());
    }
  } else if constexpr (kIsComplex<To>) {
    return To(Cast<typename To::value_type>(value), 0);
  } else if constexpr (kIsSmallFloat<From>) {
    return Cast<To>(static_cast<float>(value));
  } else if constexpr (kIsSmallFloat<To>) {
    return To(value);
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> && kIsInteger<To>) {
    return LimitToInteger<To>(static_cast<double>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Bytes of bool that are neither 0 nor 1, as a file may hold, count as true.
template <typename T>
T Load(const std::byte* from) {
  if constexpr (std::is_same_v<T, bool>) {
    return *reinterpret_cast<const uint8_t*>(from) != 0;
  } else {
    return *reinterpret_cast<const T*>(from);
  }
}

template <typename From, typename To>
void CastLoop(const std::byte* src, int64_t src_step, To* dst, int64_t count) {
  if (src_step == static_cast<int64_t>(sizeof(From))) {
    for (int64_t i = 0; i < count; ++i) {
      dst[i] = Cast<To>(Load<From>(src + i * sizeof(From)));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      dst[i] = Cast<To>(Load<From>(src + i * src_step));
    }
  }
}

template <typename T>
absl::Status Refuse(T value, DType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("the value ", value, " does not fit in ", Name(dtype)));
}

// `value` is real: an integer, a bool or a double.
template <typename To, typename From>
absl::Status CheckFits(From value) {
  constexpr DType kTo = DTypeOf<To>();
  if constexpr (std::is_same_v<To, bool>) {
    if (value != From(0) && value != From(1)) return Refuse(value, kTo);
  } else if constexpr (kIsInteger<To> && std::is_integral_v<From>) {
    const __int128 wide = value;
    if (wide < std::numeric_limits<To>::min() ||
        wide > std::numeric_limits<To>::max()) {
      return Refuse(value, kTo);
    }
  } else if constexpr (kIsInteger<To>) {
    const double whole = std::trunc(value);
    if (!(whole >= RangeBegin<To>() && whole < RangeEnd<To>())) {
      return Refuse(value, kTo);
    }
  } else if constexpr (kIsComplex<To>) {
    return CheckFits<typename To::value_type>(value);
  } else {
    const bool finite = std::isfinite(static_cast<double>(value));
    if (finite && !std::isfinite(static_cast<double>(Cast<To>(value)))) {
      return Refuse(value, kTo);
    }
  }
  return absl::OkStatus();
}

template <typename To, typename From>
absl::Status CheckAnyFits(From value) {
  if constexpr (kIsComplex<From>) {
    const double imaginary = static_cast<double>(value.imag());
    absl::Status status = CheckFits<To>(static_cast<double>(value.real()));
    if (!status.ok()) return status;
    if constexpr (kIsComplex<To>) {
      return CheckFits<To>(imaginary);
    } else if (imaginary != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a complex value with imaginary part ", imaginary,
                       " does not fit in ", Name(DTypeOf<To>())));
    }
    return absl::OkStatus();
  } else if constexpr (std::is_integral_v<From>) {
    return CheckFits<To>(value);
  } else {
    return CheckFits<To>(static_cast<double>(value));
  }
}

}  // namespace

absl::Status CheckCast(DType from, DType to) {
  if (from == to) return absl::OkStatus();
  absl::Status status = CheckComputed(from);
  status.Update(CheckComputed(to));
  return status;
}

void CastElements(DType src_dtype, const void* src, int64_t src_step,
                  DType dst_dtype, void* dst, int64_t count) {
  DispatchDType(src_dtype, [&](auto src_tag) {
    using From = typename decltype(src_tag)::type;
    DispatchDType(dst_dtype, [&](auto dst_tag) {
      using To = typename decltype(dst_tag)::type;
      CastLoop<From>(static_cast<const std::byte*>(src), src_step,
                     static_cast<To*>(dst), count);
    });
  });
}

absl::Status CastChecked(DType src_dtype, const void* src, DType dst_dtype,
                         void* dst) {
  return DispatchDType(src_dtype, [&](auto src_tag) {
    using From = typename decltype(src_tag)::type;
    const From value = Load<From>(static_cast<const std::byte*>(src));
    if (IsCarried(dst_dtype)) {
      if (Cast<bool>(value)) return CheckComputed(dst_dtype);
      std::memset(dst, 0, SizeOf(dst_dtype));
      return absl::OkStatus();
    }
    return DispatchDType(dst_dtype, [&](auto dst_tag) {
      using To = typename decltype(dst_tag)::type;
      absl::Status status = CheckAnyFits<To>(value);
      if (status.ok()) *static_cast<To*>(dst) = Cast<To>(value);
      return status;
    });
  });
}

}  // namespace sherd
