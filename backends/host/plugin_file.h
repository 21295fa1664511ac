#ifndef SHERD_BACKENDS_HOST_PLUGIN_FILE_H_
#define SHERD_BACKENDS_HOST_PLUGIN_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

// Directories in which plugins are looked for, in this order: those of
// SHERD_PLUGIN_PATH, then the program's own.
std::vector<std::string> PluginSearchPath();

namespace internal {

// Plugins as files: one shared object each, PREFIX NAME ".so".

// Whether a plugin may be called so: 1 to 64 of a-z, 0-9 and '_'. No path is.
bool IsPluginName(absl::string_view name);

// The file of the first directory that has it.
//   kNotFound  None has: lists what was tried.
absl::StatusOr<std::string> FindPluginFile(
    absl::string_view file, absl::Span<const std::string> directories);

struct PluginFile {
  std::string name;
  std::string path;
};

// Everything in the search path that is called like a plugin.
std::vector<PluginFile> ListPluginFiles(absl::string_view prefix);

// Opens a plugin, never to close it, and finds its entry. The file is checked
// before, since opening a truncated one ends the process.
//   kFailedPrecondition  Not an ELF file for this machine, truncated, not
//                        loadable, or without the entry. Says which.
absl::StatusOr<void*> OpenPluginFile(const std::string& path,
                                     const char* entry);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_BACKENDS_HOST_PLUGIN_FILE_H_
