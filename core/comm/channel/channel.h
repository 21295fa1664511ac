#ifndef SHERD_CORE_COMM_CHANNEL_CHANNEL_H_
#define SHERD_CORE_COMM_CHANNEL_CHANNEL_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/call_supervisor.h"
#include "sherd/core/comm/collective/collective.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/work.h"

namespace sherd::internal {

// Carries out the calls of one rank of a group on one kind of memory: the
// host's, or that of a device. Calls have been validated: they are valid, of
// this memory, with a deadline, and PathOf of their operation is not
// kUnsupported. Collectives and messages take the same path; IsPointToPoint
// decides which calls wait for each other.
//
// Threads. As ProcessGroup. Abort comes from any thread at any time, also after
// Close, where it does nothing.
class Channel {
 public:
  // `backend` and `calls` outlive it.
  Channel(const BackendInfo& backend, CallSupervisor& calls)
      : backend_(backend), calls_(calls) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  const BackendInfo& backend() const { return backend_; }
  OperationPath PathOf(CollectiveOp op, DType dtype, ReduceOp reduction) const {
    return Emulation::PathOf(backend_.native, op, dtype, reduction);
  }

  // Carries out `call` and fills in its number and lists; on a device, queues
  // it. After an error, other than a refusal, the group is poisoned.
  virtual absl::Status Run(Collective& call) = 0;
  // As Run, in the background.
  virtual Work Start(const Collective& call) = 0;
  // Waits for all calls started before.
  virtual void WaitIdle() = 0;
  // Makes running calls end soon. Does not wait for them.
  virtual void Abort() = 0;
  // Ends the connection. No call is under way. Called once.
  virtual void Close() = 0;

 protected:
  CallSupervisor& calls() const { return calls_; }
  const Membership& membership() const { return calls_.membership(); }
  OperationPath PathOf(const Collective& call) const {
    return PathOf(call.op, call.dtype, call.reduction);
  }

 private:
  const BackendInfo& backend_;
  CallSupervisor& calls_;
};

// Lists for the forms that are called with one contiguous buffer of equal
// blocks. Kept between calls, so that a call allocates nothing.
class EvenBlocks {
 public:
  // Fills in the lists of `call`, if it is of such a form. They are valid until
  // the next call.
  void List(const Membership& membership, Collective& call);

 private:
  std::vector<ConstBytes> sends_;
  std::vector<MutableBytes> recvs_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_CHANNEL_H_
