#ifndef SHERD_RPC_REMOTE_REF_H_
#define SHERD_RPC_REMOTE_REF_H_

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/rpc/call/arguments.h"
#include "sherd/rpc/call/encoding.h"
#include "sherd/rpc/ownership/reference_service.h"

namespace sherd {

// A value that stays on its owner, another worker or this one, until it is
// fetched. T is what a method returns; for a method without result it is void,
// and the value is the method's status.
//
//     SHERD_ASSIGN_OR_RETURN(RemoteRef<Tensor> y,
//                            agent->Remote<Scale>("worker1", x, 0.5));
//     agent->Call<Sum>("worker2", y);       // worker2 fetches it, or passes it
//     absl::StatusOr<Tensor> here = y.ToHere();
//
// The value is the outcome of a call, possibly an error, and never changes; but
// a tensor in it shares its storage with what the owner's LocalValue() returns.
// It lives as long as any worker holds a reference to it, in any container,
// argument or other value, and is freed with the last one: when that is
// dropped, or the worker that holds it dies or shuts down. Values that refer to
// each other in a cycle live until their owners shut down.
//
// Value. A handle; copies are the same reference. A handle that was made by the
// default constructor, or moved from, is empty: it can be an argument, and its
// functions fail with kFailedPrecondition.
//
// Errors name the reference as owner:creator:number, or the call, and carry the
// owner's rank.
//   kUnavailable         The owner is lost, for good.
//   kNotFound            The owner no longer has the value: the worker that
//                        passed the reference on died before this one held it.
//   kFailedPrecondition  The reference is empty, or its agent was shut down.
//   kDeadlineExceeded    The value was not there, or not fetched, in time; or
//                        its call did not return in time. Only in the former
//                        case may a later call succeed.
//   other                The error of the call that made it.
//
// Threads. Safe from any thread. Handles may be destroyed on any thread, also
// after the agent. ToHere and LocalValue wait: not on one of RPC's threads
// (Future::OnReady).
template <typename T>
class RemoteRef {
 public:
  // T may contain references to itself, so it need not be complete here.
  using Result =
      std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>>;

  RemoteRef() = default;

  // Returns the value: waits until it is there, for at most `timeout`
  // (RpcOptions::timeout if unset), bounded by the deadline of the handler that
  // calls. Cost. A round trip and the transfer of the tensors; on the owner
  // nothing, and tensors share the value's storage. Right after Remote() one
  // more round trip. A call that fails leaves nothing at the owner.
  Result ToHere(std::optional<absl::Duration> timeout = std::nullopt) const {
    if (empty()) return Empty();
    return internal::DecodeResult<T>(
        "reference", handle_->service().Fetch(handle_, timeout));
  }

  // As ToHere, on the owner.
  //   kFailedPrecondition  This worker is not the owner.
  Result LocalValue() const {
    if (empty()) return Empty();
    if (!is_owner()) return internal::NotTheOwner(*handle_);
    return ToHere();
  }

  bool empty() const { return handle_ == nullptr; }
  // Rank and name of the owner; -1 and "" if empty.
  int owner() const { return empty() ? -1 : handle_->id().owner; }
  std::string owner_name() const {
    return empty() ? "" : handle_->service().NameOfWorker(owner());
  }
  // Whether the worker that holds this handle is the owner.
  bool is_owner() const {
    return !empty() && owner() == handle_->service().rank();
  }

  // Whether both are the same reference.
  friend bool operator==(const RemoteRef& a, const RemoteRef& b) {
    return a.empty() || b.empty() ? a.empty() == b.empty()
                                  : a.handle_->id() == b.handle_->id();
  }

 private:
  friend struct internal::ReferenceCodec<RemoteRef>;

  static absl::Status Empty() {
    return absl::FailedPreconditionError("the reference is empty");
  }

  internal::ReferenceService::Handle handle_;
};

namespace internal {

template <typename T>
struct ReferenceCodec<RemoteRef<T>> {
  using Value = T;

  static RemoteRef<T> Of(ReferenceService::Handle handle) {
    RemoteRef<T> reference;
    reference.handle_ = std::move(handle);
    return reference;
  }
  static bool IsEmpty(const RemoteRef<T>& ref) { return ref.empty(); }
  static absl::StatusOr<HeldReference> Export(const RemoteRef<T>& ref) {
    return HeldReference{ref.handle_->id(), ref.handle_};
  }
  static absl::StatusOr<RemoteRef<T>> Import(HeldReference held) {
    return Of(std::static_pointer_cast<ReferenceHandle>(std::move(held.keep)));
  }
};

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_RPC_REMOTE_REF_H_
