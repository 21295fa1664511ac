#ifndef SHERD_CORE_BASE_CHECKED_MATH_H_
#define SHERD_CORE_BASE_CHECKED_MATH_H_

#include <concepts>
#include <optional>

namespace sherd {

// Sum, difference or product of two integers; nullopt if the exact result does
// not fit in T. Sizes and offsets from a file, a peer or a user go through
// these before they are used to allocate or address anything.
template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedAdd(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedSub(T a, T b) {
  T result;
  if (__builtin_sub_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedMul(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The smallest multiple of `multiple` that is not below `value`. Both are
// non-negative, `multiple` is positive and the result fits in T.
template <std::integral T>
[[nodiscard]] constexpr T RoundUp(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace sherd

#endif  // SHERD_CORE_BASE_CHECKED_MATH_H_
