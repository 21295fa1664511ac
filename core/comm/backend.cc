#include "sherd/core/comm/backend.h"

#include <algorithm>

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

bool MovesNothing(const CollectiveDesc& desc) {
  switch (desc.op) {
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kReduce:
      return desc.bytes == 0;
    case CollectiveOp::kReduceScatter:
      if (desc.even) return desc.bytes == 0;
      return std::all_of(desc.sends.begin(), desc.sends.end(),
                         [](ConstBytes block) { return block.empty(); });
    case CollectiveOp::kAllGatherV:
      return std::all_of(desc.recvs.begin(), desc.recvs.end(),
                         [](MutableBytes block) { return block.empty(); });
    default:
      return false;
  }
}

CollectiveDesc InPlaceOfNothing(const CollectiveDesc& desc) {
  return {.op = CollectiveOp::kBarrier,
          .sequence = desc.sequence,
          .deadline = desc.deadline,
          .on_device = desc.on_device,
          .stream = desc.stream};
}

absl::Status Communicator::BeginBatch() {
  return absl::UnimplementedError("the backend has no batches");
}

absl::Status Communicator::EndBatch() {
  return absl::UnimplementedError("the backend has no batches");
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(
    const CommunicatorOptions&, int, int) {
  return absl::UnimplementedError("the backend cannot split a communicator");
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Shrink(
    const CommunicatorOptions&, absl::Span<const int>) {
  return absl::UnimplementedError("the backend cannot shrink a communicator");
}

absl::Status Communicator::Finalize(Deadline) { return absl::OkStatus(); }

absl::StatusOr<void*> Communicator::Register(MutableBytes) { return nullptr; }

void Communicator::Deregister(void*) {}

Allocator* Backend::device_allocator(int) const { return nullptr; }

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
