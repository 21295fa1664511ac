#include "sherd/serialization/checkpoint/background_group.h"

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

absl::StatusOr<BackgroundGroup> BackgroundGroup::Create(
    ProcessGroup& group, std::optional<absl::Duration> timeout) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<ProcessGroup> own,
      group.NewGroup(ranks, {.timeout = timeout, .with_devices = false}));
  return BackgroundGroup(std::move(own), group.name());
}

absl::Status BackgroundGroup::ForProgram(const absl::Status& status) const {
  if (status.ok()) return status;
  ErrorInfo info = GetErrorInfo(status);
  info.group = of_;
  // As errors of groups name theirs.
  return WithErrorInfo(
      absl::Status(status.code(),
                   absl::StrReplaceAll(
                       status.message(),
                       {{absl::StrCat("group \"", own_->name(), "\""),
                         absl::StrCat("the saves of group \"", of_, "\"")}})),
      info);
}

}  // namespace sherd
