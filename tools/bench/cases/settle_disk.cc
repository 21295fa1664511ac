#include "sherd/tools/bench/cases/settle_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "sherd/core/base/file.h"

namespace sherd {

absl::Status SettleDisk(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "opening", directory);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  if (syncfs(fd) != 0) return ErrnoStatus(errno, "syncing", directory);
  return absl::OkStatus();
}

}  // namespace sherd
