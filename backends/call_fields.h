#ifndef SHERD_BACKENDS_CALL_FIELDS_H_
#define SHERD_BACKENDS_CALL_FIELDS_H_

#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/core/comm/collective/call_signature.h"

namespace sherd::internal {

// The fields of a valid operation as rank `rank` of two or more posted it, for
// plugins that compare calls.
inline CallFields FieldsOf(const sherd_op_v0& op, int rank) {
  CallFields call = {.op = op.op,
                     .root = op.root,
                     .dtype = op.dtype,
                     .reduction = op.reduction,
                     .bytes = op.bytes,
                     .is_typed = (op.flags & SHERD_OP_TYPED) != 0,
                     .is_even = (op.flags & SHERD_OP_EVEN) != 0};
  if (op.op == SHERD_ALL_TO_ALL_V && call.is_even) {
    // The rank's own entry may be empty, so take another one.
    call.bytes = op.sends[rank == 0 ? 1 : 0].size;
  }
  return call;
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CALL_FIELDS_H_
