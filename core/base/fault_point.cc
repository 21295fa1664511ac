#include "sherd/core/base/fault_point.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sherd {
namespace {

using P = FaultPoint;

constexpr FaultPointInfo kPoints[] = {
    {P::kBeforeMeeting, "comm/before_meeting",
     "Init, before it looks for the other ranks", true, false},
    {P::kAfterMeeting, "comm/after_meeting",
     "Init, with the store that the ranks share", true, false},
    {P::kBeforeConnecting, "comm/before_connecting",
     "Init and NewGroup, all ranks known, before the backend connects them",
     true, false},
    {P::kAfterConnecting, "comm/after_connecting",
     "Init and NewGroup, connected to all ranks", true, false},
    {P::kNewGroup, "comm/new_group",
     "NewGroup and Split, before the other ranks are notified", true, false},
    {P::kBeforeComparison, "comm/before_comparison",
     "a collective, before it is compared with other ranks' calls", true,
     false},
    {P::kBeforePost, "comm/before_post",
     "a collective, send or receive, before the backend gets it", true, false},
    {P::kPluginPost, "plugin/post",
     "the same, in the call of the backend's plugin", true, false},
    {P::kAfterPost, "comm/after_post",
     "a collective, send or receive, with the backend, before its end is "
     "waited for",
     true, false},
    {P::kAfterCompletion, "comm/after_completion",
     "a collective, send or receive on host memory that has ended well", true,
     false},
    {P::kAbort, "comm/abort", "Abort, before any rank is notified", false,
     false},
    {P::kDestroy, "comm/destroy",
     "Destroy, before the other ranks are notified", false, false},
    {P::kStoreSet, "store/set", "Store::Set", true, true},
    {P::kStoreGet, "store/get", "Store::Get", true, false},
    {P::kStoreAdd, "store/add", "Store::Add", true, false},
    {P::kStoreCompareSet, "store/compare_set", "Store::CompareSet", true,
     false},
    {P::kStoreDelete, "store/delete", "Store::Delete", true, false},
    {P::kStoreDeletePrefix, "store/delete_prefix", "Store::DeletePrefix", true,
     false},
    {P::kStoreRetire, "store/retire", "Store::Retire", true, true},
    {P::kStoreWait, "store/wait", "Store::Wait, for its first key", true,
     false},
    {P::kStoreMultiGet, "store/multi_get", "Store::MultiGet, for its first key",
     true, false},
    {P::kStoreContains, "store/contains", "Store::Contains", true, false},
    {P::kAllocate, "tensor/allocate", "Storage::Allocate", true, false},
    {P::kShardImport, "sharding/import",
     "a direct move, before it maps a shard of another rank", true, false},
    {P::kBeforeShardCopy, "sharding/before_copy",
     "a direct move that all ranks have agreed on, before it copies", true,
     false},
    {P::kAfterShardCopy, "sharding/after_copy",
     "a direct move that has copied, before the other ranks are notified", true,
     false},
    {P::kFileOpenForRead, "file/open_for_read", "FileSystem::OpenForRead", true,
     false},
    {P::kFileCreate, "file/create", "FileSystem::Create", true, false},
    {P::kFileRead, "file/read", "File::ReadAt, and each read of ReadMany", true,
     false},
    {P::kFileWrite, "file/write", "File::WriteAt, half of it written", true,
     false},
    {P::kFileSize, "file/size", "File::Size", true, false},
    {P::kFileReserve, "file/reserve", "File::Reserve", true, false},
    {P::kFileStartWriteback, "file/start_writeback", "File::StartWriteback",
     true, false},
    {P::kFileSync, "file/sync", "File::Sync", true, true},
    {P::kFileClose, "file/close", "File::Close", true, false},
    {P::kFileCreateDirectories, "file/create_directories",
     "FileSystem::CreateDirectories", true, false},
    {P::kFileRename, "file/rename", "FileSystem::Rename, for the new name",
     true, false},
    {P::kFileRenameNew, "file/rename_new",
     "FileSystem::RenameNew, for the new name", true, false},
    {P::kFileRemove, "file/remove", "FileSystem::Remove", true, false},
    {P::kFileRemoveAll, "file/remove_all", "FileSystem::RemoveAll", true,
     false},
    {P::kFileList, "file/list", "FileSystem::List", true, false},
    {P::kFileSyncDirectory, "file/sync_directory", "FileSystem::SyncDirectory",
     true, true},
    {P::kFileKind, "file/kind",
     "FileSystem::KindOf, also for Exists and IsDirectory", true, false},
    {P::kFileFreeBytes, "file/free_bytes", "FileSystem::FreeBytes", true,
     false},
    {P::kFramePartSent, "net/part_sent",
     "a frame of which the system has taken a part", false, false},
    {P::kRpcBeforeConnecting, "rpc/before_connecting",
     "a connection with a worker, before it is dialed", true, false},
    {P::kRpcBeforeHello, "rpc/before_hello",
     "the same, connected, before this worker identifies itself", true, false},
    {P::kRpcBeforeHelloReply, "rpc/before_hello_reply",
     "the same on the other worker, before it answers", true, false},
    {P::kRpcBeforeRequest, "rpc/before_request",
     "a call, before its request is sent", true, true},
    {P::kRpcAfterRequest, "rpc/after_request",
     "a call whose request is sent or queued", false, false},
    {P::kRpcBeforeHandler, "rpc/before_handler",
     "a call on the worker that is called, before its handler runs", true,
     false},
    {P::kRpcBeforeReply, "rpc/before_reply",
     "the same, before the reply is sent", true, true},
    {P::kRpcAfterReply, "rpc/after_reply",
     "the same, with the reply sent or queued", false, false},
    {P::kRpcBeforeDrain, "rpc/before_drain",
     "RpcAgent::Shutdown, before it waits for the others", false, false},
    {P::kRpcAfterDrain, "rpc/after_drain",
     "RpcAgent::Shutdown, no call left, before the goodbye", false, false},
};

constexpr bool IsInOrder() {
  int index = 0;
  for (const FaultPointInfo& info : kPoints) {
    if (static_cast<int>(info.point) != index++) return false;
  }
  return index == static_cast<int>(P::kRpcAfterDrain) + 1;
}
static_assert(IsInOrder());

struct Armed {
  absl::Mutex mutex;
  // Shared with the threads that are in it.
  std::shared_ptr<const FaultHandler> handler ABSL_GUARDED_BY(mutex);
};

Armed& GetArmed() {
  static Armed* const armed = new Armed;
  return *armed;
}

}  // namespace

absl::Span<const FaultPointInfo> AllFaultPoints() { return kPoints; }

const FaultPointInfo& GetFaultPointInfo(FaultPoint point) {
  return kPoints[static_cast<int>(point)];
}

void SetFaultHandler(FaultHandler handler) {
  Armed& armed = GetArmed();
  absl::MutexLock lock(&armed.mutex);
  internal::fault_points_armed.store(handler != nullptr,
                                     std::memory_order_relaxed);
  armed.handler =
      handler == nullptr
          ? nullptr
          : std::make_shared<const FaultHandler>(std::move(handler));
}

namespace internal {

std::atomic<bool> fault_points_armed{false};

absl::Status CallFaultHandler(const FaultPassage& passage) {
  std::shared_ptr<const FaultHandler> handler;
  {
    Armed& armed = GetArmed();
    absl::MutexLock lock(&armed.mutex);
    handler = armed.handler;
  }
  return handler == nullptr ? absl::OkStatus() : (*handler)(passage);
}

}  // namespace internal
}  // namespace sherd
