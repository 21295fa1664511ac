#include "sherd/core/comm/backend.h"

namespace sherd {

absl::string_view Name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kBarrier:
      return "barrier";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kAllToAllV:
      return "all_to_all_v";
  }
  return "unknown operation";
}

}  // namespace sherd
