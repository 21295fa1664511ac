#ifndef SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_
#define SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_

#include <optional>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

struct CallDifference {
  // Who made the call that does not fit.
  int rank;
  std::string text;
};

// The first rank whose call does not fit that of most ranks (in a draw: of the
// lowest), or whose messages do not fit their receivers. calls[r] is that of
// rank r; none is null.
std::optional<CallDifference> FindDifference(
    const std::vector<const sherd_op_v0*>& calls);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_CALL_COMPARISON_H_
