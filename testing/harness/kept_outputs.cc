#include "sherd/testing/harness/kept_outputs.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"

namespace sherd::testing::internal {
namespace {

constexpr int kMostRunsOfATest = 1000;

bool HasFiles(const std::string& directory) {
  std::error_code error;
  return !directory.empty() && !std::filesystem::is_empty(directory, error) &&
         !error;
}

// A new directory; empty if there can be none.
std::string MakeDirectoryFor(const std::string& parent,
                             absl::string_view test) {
  std::string name(test);
  // Tests with parameters have such names.
  std::replace(name.begin(), name.end(), '/', '_');
  for (int run = 1; run <= kMostRunsOfATest; ++run) {
    const std::string path =
        JoinPath(parent, run == 1 ? name : absl::StrCat(name, ".", run));
    if (mkdir(path.c_str(), 0755) == 0) return path;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace

std::string KeepOutputs(absl::string_view test, const RunFiles& files) {
  const std::string parent = GetKnobOr(Knob::kTestOutputsDir, "");
  if (parent.empty() || (!HasFiles(files.outputs) && !HasFiles(files.flights)))
    return "";
  std::string path = MakeDirectoryFor(parent, test);
  if (path.empty()) return "";
  for (const std::string& source : {files.outputs, files.flights}) {
    if (!HasFiles(source)) continue;
    std::error_code error;
    std::filesystem::copy(source, path,
                          std::filesystem::copy_options::recursive, error);
  }
  return path;
}

}  // namespace sherd::testing::internal
