#ifndef SHERD_RPC_OWNERSHIP_REFERENCE_TABLE_H_
#define SHERD_RPC_OWNERSHIP_REFERENCE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/rpc/ownership/reference_id.h"
#include "sherd/rpc/ownership/reference_message.h"

namespace sherd::internal {

// The remote references of one worker: the values that it owns, the references
// that it holds, those to its own values included, and the transfers of
// references under way. rpc/OWNERSHIP.md has states, messages, and the proof.
//
// Handles. A worker counts its handles of a reference here; the owner knows
// only whether there are any. Create and a received transfer give handles,
// each of which DropHandle ends.
//
// Transfers. A message with references, a call or a reply, is a transfer at
// both ends. The sender calls Pass, and sends the message with the number of
// the transfer in it once effects->ready has it. The receiver calls Receive (or
// Decline, if it drops the message unread) exactly once for each such message,
// and runs the handler or completes the call once effects->ready has the number
// that Receive returned. The sender's handles last until then, so that no value
// is released while a message with its name is under way.
//
// Time. Nothing here has a deadline: a message is answered, or its other end is
// lost. A call whose deadline passes calls Abandon and drops its handles.
//
// Threads. None of its own; one call at a time. Copyable, for tests that try
// each possible next action.
class ReferenceTable {
  using Kind = ReferenceMessage::Kind;

 public:
  explicit ReferenceTable(int self) : self_(self) {}

  // ---- Handles

  // Names a value that `owner`, which may be this worker, is to make, with one
  // handle. Returns the kCreate for the owner, to be sent in the call that
  // makes the value; if this worker is the owner, it has been handled.
  //   kUnavailable         The owner is lost; names it.
  //   kFailedPrecondition  After ReleaseAll.
  absl::StatusOr<ReferenceMessage> Create(int owner);

  // That call, or this worker's kRegister, was never sent: the reference is
  // dead, with `why`.
  void RequestNotSent(const ReferenceId& id, const absl::Status& why,
                      ReferenceEffects* effects);

  void DropHandle(const ReferenceId& id, ReferenceEffects* effects);

  // Whether handles of it are valid. Also OK while the owner has not confirmed
  // the creation yet.
  //   kUnavailable         The owner is lost; names it.
  //   kNotFound            The owner has no such value.
  //   kFailedPrecondition  There is no handle, as after ReleaseAll.
  absl::Status Check(const ReferenceId& id) const;

  // ---- Values that this worker owns

  // Sets what Find returns; released at once if no worker holds it.
  void SetValue(const ReferenceId& id, std::shared_ptr<void> value,
                ReferenceEffects* effects);

  // Null if no worker holds it, or SetValue was not called. Call it for a
  // holder.
  std::shared_ptr<void> Find(const ReferenceId& id) const;

  // ---- Transfers

  // References that this worker holds are to be sent to worker `to`, which may
  // be itself. The table has a handle of each until the transfer ends. Ready
  // with an error, as Check or that `to` is lost: it has ended, do not send.
  uint64_t Pass(int to, absl::Span<const ReferenceId> ids,
                ReferenceEffects* effects);

  // A message with references has arrived; `number` is the sender's. Ready with
  // OK: the caller has a handle for each of `ids`. Ready with an error, as
  // Check: it has none, and must not deliver the message.
  uint64_t Receive(int from, uint64_t number, absl::Span<const ReferenceId> ids,
                   ReferenceEffects* effects);
  void Decline(int from, uint64_t number, ReferenceEffects* effects) {
    Send(from, {.kind = Kind::kAccepted, .sequence = number}, effects);
  }

  // Ends a transfer that is not ready, because it is no longer needed, or one
  // of Pass that is, but whose message was not sent. It does not become ready.
  // No effect on a transfer that has ended.
  void Abandon(uint64_t transfer, ReferenceEffects* effects);

  // ---- Events

  // After kCreate with OK, the caller calls SetValue with the object that its
  // function is to fill or to fail.
  //   kInvalidArgument     `from` may not send this; nothing has changed.
  //   kUnavailable         kCreate of a worker that is lost.
  //   kFailedPrecondition  kCreate after ReleaseAll.
  absl::Status OnMessage(int from, const ReferenceMessage& message,
                         ReferenceEffects* effects);

  // `worker` is lost, for good. What it held is released; references to its
  // values are dead, with `why` and its rank; transfers to it end.
  void WorkerLost(int worker, const absl::Status& why,
                  ReferenceEffects* effects);

  // For the shutdown: this worker's handles and transfers end; those that wait
  // are ready with kFailedPrecondition. Values that others hold stay until they
  // release them. Idempotent.
  void ReleaseAll(ReferenceEffects* effects);

  // No values, references or transfers.
  bool empty() const {
    return owned_.empty() && held_.empty() && transfers_.empty();
  }
  // A line for each remaining value, reference and transfer.
  std::string ToString() const;

 private:
  // A value of this worker, held by the workers whose entry says so; this one
  // may be among them.
  struct Owned {
    struct Holder {
      // Of the last request. Stays after a release, so that an older request
      // which arrives late is recognised.
      uint64_t sequence = 0;
      bool holds = false;
    };

    std::shared_ptr<void> value;
    absl::btree_map<int, Holder> holders;
  };
  using OwnedMap = absl::btree_map<ReferenceId, Owned>;
  // A reference with handles, or one whose request is under way.
  struct Held {
    int64_t handles = 0;
    uint64_t sequence = 0;          // Of the request that lists this worker.
    bool confirmed = false;         // The owner has listed it.
    absl::Status dead;              // Not OK: for good.
    std::vector<uint64_t> waiting;  // Transfers, once for each handle.
  };
  struct Transfer {
    bool outgoing = false;
    bool ready = false;  // Outgoing: until it is accepted.
    int peer = 0;
    uint64_t number = 0;           // The sender's.
    std::vector<ReferenceId> ids;  // A handle of each.
    size_t unanswered = 0;
    absl::Status status;
  };

  // Returns the next one.
  OwnedMap::iterator RemoveIfUnheld(OwnedMap::iterator owned,
                                    ReferenceEffects* effects);
  absl::Status OnRequest(int from, const ReferenceMessage& request,
                         ReferenceEffects* effects);
  uint64_t Begin(Transfer transfer, absl::Span<const ReferenceId> ids,
                 ReferenceEffects* effects);
  // One more handle, for a transfer, which waits if it is not confirmed.
  // Registers what is new.
  absl::Status AddHandle(const ReferenceId& id, uint64_t number,
                         ReferenceEffects* effects);
  // One thing less to wait for.
  void Advance(uint64_t number, const absl::Status& status,
               ReferenceEffects* effects);
  // The request was answered (OK) or the reference is dead: transfers go on.
  void Settle(const ReferenceId& id, const absl::Status& dead,
              ReferenceEffects* effects);
  void ForgetIfUnused(const ReferenceId& id, ReferenceEffects* effects);
  void Send(int to, const ReferenceMessage& message, ReferenceEffects* effects);

  int self_;
  bool released_all_ = false;
  uint64_t last_number_ = 0;    // Of creations and transfers.
  uint64_t last_sequence_ = 0;  // Of requests to owners.
  OwnedMap owned_;
  absl::btree_map<ReferenceId, Held> held_;
  absl::btree_map<uint64_t, Transfer> transfers_;
  absl::btree_map<int, absl::Status> lost_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_REFERENCE_TABLE_H_
