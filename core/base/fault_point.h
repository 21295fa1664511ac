#ifndef SHERD_CORE_BASE_FAULT_POINT_H_
#define SHERD_CORE_BASE_FAULT_POINT_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

// Points in this library at which a test can inject a fault; tests use
// sherd/testing/faults.h. Only the process itself can arm one.
//
// Cost. While no handler is set, passing a point is a load and a branch.
//
// Threads. Everything here is safe from any thread.
enum class FaultPoint : int {
  kBeforeMeeting,
  kAfterMeeting,
  kBeforeConnecting,
  kAfterConnecting,
  kNewGroup,
  kBeforeComparison,
  kBeforePost,
  kPluginPost,
  kAfterPost,
  kAfterCompletion,  // Of calls on host memory only.
  kAbort,
  kDestroy,
  kStoreSet,
  kStoreGet,
  kStoreAdd,
  kStoreCompareSet,
  kStoreDelete,
  kStoreDeletePrefix,
  kStoreRetire,
  kStoreWait,
  kStoreMultiGet,
  kStoreContains,
  kAllocate,
  kShardImport,
  kBeforeShardCopy,
  kAfterShardCopy,
  kFileOpenForRead,
  kFileCreate,
  kFileRead,
  kFileWrite,
  kFileSize,
  kFileReserve,
  kFileStartWriteback,
  kFileSync,
  kFileClose,
  kFileCreateDirectories,
  kFileRename,
  kFileRenameNew,
  kFileRemove,
  kFileRemoveAll,
  kFileList,
  kFileSyncDirectory,
  kFileKind,
  kFileFreeBytes,
  kFramePartSent,
  kRpcBeforeConnecting,
  kRpcBeforeHello,
  kRpcBeforeHelloReply,
  kRpcBeforeRequest,
  kRpcAfterRequest,
  kRpcBeforeHandler,
  kRpcBeforeReply,
  kRpcAfterReply,
  kRpcBeforeDrain,
  kRpcAfterDrain,
};

struct FaultPointInfo {
  FaultPoint point;
  // "comm/after_post"
  absl::string_view name;
  absl::string_view where;
  // A fault can fail the operation; otherwise it can only delay the operation
  // or end the process.
  bool can_fail;
  // A fault can drop the operation, as if it had been done.
  bool can_be_lost;
};

// The whole table, in the order of `FaultPoint`.
absl::Span<const FaultPointInfo> AllFaultPoints();
const FaultPointInfo& GetFaultPointInfo(FaultPoint point);

// One passage of a point.
struct FaultPassage {
  FaultPoint point;
  // The job rank; -1 where the library does not know it.
  int rank = -1;
  // The collective, key, path, group, worker or method that the operation
  // concerns.
  absl::string_view subject = {};
  // How much is allocated, read or written.
  uint64_t bytes = 0;
  // Not null where the operation can be dropped: set it to true to drop it.
  bool* lost = nullptr;
};

// Called at a passage, on the thread that passes. Where the point can fail, an
// error that it returns becomes the operation's error.
using FaultHandler = std::function<absl::Status(const FaultPassage&)>;

// Replaces the handler; null removes it. Threads may still run the former one:
// its data must live as long as its copies.
void SetFaultHandler(FaultHandler handler);

namespace internal {
extern std::atomic<bool> fault_points_armed;
absl::Status CallFaultHandler(const FaultPassage& passage);
}  // namespace internal

inline bool FaultPointsAreArmed() {
  return internal::fault_points_armed.load(std::memory_order_relaxed);
}

inline absl::Status MaybeInjectFault(const FaultPassage& passage) {
  if (FaultPointsAreArmed()) [[unlikely]] {
    return internal::CallFaultHandler(passage);
  }
  return absl::OkStatus();
}

}  // namespace sherd

#endif  // SHERD_CORE_BASE_FAULT_POINT_H_
