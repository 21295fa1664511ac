#ifndef SHERD_TOOLS_SHERD_CHECKPOINT_RECOVERY_H_
#define SHERD_TOOLS_SHERD_CHECKPOINT_RECOVERY_H_

#include <string>

#include "absl/status/status.h"
#include "sherd/core/base/file.h"

namespace sherd {

struct Recovery {
  // A line about each manifest that is there again, and each save that was
  // passed over.
  std::string text;
  // The first error, with the number of further ones.
  absl::Status status;
};

// Rebuilds the manifest at `path`, or all that a directory has lost, as
// RecoverManifest and FindLostManifests.
Recovery Recover(FileSystem& files, const std::string& path);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_RECOVERY_H_
