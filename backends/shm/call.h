#ifndef SHERD_BACKENDS_SHM_CALL_H_
#define SHERD_BACKENDS_SHM_CALL_H_

#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/segment.h"

namespace sherd::internal {

// Writes this rank's call of collective number `operation` to where the other
// ranks read it; the caller publishes it.
void WriteCall(const ShmSegment& segment, uint64_t operation, int rank,
               const sherd_op_v0& op);

// Compares the calls of all ranks, which must have arrived, by the rule of
// core/comm/collective/call_signature.h. All ranks find the same difference,
// and the same rank that deviates, if one does.
//   SHERD_INVALID_ARGUMENT  The calls differ.
//
// Cost. P comparisons; with lengths P², unless all of them are equal.
sherd_code CompareCalls(const ShmSegment& segment, uint64_t operation, int rank,
                        const sherd_op_v0& op, sherd_error_v0* error);

// The longest entry of any rank whose data passes through boxes.
uint64_t LongestInBoxes(const ShmSegment& segment, uint64_t operation);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_CALL_H_
