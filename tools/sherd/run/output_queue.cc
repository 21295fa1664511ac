#include "sherd/tools/sherd/run/output_queue.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>

namespace sherd {

void OutputQueue::Write() {
  // POLLOUT on a pipe promises that this much does not block. The descriptor
  // is shared with other processes, so it cannot be made non-blocking.
  const size_t length = std::min<size_t>(bytes_.size() - written_, PIPE_BUF);
  const ssize_t n = broken_ ? 0 : write(fd_, bytes_.data() + written_, length);
  if (n < 0 && errno != EINTR && errno != EAGAIN) broken_ = true;
  if (n > 0) written_ += n;
  if (broken_ || written_ == bytes_.size()) {
    bytes_.clear();
    written_ = 0;
  } else if (written_ > kHighWater) {
    bytes_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace sherd
