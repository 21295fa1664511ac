#include "sherd/backends/local/thread_memory.h"

#include <unistd.h>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// "localmem"
constexpr uint64_t kMagic = 0x6c6f'6361'6c6d'656d;

}  // namespace

sherd_memory_handle_v0 ThreadPeers::Export(const void* data,
                                           uint64_t bytes) const {
  return {{kMagic, static_cast<uint64_t>(getpid()), group,
           static_cast<uint64_t>(rank), reinterpret_cast<uintptr_t>(data),
           bytes}};
}

sherd_code ThreadPeers::Import(int32_t peer,
                               const sherd_memory_handle_v0& handle,
                               sherd_bytes_v0* range,
                               sherd_error_v0* error) const {
  const uint64_t* const words = handle.words;
  if (words[0] != kMagic || words[1] != static_cast<uint64_t>(getpid()) ||
      words[2] != group || words[3] != static_cast<uint64_t>(peer)) {
    return Fail(error, SHERD_INVALID_ARGUMENT, peer,
                "the handle was made by another rank, or in another group");
  }
  *range = {reinterpret_cast<void*>(words[4]), words[5]};
  return SHERD_OK;
}

}  // namespace sherd::internal
