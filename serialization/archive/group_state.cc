#include "sherd/serialization/archive/group_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/archive.h"

namespace sherd {
namespace {

std::shared_ptr<ProcessGroup>& ScopedGroup() {
  static thread_local std::shared_ptr<ProcessGroup> group;
  return group;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> NeededDefaultGroup() {
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group = DefaultGroup();
  if (group.ok()) return group;
  return absl::FailedPreconditionError(absl::StrCat(
      "Need to initialize default process group: ", group.status().message()));
}

absl::Status CheckSame(absl::string_view what, int saved, int now) {
  if (saved == now) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " at save time was ", saved, ", but at load time was ",
                   now, "; load where it was saved, or save a checkpoint"));
}

}  // namespace

namespace internal {

absl::StatusOr<GroupState> GroupStateOf(const ProcessGroup& group) {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> world,
                         NeededDefaultGroup());
  return GroupState{group.rank(), world->rank(), group.size(), world->size()};
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> LoadGroup() {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> world,
                         NeededDefaultGroup());
  return ScopedGroup() == nullptr ? world : ScopedGroup();
}

absl::Status CheckSamePlace(const GroupState& saved, const GroupState& now) {
  SHERD_RETURN_IF_ERROR(CheckSame("Local rank", saved.rank, now.rank));
  SHERD_RETURN_IF_ERROR(
      CheckSame("Global rank", saved.global_rank, now.global_rank));
  SHERD_RETURN_IF_ERROR(CheckSame("Local world size", saved.size, now.size));
  return CheckSame("Global world size", saved.world_size, now.world_size);
}

}  // namespace internal

absl::StatusOr<ScopedLoadGroup> ScopedLoadGroup::Create(
    std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        "ScopedLoadGroup: expected a process group, found null");
  }
  if (ScopedGroup() != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ProcessGroup already set by previous ScopedLoadGroup: group '",
        ScopedGroup()->name(), "' on this thread; end its scope first"));
  }
  ScopedGroup() = std::move(group);
  return ScopedLoadGroup();
}

ScopedLoadGroup::ScopedLoadGroup(ScopedLoadGroup&& other) noexcept
    : active_(std::exchange(other.active_, false)) {}

ScopedLoadGroup::~ScopedLoadGroup() {
  if (active_) ScopedGroup() = nullptr;
}

}  // namespace sherd
