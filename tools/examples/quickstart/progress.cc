#include "sherd/tools/examples/quickstart/progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "sherd/core/base/units.h"

namespace sherd {
namespace {

constexpr absl::Duration kTerminalInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(2);
constexpr int64_t kTerminalWidth = 79;

}  // namespace

Progress::Progress(std::FILE* out, std::string task, int64_t total_bytes)
    : out_(out),
      task_(std::move(task)),
      total_bytes_(total_bytes),
      terminal_(out != nullptr && isatty(fileno(out)) == 1),
      start_(absl::Now()),
      last_shown_(absl::InfinitePast()) {}

Progress::~Progress() {
  if (!finished_ && shown_width_ > 0) std::fputc('\n', out_);
}

std::string Progress::Line(absl::string_view detail) const {
  const double percent = total_bytes_ == 0
                             ? 100
                             : 100.0 * static_cast<double>(done_bytes_) /
                                   static_cast<double>(total_bytes_);
  return absl::StrFormat("%s: %3.0f%% of %s  %s", task_, percent,
                         FormatBytes(total_bytes_), detail);
}

void Progress::Show(absl::string_view line, bool last) {
  if (!terminal_) {
    absl::FPrintF(out_, "%s\n", line);
  } else {
    const std::string text = Shorten(line, kTerminalWidth);
    const int64_t width = DisplayWidth(text);
    absl::FPrintF(out_, "\r%s%s%s", text,
                  std::string(std::max<int64_t>(shown_width_ - width, 0), ' '),
                  last ? "\n" : "");
    shown_width_ = last ? 0 : width;
  }
  std::fflush(out_);
}

void Progress::Add(int64_t bytes, absl::string_view detail) {
  done_bytes_ += bytes;
  if (out_ == nullptr) return;
  const absl::Time now = absl::Now();
  if (now - last_shown_ < (terminal_ ? kTerminalInterval : kLineInterval)) {
    return;
  }
  last_shown_ = now;
  Show(Line(detail), /*last=*/false);
}

void Progress::Finish() {
  finished_ = true;
  if (out_ == nullptr) return;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
  Show(absl::StrCat(task_, ": ", FormatBytes(total_bytes_), " in ",
                    FormatSeconds(seconds)),
       /*last=*/true);
}

}  // namespace sherd
