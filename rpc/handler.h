#ifndef SHERD_RPC_HANDLER_H_
#define SHERD_RPC_HANDLER_H_

#include <concepts>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/callable.h"
#include "sherd/rpc/call/arguments.h"
#include "sherd/rpc/call/encoding.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call/pending_reply.h"
#include "sherd/rpc/call/signature.h"
#include "sherd/rpc/future.h"

namespace sherd {

// Functions that other workers call.
//
// A method is a type of its own: the name under which it travels, and the
// signature of a call. rpc/call/arguments.h lists what may be passed and
// returned; parameters are values, const references, absl::string_view or
// absl::Span<const T>.
//
//     struct Scale {
//       static constexpr absl::string_view kName = "scale";
//       using Signature = absl::StatusOr<Tensor>(const Tensor&, double);
//     };
//
//     RegisterHandler<Scale>(
//         [](const Tensor& x, double factor) -> absl::StatusOr<Tensor> { … });
//
// A handler returns the result of the signature or, if it has to wait for
// something, a Future of its value: a thread is then free for another call.
//
// These do not compile: a handler that cannot be called with exactly the
// arguments of the signature, or returns something else; a method with
// parameters that cannot travel, such as pointers; a result without a status; a
// name that is not a constant of 1 to 128 bytes.
template <typename M>
concept RpcMethod =
    internal::MethodSignature<typename M::Signature>::kValid && requires {
  typename std::enable_if_t<internal::IsMethodName(M::kName)>;
};

namespace internal {

template <typename F, typename Signature>
struct HandlerOf {
  static constexpr bool kValid = false;
};
template <typename F, typename R, typename... Params>
requires(std::is_invocable_v<const F&, Params...>&&
             TakesExactly<F, Params...>()) struct HandlerOf<F, R(Params...)> {
  using Returned = std::invoke_result_t<const F&, Params...>;
  using Later = Future<typename MethodResult<R>::Value>;
  static constexpr bool kReturnsFuture = std::same_as<Returned, Later>;
  static constexpr bool kValid = std::same_as<Returned, R> || kReturnsFuture;
};

}  // namespace internal

// F can be a handler of M.
template <typename F, typename M>
concept RpcHandler =
    RpcMethod<M> && internal::HandlerOf<F, typename M::Signature>::kValid;

namespace internal {

// Calls `f` with `arguments`; an exception becomes an error.
template <typename M, typename F>
auto RunGuarded(
    const F& f,
    typename MethodCodec<typename M::Signature>::Arguments& arguments) {
  using Codec = MethodCodec<typename M::Signature>;
  using Returned = decltype(Codec::Invoke(f, arguments));
  try {
    return Codec::Invoke(f, arguments);
  } catch (...) {
    return Returned(ThrownError(absl::StrCat(M::kName, ": the handler")));
  }
}

template <typename M, typename F>
void RunHandler(const F& f, Payload request, const ReplyFunction& reply) {
  using Codec = MethodCodec<typename M::Signature>;
  // Shared: references to arguments stay valid until a Future is ready.
  const auto arguments = std::make_shared<typename Codec::Arguments>();
  if (absl::Status status =
          Codec::Decode(M::kName, std::move(request), *arguments);
      !status.ok()) {
    return reply(std::move(status));
  }
  auto result = RunGuarded<M>(f, *arguments);
  if constexpr (HandlerOf<F, typename M::Signature>::kReturnsFuture) {
    const auto pending = PendingReply::Create({reply, arguments});
    result.OnReady([pending](const typename Codec::Result& ready) {
      const PendingReply::Parts parts = pending->Take();
      if (parts.reply != nullptr) parts.reply(EncodeResult(M::kName, ready));
    });
  } else {
    reply(EncodeResult(M::kName, result));
  }
}

}  // namespace internal

// Registers `handler` for calls of M on this process's workers, before or after
// InitRpc, in place of an earlier handler of M. A caller receives the
// absl::Status that it returns as the outcome of the call, and an exception
// that it throws as kInternal with its what().
//
// The process ends if another method has the same kName: a bug in the program.
//
// Threads. Safe, also while calls run: these finish with the handler with which
// they began. Several threads may run `handler` at once. It may block and make
// calls. If it returns a Future, references to its arguments are valid until
// that is ready. Once the call is cancelled, which may be at any time, they are
// valid only while its CallContext is held: code that continues on
// another thread takes CallContext::Current() along, or copies the arguments.
template <RpcMethod M, RpcHandler<M> F>
void RegisterHandler(F handler) {
  internal::StoreHandler(
      typeid(M), M::kName, internal::SignatureOf<M>(),
      [f = std::make_shared<const F>(std::move(handler))](
          internal::Payload request, const internal::ReplyFunction& reply) {
        internal::RunHandler<M>(*f, std::move(request), reply);
      });
}

// Removes the handler of M. Returns whether there was one.
template <RpcMethod M>
bool UnregisterHandler() {
  return internal::RemoveHandler(typeid(M), M::kName);
}

}  // namespace sherd

#endif  // SHERD_RPC_HANDLER_H_
