#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint.h"

namespace sherd {

namespace internal {
class SaveState;
}  // namespace internal

// A save that runs beside the program; see SaveCheckpointAsync. Copying a
// handle is cheap. Destroying it neither waits nor ends the save.
//
// Threads. Safe.
class SaveHandle {
 public:
  // Not a save: both calls return kFailedPrecondition.
  SaveHandle() = default;
  // For the implementation.
  explicit SaveHandle(std::shared_ptr<internal::SaveState> state)
      : state_(std::move(state)) {}

  // Waits until this rank's tensors may change. Not collective. With an error,
  // which is this rank's or that of the save, they may change too.
  absl::Status Copied();

  // Waits for the end of the save, and returns what SaveCheckpoint would: the
  // same on all ranks, each time it is called. Not collective.
  absl::Status Durable();

 private:
  std::shared_ptr<internal::SaveState> state_;
};

struct AsyncSaveOptions {
  // Of those, `files` and `stats` must live until the save has ended.
  SaveOptions save = {};
  // Bounds the memory for copies on this rank, for all saves of the group; 0:
  // as much as one save needs. The same on all ranks is not necessary.
  int64_t staging_budget = 0;
};

// SaveCheckpoint beside the program: copies this rank's shards, and leaves
// writing them to a thread.
//
//   SHERD_ASSIGN_OR_RETURN(SaveHandle save, SaveCheckpointAsync(path,
//   tensors));
//   ... // Tensors are read only.
//   SHERD_RETURN_IF_ERROR(save.Copied());
//   ... // They may change; `path` still is the former checkpoint.
//   SHERD_RETURN_IF_ERROR(save.Durable());
//
// Collective, as SaveCheckpoint, but the call waits for no other rank: the
// ranks meet on a group of their own, made of the same ranks by the first call,
// which is a NewGroup of `group`. Saves of a group run one after another in the
// order of the calls, which is the same on all ranks; so is their place among
// the calls of NewGroup and FlushSaves. Collectives of `group` may run
// meanwhile, and are not disturbed by a failure of the save.
//
// Copies. Only what this rank writes is copied, in the order of its file.
// Shards in host memory are copied in the call, by several threads where the
// host has more cores than ranks, if there is room. Shards on a device are
// copied to pinned memory on a stream of their own, after the work that was
// queued on the device's current stream; Copied() waits for that. For what
// finds no room, because the former save is not written yet or the budget is
// smaller than the save, the thread makes the copies as it frees room, and
// Copied() waits for it. A shard larger than the budget is not copied but
// written from where it is. With check_replicas the comparison's read of the
// replicas is in the call.
//
// Memory. Copies take no more than this rank writes, or the budget. The memory
// is kept for the next save until FlushSaves or the group's end. Tensors are
// referred to until they are copied and former saves have ended, those on
// devices until the save has ended; so is `group`.
//
// Errors. Those of the call are this rank's:
//   kFailedPrecondition  There is no default group; `group` was destroyed, or
//                        this process is not a member of it.
//   kResourceExhausted   The thread cannot be started; nor are later saves
//                        possible until all ranks have called FlushSaves.
//   others               The error of an earlier save of the group that no
//                        Durable() has returned on this rank: each is reported
//                        once, here or by FlushSaves. Nothing is saved: on
//                        ranks whose call succeeded, the handle has the same
//                        error, and no later call reports that. So a failure
//                        that a program never looks at costs one more save, or,
//                        if ranks learn of it at different calls, at most one
//                        for each rank. Or, of the first call, the errors of
//                        NewGroup.
// All others, also those of this rank's tensors, of memory, and of copies, are
// those of SaveCheckpoint and appear at the handles of all ranks. A rank that
// dies or makes no progress for the timeout is named there; later saves then
// fail, too, until all ranks have called FlushSaves.
//
// End. FlushSaves, Destroy() of the group, its destructor and exit() wait for
// the group's saves, each bounded by the timeout of ranks that make no
// progress; all but FlushSaves log an error that was not returned yet. If the
// group has failed, Destroy() and the destructor end the save that runs
// instead. A save that the end of the process cuts off leaves the former
// checkpoint, and files that the next save removes.
//
// Threads. Calls for one group are ordered by the caller.
//
// Cost. In the steady state, that is, for names and layouts as in one of the
// last four saves: one copy of this rank's part into memory that was used
// before, and some time per tensor for the look-up of the plan; from 16 MiB on,
// where cores are free, the start of threads. No collective.
absl::StatusOr<SaveHandle> SaveCheckpointAsync(
    const std::string& path,
    const std::map<std::string, ShardedTensor>& tensors,
    std::shared_ptr<ProcessGroup> group = nullptr,
    const AsyncSaveOptions& options = {});

// The same for a state, as SaveCheckpoint has it. The call is collective on
// `group`: its ranks first agree on what they have, in one small collective in
// the steady state; values that are not tensors are copied at once. Errors of
// that are returned by the call, on all ranks.
absl::StatusOr<SaveHandle> SaveCheckpointAsync(
    const std::string& path, const StateDict& state,
    std::shared_ptr<ProcessGroup> group = nullptr,
    const AsyncSaveOptions& options = {});

// Waits for all saves of `group`, by default the default group, ends their
// thread and frees its memory. The next save begins anew. Returns the first
// error of a save that has not been returned yet on this rank. OK if there was
// no save.
//
// All ranks call it between the same saves, but none waits for another's call.
absl::Status FlushSaves(std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_H_
