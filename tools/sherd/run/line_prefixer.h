#ifndef SHERD_TOOLS_SHERD_RUN_LINE_PREFIXER_H_
#define SHERD_TOOLS_SHERD_RUN_LINE_PREFIXER_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace sherd {

// Splits a stream of bytes that arrives in arbitrary pieces into lines and puts
// a prefix before each, so that lines of several streams can share an output
// without mixing.
class LinePrefixer {
 public:
  // A line is buffered until it is complete or longer than this; then it
  // continues as a new one, so that a stream without newlines needs bounded
  // memory.
  static constexpr size_t kMaxLine = size_t{64} << 20;

  explicit LinePrefixer(std::string prefix, size_t max_line = kMaxLine)
      : prefix_(std::move(prefix)), max_line_(max_line) {}

  // Takes the next piece and appends the lines that it completes to `output`.
  void Feed(absl::string_view piece, std::string& output);

  // Appends the bytes after the last newline, as a line. Call it at the end.
  void Finish(std::string& output);

 private:
  const std::string prefix_;
  const size_t max_line_;
  std::string partial_;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RUN_LINE_PREFIXER_H_
