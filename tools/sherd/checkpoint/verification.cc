#include "sherd/tools/sherd/checkpoint/verification.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
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

}  // namespace

absl::StatusOr<std::string> Verify(FileSystem& files, const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Inspection inspection, Inspect(files, path));
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
  SHERD_ASSIGN_OR_RETURN(const VerifyReport report,
                         VerifyCheckpoint(inspection.path, {.files = &files}));
  return absl::StrCat(path, ": sound: ", report.tensors, " tensors in ",
                      report.files, " files, ", FormatCount(report.bytes),
                      " bytes checked, checksums included");
}

}  // namespace sherd
