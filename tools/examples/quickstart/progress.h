#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_PROGRESS_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sherd {

// Shows the progress of a long task: one line that is rewritten on a terminal,
// otherwise a line every few seconds. Not thread-safe.
class Progress {
 public:
  // Writes to `out`, or nothing if it is null. `task` begins every line.
  Progress(std::FILE* out, std::string task, int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `bytes` more are done; `detail` names them, for example a tensor.
  void Add(int64_t bytes, absl::string_view detail);

  // Ends with a line that shows the total time. A Progress that is destroyed
  // before stops where it was, on a line of its own.
  void Finish();

 private:
  std::string Line(absl::string_view detail) const;
  void Show(absl::string_view line, bool last);

  std::FILE* const out_;
  const std::string task_;
  const int64_t total_bytes_;
  const bool terminal_;
  const absl::Time start_;
  absl::Time last_shown_;
  int64_t done_bytes_ = 0;
  int64_t shown_width_ = 0;
  bool finished_ = false;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_PROGRESS_H_
