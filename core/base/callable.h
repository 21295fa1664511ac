#ifndef SHERD_CORE_BASE_CALLABLE_H_
#define SHERD_CORE_BASE_CALLABLE_H_

#include <concepts>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Properties of functions that users register, for checks by the compiler.
namespace sherd::internal {

template <typename T>
struct IsStatus : std::false_type {};
template <>
struct IsStatus<absl::Status> : std::true_type {};
template <typename T>
struct IsStatus<absl::StatusOr<T>> : std::true_type {};

template <typename...>
struct Types {};

// The parameters of a callable with a single signature; a generic lambda has
// none.
template <typename F>
struct CallableParams {};
template <typename R, typename... Params>
struct CallableParams<R (*)(Params...)> {
  using Plain = Types<std::remove_cvref_t<Params>...>;
};
template <typename R, typename... Params>
struct CallableParams<R (*)(Params...) noexcept>
    : CallableParams<R (*)(Params...)> {};
template <typename R, typename C, typename... Params>
struct CallableParams<R (C::*)(Params...) const>
    : CallableParams<R (*)(Params...)> {};
template <typename R, typename C, typename... Params>
struct CallableParams<R (C::*)(Params...) const noexcept>
    : CallableParams<R (*)(Params...)> {};
template <typename F>
requires requires { &F::operator(); }
struct CallableParams<F> : CallableParams<decltype(&F::operator())> {};

// Whether calling F with values of Params converts nothing, as double to int
// would.
template <typename F, typename... Params>
constexpr bool TakesExactly() {
  if constexpr (requires { typename CallableParams<F>::Plain; }) {
    return std::same_as<typename CallableParams<F>::Plain,
                        Types<std::remove_cvref_t<Params>...>>;
  } else {
    return true;
  }
}

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_CALLABLE_H_
