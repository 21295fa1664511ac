#include "sherd/core/comm/collective/operation_label.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"

namespace sherd {

absl::Status InOperation(const OperationLabel& operation, absl::Status status,
                         absl::string_view group) {
  if (status.ok()) return status;
  if (!absl::StartsWith(status.message(), absl::StrCat(operation.text, ": "))) {
    status = Annotate(std::move(status), operation.text);
  }
  ErrorInfo info;
  info.operation = std::string(operation.name);
  if (GetErrorInfo(status).group.empty()) info.group = std::string(group);
  return WithErrorInfo(std::move(status), info);
}

}  // namespace sherd
