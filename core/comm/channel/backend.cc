#include "sherd/core/comm/channel/backend.h"

#include "absl/strings/str_cat.h"

namespace sherd {

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

absl::StatusOr<std::shared_ptr<PeerMemory>> Backend::OpenPeerMemory(
    absl::Span<const ProcessIdentity>) const {
  return absl::UnimplementedError(
      absl::StrCat("backend ", info().name, " has no memory of processes"));
}

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
