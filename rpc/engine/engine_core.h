#ifndef SHERD_RPC_ENGINE_ENGINE_CORE_H_
#define SHERD_RPC_ENGINE_ENGINE_CORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/call_deadlines.h"
#include "sherd/rpc/engine/call_outbox.h"
#include "sherd/rpc/engine/call_statistics.h"
#include "sherd/rpc/engine/drain.h"
#include "sherd/rpc/engine/landings.h"
#include "sherd/rpc/engine/worker_pool.h"
#include "sherd/rpc/ownership/reference_service.h"

namespace sherd::internal {

struct CallEngineOptions {
  int rank = 0;
  int world_size = 1;
  CallLimits limits = {};
  // Tensors of requests that were received and whose handlers have not ended.
  uint64_t max_held_bytes = uint64_t{64} << 30;
  // On their way to one worker; a message that is larger goes alone.
  uint64_t max_unsent_bytes = uint64_t{256} << 20;
  WorkerPoolOptions pool = {};
  // The handler of a call to `worker`, which is this one.
  std::function<absl::StatusOr<std::shared_ptr<const RawHandler>>(
      absl::string_view name, uint64_t signature, absl::string_view worker)>
      find_handler = FindHandlerFor;
  // Of a fetch of a reference's value that is not given another one.
  absl::Duration timeout = absl::Seconds(60);
};

// What this worker counts, of each other worker and in all.
//
// Threads. Safe from any thread, without locks.
class CallCounters {
 public:
  explicit CallCounters(int world_size)
      : size_(world_size),
        workers_(std::make_unique<WorkerCounters[]>(
            static_cast<size_t>(world_size))) {}

  WorkerCounters& Of(int worker) { return workers_[worker]; }
  const WorkerCounters& Of(int worker) const { return workers_[worker]; }

  // Calls of this worker that have not ended, and of others that run here.
  std::atomic<int64_t>& outstanding() { return outstanding_; }
  std::atomic<int64_t>& running() { return running_; }
  // Bytes of tensors of those that run here.
  std::atomic<uint64_t>& held_bytes() { return held_bytes_; }

  // A consistent view: activity begins before its request is counted, so that
  // counts that stay the same around a moment of idleness belong to it.
  DrainCounts Look(const std::set<int>& excluded) const;

 private:
  const int size_;
  const std::unique_ptr<WorkerCounters[]> workers_;
  std::atomic<int64_t> outstanding_{0};
  std::atomic<int64_t> running_{0};
  std::atomic<uint64_t> held_bytes_{0};
};

// What both directions of calls share.
struct EngineCore {
  EngineCore(CallEngineOptions engine_options, CallDeadlines::Look look);

  // "worker1 (rank 1)".
  std::string Describe(int worker) const;

  // Counts and sends. `call`: as of CallOutbox::Send. `keep` lives until the
  // system has the tail.
  absl::Status Send(int to, uint64_t call, std::string control,
                    std::vector<Tensor> tensors, bool bulk);
  // The same for what is small; a lost worker does not need it.
  void SendSmall(int to, std::string control, bool bulk = false);
  // Whether a message with that tail is bulk.
  static bool IsBulk(const std::vector<Tensor>& tensors);

  const CallEngineOptions options;
  CallCounters counters;
  CallOutbox outbox;
  Landings landings;
  Drain drain;
  WorkerPool pool;
  CallDeadlines deadlines;
  // Set once, before the wire is there.
  std::shared_ptr<ReferenceService> references;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_ENGINE_CORE_H_
