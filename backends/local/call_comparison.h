#ifndef SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_
#define SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_

#include <optional>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

struct CallDifference {
  // Who deviates, as core/base/deviation.h says. Unset: nobody more than
  // others, as where two ranks contradict each other about the length of a
  // message.
  std::optional<int> rank;
  // What was called by whom.
  std::string text;
};

// How the ranks' calls contradict each other, if they do. calls[r] is that of
// rank r; none is null.
std::optional<CallDifference> FindDifference(
    const std::vector<const sherd_op_v0*>& calls);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_
