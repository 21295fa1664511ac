#ifndef SHERD_RPC_ENGINE_WIRE_DOUBLE_H_
#define SHERD_RPC_ENGINE_WIRE_DOUBLE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {

// Workers of one process that exchange messages as over a Wire, for tests of
// the layers above: in order per pair, in any order between pairs, with a
// thread per worker. Messages can be lost, delayed, or end in the middle.
class FakeNetwork {
 public:
  enum class Fate {
    kDeliver,
    // Never arrives, though it counts as sent.
    kLose,
    // Arrives after ReleaseHeld.
    kHold,
    // Never leaves: WireMessage::IsUnsent.
    kUnsent,
  };
  // Called for every message; any thread, under no lock.
  using Filter =
      std::function<Fate(int from, int to, absl::string_view control)>;

  // `seed`: determines the order in which workers' messages arrive.
  FakeNetwork(int size, uint64_t seed);
  // Waits for the threads; handlers may be destroyed before it, after Stop.
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // Lives as long as the network.
  std::shared_ptr<Wire> wire(int rank) const;
  // Before anything is sent to `rank`.
  void Connect(int rank, Wire::Handler* handler) ABSL_LOCKS_EXCLUDED(mutex_);

  void SetFilter(Filter filter) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseHeld() ABSL_LOCKS_EXCLUDED(mutex_);
  // Called for every message before the filter; any thread, under no lock.
  // Before anything is sent.
  void SetSendHook(std::function<void(int from, const WireMessage&)> hook) {
    send_hook_ = std::move(hook);
  }
  // Called on the receiver's thread when half of a tail has arrived.
  void SetTailHook(std::function<void(int from, int to)> hook)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The process of `rank` ends: its messages under way are lost, and all others
  // are notified.
  void Kill(int rank) ABSL_LOCKS_EXCLUDED(mutex_);
  // The worker says goodbye.
  void Leave(int rank) ABSL_LOCKS_EXCLUDED(mutex_);

  // Delivers `control` with that many bytes announced (none follow), as if
  // `from` had sent it, and returns the handler's result. An error ends the
  // connection, as always.
  absl::Status Inject(int from, int to, std::string control,
                      uint64_t tail_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Delivers nothing more and calls no handler.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class NodeWire;
  struct Event {
    WireMessage message;
    // Of Inject.
    std::function<void(const absl::Status&)> injected;
    uint64_t announced_bytes = 0;
    // In place of a message: the sender has died or left.
    absl::Status gone;
    bool left = false;
  };
  struct Node {
    std::shared_ptr<NodeWire> wire;
    Wire::Handler* handler = nullptr;
    // By sender.
    std::vector<std::deque<Event>> inbox;
    // The workers to which nothing can be sent, and why.
    std::vector<absl::Status> gone;
    bool dead = false;
    std::thread thread;
  };

  absl::Status Send(int from, int to, WireMessage message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(int rank) ABSL_LOCKS_EXCLUDED(mutex_);
  void Deliver(int from, int to, Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status DeliverMessage(int from, int to, const WireMessage& message,
                              uint64_t tail_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(int rank, const absl::Status& why, bool left)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkGone(int at, int who, const absl::Status& why, bool left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDead(int rank) ABSL_LOCKS_EXCLUDED(mutex_);

  const int size_;
  std::vector<std::string> names_;
  mutable absl::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Node> nodes_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> held_ ABSL_GUARDED_BY(mutex_);
  Filter filter_ ABSL_GUARDED_BY(mutex_);
  std::function<void(int, int)> tail_hook_ ABSL_GUARDED_BY(mutex_);
  std::function<void(int, const WireMessage&)> send_hook_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_WIRE_DOUBLE_H_
