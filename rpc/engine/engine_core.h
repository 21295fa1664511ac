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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/devices/device_routes.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/call_deadlines.h"
#include "sherd/rpc/engine/call_outbox.h"
#include "sherd/rpc/engine/call_statistics.h"
#include "sherd/rpc/engine/drain.h"
#include "sherd/rpc/engine/landings.h"
#include "sherd/rpc/engine/worker_pool.h"
#include "sherd/rpc/ownership/reference_service.h"
#include "sherd/rpc/transfer/memory_transfer.h"
#include "sherd/rpc/transfer/tensor_source.h"

namespace sherd::internal {

struct CallEngineOptions {
  int rank = 0;
  int world_size = 1;
  CallLimits limits = {};
  // Tensors of requests that were received and whose handlers have not ended.
  uint64_t max_held_bytes = uint64_t{64} << 30;
  // Bytes under way to one worker; a larger message is sent alone.
  uint64_t max_unsent_bytes = uint64_t{256} << 20;
  WorkerPoolOptions pool = {};
  // How tensors may be read in the memory of their sender.
  MemoryPathSet memory_paths = {};
  // The handler of a call to `worker`, which is this one.
  std::function<absl::StatusOr<std::shared_ptr<const RawHandler>>(
      absl::string_view name, uint64_t signature, absl::string_view worker)>
      find_handler = FindHandlerFor;
  // For a fetch of a reference's value without a timeout of its own.
  absl::Duration timeout = absl::Seconds(60);
};

// The counters of this worker, per other worker and in total.
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

  // Calls of this worker that have not ended, and calls of others that run
  // here.
  std::atomic<int64_t>& outstanding() { return outstanding_; }
  std::atomic<int64_t>& running() { return running_; }
  // Bytes of tensors of calls that run here.
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

struct EngineCore;

// The tensors of a received message that are read in the sender's memory. The
// sender keeps them until it is notified that this object was destroyed.
struct Transfer {
  Transfer(std::shared_ptr<EngineCore> engine, int sender,
           PayloadHeader& payload);
  ~Transfer();

  absl::Status Read(std::vector<Tensor>& tensors) const;

  const std::shared_ptr<EngineCore> core;
  const int from;
  const uint64_t number;
  const std::vector<TensorSource> sources;

 private:
  absl::Status ReadMemory(std::vector<Tensor>& tensors) const;
};

// Tensors that are ready to travel.
struct PackedTensors {
  // Tensors of the tail.
  std::vector<Tensor> tail;
  // Or null.
  std::shared_ptr<const Exposure> exposure;
  uint64_t bytes = 0;

  bool bulk() const;
};

// The part that both directions of calls share.
struct EngineCore : std::enable_shared_from_this<EngineCore> {
  EngineCore(CallEngineOptions engine_options, CallDeadlines::Look look);

  // "worker1 (rank 1)".
  std::string Describe(int worker) const;

  // Counts and sends. `call`: as of CallOutbox::Send. The tensors are those of
  // Pack, and are kept until the system has them as the tail, or until they are
  // read. `on_sent`: as of WireMessage, but not called for a message that is
  // dropped before; may be null. `may_wait`: as of WireMessage.
  absl::Status Send(int to, uint64_t call, std::string control,
                    PackedTensors tensors,
                    std::function<void(const absl::Status& end)> on_sent,
                    bool may_wait);
  // The same for a small message, which a lost worker does not need. `unsent`:
  // called if WireMessage::IsUnsent; may be null.
  void SendSmall(int to, std::string control,
                 std::function<void(const absl::Status& why)> unsent = nullptr);

  // Makes tensors ready for a message to `to`: copies those on devices to the
  // host, in the order of the calling thread's current streams; then exposes
  // them, if that worker can read all of them in this one's memory and it pays,
  // or makes them contiguous. `route`: as of CheckTensors.
  //   kDeadlineExceeded  A device has not run the work queued for one by then.
  //   other              As CheckTensors; kResourceExhausted.
  absl::StatusOr<PackedTensors> Pack(
      int to, Payload& payload,
      absl::FunctionRef<absl::StatusOr<Device>(const Device&)> route,
      Deadline deadline);

  // Receives the tensors of a message of `from` into `tensors`, which have its
  // sizes and dtypes, and then calls `end`: here, if there are none; on the
  // loop's thread, if they arrive as a tail; otherwise on a thread of the pool,
  // which reads them in the sender's memory, and also after an error of that.
  // Returns the result of Wire::Handler::OnControl.
  std::vector<absl::Span<std::byte>> Land(int from,
                                          std::shared_ptr<Transfer> transfer,
                                          uint64_t tail_bytes,
                                          std::vector<Tensor> tensors,
                                          uint64_t* ticket, Landings::End end);

  // Sends `to` a probe of this worker's memory, once; again if it was not sent.
  void IntroduceMemory(int to);
  // `from` has sent a probe of its own memory.
  absl::Status OnMemoryProbe(int from, const MemoryProbe& probe);

  const CallEngineOptions options;
  // Set before the first message.
  DeviceRoutes routes;
  CallCounters counters;
  MemoryTransfer memory;
  CallOutbox outbox;
  Landings landings;
  Drain drain;
  WorkerPool pool;
  CallDeadlines deadlines;
  // Set once, before the wire is attached.
  std::shared_ptr<ReferenceService> references;
  // Of the wire. Set once, before any call.
  std::shared_ptr<SharedWork> work;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_ENGINE_CORE_H_
