#ifndef SHERD_BACKENDS_HOST_LOADER_H_
#define SHERD_BACKENDS_HOST_LOADER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/host/plugin_file.h"
#include "sherd/core/comm/channel/backend.h"

namespace sherd {

// Linking this target installs it in the BackendRegistry, through which Init
// finds backends by name.

// "libsherd_backend_NAME.so".
std::string PluginFileName(absl::string_view name);

// Loads the backend `name`: linked statically, or from the first of
// `directories` that has its file. The file is checked before it is opened,
// since opening a truncated one ends the process; it is never closed.
//   kNotFound            "Backend NAME not supported!"; lists what was
//                        searched.
//   kFailedPrecondition  The file exists but is not usable: not an ELF file for
//                        this machine, truncated, without the entry, of another
//                        version, or incomplete. The message names the reason.
//   kInvalidArgument     A name may contain a-z, 0-9 and '_' only.
absl::StatusOr<std::unique_ptr<Backend>> LoadBackend(
    absl::string_view name, absl::Span<const std::string> directories);

// Loads the plugin in `path`. Errors as for LoadBackend.
absl::StatusOr<std::unique_ptr<Backend>> LoadPlugin(const std::string& path);

// Wraps a table; `origin` is for messages.
//   kFailedPrecondition  The table has another version, or lacks entries.
absl::StatusOr<std::unique_ptr<Backend>> AdaptPlugin(
    const sherd_plugin_v0* plugin, std::string origin);

struct PluginReport {
  std::string name;
  std::string origin;
  std::string library_version;
  // OK, or why the plugin was not loaded or cannot work here.
  absl::Status status;
};

// Reports on all plugins that are linked statically or in the search path.
std::vector<PluginReport> ReportPlugins();

}  // namespace sherd

#endif  // SHERD_BACKENDS_HOST_LOADER_H_
