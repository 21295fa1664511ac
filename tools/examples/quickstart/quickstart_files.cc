#include "sherd/tools/examples/quickstart/quickstart_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/units.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/tools/examples/quickstart/model_preset.h"
#include "sherd/tools/examples/quickstart/model_writer.h"
#include "sherd/tools/examples/quickstart/progress.h"
#include "sherd/tools/examples/quickstart/quickstart_report.h"

namespace sherd {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{256} << 20;
// Headers, reports and what the file system itself needs.
constexpr int64_t kSpareBytes = int64_t{64} << 20;

// Whether the file holds exactly the tensors of the preset.
bool IsPreset(FileSystem& files, const std::string& path,
              const std::vector<ModelTensor>& preset) {
  const absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Open(files, path);
  if (!file.ok() || file->entries().size() != preset.size()) return false;
  return std::all_of(
      preset.begin(), preset.end(), [&](const ModelTensor& tensor) {
        const auto entry = file->Find(tensor.info.name);
        return entry.ok() && (*entry)->dtype == tensor.info.dtype &&
               (*entry)->shape == tensor.info.shape;
      });
}

absl::Status RemoveIfThere(FileSystem& files, const std::string& path) {
  const absl::Status status = files.Remove(path);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status RemoveOldResults(FileSystem& files, const QuickstartFiles& paths,
                              bool load_only) {
  for (const std::string& path :
       {paths.gathered(), paths.report_text(), paths.report_json(),
        paths.picture(), paths.failure()}) {
    SHERD_RETURN_IF_ERROR(RemoveIfThere(files, path));
  }
  return load_only ? absl::OkStatus()
                   : RemoveIfThere(files, paths.save_report());
}

absl::Status CheckSpace(FileSystem& files, const std::string& directory,
                        int64_t needed, const std::string& what_for) {
  SHERD_ASSIGN_OR_RETURN(const int64_t available, files.FreeBytes(directory));
  if (available >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      directory, ": ", FormatBytes(needed), " needed for ", what_for,
      ", but only ", FormatBytes(available),
      " free: free some space, or choose another folder with --out=DIR"));
}

// Which model the checkpoint that is there was made from.
std::string SavedModel(FileSystem& files, const QuickstartFiles& paths) {
  const absl::StatusOr<std::string> text =
      ReadFile(files, paths.save_report(), kMaxReportBytes);
  if (!text.ok()) return paths.model();
  const absl::StatusOr<QuickstartReport> report =
      ParseReport(*text, paths.save_report());
  return report.ok() && !report->model.empty() ? report->model : paths.model();
}

absl::Status WritePreset(FileSystem& files, const std::string& path,
                         const std::vector<ModelTensor>& preset) {
  Progress progress(stderr, "making a model", ModelBytes(preset));
  SHERD_RETURN_IF_ERROR(WriteModel(
      files, path, preset,
      {.threads = std::clamp(
           static_cast<int>(std::thread::hardware_concurrency()), 1, 8),
       .on_progress = [&](int64_t bytes, absl::string_view name) {
         progress.Add(bytes, name);
       }}));
  progress.Finish();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckModel(FileSystem& files, const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const bool exists, files.Exists(path));
  if (!exists) {
    return absl::NotFoundError(
        absl::StrCat(path, ": no such file, expected a safetensors model"));
  }
  SHERD_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::Open(files, path));
  return file.size();
}

}  // namespace

absl::StatusOr<std::string> PrepareQuickstart(FileSystem& files,
                                              const PrepareOptions& options) {
  const QuickstartFiles paths(
      std::filesystem::absolute(options.directory).lexically_normal().string());
  SHERD_ASSIGN_OR_RETURN(const bool saved,
                         CheckpointExists(paths.checkpoint(), files));
  if (options.load_only && !saved) {
    return absl::NotFoundError(absl::StrCat(
        paths.checkpoint(),
        ": no checkpoint here to load, run without --load-only first"));
  }
  SHERD_RETURN_IF_ERROR(files.CreateDirectories(paths.directory));
  SHERD_RETURN_IF_ERROR(RemoveOldResults(files, paths, options.load_only));
  SHERD_ASSIGN_OR_RETURN(const std::vector<ModelTensor> preset,
                         ModelPreset(options.preset));
  std::string model = paths.model();
  if (options.model) {
    model = std::filesystem::absolute(*options.model).lexically_normal();
  } else if (options.load_only) {
    model = SavedModel(files, paths);
  } else if (!IsPreset(files, model, preset)) {
    const int64_t bytes = ModelBytes(preset);
    SHERD_RETURN_IF_ERROR(CheckSpace(files, paths.directory,
                                     3 * bytes + kSpareBytes,
                                     "model, checkpoint and gathered copy"));
    SHERD_RETURN_IF_ERROR(WritePreset(files, model, preset));
  }
  SHERD_ASSIGN_OR_RETURN(const int64_t bytes, CheckModel(files, model));
  SHERD_RETURN_IF_ERROR(CheckSpace(
      files, paths.directory, (options.load_only ? 1 : 2) * bytes + kSpareBytes,
      options.load_only ? "the gathered copy"
                        : "checkpoint and gathered copy"));
  return model;
}

void RecordFailure(const QuickstartFiles& files, const std::string& message) {
  const int fd = open(files.failure().c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return;
  const std::string line = message + "\n";
  const ssize_t n = write(fd, line.data(), line.size());
  // The message went to standard error as well, which is all that is left when
  // the disk is full.
  static_cast<void>(n);
  close(fd);
}

}  // namespace sherd
