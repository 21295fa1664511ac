#include "sherd/backends/shm/direct_read.h"

#include <errno.h>

#include <cstdio>
#include <cstring>

#include "sherd/backends/plugin.h"
#include "sherd/core/process/process_memory.h"

namespace sherd::internal {

using plugin::Fail;

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
  if (!IsReadableByOthers(data, bytes)) return false;
  known.store(key, std::memory_order_relaxed);
  return true;
}

}  // namespace sherd::internal
