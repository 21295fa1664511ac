#include "sherd/serialization/checkpoint/series/step_list.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_reader.h"

namespace sherd {
namespace {

absl::Status CheckFiles(FileSystem& files, const AfterRead& after_read,
                        SeriesStep& step) {
  SHERD_ASSIGN_OR_RETURN(const ManifestReader manifest,
                         ManifestReader::Open(files, step.path, after_read));
  step.save_id = manifest.summary().save_id;
  step.files = manifest.num_files();
  ExtentReader reader(manifest, files, after_read);
  absl::Status status;
  for (int32_t i = 0; i < manifest.num_files(); ++i) {
    SHERD_ASSIGN_OR_RETURN(const ManifestFile* const file, manifest.FileAt(i));
    const absl::Status opened = reader.Open(i);
    // A size that no file has may be anything.
    if (opened.ok()) step.bytes += file->size;
    status.Update(opened);
  }
  SHERD_RETURN_IF_ERROR(status);
  // Tensors lie in sections that nothing has read yet.
  return manifest.ReadAll().status();
}

StepNames NamesAmong(absl::Span<const std::string> names,
                     const std::string& directory) {
  StepNames found;
  for (const std::string& name : names) {
    if (const auto step = StepOfManifestName(name)) found.steps.insert(*step);
    if (const auto step = StepOfPinName(name)) found.pinned.insert(*step);
  }
  if (AllManifestsAreLost(names)) found.lost = ManifestsAreLost(directory);
  return found;
}

}  // namespace

SeriesStep LookAtStep(FileSystem& files, const std::string& directory,
                      int64_t number, const AfterRead& after_read) {
  SeriesStep step = {.step = number,
                     .path = JoinPath(directory, StepManifestName(number))};
  step.status = CheckFiles(files, after_read, step);
  return step;
}

bool IsUnsound(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status) || IsLimitError(status);
}

absl::StatusOr<StepNames> ListStepNames(FileSystem& files,
                                        const std::string& directory) {
  // While a save replaces the only manifest, a listing may have none.
  constexpr int kMaxListings = 3;
  StepNames found;
  for (int listing = 0; listing < kMaxListings; ++listing) {
    const absl::StatusOr<std::vector<std::string>> names =
        files.List(directory);
    if (absl::IsNotFound(names.status())) {
      // Also said of a file, which is no series without steps.
      SHERD_ASSIGN_OR_RETURN(const FileKind kind, files.KindOf(directory));
      if (kind == FileKind::kNone || kind == FileKind::kDirectory) {
        return StepNames();
      }
      return absl::FailedPreconditionError(absl::StrCat(
          directory, " is a file, expected the directory of steps"));
    }
    SHERD_RETURN_IF_ERROR(names.status());
    found = NamesAmong(*names, directory);
    if (std::any_of(names->begin(), names->end(), IsManifestName) ||
        std::none_of(names->begin(), names->end(), IsDataFileName)) {
      break;
    }
  }
  return found;
}

absl::StatusOr<std::vector<SeriesStep>> ListSteps(const std::string& directory,
                                                  FileSystem& files) {
  SHERD_ASSIGN_OR_RETURN(const StepNames names,
                         ListStepNames(files, directory));
  SHERD_RETURN_IF_ERROR(names.lost);
  std::vector<SeriesStep> steps;
  for (const int64_t number : names.steps) {
    SeriesStep step = LookAtStep(files, directory, number);
    // A save has removed it since.
    if (absl::IsNotFound(step.status)) continue;
    step.pinned = names.pinned.contains(number);
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::Status PinStep(const std::string& directory, int64_t step,
                     FileSystem& files) {
  const std::string manifest = JoinPath(directory, StepManifestName(step));
  const std::string pin = JoinPath(directory, StepPinName(step));
  const auto check = [&]() -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(const bool exists, files.Exists(manifest));
    if (exists) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("there is no step ", step, ": ",
                                            manifest, " is not there"));
  };
  SHERD_RETURN_IF_ERROR(check());
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(pin));
  SHERD_RETURN_IF_ERROR(file->Sync());
  SHERD_RETURN_IF_ERROR(file->Close());
  const absl::Status synced = files.SyncDirectory(directory);
  if (!absl::IsUnimplemented(synced)) SHERD_RETURN_IF_ERROR(synced);
  // A save may have removed it before it saw the pin.
  const absl::Status there = check();
  if (absl::IsNotFound(there)) files.Remove(pin).IgnoreError();
  return there;
}

absl::Status UnpinStep(const std::string& directory, int64_t step,
                       FileSystem& files) {
  const absl::Status removed =
      files.Remove(JoinPath(directory, StepPinName(step)));
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

}  // namespace sherd
