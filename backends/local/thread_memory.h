#ifndef SHERD_BACKENDS_LOCAL_THREAD_MEMORY_H_
#define SHERD_BACKENDS_LOCAL_THREAD_MEMORY_H_

#include <cstdint>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Threads of one process access all memory: a handle is an address, and the
// rank that made it. Import does not detect that the memory was freed
// meanwhile.
struct ThreadPeers {
  int32_t rank;
  // Of the group; unique in this process.
  uint64_t group;

  sherd_memory_handle_v0 Export(const void* data, uint64_t bytes) const;

  //   SHERD_INVALID_ARGUMENT  `peer` of this group did not make the handle.
  sherd_code Import(int32_t peer, const sherd_memory_handle_v0& handle,
                    sherd_bytes_v0* range, sherd_error_v0* error) const;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_THREAD_MEMORY_H_
