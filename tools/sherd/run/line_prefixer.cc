#include "sherd/tools/sherd/run/line_prefixer.h"

namespace sherd {

void LinePrefixer::Feed(absl::string_view piece, std::string& output) {
  while (!piece.empty()) {
    const size_t newline = piece.find('\n');
    const bool complete = newline != absl::string_view::npos;
    const size_t room = max_line_ - partial_.size();
    const size_t length = complete ? newline : piece.size();
    if (length > room) {
      partial_.append(piece.data(), room);
      piece.remove_prefix(room);
      Finish(output);
      continue;
    }
    partial_.append(piece.data(), length);
    if (!complete) return;
    piece.remove_prefix(length + 1);
    output.append(prefix_).append(partial_).push_back('\n');
    partial_.clear();
  }
}

void LinePrefixer::Finish(std::string& output) {
  if (partial_.empty()) return;
  output.append(prefix_).append(partial_).push_back('\n');
  partial_.clear();
  partial_.shrink_to_fit();
}

}  // namespace sherd
