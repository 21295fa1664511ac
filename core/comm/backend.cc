#include "sherd/core/comm/backend.h"

#include "absl/strings/str_cat.h"

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
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kReduce:
      return "reduce";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllGatherV:
      return "all_gather_v";
    case CollectiveOp::kGather:
      return "gather";
    case CollectiveOp::kScatter:
      return "scatter";
    case CollectiveOp::kSend:
      return "send";
    case CollectiveOp::kRecv:
      return "recv";
  }
  return "unknown";
}

absl::string_view Name(OperationPath path) {
  switch (path) {
    case OperationPath::kNative:
      return "native";
    case OperationPath::kEmulated:
      return "emulated";
    case OperationPath::kUnsupported:
      return "unsupported";
  }
  return "unknown";
}

absl::StatusOr<LaunchedWorld> Backend::FindLaunchedWorld() const {
  return absl::UnimplementedError(
      absl::StrCat("backend ", info().name, " has no launcher of its own"));
}

absl::StatusOr<std::string> Backend::Bootstrap(absl::string_view,
                                               Deadline) const {
  return absl::UnimplementedError(
      absl::StrCat("backend ", info().name, " has no launcher of its own"));
}

}  // namespace sherd
