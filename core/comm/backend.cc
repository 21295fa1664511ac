#include "sherd/core/comm/backend.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace sherd {

absl::string_view Name(CollectiveOp op) {
  const auto number = static_cast<uint32_t>(op);
  return number < kNumCollectiveOps ? internal::kOperationTraits[number].name
                                    : "unknown";
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
  const internal::OperationTraits& traits = internal::TraitsOf(desc.op);
  if (traits.has_common_bytes) return desc.bytes == 0;
  const auto all_empty = [&desc](const auto& list) {
    return desc.even ? desc.bytes == 0
                     : std::all_of(list.begin(), list.end(),
                                   [](auto block) { return block.empty(); });
  };
  switch (traits.lists) {
    case internal::OperationLists::kSameSends:
      return all_empty(desc.sends);
    case internal::OperationLists::kSameRecvs:
      return all_empty(desc.recvs);
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
