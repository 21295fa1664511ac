#ifndef SHERD_SERIALIZATION_CHECKPOINT_SERIES_STEP_COPIER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SERIES_STEP_COPIER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/background_group.h"
#include "sherd/serialization/checkpoint/series/manifest_index.h"
#include "sherd/serialization/checkpoint/series/retention.h"

namespace sherd {

struct StepCopierOptions {
  // Directories that all ranks see.
  std::string from;
  std::string to;
  RetentionRule retention;
  // files, sync, max_unsynced_bytes, timeout and lease_duration are used.
  SaveOptions save;
};

// One rank's part of copying the steps of a series to a second directory, one
// at a time: each rank copies some of the files, reads each copy back and
// checks it by its checksums, and rank 0 then places the manifest, as a save
// does. A file that the second directory has for an earlier step is not copied
// again.
//
// Collective. All ranks of `group` make the same calls.
//
// Threads. One thread at a time; the copies run on a thread of their own, over
// a group of their own.
class StepCopier {
 public:
  // Collective: creates a group of the ranks of `group`.
  static absl::StatusOr<std::unique_ptr<StepCopier>> Create(
      ProcessGroup& group, StepCopierOptions options);

  StepCopier(const StepCopier&) = delete;
  StepCopier& operator=(const StepCopier&) = delete;
  // Waits for a copy that runs.
  ~StepCopier();

  // Begins to copy a step that is in the first directory, after the one before
  // has ended.
  void Start(int64_t step);

  // The same on this thread: returns when the step is copied.
  void Run(int64_t step);

  // Returns when no copy runs.
  void Wait();

  // After Wait(): the first error since the last call. All ranks have the same.
  // It begins with `copy "TO" step N: `. What was copied of that step is
  // removed by the copy of a later one.
  absl::Status TakeError();

 private:
  StepCopier(BackgroundGroup group, StepCopierOptions options);

  // On the thread.
  absl::Status Copy(int64_t step);

  const BackgroundGroup group_;
  const StepCopierOptions options_;
  // Of the second directory.
  const std::shared_ptr<ManifestIndex> index_;
  // Not joinable: no copy runs, and the others belong to the caller's thread.
  std::thread thread_;
  absl::Status error_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SERIES_STEP_COPIER_H_
