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

// What a rank contributes to its own result of `call`, which moves bytes; the
// backend leaves that to the host. Empty for other operations.
BlockCopy OwnBlock(const Collective& call, int rank);

// The whole result of `call`, a reduction, in a group of one rank.
BlockCopy LoneReduction(const Collective& call);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_OWN_BLOCK_H_
