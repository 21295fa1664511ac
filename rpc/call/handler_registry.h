#ifndef SHERD_RPC_CALL_HANDLER_REGISTRY_H_
#define SHERD_RPC_CALL_HANDLER_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <typeinfo>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/rpc/call/encoding.h"
#include "sherd/rpc/call/payload.h"

namespace sherd::internal {

// Takes the outcome of a call: exactly once, on any thread.
using ReplyFunction = std::function<void(absl::StatusOr<Payload>)>;

// Of the name of a method, which is part of each call: 1 to 128 bytes.
inline constexpr size_t kMaxMethodName = 128;
constexpr bool IsMethodName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxMethodName;
}

// A handler that hides its types.
struct RawHandler {
  std::string name;
  // The signature that a caller must have.
  MethodSignatureText signature;
  // Runs the user's function on the calling thread. Replies once, perhaps on
  // another thread after it has returned, with its result or the error that
  // occurred. Throws only before it replies, if there is no memory.
  std::function<void(Payload request, ReplyFunction reply)> run;
};

// Registers `run` for calls of `name`, in place of an earlier handler of the
// same type `method`: running calls finish with the handler they began with.
//
// The process ends if another type has the name: two libraries would answer
// each other's calls.
//
// Threads. All functions here are safe from any thread.
void StoreHandler(
    const std::type_info& method, absl::string_view name,
    const MethodSignatureText& signature,
    std::function<void(Payload request, ReplyFunction reply)> run);

// Null if there is none.
std::shared_ptr<const RawHandler> FindHandler(absl::string_view name);

// The handler for a call to `worker`, whose caller has compiled the method with
// a signature of this hash. `name` may be any bytes.
//   kNotFound            `worker` has no such handler; lists those it has.
//   kFailedPrecondition  The signatures differ.
absl::StatusOr<std::shared_ptr<const RawHandler>> FindHandlerFor(
    absl::string_view name, uint64_t signature, absl::string_view worker);

// Returns whether there was one, of that type.
bool RemoveHandler(const std::type_info& method, absl::string_view name);

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_HANDLER_REGISTRY_H_
