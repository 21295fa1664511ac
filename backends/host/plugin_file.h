#ifndef SHERD_BACKENDS_HOST_PLUGIN_FILE_H_
#define SHERD_BACKENDS_HOST_PLUGIN_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

// The directories that are searched for plugins, in order: those of
// SHERD_PLUGIN_PATH, then the program's own.
std::vector<std::string> PluginSearchPath();

namespace internal {

// Plugins as files: one shared object each, PREFIX NAME ".so".

// Returns whether `name` is a valid name of a plugin: 1 to 64 of a-z, 0-9 and
// '_'. Therefore it is not a path.
bool IsPluginName(absl::string_view name);

// The path of the plugin's file in the first directory that has it.
//   kNotFound  No directory has it; the message lists what was tried.
absl::StatusOr<std::string> FindPluginFile(
    absl::string_view file, absl::Span<const std::string> directories);

struct PluginFile {
  std::string name;
  std::string path;
};

// All files in the search path that are named like plugins.
std::vector<PluginFile> ListPluginFiles(absl::string_view prefix);

// Opens a plugin, never to close it, and finds its entry. The file is checked
// before, since opening a truncated one ends the process.
//   kFailedPrecondition  Not an ELF file for this machine, truncated, not
//                        loadable, or without the entry; the message names the
//                        reason.
absl::StatusOr<void*> OpenPluginFile(const std::string& path,
                                     const char* entry);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_BACKENDS_HOST_PLUGIN_FILE_H_
