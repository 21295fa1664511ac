#include "sherd/tools/bench/cases/settle_disk.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

// A file is evicted up to so many times; then one of so many parts of it may
// stay in the page cache, which changes a time by less than it varies.
constexpr int kEvictions = 10;
constexpr int64_t kNegligiblePart = 200;

// How many pages of the file, of `size` bytes, the page cache has.
absl::StatusOr<int64_t> CachedPages(int fd, int64_t size,
                                    const std::string& path) {
  void* const mapping =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", path);
  const absl::Cleanup unmap = [&] { munmap(mapping, size); };
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> cached(
      static_cast<size_t>((size + page - 1) / page));
  if (mincore(mapping, static_cast<size_t>(size), cached.data()) != 0) {
    return ErrnoStatus(errno, "asking for the cached pages of", path);
  }
  return std::count_if(cached.begin(), cached.end(),
                       [](unsigned char flags) { return (flags & 1) != 0; });
}

absl::Status EvictFile(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const UniqueFd fd,
                         OpenRegularFile(path, O_RDONLY, 0, "opening"));
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  if (size <= 0) return absl::OkStatus();
  int64_t cached = 0;
  for (int i = 0; i < kEvictions; ++i) {
    // Pages that other ranks evict, or that the system moves between its lists,
    // are left out.
    if (i > 0) absl::SleepFor(absl::Milliseconds(10));
    if (const int error = posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
        error != 0) {
      return ErrnoStatus(error, "evicting", path);
    }
    SHERD_ASSIGN_OR_RETURN(cached, CachedPages(fd.get(), size, path));
    if (cached == 0) return absl::OkStatus();
  }
  if (cached * sysconf(_SC_PAGESIZE) <= size / kNegligiblePart) {
    SHERD_LOG(kWarning) << cached << " pages of " << path
                        << " stay in the page cache";
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(cached, " pages of ", path,
                   " stay in the page cache; needs a TMPDIR on a disk"));
}

}  // namespace

absl::Status SettleDisk(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "opening", directory);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  if (syncfs(fd) != 0) return ErrnoStatus(errno, "syncing", directory);
  return absl::OkStatus();
}

absl::Status EvictFiles(const std::string& directory) {
  FileSystem& files = FileSystem::Posix();
  SHERD_ASSIGN_OR_RETURN(const auto names, files.List(directory));
  for (const std::string& name : names) {
    SHERD_RETURN_IF_ERROR(EvictFile(JoinPath(directory, name)));
  }
  return absl::OkStatus();
}

absl::Status CheckEviction(const std::string& directory) {
  FileSystem& files = FileSystem::Posix();
  const std::string path =
      JoinPath(directory, absl::StrCat("sherd-bench-evicted-", getpid()));
  const absl::Cleanup remove = [&] { files.Remove(path).IgnoreError(); };
  const std::vector<std::byte> bytes(size_t{1} << 16);
  SHERD_RETURN_IF_ERROR(WriteFileAtomically(files, path, bytes));
  return EvictFile(path);
}

}  // namespace sherd
