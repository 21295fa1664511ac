#include "sherd/core/process/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace sherd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

SharedSegment::Failure SharedSegment::Create(const char* name, uint64_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) return Failure::kMake;
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Failure::kSize;
  }
  return Map(std::move(fd), bytes);
}

SharedSegment::Failure SharedSegment::Adopt(UniqueFd fd, uint64_t least_bytes,
                                            uint64_t most_bytes) {
  struct stat status;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals ||
      fstat(fd.get(), &status) != 0) {
    return Failure::kForeign;
  }
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes < least_bytes || bytes > most_bytes) return Failure::kForeign;
  return Map(std::move(fd), bytes);
}

SharedSegment::Failure SharedSegment::Map(UniqueFd fd, uint64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (memory == MAP_FAILED) return Failure::kMap;
  fd_ = std::move(fd);
  memory_ = static_cast<unsigned char*>(memory);
  bytes_ = bytes;
  return Failure::kNone;
}

std::string SharedSegment::PathOf(int64_t pid, int fd) {
  return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
}

UniqueFd SharedSegment::Open(const std::string& path) {
  struct stat status;
  // Before it is opened: it may be anything, and opening a device or a pipe
  // has consequences.
  if (stat(path.c_str(), &status) != 0) return UniqueFd();
  if (!S_ISREG(status.st_mode)) {
    errno = ENOENT;
    return UniqueFd();
  }
  return UniqueFd(
      open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}

}  // namespace sherd
