#include "sherd/rpc/future.h"

#include "absl/strings/str_cat.h"

namespace sherd::internal {

absl::Status FutureTimedOut(absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrCat(
      "Future: expected a result within ", absl::FormatDuration(timeout),
      ", found none yet; wait longer, or Cancel() the operation"));
}

absl::Status FutureCancelled() {
  return absl::CancelledError("Future: cancelled by its caller");
}

absl::Status PromiseBroken() {
  return absl::InternalError(
      "Promise: expected a result, found all its copies destroyed; Set one on "
      "every path, errors included");
}

}  // namespace sherd::internal
