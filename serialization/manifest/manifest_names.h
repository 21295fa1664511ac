#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_NAMES_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sherd {

// The names of manifests: kManifestFileName, and "step-", 20 decimal digits and
// ".sherd" for a step of a series, so that names are in the order of steps.

// `step` is 0 or more.
std::string StepManifestName(int64_t step);

// The step whose manifest has this name; nullopt for all other names.
std::optional<int64_t> StepOfManifestName(absl::string_view name);

// kManifestFileName, or that of a step.
bool IsManifestName(absl::string_view name);

// An empty file of this name beside the manifest of a step pins it.
std::string StepPinName(int64_t step);
// The step that a file of this name pins; nullopt for all other names.
std::optional<int64_t> StepOfPinName(absl::string_view name);

// Where a manifest is.
struct ManifestPlace {
  std::string directory;
  std::string name;
};

// That of the checkpoint `path`: the path of a manifest, as its last part
// shows, or a directory whose manifest is kManifestFileName. Looks at no file.
ManifestPlace PlaceOfManifest(const std::string& path);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_NAMES_H_
