#include "sherd/serialization/manifest/memory_budget.h"

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

absl::Status MemoryBudget::Take(int64_t count, int64_t bytes) {
  const auto total = CheckedMul(count, bytes);
  if (total.has_value() && *total <= left_) {
    left_ -= *total;
    return absl::OkStatus();
  }
  return LimitError(absl::StrCat("the manifest would take more than ", limit_,
                                 " bytes in memory: ", count, " entries of ",
                                 bytes));
}

absl::Status MemoryLoan::Take(int64_t count, int64_t bytes) {
  SHERD_RETURN_IF_ERROR(budget_.Take(count, bytes));
  bytes_ += count * bytes;
  return absl::OkStatus();
}

}  // namespace sherd
