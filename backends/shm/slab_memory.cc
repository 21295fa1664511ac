#include "sherd/backends/shm/slab_memory.h"

#include <unistd.h>

#include <utility>

#include "sherd/backends/plugin.h"
#include "sherd/backends/shm/slab_allocator.h"

namespace sherd::internal {

using plugin::Fail;

sherd_code SlabPeers::Open(std::span<const ProcessIdentity> ranks,
                           std::unique_ptr<SlabPeers>* peers,
                           sherd_error_v0* error) {
  auto made = std::make_unique<SlabPeers>();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    made->ranks_.push_back(
        ranks[rank].pid == getpid() ? nullptr : PeerSlabs::Of(ranks[rank]));
    if (made->ranks_[rank] == nullptr || made->ranks_[rank]->CanOpen()) {
      continue;
    }
    return Fail(error, SHERD_UNSUPPORTED, static_cast<int>(rank),
                "the system does not let its memory be opened");
  }
  *peers = std::move(made);
  return SHERD_OK;
}

sherd_code SlabPeers::Import(int rank, const sherd_memory_handle_v0& packed,
                             sherd_bytes_v0* range, sherd_error_v0* error) {
  SlabHandle handle;
  if (!SlabHandle::Unpack(packed, &handle)) {
    return Fail(error, SHERD_INVALID_ARGUMENT, rank,
                "this is not a handle of shared memory");
  }
  PeerSlabs* const peer = ranks_[static_cast<size_t>(rank)].get();
  if (peer != nullptr) return peer->Import(handle, rank, range, error);
  const sherd_code code = SlabAllocator::OfProcess().Find(handle, range, error);
  error->peer = rank;
  return code;
}

sherd_code AllocateSlab(uint64_t bytes, uint64_t alignment, void** data,
                        sherd_error_v0* error) {
  return SlabAllocator::OfProcess().Allocate(bytes, alignment, data, error);
}

void DeallocateSlab(const sherd_host_v0& host, void* data) {
  if (SlabAllocator::OfProcess().Deallocate(data)) return;
  host.log(3, "shm: memory was freed twice, or did not come from here");
}

sherd_code ExportSlab(const void* data, uint64_t bytes,
                      sherd_memory_handle_v0* handle, sherd_error_v0* error) {
  return SlabAllocator::OfProcess().Export(data, bytes, handle, error);
}

}  // namespace sherd::internal
