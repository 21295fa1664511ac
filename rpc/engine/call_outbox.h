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

// Messages on their way to the wire. Keeps what is sent before the wire is
// there, and the bytes that are on their way to a worker within a bound, those
// that it reads in this worker's memory among them: messages with large parts
// wait for those before them, small ones pass.
//
// Threads. Safe from any thread. No lock is held while a message is sent.
class CallOutbox {
 public:
  explicit CallOutbox(uint64_t max_unsent_bytes);
  ~CallOutbox();
  CallOutbox(const CallOutbox&) = delete;
  CallOutbox& operator=(const CallOutbox&) = delete;

  // Once. Sends what was kept. The wire lives as long as this does.
  void Attach(std::shared_ptr<Wire> wire);
  // Null before Attach.
  Wire* wire() const { return wire_.load(std::memory_order_acquire); }

  // Sends now or later. `call`: for Withdraw; 0 if there is none. `exposure`:
  // what the message announces, or null; kept until OnRead, or until the
  // message is dropped or the worker lost.
  // After an error, which is the wire's, on_sent is not called. Nor is it for
  // what was dropped.
  absl::Status Send(int to, uint64_t call, WireMessage message,
                    std::shared_ptr<const Exposure> exposure = nullptr);

  // `worker` reads what the transfer exposed no longer. One that is unknown is
  // ignored.
  void OnRead(int worker, uint64_t transfer);

  // Drops what still waits here to be sent to `to` for `call`; true if there
  // was something. Otherwise sends `recall`, if there is one, which does not
  // overtake what is just leaving for that call.
  bool Withdraw(int to, uint64_t call, std::optional<WireMessage> recall);

  // The worker is lost: drops what waits for it or is exposed to it, and
  // refuses more.
  void Drop(int worker, const absl::Status& why);

 private:
  class Lanes;

  std::atomic<Wire*> wire_{nullptr};
  std::shared_ptr<Wire> owned_wire_;
  // Shared with messages on their way.
  const std::shared_ptr<Lanes> lanes_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALL_OUTBOX_H_
