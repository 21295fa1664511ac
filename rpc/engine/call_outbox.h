#ifndef SHERD_RPC_ENGINE_CALL_OUTBOX_H_
#define SHERD_RPC_ENGINE_CALL_OUTBOX_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/transfer/exposures.h"

namespace sherd::internal {

// Messages to be sent by the wire. Queues them before the wire is attached, and
// bounds the bytes under way to a worker, those that it reads in this worker's
// memory included: messages with large parts wait for earlier ones, small ones
// pass.
//
// Threads. Safe from any thread. No lock is held while a message is sent.
class CallOutbox {
 public:
  explicit CallOutbox(uint64_t max_unsent_bytes);
  ~CallOutbox();
  CallOutbox(const CallOutbox&) = delete;
  CallOutbox& operator=(const CallOutbox&) = delete;

  // Once. Sends what was queued. The wire lives as long as this does.
  void Attach(std::shared_ptr<Wire> wire);
  // Null before Attach.
  Wire* wire() const { return wire_.load(std::memory_order_acquire); }

  // Sends now or later. `call`: for Withdraw; 0 if there is none. `exposure`:
  // the memory that the message announces, or null; kept until OnRead, or until
  // the message is dropped or the worker lost.
  // After an error, which is the wire's, on_sent is not called, nor for a
  // message that is dropped.
  absl::Status Send(int to, uint64_t call, WireMessage message,
                    std::shared_ptr<const Exposure> exposure = nullptr);

  // `worker` no longer reads the memory that the transfer exposed. An unknown
  // transfer is ignored.
  void OnRead(int worker, uint64_t transfer);

  // Drops what still waits here to be sent to `to` for `call`; returns whether
  // there was something. Otherwise sends `recall`, if given, which does not
  // overtake a message of that call that is just being sent.
  bool Withdraw(int to, uint64_t call, std::optional<WireMessage> recall);

  // The worker is lost: drops what waits for it or is exposed to it, and
  // refuses further messages.
  void Drop(int worker, const absl::Status& why);

 private:
  class Lanes;

  std::atomic<Wire*> wire_{nullptr};
  std::shared_ptr<Wire> owned_wire_;
  // Shared with messages under way.
  const std::shared_ptr<Lanes> lanes_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALL_OUTBOX_H_
