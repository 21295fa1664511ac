#ifndef SHERD_CORE_SHARDING_SHARDED_OP_REGISTRY_H_
#define SHERD_CORE_SHARDING_SHARDED_OP_REGISTRY_H_

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/callable.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"

namespace sherd {

// Operations of users, with an implementation for each type of sharding spec.
//
// An operation is a type: its name for messages, and the signature of a call,
// which takes sharded tensors and returns absl::Status or an absl::StatusOr.
//
//     struct ScaleRows {
//       static constexpr absl::string_view kName = "scale_rows";
//       using Signature = absl::StatusOr<ShardedTensor>(const ShardedTensor&,
//                                                       double);
//     };
//
//     RegisterShardedOp<ScaleRows, ChunkShardingSpec>(
//         [](const ChunkShardingSpec& spec, const ShardedTensor& tensor,
//            double factor) -> absl::StatusOr<ShardedTensor> { … });
//
//     absl::StatusOr<ShardedTensor> y = CallShardedOp<ScaleRows>(x, 0.5);
//
// These do not compile: an implementation that cannot be called with `const
// Spec&` and the arguments of the signature, or returns something else; a call
// with other arguments; an operation without a sharded tensor among its
// arguments.

namespace internal {

// Which arguments hold tensors that are spread over a group.
template <typename T>
concept DistributedArgument =
    std::same_as<std::remove_cvref_t<T>, ShardedTensor> ||
    std::same_as<std::remove_cvref_t<T>, PartialTensor> ||
    std::convertible_to<T, absl::Span<const ShardedTensor>>;
template <typename T>
concept ShardedArgument = DistributedArgument<T> &&
    !std::same_as<std::remove_cvref_t<T>, PartialTensor>;

template <typename Signature>
struct OpSignature {
  static constexpr bool kValid = false;
};
template <typename R, typename... Params>
struct OpSignature<R(Params...)> {
  static constexpr bool kValid =
      IsStatus<R>::value && (ShardedArgument<Params> || ...);
  using Result = R;
  template <typename Spec>
  using Function = std::function<R(const Spec&, Params...)>;
  template <typename F, typename Spec>
  static constexpr bool kImplementedBy =
      std::is_invocable_v<const F&, const Spec&, Params...>&&
      TakesExactly<F, Spec, Params...>();
  template <typename F, typename Spec>
  static constexpr bool kReturnedBy =
      std::same_as<std::invoke_result_t<const F&, const Spec&, Params...>, R>;
  template <typename... Args>
  static constexpr bool kCallableWith =
      std::is_invocable_v<R (*)(Params...), Args...>;
};

}  // namespace internal

template <typename Op>
concept ShardedOp = internal::OpSignature<typename Op::Signature>::kValid &&
    std::convertible_to<decltype(Op::kName), absl::string_view>;

// F can be an implementation of Op for Spec.
template <typename F, typename Op, typename Spec>
concept ShardedOpImplementation = ShardedOp<Op> &&
    std::derived_from<Spec, ShardingSpec> && internal::OpSignature<
        typename Op::Signature>::template kImplementedBy<F, Spec>&& internal::
        OpSignature<typename Op::Signature>::template kReturnedBy<F, Spec>;

namespace internal {

// Distributed tensors among the arguments of a call, in order.
class OpArguments {
 public:
  template <typename T>
  void Add(const T& argument) {
    if constexpr (std::same_as<T, ShardedTensor>) {
      AddTensor(argument);
    } else if constexpr (std::same_as<T, PartialTensor>) {
      AddPartial(argument);
    } else if constexpr (DistributedArgument<const T&>) {
      for (const ShardedTensor& tensor :
           absl::Span<const ShardedTensor>(argument)) {
        AddTensor(tensor);
      }
    }
  }

  // Returns the spec of the first sharded tensor, or the error of the call.
  absl::StatusOr<ShardingSpecPtr> Check(absl::string_view op) const;

 private:
  void AddTensor(const ShardedTensor& tensor);
  void AddPartial(const PartialTensor& tensor);
  void AddGroup(const ProcessGroup* group);

  ShardingSpecPtr spec_;
  const ProcessGroup* group_ = nullptr;
  int count_ = 0;
  bool undefined_ = false;
  bool several_groups_ = false;
};

// Implementations are stored by the types of operation and spec; the callers of
// store and find know their type.
using ErasedImplementation = std::shared_ptr<const void>;
// Whether a spec is of the type for which an implementation is.
using SpecTest = bool (*)(const ShardingSpec& spec);

void StoreShardedOp(const std::type_info& op, const std::type_info& spec,
                    SpecTest test, ErasedImplementation implementation);
absl::StatusOr<ErasedImplementation> FindShardedOp(const std::type_info& op,
                                                   absl::string_view name,
                                                   const ShardingSpec& spec);
bool RemoveShardedOp(const std::type_info& op, const std::type_info& spec);
std::vector<std::string> SpecsOfShardedOp(const std::type_info& op);

}  // namespace internal

// Registers `implementation` for CallShardedOp<Op> on tensors with a Spec,
// replacing an earlier one. A class derived from Spec without an implementation
// of its own inherits this one; an implementation for ShardingSpec serves all
// specs that have none.
//
// Threads. Safe, even while calls run: they finish with the implementation they
// began with. Concurrent calls call `implementation` concurrently.
template <typename Op, typename Spec, typename F>
requires ShardedOpImplementation<F, Op, Spec>
void RegisterShardedOp(F implementation) {
  using Signature = internal::OpSignature<typename Op::Signature>;
  using Erased = typename Signature::template Function<ShardingSpec>;
  internal::StoreShardedOp(
      typeid(Op), typeid(Spec),
      [](const ShardingSpec& spec) {
        if constexpr (std::same_as<Spec, ShardingSpec>) return true;
        return dynamic_cast<const Spec*>(&spec) != nullptr;
      },
      std::make_shared<const Erased>(
          [implementation = std::move(implementation)](const ShardingSpec& spec,
                                                       auto&&... args) {
            return implementation(*dynamic_cast<const Spec*>(&spec),
                                  std::forward<decltype(args)>(args)...);
          }));
}

// Removes the implementation registered for exactly Spec. Returns whether there
// was one.
template <ShardedOp Op, std::derived_from<ShardingSpec> Spec>
bool UnregisterShardedOp() {
  return internal::RemoveShardedOp(typeid(Op), typeid(Spec));
}

// Runs the implementation of Op for the spec of the first sharded tensor among
// `args`, tensors in spans and vectors included: the one registered for the
// spec's class or for its nearest base. Of several bases that are equally near,
// the one declared first.
//
// Checks first that the tensors can be used together. Nothing is sent: an error
// may come on one rank alone.
//   kFailedPrecondition  "… not supported for ShardedTensor!": no
//                        implementation is registered for the spec; the message
//                        lists the registered ones. A tensor was not created.
//                        "All distributed tensors should use the same
//                        ProcessGroup".
//   kInvalidArgument     "called without any distributed tensor": all spans are
//                        empty.
// and the errors of the implementation.
template <ShardedOp Op, typename... Args>
requires(internal::OpSignature<typename Op::Signature>::template kCallableWith<
         Args...>)
    typename internal::OpSignature<typename Op::Signature>::Result
    CallShardedOp(Args&&... args) {
  using Signature = internal::OpSignature<typename Op::Signature>;
  using Erased = typename Signature::template Function<ShardingSpec>;
  internal::OpArguments arguments;
  (arguments.Add(args), ...);
  const absl::StatusOr<ShardingSpecPtr> spec = arguments.Check(Op::kName);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<internal::ErasedImplementation> found =
      internal::FindShardedOp(typeid(Op), Op::kName, **spec);
  if (!found.ok()) return found.status();
  return (*static_cast<const Erased*>(found->get()))(
      **spec, std::forward<Args>(args)...);
}

// The classes of specs for which Op is registered, by name, in alphabetical
// order: "ChunkShardingSpec", ….
template <ShardedOp Op>
std::vector<std::string> RegisteredSpecs() {
  return internal::SpecsOfShardedOp(typeid(Op));
}

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_OP_REGISTRY_H_
