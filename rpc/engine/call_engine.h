#ifndef SHERD_RPC_ENGINE_CALL_ENGINE_H_
#define SHERD_RPC_ENGINE_CALL_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/devices/device_routes.h"
#include "sherd/rpc/engine/call_statistics.h"
#include "sherd/rpc/engine/callee.h"
#include "sherd/rpc/engine/caller.h"
#include "sherd/rpc/engine/engine_core.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/ownership/reference_service.h"

namespace sherd::internal {

// The calls under way between this worker and the others, itself included.
//
// A call ends once: with its result, an error of the handler, its deadline, a
// Cancel, or the loss of the worker. Every error begins with "call 17 of scale
// on worker1 (rank 1): " and carries the rank; that of a lost worker as the
// failed rank. Nothing is sent twice. When a call ends before its reply, the
// callee is notified, frees what the call holds unless its handler has it, and
// cancels the handler's CallContext and the calls that the handler made; a late
// reply is dropped.
//
// Tensors. They are read from the sender's storage, which is kept until the
// system has the data, or the receiver has read it in place or is lost: it may
// still be read after a call has ended with an error. A call with `out` does
// not end while its reply is being written there, even if its deadline passes:
// it ends when all bytes have arrived, or when no more can arrive because the
// worker is lost. A call to this worker itself shares storage with it.
//
// Devices. Tensors on devices travel through host memory, to where the device
// routes lead; Start waits until the devices have run the work that the calling
// thread has queued for an argument. A handler's arguments are queued on its
// thread's current streams, and so must be its result; the result of a call is
// complete. An `out` may be on any device, without a route.
//
// Handlers run on a pool that grows while they wait, with the CallContext of
// their call; one that throws, or destroys its ReplyFunction unused, ends its
// call with kInternal.
//
// Life. Create the engine, start the wire with it as handler, Attach the wire;
// from then on all methods can be called. Messages that arrive before are kept,
// so that a handler can always make calls. At the end close the wire, then
// Close the engine.
//
// Threads. Safe from any thread.
// Cost of a call: a header is encoded and decoded once each way, and what
// outlives a function is allocated; the locks are those of tables, and none is
// held while a message is sent or a user's code runs.
class CallEngine : public Wire::Handler {
 public:
  explicit CallEngine(CallEngineOptions options);
  // Closes it without waiting. Not on a thread of its own.
  ~CallEngine() override;
  CallEngine(const CallEngine&) = delete;
  CallEngine& operator=(const CallEngine&) = delete;

  // If called at all, before the wire is started.
  void SetDeviceRoutes(DeviceRoutes routes) {
    core_->routes = std::move(routes);
  }

  // Once; the wire must live as long as any part of the engine.
  void Attach(std::shared_ptr<Wire> wire);

  // Calls `method` on worker `to` and returns the call's number. `done` is
  // called once, maybe before this returns, or on a thread of the wire, the
  // pool or the deadlines, which it must not block. The deadline is the earlier
  // one of options.timeout from now and that of the handler that makes the call
  // (CallContext::Current).
  //   kInvalidArgument     No such worker; the request is too large; `out` does
  //                        not fit the result; names both.
  //   kFailedPrecondition  No wire is attached, the engine is closed, the
  //                        worker's handler has another signature, or a tensor
  //                        is on a device without a device map, or the map
  //                        leads to a device that does not exist.
  //   kNotFound            The worker has no handler of that name.
  //   kUnimplemented       A tensor has no data; names its device.
  //   kDeadlineExceeded    The deadline passed.
  //   kCancelled           Cancel, also of the call that this one is part of.
  //   kUnavailable         The worker is lost, or left.
  //   kResourceExhausted   It has no memory or thread for the call, or no
  //                        resources are left to connect with it.
  //   kInternal            Its handler threw or never answered.
  //   kInvalidArgument, kPermissionDenied  Tensors could not be read in the
  //                        sender's memory: see MemoryTransfer::Read.
  //   other                The handler's error.
  uint64_t Start(int to, absl::string_view method, uint64_t signature,
                 Payload request, const CallOptions& options,
                 ReplyFunction done);

  // Sets the work that receives calls and replies; from now on threads that
  // wait for one take part. Once, before the first call.
  void Share(std::shared_ptr<SharedWork> work);
  // That work, for threads that wait for a reply, or null.
  std::shared_ptr<SharedWork> work() const { return core_->work; }

  // Ends a call with kCancelled; one that has ended is not an error.
  void Cancel(uint64_t call);

  // See Drain::Wait.
  absl::Status Drain(Deadline deadline);
  // See Drain::EndBy.
  void EndDrainBy(Deadline deadline) { core_->drain.EndBy(deadline); }

  // Ends all calls of this worker with `why`, and cancels the handlers that run
  // here.
  void FailAll(const absl::Status& why);

  // FailAll, refuses calls from now on, and waits for handlers. Idempotent.
  //   kDeadlineExceeded  Some have not returned; the message has their number.
  //                      They continue, and their replies are dropped.
  absl::Status Close(Deadline deadline);

  // The values that this worker owns or holds.
  ReferenceService& references() { return *core_->references; }

  // Of all workers, by rank.
  std::vector<WorkerStatistics> Statistics() const;

  // The calls that have not ended, in both directions, for diagnosis. Holds a
  // lock of each table for as long as it copies.
  std::vector<CallUnderWay> CallsUnderWay() const;

  // Wire::Handler.
  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
      int from, absl::string_view control, uint64_t tail_bytes,
      uint64_t* ticket) override;
  void OnTail(int from, uint64_t ticket) override;
  void OnLost(int worker, const absl::Status& why) override;
  void OnLeft(int worker, const absl::Status& why) override;

 private:
  Deadline Expire(Deadline::Clock::time_point now);
  void OnGone(int worker, const absl::Status& why);

  const std::shared_ptr<EngineCore> core_;
  const std::shared_ptr<Callee> callee_;
  const std::shared_ptr<Caller> caller_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALL_ENGINE_H_
