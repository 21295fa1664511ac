#ifndef SHERD_TESTING_KITS_SAME_ERROR_H_
#define SHERD_TESTING_KITS_SAME_ERROR_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"

namespace sherd::testing {

// Chunks of a dimension, one for each of the ranks from 0.
ShardingSpecPtr Chunks(int dim, int ranks);

// Calls `body` on `ranks` ranks (threads), each with its part of one tensor of
// size [6, 4] in Chunks(0, ranks), float32, and its rank. Expects the same
// error from all, with `phrase` in the message and `error_rank` as
// ErrorInfo::rank, and that tensor and group are as before and work.
void ExpectSameError(
    int ranks, const std::function<absl::Status(ShardedTensor&, int)>& body,
    absl::StatusCode code, const std::string& phrase,
    std::optional<int> error_rank);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_SAME_ERROR_H_
