#ifndef SHERD_RPC_WORKER_STATISTICS_H_
#define SHERD_RPC_WORKER_STATISTICS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace sherd {

// Statistics of the calls between this worker and another. Calls to oneself do
// not count as `served`, and have no bytes.
struct WorkerStatistics {
  int rank = 0;
  std::string name;
  // The worker died, or was silent for too long: see RpcAgent::OnWorkerLost.
  bool lost = false;
  // Calls from this worker to it: those that ended, those of them with an
  // error, and those under way.
  uint64_t calls = 0;
  uint64_t errors = 0;
  uint64_t outstanding = 0;
  // Calls from it to this worker.
  uint64_t served = 0;
  // Of calls in both directions: headers and tensors, as sent.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // Of bytes_received, tensors that this worker read from the other one's
  // memory: of a thread of this process, in shared memory, by cross-memory
  // attach. The rest came through sockets. See RpcOptions::transports.
  uint64_t bytes_by_thread = 0;
  uint64_t bytes_by_shm = 0;
  uint64_t bytes_by_cma = 0;
  // Latency of the calls that ended without an error; to about 6 %.
  absl::Duration p50;
  absl::Duration p99;
  // Tensors whose shards this worker lets others read now; 0 for another
  // worker, which counts its own.
  uint64_t publications = 0;
};

}  // namespace sherd

#endif  // SHERD_RPC_WORKER_STATISTICS_H_
