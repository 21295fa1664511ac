#include "sherd/testing/harness/rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sherd::testing::internal {

void RankOutput::Append(absl::string_view text) {
  if (!file_.empty() && room_in_file_ > 0) Write(text);
  const size_t head = std::min(text.size(), kBegin - begin_.size());
  absl::StrAppend(&begin_, text.substr(0, head));
  absl::StrAppend(&end_, text.substr(head));
  // Cut in large steps, so that each byte is moved once.
  if (end_.size() > 2 * kEnd) {
    const size_t cut = end_.size() - kEnd;
    end_.erase(0, cut);
    dropped_ += cut;
  }
}

void RankOutput::Write(absl::string_view text) {
  if (text.empty()) return;
  if (!fd_.is_open()) {
    fd_ = UniqueFd(
        open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  std::string last;
  if (static_cast<int64_t>(text.size()) > room_in_file_) {
    last = absl::StrCat(text.substr(0, static_cast<size_t>(room_in_file_)),
                        "\n… (longer than ", kMostInFile, " bytes)\n");
    text = last;
  }
  room_in_file_ -= static_cast<int64_t>(text.size());
  while (!text.empty()) {
    const ssize_t size = write(fd_.get(), text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      room_in_file_ = 0;
      return;
    }
    text.remove_prefix(static_cast<size_t>(size));
  }
}

bool RankOutput::EndHas(absl::string_view text) const {
  return absl::StrContains(end_.empty() ? begin_ : end_, text);
}

std::string RankOutput::ToString() const {
  if (dropped_ == 0) return begin_ + end_;
  return absl::StrCat(begin_, "\n… (", dropped_, " bytes left out) …\n", end_);
}

}  // namespace sherd::testing::internal
