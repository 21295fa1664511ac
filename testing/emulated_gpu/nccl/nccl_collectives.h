#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_COLLECTIVES_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_transfer.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

namespace sherd::testing {

// A factor of ncclRedOpCreatePreMulSum.
struct NcclFactor {
  int type = 0;
  // In device memory, read while the operation runs; null: `bytes` is the
  // value.
  const void* device = nullptr;
  char bytes[8] = {};
};

// One call of an operation.
struct NcclTask {
  NcclFunction function = NcclFunction::kAllReduce;
  // signature.root is the peer of sends and receives.
  NcclSignature signature;
  const void* in = nullptr;
  void* out = nullptr;
  StreamHandle stream = nullptr;
  // For signature.op == kNcclNumOps.
  std::shared_ptr<const NcclFactor> factor;
  // Injected faults: never ends, breaks the device, kills the process in the
  // middle.
  bool hangs = false;
  int breaks = 0;
  bool dies = false;

  uint64_t bytes() const;
};

// The accesses of the operation to this rank's device.
std::vector<MemoryAccess> AccessesOf(const NcclTask& task, int rank, int size);

// Describes a forbidden overlap of the task's buffers, or returns "".
std::string BadOverlap(const NcclTask& task, int rank, int size);

// Runs one collective on the calling thread; accesses memory through HostView.
// `sequence` counts the communicator's collectives, from 1. Returns false if it
// gave up. Values are those of core/comm/reduction.h, in the order of ranks.
bool RunCollective(const NcclTask& task, uint64_t sequence,
                   const NcclWaiting& waiting);

// Runs sends and receives, all at the same time.
bool RunPointToPoint(const std::vector<NcclTask>& tasks,
                     const NcclWaiting& waiting);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_COLLECTIVES_H_
