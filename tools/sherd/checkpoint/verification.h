#ifndef SHERD_TOOLS_SHERD_CHECKPOINT_VERIFICATION_H_
#define SHERD_TOOLS_SHERD_CHECKPOINT_VERIFICATION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"

namespace sherd {

// Checks a safetensors file, a checkpoint or all steps of a series and returns
// a line about the checks of each. A checkpoint is read completely and compared
// with its checksums, but for chunks that a step shares with former ones, and
// so is one of its data files alone; another safetensors file has none, so its
// header is checked and its data is read.
//   kDataLoss  Damage; the message has file, tensor and offset.
//   Otherwise as Inspect.
absl::StatusOr<std::string> Verify(FileSystem& files, const std::string& path);

// An error with the number of further ones of the same kind, if there are any.
absl::Status WithFurther(const absl::Status& first, int64_t further,
                         absl::string_view what);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_VERIFICATION_H_
