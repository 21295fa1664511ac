#include "sherd/backends/host/plugin_entry.h"

namespace sherd::internal {

absl::Status CheckVersion(int major, int minor, absl::string_view origin) {
  if (major == SHERD_ABI_MAJOR && minor == SHERD_ABI_MINOR) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      origin, ": built for plugin ABI ", major, ".", minor, ", expected ",
      SHERD_ABI_MAJOR, ".", SHERD_ABI_MINOR,
      ", that of this program; rebuild the plugin against this Sherd"));
}

absl::Status NoTable(absl::string_view origin) {
  return absl::FailedPreconditionError(absl::StrCat(
      origin, ": the plugin reports that it cannot work with plugin ABI ",
      SHERD_ABI_MAJOR, ".", SHERD_ABI_MINOR));
}

}  // namespace sherd::internal
