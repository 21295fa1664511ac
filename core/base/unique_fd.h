#ifndef SHERD_CORE_BASE_UNIQUE_FD_H_
#define SHERD_CORE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace sherd {

// Owns a file descriptor; -1: empty.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  // Gives the descriptor up to the caller.
  int Release() { return std::exchange(fd_, -1); }

  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_UNIQUE_FD_H_
