#ifndef SHERD_RPC_OWNERSHIP_REFERENCE_SERVICE_H_
#define SHERD_RPC_OWNERSHIP_REFERENCE_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/shared_work.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/future.h"
#include "sherd/rpc/ownership/reference_id.h"
#include "sherd/rpc/ownership/reference_message.h"
#include "sherd/rpc/ownership/reference_table.h"

namespace sherd::internal {

class ReferenceService;

// A hold on a value: one handle in the table, until this is destroyed, on any
// thread, also after the worker's shutdown.
class ReferenceHandle {
 public:
  ReferenceHandle(std::shared_ptr<ReferenceService> service,
                  const ReferenceId& id)
      : service_(std::move(service)), id_(id) {}
  ~ReferenceHandle();
  ReferenceHandle(const ReferenceHandle&) = delete;
  ReferenceHandle& operator=(const ReferenceHandle&) = delete;

  const ReferenceId& id() const { return id_; }
  ReferenceService& service() const { return *service_; }

 private:
  const std::shared_ptr<ReferenceService> service_;
  const ReferenceId id_;
};

// "… is on worker1 (rank 1), not on worker0".
absl::Status NotTheOwner(const ReferenceHandle& handle);

// The method by which holders read a value: a call of it on the owner, whose
// request consists of the reference alone. The reply is the value.
inline constexpr absl::string_view kFetchMethod = "sherd.value";
// Covers request and reply; compared like that of any method.
inline constexpr uint64_t kFetchSignature = 1;
std::shared_ptr<const RawHandler> FetchValueHandler();

// A worker's ReferenceTable, together with its lock, the sending of its
// messages, and the notification when a transfer is ready.
//
// A value is the result of a call, or its error, and may be available later
// than the references to it.
//
// A message with references: the sender calls Pass, then WhenReady, which sends
// it; the receiver calls Receive as soon as it has the message, or Decline, and
// continues in WhenReady. Abandon ends either before that.
//
// Threads. Safe from any thread. No lock is held while anything is sent, called
// back or destroyed.
class ReferenceService : public std::enable_shared_from_this<ReferenceService> {
 public:
  using Handle = std::shared_ptr<ReferenceHandle>;
  using Value = Promise<Payload>;
  // With OK: the message may be sent, or may be delivered; then `handles` are
  // those of its references, as Payload::references_keep.
  using Then = std::function<void(const absl::Status& status,
                                  std::vector<std::shared_ptr<void>> handles)>;
  using NotSent = std::function<void(const absl::Status& why)>;
  struct Hooks {
    // Sends a control part to another worker; a lost worker does not need it.
    // `unsent`, unless it is null, is called if it cannot be sent, although the
    // worker is not lost.
    std::function<void(int to, std::string control, NotSent unsent)> send;
    // Calls kFetchMethod on a worker, maybe this one.
    std::function<void(int to, Payload request, absl::Duration timeout,
                       ReplyFunction done)>
        fetch;
  };

  // `timeout`: of a fetch without a timeout of its own.
  ReferenceService(int rank, int world_size, absl::Duration timeout,
                   Hooks hooks);

  // ---- Values

  struct Created {
    Handle handle;
    // The message that the call which makes the value carries.
    ReferenceMessage message;
  };
  // As ReferenceTable::Create. If this worker owns the value, see ValueOf.
  absl::StatusOr<Created> Create(int owner) ABSL_LOCKS_EXCLUDED(mutex_);
  // The creation, or the request to be listed, was never sent, because of
  // `why`: every fetch fails with it.
  void RequestNotSent(const ReferenceId& id, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `from` makes a value here: returns what its call has to set. Errors as
  // ReferenceTable::OnMessage.
  absl::StatusOr<Value> OnCreation(int from, const ReferenceMessage& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing if no worker holds it.
  std::optional<Value> ValueOf(const ReferenceId& id) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the value, once it is there; errors as RemoteRef::ToHere.
  absl::StatusOr<Payload> Fetch(const Handle& handle,
                                std::optional<absl::Duration> timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `reply` with a value of this worker once it is there, maybe here, and
  // keeps `handle` until then; or with kNotFound. Released uncalled if the call
  // that this thread handles is cancelled before.
  void Read(Handle handle, ReplyFunction reply) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Transfers

  // The references of a payload are to be sent to worker `to`.
  //   kFailedPrecondition  One belongs to another or an earlier agent; named.
  absl::StatusOr<uint64_t> Pass(int to, const Payload& payload)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `number`: the sender's. If this fails, do not call Decline.
  //   kInvalidArgument  One names a worker that does not exist.
  absl::StatusOr<uint64_t> Receive(int from, uint64_t number,
                                   absl::Span<const ReferenceId> ids)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Decline(int from, uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `then` once the transfer is ready, maybe here, and never if it was
  // abandoned.
  void WhenReady(uint64_t transfer, Then then) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a transfer whose `then` has not been called. False if it has.
  bool Abandon(uint64_t transfer) ABSL_LOCKS_EXCLUDED(mutex_);
  // `then` was called with OK, but the message was not sent.
  void Unsent(uint64_t transfer) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Events

  // An error is a bug of the sender, and ends its connection.
  absl::Status OnMessages(int from, absl::Span<const ReferenceMessage> messages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The worker died or left.
  void WorkerLost(int worker, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // As ReferenceTable::ReleaseAll; logs the values that others still hold.
  void ReleaseAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Releases all values too. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Before the first reference.
  void SetNames(const std::vector<std::string>& names)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The work that receives values, for threads that wait; set before the first.
  void SetWork(std::shared_ptr<SharedWork> work) { work_ = std::move(work); }
  std::string NameOfWorker(int rank) const ABSL_LOCKS_EXCLUDED(mutex_);
  int rank() const { return rank_; }
  // ReferenceTable::ToString.
  std::string ToString() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class ReferenceHandle;
  class Turn;
  class Readers;
  // The table's entry for a value. Many threads may wait for one that never
  // arrives, and give up: so each has an entry of its own, which it removes.
  struct Owned {
    Owned();

    const Value value;
    const std::shared_ptr<Readers> readers;
  };
  // A transfer whose `then` has not been called.
  struct Waiting {
    std::vector<ReferenceId> ids;  // Of one that came.
    Then then;
    std::optional<absl::Status> ready;
    std::vector<std::shared_ptr<void>> handles;
  };

  std::shared_ptr<const Owned> Find(const ReferenceId& id) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const ReferenceId& id) ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkReady(const ReferenceEffects::Ready& ready,
                 std::vector<Waiting>& due)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const std::vector<ReferenceEffects::Outgoing>& messages);
  NotSent UnsentOf(absl::Span<const ReferenceMessage> messages);
  void DestroyReleased() ABSL_LOCKS_EXCLUDED(mutex_);

  const int rank_;
  const int world_size_;
  const absl::Duration timeout_;
  const Hooks hooks_;
  std::shared_ptr<SharedWork> work_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
  ReferenceTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // Values without holders. One thread at a time destroys them, in a loop: a
  // long chain of values would otherwise overflow the stack.
  std::vector<std::shared_ptr<void>> released_ ABSL_GUARDED_BY(mutex_);
  bool destroying_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_REFERENCE_SERVICE_H_
