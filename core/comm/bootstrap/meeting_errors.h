#ifndef SHERD_CORE_COMM_BOOTSTRAP_MEETING_ERRORS_H_
#define SHERD_CORE_COMM_BOOTSTRAP_MEETING_ERRORS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Errors of ranks that meet.

namespace sherd::internal {

// kInvalidArgument: `what`, found in the store, is malformed.
absl::Status NotOfThisVersion(absl::string_view what);

// kInvalidArgument if ranks asked for different values, with each of these and,
// as the failed rank, the one that deviates (see deviation.h); otherwise OK.
// asked[r]: the value of rank r, unset if unknown. `what`: what it is, in the
// plural.
absl::Status CheckEqual(absl::string_view what,
                        const std::vector<std::optional<std::string>>& asked);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_BOOTSTRAP_MEETING_ERRORS_H_
