#include "sherd/core/comm/bootstrap/meeting_errors.h"

#include "absl/strings/str_cat.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {

absl::Status NotOfThisVersion(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what,
                   " at the rendezvous is not of this version of Sherd, "
                   "or the store serves something else too"));
}

absl::Status CheckEqual(absl::string_view what,
                        const std::vector<std::optional<std::string>>& asked) {
  const Deviation deviation = FindDeviation(asked);
  if (!deviation.Exists()) return absl::OkStatus();
  const std::string text = deviation.ToText(
      "asked for", [&](int rank) { return *asked[static_cast<size_t>(rank)]; });
  const absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      what, " differ: ", text, ": start all ranks with the same one"));
  const std::optional<int> failed = deviation.Rank();
  return failed ? WithFailedRank(status, *failed) : status;
}

}  // namespace sherd::internal
