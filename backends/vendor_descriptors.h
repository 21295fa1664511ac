#ifndef SHERD_BACKENDS_VENDOR_DESCRIPTORS_H_
#define SHERD_BACKENDS_VENDOR_DESCRIPTORS_H_

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

namespace sherd::internal {

// Calls `visit(fd)` for each descriptor of this process until it returns true.
template <typename Visit>
void VisitDescriptors(Visit visit) {
  DIR* const entries = opendir("/proc/self/fd");
  if (entries == nullptr) return;
  while (const dirent* const entry = readdir(entries)) {
    if (entry->d_name[0] != '.' && visit(std::atoi(entry->d_name))) break;
  }
  closedir(entries);
}

// Makes the descriptors that a vendor's library opens between the constructor
// and Close close-on-exec, unless the library hands them on: a program that
// this process executes would keep a dead rank's connections open. Descriptors
// that other threads open meanwhile count as the library's; `kind` limits that.
class VendorDescriptors {
 public:
  // `kind`: how links in /proc/self/fd begin. Empty: all.
  explicit VendorDescriptors(std::string_view kind = "")
      : kind_(kind), before_(Find(kind)) {}

  void Close() const {
    for (const int fd : Find(kind_)) {
      if (before_.count(fd) == 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }

 private:
  static std::set<int> Find(std::string_view kind) {
    std::set<int> found;
    VisitDescriptors([&](int fd) {
      std::array<char, 64> target;
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      const ssize_t n = readlink(link.c_str(), target.data(), target.size());
      if (n >= 0 && std::string_view(target.data(), static_cast<size_t>(n))
                            .substr(0, kind.size()) == kind) {
        found.insert(fd);
      }
      return false;
    });
    return found;
  }

  const std::string_view kind_;
  const std::set<int> before_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_VENDOR_DESCRIPTORS_H_
