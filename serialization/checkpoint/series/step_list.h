#ifndef SHERD_SERIALIZATION_CHECKPOINT_SERIES_STEP_LIST_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SERIES_STEP_LIST_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint_series.h"

namespace sherd {

// The steps of a directory by the names of files alone.
struct StepNames {
  std::set<int64_t> steps;
  // Also of steps that are not there.
  std::set<int64_t> pinned;
  // As ManifestsAreLost, if so.
  absl::Status lost;
};

// Of a directory that is not there, none. Errors from the file system.
absl::StatusOr<StepNames> ListStepNames(FileSystem& files,
                                        const std::string& directory);

// Called after each operation on a file; its error ends the work.
using AfterRead = std::function<absl::Status()>;

// A step, without `pinned`; its status is kNotFound if it is not there.
//
// Cost. Reads the manifest, opens each file, and takes memory for all shards.
SeriesStep LookAtStep(FileSystem& files, const std::string& directory,
                      int64_t number, const AfterRead& after_read = nullptr);

// Whether the status of a step says that it is not one, for good; otherwise the
// file system gave no answer.
bool IsUnsound(const absl::Status& status);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SERIES_STEP_LIST_H_
