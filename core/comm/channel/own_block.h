#ifndef SHERD_CORE_COMM_CHANNEL_OWN_BLOCK_H_
#define SHERD_CORE_COMM_CHANNEL_OWN_BLOCK_H_

#include "sherd/core/comm/collective/collective.h"

namespace sherd::internal {

// A copy from a call's send buffer into its receive buffer: both have one
// length, may be the same memory, and may be empty.
struct BlockCopy {
  ConstBytes from;
  MutableBytes to;

  bool IsNeeded() const { return from.data() != to.data() && !from.empty(); }
};

// Whether a rank contributes to its own result of `op` by a copy, which the
// backend leaves to the host: in a group of one that is the whole operation.
constexpr bool HasOwnBlock(CollectiveOp op) {
  return op == CollectiveOp::kAllToAllV || op == CollectiveOp::kAllGather ||
         op == CollectiveOp::kAllGatherV || op == CollectiveOp::kGather ||
         op == CollectiveOp::kScatter;
}

// The block that a rank contributes to its own result. Empty for other
// operations, and on ranks that get no result.
BlockCopy OwnBlock(const Collective& call, int rank);

// The whole result of `call`, a reduction, in a group of one rank.
BlockCopy LoneReduction(const Collective& call);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_OWN_BLOCK_H_
