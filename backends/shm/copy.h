#ifndef SHERD_BACKENDS_SHM_COPY_H_
#define SHERD_BACKENDS_SHM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sherd::internal {

// Results of an operation that are at least this long do not stay in caches
// anyway.
inline constexpr uint64_t kStreamedBytes = uint64_t{32} << 20;

// memcpy that writes past the caches: for results too large to stay there,
// whose lines would otherwise be read from memory before they are written.
void StreamingCopy(void* to, const void* from, size_t bytes);

inline void Copy(void* to, const void* from, uint64_t bytes, bool streamed) {
  if (bytes == 0) return;
  if (streamed) {
    StreamingCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_COPY_H_
