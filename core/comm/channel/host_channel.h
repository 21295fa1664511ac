#ifndef SHERD_CORE_COMM_CHANNEL_HOST_CHANNEL_H_
#define SHERD_CORE_COMM_CHANNEL_HOST_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/call_supervisor.h"
#include "sherd/core/comm/channel/channel.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/collective/collective.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/work.h"

namespace sherd::internal {

// Asynchronous messages run in order per peer and direction: a queue for each,
// which the first message makes.
//
// Threads. Safe from any thread.
class MessageQueues {
 public:
  explicit MessageQueues(int size) : queues_(2 * size) {}

  CollectiveQueue& For(const Collective& message);
  // Waits for the messages pushed before, to the same peer in the same
  // direction.
  void WaitIdle(const Collective& message);
  void WaitAllIdle();

 private:
  std::unique_ptr<CollectiveQueue>& At(const Collective& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  // Sends to rank r at 2 r, receives from it at 2 r + 1.
  std::vector<std::unique_ptr<CollectiveQueue>> queues_ ABSL_GUARDED_BY(mutex_);
};

// Calls on the host's memory: on the calling thread, or on a queue's. A call is
// compared, its own block copied, and the rest posted to the communicator, in
// several steps where the backend has no such operation, until it has ended.
class HostChannel final : public Channel {
 public:
  // `queue` runs asynchronous collectives, and outlives it.
  HostChannel(const BackendInfo& backend, CallSupervisor& calls,
              CollectiveQueue& queue);

  // Connects to the other ranks of a group of two or more. Collective.
  absl::Status Connect(const Backend& backend,
                       const CommunicatorOptions& options);

  absl::Status Run(Collective& call) override;
  Work Start(const Collective& call) override;
  void WaitIdle() override;
  void Abort() override;
  void Close() override;

  // Null if the backend offers none, and once the channel is closed.
  std::shared_ptr<PeerMemory> peer_memory() const;

 private:
  absl::Status Execute(Collective& call)
      ABSL_LOCKS_EXCLUDED(collective_mutex_, open_mutex_);
  absl::Status ExecuteCollective(Collective& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(collective_mutex_);
  absl::Status ExecuteMessage(const Collective& call);
  absl::Status PostAndWait(const Collective& call);

  CollectiveQueue& queue_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Emulation> emulation_;

  // Held while a collective runs: one Post at a time.
  absl::Mutex collective_mutex_ ABSL_ACQUIRED_BEFORE(connection_mutex_);
  // Counts posts; an emulated operation has several.
  uint64_t posted_ ABSL_GUARDED_BY(collective_mutex_) = 0;
  EvenBlocks even_blocks_ ABSL_GUARDED_BY(collective_mutex_);
  // Held shared by each message, exclusively to close.
  absl::Mutex open_mutex_ ABSL_ACQUIRED_BEFORE(connection_mutex_);
  // Held by Abort while it uses communicator_, and to end it.
  mutable absl::Mutex connection_mutex_;
  std::shared_ptr<PeerMemory> peer_memory_ ABSL_GUARDED_BY(connection_mutex_);
  // Last: its threads use the members above.
  MessageQueues messages_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_HOST_CHANNEL_H_
