#include "sherd/tools/sherd/checkpoint/verification.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/units.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/tools/sherd/checkpoint/inspection.h"

namespace sherd {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;

// Finds sectors that cannot be read.
absl::Status ReadAll(FileSystem& files, const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         files.OpenForRead(path));
  SHERD_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  std::vector<std::byte> buffer(std::min(size, kReadBytes));
  for (int64_t offset = 0; offset < size; offset += kReadBytes) {
    const size_t length = std::min(kReadBytes, size - offset);
    SHERD_RETURN_IF_ERROR(
        file->ReadAt(offset, absl::MakeSpan(buffer).first(length)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> VerifyOne(FileSystem& files,
                                      const std::string& path,
                                      SoundChunks* known = nullptr) {
  SHERD_ASSIGN_OR_RETURN(
      const VerifyReport report,
      VerifyCheckpoint(path, {.files = &files, .known = known}));
  return absl::StrCat(path, ": sound: ", report.tensors, " tensors in ",
                      report.files, " files, ", FormatCount(report.bytes),
                      " bytes checked, checksums included");
}

// All of a directory.
absl::StatusOr<std::string> VerifySteps(FileSystem& files,
                                        const Inspection& inspection) {
  std::vector<std::string> paths;
  if (inspection.is_checkpoint) paths.push_back(inspection.path);
  for (const SeriesStep& step : inspection.steps) paths.push_back(step.path);
  std::vector<std::string> lines;
  SoundChunks known;
  absl::Status first;
  int64_t damaged = 0;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> line = VerifyOne(files, path, &known);
    // A save has removed it since.
    if (absl::IsNotFound(line.status())) continue;
    first.Update(line.status());
    if (line.ok()) {
      lines.push_back(*line);
    } else {
      ++damaged;
    }
  }
  SHERD_RETURN_IF_ERROR(WithFurther(first, damaged - 1, "damaged step"));
  return absl::StrJoin(lines, "\n");
}

}  // namespace

absl::StatusOr<std::string> Verify(FileSystem& files, const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Inspection inspection, Inspect(files, path));
  if (!inspection.steps.empty()) return VerifySteps(files, inspection);
  if (!inspection.is_checkpoint) {
    SHERD_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(files, path));
    if (IsDataFile({file.entries(), file.metadata()})) {
      SHERD_ASSIGN_OR_RETURN(const VerifyReport report,
                             VerifyDataFile(path, {.files = &files}));
      return absl::StrCat(path, ": sound: data file of a checkpoint with ",
                          report.tensors, " tensors, ",
                          FormatCount(report.bytes),
                          " bytes checked, checksums included");
    }
    SHERD_RETURN_IF_ERROR(ReadAll(files, path));
    return absl::StrCat(path, ": sound: ", inspection.tensors.size(),
                        " tensors, ", FormatCount(inspection.files[0].bytes),
                        " bytes; header and sizes checked (the format has no "
                        "checksums for the data)");
  }
  return VerifyOne(files, path);
}

absl::Status WithFurther(const absl::Status& first, int64_t further,
                         absl::string_view what) {
  if (first.ok() || further == 0) return first;
  return absl::Status(first.code(),
                      absl::StrCat(first.message(), "; and ", further, " more ",
                                   what, further == 1 ? "" : "s"));
}

}  // namespace sherd
