#ifndef SHERD_TOOLS_SHERD_CHECKPOINT_VERIFICATION_H_
#define SHERD_TOOLS_SHERD_CHECKPOINT_VERIFICATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

// Checks a safetensors file or a checkpoint and returns a line about the
// checks. A checkpoint is read completely and compared with its checksums, and
// so is one of its data files alone; another safetensors file has none, so its
// header is checked and its data is read.
//   kDataLoss  Damage; the message has file, tensor and offset.
//   Otherwise as Inspect.
absl::StatusOr<std::string> Verify(FileSystem& files, const std::string& path);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_VERIFICATION_H_
