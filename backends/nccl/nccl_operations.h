#ifndef SHERD_BACKENDS_NCCL_NCCL_OPERATIONS_H_
#define SHERD_BACKENDS_NCCL_NCCL_OPERATIONS_H_

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"

namespace sherd::internal {

// The communicator on which an operation runs.
struct NcclPlace {
  const NcclApi& api;
  NcclComm comm;
  int rank;
  int size;
};

// Whether QueueOperation supports it.
bool IsNcclOperation(const sherd_op_v0& op);

// Queues `op` on its stream by one call of NCCL, or a group of calls.
NcclResult QueueOperation(const NcclPlace& place, const sherd_op_v0& op);

// The name of NCCL's function, for messages.
const char* NcclFunctionOf(const sherd_op_v0& op);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_OPERATIONS_H_
