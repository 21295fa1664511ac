#ifndef SHERD_RPC_RPC_H_
#define SHERD_RPC_RPC_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call/signature.h"
#include "sherd/rpc/future.h"
#include "sherd/rpc/handler.h"
#include "sherd/rpc/ownership/reference_service.h"
#include "sherd/rpc/remote_ref.h"
#include "sherd/rpc/worker_statistics.h"

namespace sherd {

struct RpcOptions {
  // Unique among the workers: letters, digits, '_', ':' and '-', fewer than
  // 128. Empty: "worker<rank>".
  std::string name;
  // As InitOptions has them: from init_method or the launcher if unset. The
  // workers may share file, address or store with a group.
  std::optional<int> rank;
  std::optional<int> world_size;
  std::string init_method;
  std::shared_ptr<Store> store;
  // Of InitRpc, of the shutdown, and of each call without a timeout of its own.
  absl::Duration timeout = absl::Seconds(60);
  // Paths of messages: "unix", "tcp"; and paths by which a worker may read
  // tensors of more than 64 KiB in the sender's memory: "thread" (both are
  // threads of a process), "shm" (storage of backend shm's allocator), "cma"
  // (all other storage, by cross-memory attach, which the system may not
  // permit). Empty: SHERD_RPC_TRANSPORTS, or all that work here. Any other name
  // is kInvalidArgument.
  std::vector<std::string> transports;
  // Each worker shows at this interval that it is alive. A worker that is
  // silent for longer than heartbeat_timeout is lost.
  absl::Duration heartbeat_interval = absl::Seconds(10);
  absl::Duration heartbeat_timeout = absl::Seconds(30);
  // A shutdown that does not wait for the others, or whose wait failed, takes
  // up to this long to notify them that this worker leaves. Workers that do not
  // receive the notice by then see this worker lost.
  absl::Duration parting_timeout = absl::Seconds(1);
  // Bounds the tensors of one call, or of one result. The limits in
  // call/ARGUMENTS.md bound the rest of a message.
  uint64_t max_message_bytes = uint64_t{16} << 30;
  // To which devices of other workers tensors on devices go; AddDeviceMap
  // builds it.
  DeviceMaps device_maps = {};
  // For tests. The workers are threads of this process: each thread has a
  // default agent of its own.
  bool workers_are_threads = false;
};

// A worker, by rank or by name.
class WorkerRef {
 public:
  // Any integer; calls to a rank that does not exist fail.
  template <std::integral Rank>
  requires(!std::same_as<Rank, bool>)
      WorkerRef(Rank rank)  // NOLINT(google-explicit-constructor)
      : worker_(static_cast<int64_t>(rank)) {}
  WorkerRef(const char* name)  // NOLINT(google-explicit-constructor)
      : worker_(std::string(absl::NullSafeStringView(name))) {}
  WorkerRef(std::string name)  // NOLINT(google-explicit-constructor)
      : worker_(std::move(name)) {}
  WorkerRef(absl::string_view name)  // NOLINT(google-explicit-constructor)
      : worker_(std::string(name)) {}
  WorkerRef(std::nullptr_t) = delete;

  // Whichever was given; the other is null.
  const int64_t* rank() const { return std::get_if<int64_t>(&worker_); }
  const std::string* name() const { return std::get_if<std::string>(&worker_); }

 private:
  std::variant<int64_t, std::string> worker_;
};

// The destination of a call, and its options.
struct To {
  WorkerRef worker;
  // Unset: RpcOptions::timeout. A call that a handler makes ends at that
  // handler's deadline at the latest.
  std::optional<absl::Duration> timeout = std::nullopt;
  // Receive the tensors of the result, in their order: on any device, with the
  // sizes and dtype of the result and any strides. Written to until the call
  // has ended; work queued on a device must not use them. Empty, or undefined:
  // new tensors.
  std::vector<Tensor> out = {};
};

// A worker of a job, which calls methods of the others by name, answers their
// calls, and lets them read shards.
//
//     SHERD_ASSIGN_OR_RETURN(auto agent, InitRpc({}));
//     absl::StatusOr<Tensor> y = agent->Call<Scale>("worker1", x, 0.5);
//     Future<Tensor> later = agent->CallAsync<Scale>(1, x, 0.5);
//     SHERD_RETURN_IF_ERROR(agent->Shutdown());
//
// Methods are registered by RegisterHandler (handler.h) on the worker that is
// called: before InitRpc, or calls may arrive before them.
//
// Order. Calls of one thread to one worker start in the order of calling and
// may end in any order. A call to oneself runs like any other, without a
// message.
//
// Errors of a call name the call and the worker; ErrorInfo has the worker's
// rank, unless the handler's error has another. A handler may return any of
// these codes.
//   kInvalidArgument     There is no such worker; the call is too large; a
//                        tensor of the result does not fit `out`.
//   kNotFound            The worker has no such method; the message lists those
//                        it has. Or a reference in the call: as RemoteRef.
//   kFailedPrecondition  The worker's build has another signature for it; a
//                        tensor is on a device without a device map, or the map
//                        names a device that does not exist; or this agent was
//                        shut down.
//   kUnavailable         The worker is lost, for good: it died, was silent for
//                        too long, or left. FailedRank(status) is its rank, and
//                        unset for a handler's own kUnavailable. Or a
//                        reference in the call: as RemoteRef.
//   kDeadlineExceeded    There was no reply in time. The handler is notified
//                        (CallContext::OnCancelled) and its result dropped.
//   kCancelled           Future::Cancel; or the handler that makes the call was
//                        cancelled.
//   kResourceExhausted   Too many calls wait for a thread of the worker; or one
//                        of the two has no descriptors or threads left to
//                        connect with the other, which is not lost.
//   kUnimplemented       A tensor is on meta: it has no data.
//   kPermissionDenied    The system no longer lets one of the two read tensors
//                        in the other's memory.
//   kDataLoss            What arrived is not a value of its type: a bug of the
//                        worker that sent it.
//   kInternal            The handler threw or dropped its Promise, or the type
//                        of a value threw.
//   other                The handler's error.
// No call is ever repeated: a call that failed may have run or not. It did not
// run if the worker, the method or its signature was unknown.
//
// Devices. The caller's device maps define on which device of the callee a
// tensor on a device arrives; a result goes the same path back. Tensors on the
// CPU need no map. Without a map the call fails, and the error says what to
// set. A call waits until the device has run what this thread has queued on its
// current stream; a handler's work with its arguments goes to its current
// streams, where it leaves its result; a caller receives complete tensors.
// Calls to oneself share tensors, wherever they are.
//
// Memory. Arguments are shared until the call has ended: data that the caller
// writes to a tensor meanwhile may travel or not; the same holds for a result
// that a handler keeps, until the caller has it. Storage is kept until the
// receiver has read it or is lost, even if the call ends before. Workers of one
// host copy large tensors once, with any strides at both ends; workers of
// several hosts first copy tensors that are not contiguous.
//
// Threads. A thread that waits, in Call, Future::Wait, ToHere or a fetch of
// shards, receives messages of RPC meanwhile and may run functions given to
// OnReady, OnWorkerLost and the like: it must hold no lock that such a function
// takes. "A thread of the agent" may be such a thread.
//
// Safe from any thread; but Shutdown not on one of the agent's threads
// (OnWorkerLost, Future::OnReady, a handler), where it would wait for itself.
// Results are decoded on these threads, while the agent's other messages wait.
//
// Last handle. Any function may drop it, on any thread. An agent that was not
// shut down is then shut down as by ShutdownOptions::graceful = false: it takes
// up to RpcOptions::parting_timeout, and handlers that run longer continue
// without it. Threads of the program destroy the agent in place; where a thread
// of the library drops the handle (one of any agent, also a thread that waits
// and runs its functions), and in a log sink, the agent is destroyed afterwards
// on a thread of its own, for which exit() waits up to ten seconds.
//
// Cost. A message each way. Tensors in host memory are not copied in this
// process, those on devices once to or from pinned memory.
class RpcAgent : public RemoteAccess {
 public:
  // Runs method M of a worker and waits for its result.
  template <RpcMethod M, typename... Args>
  typename internal::MethodCodec<typename M::Signature>::Result Call(
      const To& to, Args&&... args) {
    return Begin<M>(to, /*waits=*/true, std::forward<Args>(args)...).Wait();
  }
  template <RpcMethod M, typename... Args>
  typename internal::MethodCodec<typename M::Signature>::Result Call(
      WorkerRef worker, Args&&... args) {
    return Call<M>(To{std::move(worker)}, std::forward<Args>(args)...);
  }

  // The same without waiting. Cancelling the Future cancels the call. Small
  // calls that follow one another within 0.1 ms are sent together: when a
  // thread waits for a result, or after 0.1 ms.
  template <RpcMethod M, typename... Args>
  Future<typename internal::MethodCodec<typename M::Signature>::Value>
  CallAsync(const To& to, Args&&... args) {
    return Begin<M>(to, /*waits=*/false, std::forward<Args>(args)...);
  }
  template <RpcMethod M, typename... Args>
  Future<typename internal::MethodCodec<typename M::Signature>::Value>
  CallAsync(WorkerRef worker, Args&&... args) {
    return CallAsync<M>(To{std::move(worker)}, std::forward<Args>(args)...);
  }

  // Runs method M of a worker, maybe this one, which keeps the result; returns
  // a reference to it without waiting. An error that occurs later, in sending
  // the call or in running it, is returned to all who fetch the value.
  // `timeout` bounds the call, not the lifetime of the value.
  //   kInvalidArgument     There is no such worker; an argument cannot travel;
  //                        `out` is not empty.
  //   kUnavailable         The worker is lost.
  //   kFailedPrecondition  This agent was shut down.
  // Cost. A call and two small messages, for which no thread waits.
  template <RpcMethod M, typename... Args>
  absl::StatusOr<
      RemoteRef<typename internal::MethodCodec<typename M::Signature>::Value>>
  Remote(const To& to, Args&&... args);
  template <RpcMethod M, typename... Args>
  absl::StatusOr<
      RemoteRef<typename internal::MethodCodec<typename M::Signature>::Value>>
  Remote(WorkerRef worker, Args&&... args) {
    return Remote<M>(To{std::move(worker)}, std::forward<Args>(args)...);
  }

  // A reference to `value`, which this worker then owns. Tensors share their
  // storage with it. Waits until devices have run what this thread has queued
  // on its current stream.
  //   kInvalidArgument     It cannot travel.
  //   kFailedPrecondition  This agent was shut down.
  //   kDeadlineExceeded    The devices did not within RpcOptions::timeout.
  template <internal::Codable T>
  absl::StatusOr<RemoteRef<T>> Share(const T& value);

  // One line for each value that this worker owns, with its holders, for each
  // reference that it holds, and for each message under way that carries
  // references. Empty if there are none.
  virtual std::string DescribeReferences() const = 0;

  // This worker's name.
  const std::string& name() const {
    return workers()[static_cast<size_t>(rank())];
  }
  // Where this worker listens: "@name" for a Unix socket, "127.0.0.1:80".
  virtual std::vector<std::string> Addresses() const = 0;
  // Of the calls to and from each worker, by rank.
  virtual std::vector<WorkerStatistics> Statistics() const = 0;
  // Calls `notify` once for each worker that dies or is silent for too long,
  // but not for one that left, with its rank and the reason: at once for
  // workers that are lost already, for others on a thread of the agent, whose
  // messages wait meanwhile: `notify` must not block. Shutdown releases it; it
  // does not run afterwards.
  virtual void OnWorkerLost(
      std::function<void(int rank, const absl::Status& why)> notify) = 0;

 private:
  // `waits`: the calling thread waits for the result next.
  template <RpcMethod M, typename... Args>
  Future<typename internal::MethodCodec<typename M::Signature>::Value> Begin(
      const To& to, bool waits, Args&&... args);
  // Calls `done` exactly once, with the result or the error. Returns the
  // argument of Canceller.
  virtual uint64_t Start(const To& to, bool waits, absl::string_view method,
                         uint64_t signature,
                         absl::StatusOr<internal::Payload> request,
                         internal::ReplyFunction done) = 0;
  virtual std::function<void()> Canceller(uint64_t call) = 0;
  // The work that receives replies.
  virtual std::shared_ptr<internal::SharedWork> work() const = 0;
  virtual absl::StatusOr<internal::ReferenceService::Handle> StartRemote(
      const To& to, absl::string_view method, uint64_t signature,
      absl::StatusOr<internal::Payload> request) = 0;
  virtual absl::StatusOr<internal::ReferenceService::Handle> ShareValue(
      absl::StatusOr<internal::Payload> value) = 0;
};

// Joins the other workers, and makes the agent the default of this process or,
// where workers are threads, of this thread. Collective: returns once all have
// started. InitRpc, Shutdown, InitRpc may use one file, address or store, and
// so may a group and RPC, in any order.
//
// Without Shutdown the others see this worker lost when the agent is destroyed.
//
//   kInvalidArgument     An option or variable is malformed or missing. On all
//                        workers if it is the name, transports, or heartbeats
//                        of one, or if its device maps name an unknown worker,
//                        or map two devices to one.
//   kFailedPrecondition  "RPC is already initialized"; or two workers have no
//                        transport in common.
//   kAlreadyExists       Two workers have one name; on all workers.
//   kPermissionDenied    Workers have different secrets, or belong to different
//                        users.
//   kDeadlineExceeded    Names the workers that did not arrive.
//   kUnavailable         Names a worker that failed; or rank 0 cannot listen on
//                        its address.
//   kResourceExhausted   No descriptors or threads left.
//   others               The file of the secret cannot be read.
absl::StatusOr<std::shared_ptr<RpcAgent>> InitRpc(
    const RpcOptions& options = {});

// The agent that InitRpc or a test's fixture started, until it is shut down.
//   kFailedPrecondition  "RPC has not been initialized": call InitRpc first.
absl::StatusOr<std::shared_ptr<RpcAgent>> DefaultRpcAgent();

template <RpcMethod M, typename... Args>
Future<typename internal::MethodCodec<typename M::Signature>::Value>
RpcAgent::Begin(const To& to, bool waits, Args&&... args) {
  using Codec = internal::MethodCodec<typename M::Signature>;
  static_assert(Codec::template kCallableWith<Args...>,
                "the method cannot be called with these arguments");
  const Promise<typename Codec::Value> promise(work());
  const uint64_t call =
      Start(to, waits, M::kName, internal::SignatureOf<M>().hash,
            Codec::Encode(M::kName, std::forward<Args>(args)...),
            [promise](absl::StatusOr<internal::Payload> reply) {
              promise.Set(internal::DecodeResult<typename Codec::Value>(
                  M::kName, std::move(reply)));
            });
  promise.OnCancel(Canceller(call));
  return promise.future();
}

template <RpcMethod M, typename... Args>
absl::StatusOr<
    RemoteRef<typename internal::MethodCodec<typename M::Signature>::Value>>
RpcAgent::Remote(const To& to, Args&&... args) {
  using Codec = internal::MethodCodec<typename M::Signature>;
  static_assert(Codec::template kCallableWith<Args...>,
                "the method cannot be called with these arguments");
  absl::StatusOr<internal::ReferenceService::Handle> handle =
      StartRemote(to, M::kName, internal::SignatureOf<M>().hash,
                  Codec::Encode(M::kName, std::forward<Args>(args)...));
  if (!handle.ok()) return handle.status();
  return internal::ReferenceCodec<RemoteRef<typename Codec::Value>>::Of(
      *std::move(handle));
}

template <internal::Codable T>
absl::StatusOr<RemoteRef<T>> RpcAgent::Share(const T& value) {
  absl::StatusOr<internal::ReferenceService::Handle> handle =
      ShareValue(internal::EncodeResult("share", absl::StatusOr<T>(value)));
  if (!handle.ok()) return handle.status();
  return internal::ReferenceCodec<RemoteRef<T>>::Of(*std::move(handle));
}

}  // namespace sherd

#endif  // SHERD_RPC_RPC_H_
