#ifndef SHERD_BACKENDS_HOST_PLUGIN_ENTRY_H_
#define SHERD_BACKENDS_HOST_PLUGIN_ENTRY_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/device_abi.h"
#include "sherd/backends/host/plugin_call.h"
#include "sherd/backends/host/plugin_file.h"
#include "sherd/backends/host/plugin_host.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {

// Finds and checks a plugin's table by name, alike for both kinds of plugins:
// `Table` is sherd_plugin_v0 or sherd_device_v0. Any thread.

template <typename Table>
struct PluginKind;

template <>
struct PluginKind<sherd_plugin_v0> {
  static constexpr absl::string_view kNoun = "backend";
  static constexpr absl::string_view kFilePrefix = "libsherd_backend_";
  static constexpr char kEntry[] = "sherd_get_plugin_v0";
};

template <>
struct PluginKind<sherd_device_v0> {
  static constexpr absl::string_view kNoun = "device plugin";
  static constexpr absl::string_view kFilePrefix = "libsherd_device_";
  static constexpr char kEntry[] = "sherd_get_device_v0";
};

inline constexpr absl::string_view kLinkedStatically = "linked statically";

// Returns OK if a plugin of this version of the ABI works in this program:
// until 1.0, if major and minor version are equal.
//   kFailedPrecondition  Otherwise. The message contains `origin`, both
//                        versions, and what to do.
absl::Status CheckVersion(int major, int minor, absl::string_view origin);

// The error for a plugin that returned no table.
absl::Status NoTable(absl::string_view origin);

// A table as a plugin returned it; may be null. `origin` is the path of the
// plugin, or kLinkedStatically.
template <typename Table>
struct PluginTable {
  const Table* table;
  std::string origin;
};

// Returns OK if there is a table of this version. Nothing else of the table may
// be read before.
template <typename Table>
absl::Status CheckTable(const Table* table, absl::string_view origin) {
  if (table == nullptr) return NoTable(origin);
  return CheckVersion(table->major, table->minor, origin);
}

// Calls a plugin's entry.
//   kFailedPrecondition  It threw an exception.
template <typename Table>
absl::StatusOr<PluginTable<Table>> CallEntry(
    typename StaticPlugin<Table>::Entry entry, std::string origin) {
  PluginTable<Table> opened = {nullptr, std::move(origin)};
  sherd_error_v0 error = NoError();
  if (Guarded(&error, [&] {
        opened.table = entry(&PluginHost());
        return SHERD_OK;
      }) != SHERD_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat(opened.origin, ": ", error.text));
  }
  return opened;
}

// Opens the plugin in `path`. Errors as for OpenPluginFile and CallEntry.
template <typename Table>
absl::StatusOr<PluginTable<Table>> OpenPlugin(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(void* const entry,
                         OpenPluginFile(path, PluginKind<Table>::kEntry));
  return CallEntry<Table>(
      reinterpret_cast<typename StaticPlugin<Table>::Entry>(entry), path);
}

template <typename Table>
std::string PluginFileNameOf(absl::string_view name) {
  return absl::StrCat(PluginKind<Table>::kFilePrefix, name, ".so");
}

// Finds the plugin `name`: linked statically, or in the first of `directories`
// that has its file.
//   kNotFound            No directory has it; the message lists what was
//                        searched.
//   kFailedPrecondition  As for OpenPlugin and CheckTable; or the file contains
//                        a plugin of another name.
template <typename Table>
absl::StatusOr<PluginTable<Table>> FindPlugin(
    absl::string_view name, absl::Span<const std::string> directories) {
  // The size is checked where the rest of the table is read.
  const auto has_name = [](const Table& table) {
    return table.struct_size == sizeof(Table) && table.name != nullptr;
  };
  for (const auto* plugin = StaticPlugin<Table>::Head(); plugin != nullptr;
       plugin = plugin->next) {
    absl::StatusOr<PluginTable<Table>> linked =
        CallEntry<Table>(plugin->entry, std::string(kLinkedStatically));
    if (linked.ok() && CheckTable(linked->table, linked->origin).ok() &&
        has_name(*linked->table) && linked->table->name == name) {
      return linked;
    }
  }
  SHERD_ASSIGN_OR_RETURN(
      const std::string path,
      FindPluginFile(PluginFileNameOf<Table>(name), directories));
  SHERD_ASSIGN_OR_RETURN(PluginTable<Table> opened, OpenPlugin<Table>(path));
  SHERD_RETURN_IF_ERROR(CheckTable(opened.table, opened.origin));
  if (has_name(*opened.table) && opened.table->name != name) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " holds the ", PluginKind<Table>::kNoun, " \"",
                     opened.table->name, "\", expected \"", name, "\""));
  }
  return opened;
}

template <typename Table>
struct ListedPlugin {
  // The name in the file's name; "(unnamed)" if it is linked statically.
  std::string name;
  std::string origin;
  absl::StatusOr<PluginTable<Table>> opened;
};

// Opens all plugins that are linked statically or in the search path.
template <typename Table>
std::vector<ListedPlugin<Table>> ListPlugins() {
  std::vector<ListedPlugin<Table>> listed;
  for (const auto* plugin = StaticPlugin<Table>::Head(); plugin != nullptr;
       plugin = plugin->next) {
    const std::string origin(kLinkedStatically);
    listed.push_back(
        {"(unnamed)", origin, CallEntry<Table>(plugin->entry, origin)});
  }
  for (const PluginFile& file :
       ListPluginFiles(PluginKind<Table>::kFilePrefix)) {
    listed.push_back({file.name, file.path, OpenPlugin<Table>(file.path)});
  }
  return listed;
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_PLUGIN_ENTRY_H_
