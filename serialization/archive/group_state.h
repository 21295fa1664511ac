#ifndef SHERD_SERIALIZATION_ARCHIVE_GROUP_STATE_H_
#define SHERD_SERIALIZATION_ARCHIVE_GROUP_STATE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/serialization/archive/saved_state.h"

namespace sherd::internal {

// Where this process is in `group`, and in the default group.
//   kFailedPrecondition  "Need to initialize default process group".
absl::StatusOr<GroupState> GroupStateOf(const ProcessGroup& group);

// The group of this thread's ScopedLoadGroup, or else the default group.
//   kFailedPrecondition  As GroupStateOf, also within a ScopedLoadGroup.
absl::StatusOr<std::shared_ptr<ProcessGroup>> LoadGroup();

// Whether a rank is where it was.
//   kFailedPrecondition  "Local rank at save time was …", or the global rank,
//                        the local or the global world size, in this order.
absl::Status CheckSamePlace(const GroupState& saved, const GroupState& now);

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_GROUP_STATE_H_
