#include "sherd/core/process/process_memory.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

namespace sherd {

uint64_t ReadProcessMemory(int64_t pid, std::span<const iovec> from,
                           std::span<const iovec> to) {
  for (;;) {
    const ssize_t count =
        process_vm_readv(static_cast<pid_t>(pid), to.data(), to.size(),
                         from.data(), from.size(), 0);
    if (count > 0) return static_cast<uint64_t>(count);
    if (count == 0) errno = EFAULT;
    if (count == 0 || errno != EINTR) return 0;
  }
}

int ReadProcessMemory(int64_t pid, uint64_t from, void* to, uint64_t bytes) {
  auto* out = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    const iovec local = {out, bytes};
    const iovec remote = {reinterpret_cast<void*>(from), bytes};
    const uint64_t count = ReadProcessMemory(pid, {&remote, 1}, {&local, 1});
    if (count == 0) return errno;
    out += count;
    from += count;
    bytes -= count;
  }
  return 0;
}

bool IsReadableByOthers(const void* data, uint64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  unsigned char ignored;
  return ReadProcessMemory(getpid(), begin, &ignored, 1) == 0 &&
         ReadProcessMemory(getpid(), begin + bytes - 1, &ignored, 1) == 0;
}

}  // namespace sherd
