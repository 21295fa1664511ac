#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_ASYNC_SAVE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_ASYNC_SAVE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_async.h"

namespace sherd {

struct AsyncJobOptions {
  // As in AsyncSaveOptions.
  int64_t staging_budget = 0;
  // Called with the result, before Durable() returns it, on the thread that
  // saves: with an OK status on all ranks or on none. May call collectives of
  // its own group alone. Null: nothing.
  std::function<void(const absl::Status&)> ended = nullptr;
};

// Begins a save as SaveCheckpointAsync does. `job.tensors` is not needed after
// the call, and may be borrowed; its other parts are kept until the save has
// ended. Errors as there.
absl::StatusOr<SaveHandle> StartAsyncSave(SaveJob job,
                                          const AsyncJobOptions& options = {});

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_ASYNC_SAVE_H_
