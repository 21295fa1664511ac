#ifndef SHERD_BACKENDS_LOCAL_TRANSFER_H_
#define SHERD_BACKENDS_LOCAL_TRANSFER_H_

#include <vector>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Moves and computes, directly between the ranks' buffers, rank `rank`'s share
// of the operation that `calls` (one per rank) describe. Shares may run
// concurrently, each once; the result is complete when all are done.
void DoShare(const std::vector<const sherd_op_v0*>& calls, int rank,
             const sherd_host_v0& host);

// Whether one rank does all shares faster than all ranks synchronize again.
bool IsTiny(const sherd_op_v0& op, int size);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_TRANSFER_H_
