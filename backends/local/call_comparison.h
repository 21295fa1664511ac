#ifndef SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_
#define SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_

#include <optional>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/core/comm/collective/call_signature.h"

namespace sherd::internal {

// Returns how the ranks' calls contradict each other, by the rule of
// core/comm/collective/call_signature.h, or nothing. calls[r] is the call of
// rank r; none is null.
std::optional<CallDifference> FindDifference(
    const std::vector<const sherd_op_v0*>& calls);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_
