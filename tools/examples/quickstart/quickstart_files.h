#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_FILES_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_FILES_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

// The folder of a quickstart and what is in it.
struct QuickstartFiles {
  explicit QuickstartFiles(std::string folder) : directory(std::move(folder)) {}

  std::string directory;

  std::string model() const { return In("model.safetensors"); }
  std::string checkpoint() const { return In("checkpoint"); }
  std::string gathered() const { return In("gathered.safetensors"); }
  // Data of the saving half for the loading half.
  std::string save_report() const { return In("save.json"); }
  std::string report_text() const { return In("report.txt"); }
  std::string report_json() const { return In("report.json"); }
  std::string picture() const { return In("layout.svg"); }
  // The first error of any rank.
  std::string failure() const { return In("failure.txt"); }

 private:
  std::string In(const char* name) const { return JoinPath(directory, name); }
};

struct PrepareOptions {
  std::string directory;
  // The user's model, if there is one.
  std::optional<std::string> model;
  // Whether only the loading half follows.
  bool load_only = false;
  // The model that is made if there is none.
  std::string preset = "gpt2";
};

// Makes the folder ready and returns the path of the model: the user's; for the
// loading half the one that was saved; otherwise that of the preset, which is
// written unless it exists already. Removes the files of a former run, except
// model and checkpoint.
//   kResourceExhausted  There is not enough space; names the space needed.
//   kNotFound           There is no such model, or no checkpoint to load.
//   Otherwise as SafetensorsFile::Open.
absl::StatusOr<std::string> PrepareQuickstart(FileSystem& files,
                                              const PrepareOptions& options);

// Writes `message` to the failure file unless another rank was first.
void RecordFailure(const QuickstartFiles& files, const std::string& message);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_FILES_H_
