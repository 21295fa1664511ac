#ifndef SHERD_SERIALIZATION_MANIFEST_DIRECTORY_NAMES_H_
#define SHERD_SERIALIZATION_MANIFEST_DIRECTORY_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

// The names of files in a checkpoint's directory; see "A checkpoint" in
// FORMAT.md. Nothing here looks at a file.

// In the directory while a save runs.
inline constexpr char kLeaseFileName[] = "lease.sherd";

// Manifests: kManifestFileName, and "step-", 20 decimal digits and ".sherd" for
// a step of a series, so that names are in the order of steps.

// `step` is 0 or more.
std::string StepManifestName(int64_t step);

// The step whose manifest has this name; nullopt for all other names.
std::optional<int64_t> StepOfManifestName(absl::string_view name);

// kManifestFileName, or that of a step.
bool IsManifestName(absl::string_view name);

// The temporary name of a manifest that is not committed, of any save.
bool IsStagedManifestName(absl::string_view name);
std::string StagedManifestName(absl::string_view save_id);

// An empty file of this name says that a checkpoint was committed in the
// directory: data files without a manifest are then not those of a first save
// that ended early.
inline constexpr char kCommittedFileName[] = "committed.pin";

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
// shows, or a directory whose manifest is kManifestFileName.
ManifestPlace PlaceOfManifest(const std::string& path);

// Whether a text has the form of a save's identifier: 16 hexadecimal digits,
// lower case.
bool IsSaveId(absl::string_view text);

// The name of the data file of `rank`, and whether a name is of that form.
std::string DataFileName(int rank, int world_size, absl::string_view save_id);
bool IsDataFileName(absl::string_view name);

// The name under which a data file is written that is copied to another
// directory, until it is whole: of that copy alone, whose number is `copy_id`.
std::string UnfinishedCopyName(absl::string_view data_file,
                               absl::string_view copy_id);

// Whether a name is one that a save gives to its data files and temporary
// files, and may therefore remove.
bool IsSaveFileName(absl::string_view name);

// Whether a directory has lost all of its manifests, of its names, sorted: one
// was committed, none is there, and data files are.
bool AllManifestsAreLost(absl::Span<const std::string> names);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_DIRECTORY_NAMES_H_
