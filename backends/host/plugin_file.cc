#include "sherd/backends/host/plugin_file.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/backends/host/elf_check.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr absl::string_view kSuffix = ".so";

std::string OwnDirectory() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : program.parent_path().string();
}

}  // namespace

std::vector<std::string> PluginSearchPath() {
  const std::string variable = GetKnobOr(Knob::kPluginPath, "");
  std::vector<std::string> directories =
      absl::StrSplit(variable, ':', absl::SkipEmpty());
  directories.push_back(OwnDirectory());
  return directories;
}

namespace internal {

bool IsPluginName(absl::string_view name) {
  return !name.empty() && name.size() <= 64 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

absl::StatusOr<std::string> FindPluginFile(
    absl::string_view file, absl::Span<const std::string> directories) {
  std::vector<std::string> tried;
  for (const std::string& directory : directories) {
    const std::string path = JoinPath(directory, std::string(file));
    const absl::StatusOr<bool> exists = FileSystem::Posix().Exists(path);
    if (exists.ok() && *exists) return path;
    tried.push_back(exists.ok() ? path
                                : std::string(exists.status().message()));
  }
  return absl::NotFoundError(
      absl::StrCat("It is not linked statically, and these do not exist: ",
                   absl::StrJoin(tried, ", "),
                   ". Set SHERD_PLUGIN_PATH to the directory of the plugin"));
}

std::vector<PluginFile> ListPluginFiles(absl::string_view prefix) {
  std::vector<PluginFile> found;
  for (const std::string& directory : PluginSearchPath()) {
    const absl::StatusOr<std::vector<std::string>> files =
        FileSystem::Posix().List(directory);
    if (!files.ok()) continue;
    for (const std::string& file : *files) {
      absl::string_view name = file;
      if (absl::ConsumePrefix(&name, prefix) &&
          absl::ConsumeSuffix(&name, kSuffix)) {
        found.push_back({std::string(name), JoinPath(directory, file)});
      }
    }
  }
  return found;
}

absl::StatusOr<void*> OpenPluginFile(const std::string& path,
                                     const char* entry) {
  SHERD_RETURN_IF_ERROR(CheckSharedObject(path));
  // NOW: a missing symbol of the vendor's library is an error here and not a
  // crash in the first call. LOCAL: plugins bring clashing libraries.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " cannot be loaded: ", dlerror()));
  }
  void* const function = dlsym(handle, entry);
  if (function == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is not a Sherd plugin: it does not export ", entry));
  }
  return function;
}

}  // namespace internal
}  // namespace sherd
