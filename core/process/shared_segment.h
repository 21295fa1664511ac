#ifndef SHERD_CORE_PROCESS_SHARED_SEGMENT_H_
#define SHERD_CORE_PROCESS_SHARED_SEGMENT_H_

#include <cstdint>
#include <limits>
#include <string>

#include "sherd/core/base/unique_fd.h"

namespace sherd {

// Memory that processes of one host share: an anonymous file, mapped as a
// whole. It ends with the last process that holds or maps it, so that nothing
// stays behind after a kill.
//
// The size of the file is sealed: no process can change it, and so no access
// within the mapping can fail. Users must validate data that other processes
// write.
//
// Others access it by the descriptor: a child that inherits it, or any process
// that may inspect this one, by PathOf(), while it is open.
//
// Threads. Not thread-safe; users order accesses to the memory.
class SharedSegment {
 public:
  // The step that failed; errno has the reason, except for kForeign.
  enum class Failure {
    kNone,
    kMake,     // There is no descriptor or file.
    kSize,     // The file cannot be so large, or not be sealed.
    kForeign,  // The descriptor is not one of a segment, or of another size.
    kMap,      // There are no addresses.
  };

  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  // Unmaps the memory and closes the descriptor.
  ~SharedSegment();

  // Makes a segment of `bytes` zeros. Pages exist once they are touched. `name`
  // shows in /proc/PID/maps. Of an empty object, as Adopt; which stays empty if
  // it fails.
  [[nodiscard]] Failure Create(const char* name, uint64_t bytes);

  // Maps the segment that `fd` is open on, if its size is within the bounds.
  [[nodiscard]] Failure Adopt(
      UniqueFd fd, uint64_t least_bytes,
      uint64_t most_bytes = std::numeric_limits<uint64_t>::max());

  // The path by which other processes open the file that process `pid` has open
  // as `fd`.
  static std::string PathOf(int64_t pid, int fd);

  // Opens such a path for Adopt; none, with errno, if that cannot be done.
  // ENOENT: the process ended, or has closed the descriptor, or its number has
  // become that of something that is not a file, which is not opened.
  static UniqueFd Open(const std::string& path);

  // Others can no longer open the segment. The memory stays.
  void CloseDescriptor() { fd_.Reset(); }

  // -1 in an empty object.
  int fd() const { return fd_.get(); }
  // Page-aligned; null in an empty object.
  unsigned char* memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Failure Map(UniqueFd fd, uint64_t bytes);

  UniqueFd fd_;
  unsigned char* memory_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_SHARED_SEGMENT_H_
