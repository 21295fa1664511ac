#ifndef SHERD_CORE_BASE_FAULT_POINT_H_
#define SHERD_CORE_BASE_FAULT_POINT_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

// Places in this library at which a test can make something go wrong; tests use
// sherd/testing/faults.h. Nothing outside the process can arm one.
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
  kAfterCompletion,
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
  kFileSync,
  kFileCreateDirectories,
  kFileRename,
  kFileRemove,
  kFileRemoveAll,
  kFileList,
  kFileSyncDirectory,
  kFileFreeBytes,
};

struct FaultPointInfo {
  FaultPoint point;
  // "comm/after_post"
  absl::string_view name;
  absl::string_view where;
  // The operation can be made to fail; otherwise it can only take its time, or
  // the process end.
  bool can_fail;
  // The operation can be left out, as if it had been done.
  bool can_be_lost;
};

// The whole table, in the order of `FaultPoint`.
absl::Span<const FaultPointInfo> AllFaultPoints();
const FaultPointInfo& GetFaultPointInfo(FaultPoint point);

// One passage of a point.
struct FaultPassage {
  FaultPoint point;
  // Among all ranks of the job; -1 where the library does not know it.
  int rank = -1;
  // The collective, the key, the path or the group that it is about.
  absl::string_view subject = {};
  // How much is allocated, read or written.
  uint64_t bytes = 0;
  // Where the operation can be lost: to be set to true for that.
  bool* lost = nullptr;
};

// What happens at a passage, on the thread that passes. An error that it
// returns is the operation's, where the point can fail.
using FaultHandler = std::function<absl::Status(const FaultPassage&)>;

// Replaces the handler; null takes it away. Threads that are in the former one
// stay there: what it needs must live as long as its copies.
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
