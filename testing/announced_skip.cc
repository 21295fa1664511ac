#include "sherd/testing/announced_skip.h"

#include <optional>
#include <utility>

namespace sherd::testing::internal {
namespace {

thread_local std::optional<SkipReason> announced_skip;

}  // namespace

absl::string_view AnnounceSkip(SkipReason reason) {
  announced_skip = reason;
  return SkipText(reason);
}

SkipReason TakeAnnouncedSkip() {
  return std::exchange(announced_skip, std::nullopt)
      .value_or(SkipReason::kGeneric);
}

}  // namespace sherd::testing::internal
