#ifndef SHERD_RPC_CALL_SIGNATURE_H_
#define SHERD_RPC_CALL_SIGNATURE_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/callable.h"
#include "sherd/rpc/call/arguments.h"
#include "sherd/rpc/call/encoding.h"
#include "sherd/rpc/call/payload.h"

namespace sherd::internal {

// The type of a parameter's argument while it is stored or under way: without
// references, and an owner in place of a view.
template <typename Param>
struct StoredAs {
  using Type = Param;
};
template <OneOf<absl::string_view, std::string_view> Param>
struct StoredAs<Param> {
  using Type = std::string;
};
template <typename T>
requires(!std::same_as<T, const bool>) struct StoredAs<absl::Span<T>> {
  using Type = std::vector<std::remove_const_t<T>>;
};
template <typename Param>
using Stored = typename StoredAs<std::remove_cvref_t<Param>>::Type;

// Parameters of methods: values, const references to them, and read-only views
// of text and lists. Data that a handler writes would not be sent back.
template <typename Param>
concept MethodParam =
    Codable<Stored<Param>> &&
    (!std::is_reference_v<Param> ||
     std::is_const_v<
         std::remove_reference_t<Param>>)&&!std::is_rvalue_reference_v<Param> &&
    std::convertible_to<const Stored<Param>&, std::remove_cvref_t<Param>>;

template <typename R>
struct MethodResult {
  static constexpr bool kValid = false;
};
template <>
struct MethodResult<absl::Status> {
  static constexpr bool kValid = true;
  using Value = void;
};
template <typename T>
struct MethodResult<absl::StatusOr<T>> {
  static constexpr bool kValid = Codable<T>;
  using Value = T;
};

template <typename Signature>
struct MethodSignature {
  static constexpr bool kValid = false;
};
template <typename R, typename... Params>
struct MethodSignature<R(Params...)> {
  static constexpr bool kValid =
      MethodResult<R>::kValid && (MethodParam<Params> && ...);
};
// The types of a valid signature.
template <typename Signature>
struct MethodCodec;
template <typename R, typename... Params>
struct MethodCodec<R(Params...)> {
  using Result = R;
  using Value = typename MethodResult<R>::Value;
  using Arguments = std::tuple<Stored<Params>...>;

  template <typename... Args>
  static constexpr bool kCallableWith =
      std::is_invocable_v<R (*)(Params...), Args...>;

  // Accepts all arguments from which the parameters can be made.
  static absl::StatusOr<Payload> Encode(absl::string_view method,
                                        Params... args) {
    return EncodeArguments<Stored<Params>...>(method, args...);
  }
  static absl::Status Decode(absl::string_view method, Payload request,
                             Arguments& arguments) {
    return DecodeArguments(method, std::move(request), arguments);
  }
  // Calls `f` with the values that Decode has read, and moves from them.
  template <typename F>
  static auto Invoke(const F& f, Arguments& arguments) {
    return std::apply(
        [&](Stored<Params>&... stored) { return f(Pass<Params>(stored)...); },
        arguments);
  }
  static void Describe(TypeText& type) {
    DescribeTypes<Stored<Params>...>(type, "");
    type.Append("->");
    DescribeType<Value>(type);
  }

 private:
  // A parameter by value takes the stored value.
  template <typename Param>
  static decltype(auto) Pass(Stored<Param>& stored) {
    if constexpr (std::is_reference_v<Param> ||
                  !std::same_as<std::remove_cv_t<Param>, Stored<Param>>) {
      return std::as_const(stored);
    } else {
      return std::move(stored);
    }
  }
};

template <typename M>
const MethodSignatureText& SignatureOf() {
  static const MethodSignatureText& signature = *new MethodSignatureText(
      MakeSignature(M::kName, MethodCodec<typename M::Signature>::Describe));
  return signature;
}

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_SIGNATURE_H_
