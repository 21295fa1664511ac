#include "sherd/serialization/manifest/manifest_names.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {
namespace {

constexpr char kPrefix[] = "step-";
constexpr char kManifestSuffix[] = ".sherd";
constexpr char kPinSuffix[] = ".pin";
constexpr size_t kDigits = 20;

std::optional<int64_t> StepIn(absl::string_view name,
                              absl::string_view suffix) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) ||
      !absl::ConsumeSuffix(&name, suffix) || name.size() != kDigits ||
      !std::all_of(name.begin(), name.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(name, &step)) {
    return std::nullopt;
  }
  return step;
}

}  // namespace

std::string StepManifestName(int64_t step) {
  return absl::StrFormat("%s%020d%s", kPrefix, step, kManifestSuffix);
}

std::optional<int64_t> StepOfManifestName(absl::string_view name) {
  return StepIn(name, kManifestSuffix);
}

bool IsManifestName(absl::string_view name) {
  return name == kManifestFileName || StepOfManifestName(name).has_value();
}

std::string StepPinName(int64_t step) {
  return absl::StrFormat("%s%020d%s", kPrefix, step, kPinSuffix);
}

std::optional<int64_t> StepOfPinName(absl::string_view name) {
  return StepIn(name, kPinSuffix);
}

ManifestPlace PlaceOfManifest(const std::string& path) {
  const absl::string_view last =
      absl::string_view(path).substr(path.rfind('/') + 1);
  if (!IsManifestName(last)) return {path, kManifestFileName};
  return {ParentDirectory(path), std::string(last)};
}

}  // namespace sherd
