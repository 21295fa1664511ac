#ifndef SHERD_TOOLS_SHERD_RUN_OUTPUT_QUEUE_H_
#define SHERD_TOOLS_SHERD_RUN_OUTPUT_QUEUE_H_

#include <cstddef>
#include <string>

namespace sherd {

// Bytes for a file descriptor whose reader may be slow or not read at all.
// Never blocks: the caller polls for POLLOUT while wants_write().
class OutputQueue {
 public:
  // Above this the caller should stop producing until the reader has caught up.
  static constexpr size_t kHighWater = size_t{1} << 20;

  explicit OutputQueue(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  bool wants_write() const { return !broken_ && written_ < bytes_.size(); }
  bool is_full() const { return bytes_.size() - written_ > kHighWater; }
  // The reader has closed the descriptor; bytes appended from now on are
  // dropped.
  bool is_broken() const { return broken_; }

  // Append lines to be written to this.
  std::string& tail() { return bytes_; }

  // Writes one piece; call when poll() said POLLOUT.
  void Write();

 private:
  const int fd_;
  std::string bytes_;
  size_t written_ = 0;
  bool broken_ = false;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RUN_OUTPUT_QUEUE_H_
