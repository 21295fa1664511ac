#include "sherd/backends/shm/direct_read.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "sherd/backends/plugin.h"

namespace sherd::internal {

using plugin::Fail;

int ReadProcessMemory(int64_t pid, uint64_t from, void* to, uint64_t bytes) {
  auto* out = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    const iovec local = {out, bytes};
    const iovec remote = {reinterpret_cast<void*>(from), bytes};
    const ssize_t count =
        process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return EFAULT;
    out += count;
    from += static_cast<uint64_t>(count);
    bytes -= static_cast<uint64_t>(count);
  }
  return 0;
}

sherd_code FailToRead(sherd_error_v0* error, int peer, int number) {
  if (number == ESRCH) {
    return Fail(error, SHERD_PEER_LOST, peer, "the process ended");
  }
  char text[120];
  std::snprintf(text, sizeof(text), "its memory cannot be read: %s",
                strerror(number));
  error->native_code = number;
  return Fail(error, SHERD_SYSTEM, peer, text);
}

bool ReadableMemory::Contains(const void* data, uint64_t bytes) {
  if (bytes == 0) return true;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  // Of buffers with one key, the second is not tried: then readers report it.
  const uint64_t key = begin << 7 ^ bytes;
  // Spreads buffers that lie at regular distances.
  const uint64_t place = key * 0x9e37'79b9'7f4a'7c15 >> 32;
  std::atomic<uint64_t>& known = known_[place % kRemembered];
  if (known.load(std::memory_order_relaxed) == key) return true;
  unsigned char ignored;
  if (ReadProcessMemory(getpid(), begin, &ignored, 1) != 0 ||
      ReadProcessMemory(getpid(), begin + bytes - 1, &ignored, 1) != 0) {
    return false;
  }
  known.store(key, std::memory_order_relaxed);
  return true;
}

}  // namespace sherd::internal
