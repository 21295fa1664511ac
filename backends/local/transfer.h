#ifndef SHERD_BACKENDS_LOCAL_TRANSFER_H_
#define SHERD_BACKENDS_LOCAL_TRANSFER_H_

#include <vector>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Moves and computes, straight between the ranks' buffers, what is rank
// `rank`'s share of the operation that all of `calls` (one per rank) are.
// Shares may run at the same time, each once; the result is there when all are
// done.
void DoShare(const std::vector<const sherd_op_v0*>& calls, int rank,
             const sherd_host_v0& host);

// Whether one rank does all shares faster than all ranks meet once more.
bool IsTiny(const sherd_op_v0& op, int size);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_TRANSFER_H_
