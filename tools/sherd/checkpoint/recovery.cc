#include "sherd/tools/sherd/checkpoint/recovery.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/units.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/tools/sherd/checkpoint/verification.h"

namespace sherd {

Recovery Recover(FileSystem& files, const std::string& path) {
  Recovery recovery;
  absl::StatusOr<std::vector<std::string>> lost =
      std::vector<std::string>{path};
  // A directory.
  if (PlaceOfManifest(path).directory == path) {
    lost = FindLostManifests(path, {.files = &files});
  }
  if (!lost.ok()) {
    recovery.status = lost.status();
    return recovery;
  }
  int errors = 0;
  for (const std::string& manifest : *lost) {
    const absl::StatusOr<RecoverReport> report =
        RecoverManifest(manifest, {.files = &files});
    if (!report.ok()) {
      recovery.status.Update(report.status());
      ++errors;
      continue;
    }
    for (const std::string& reason : report->passed_over) {
      absl::StrAppend(&recovery.text, "passed over: ", PrintableLine(reason),
                      "\n");
    }
    absl::StrAppend(&recovery.text, report->path, ": recovered: save ",
                    report->save_id, ", ", FormatCount(report->tensors),
                    " tensors in ", FormatCount(report->files), " files, ",
                    FormatCount(report->bytes), " bytes checked\n");
  }
  recovery.status = WithFurther(recovery.status, errors - 1, "manifest");
  return recovery;
}

}  // namespace sherd
