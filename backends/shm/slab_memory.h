#ifndef SHERD_BACKENDS_SHM_SLAB_MEMORY_H_
#define SHERD_BACKENDS_SHM_SLAB_MEMORY_H_

#include <memory>
#include <span>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/peer_slabs.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {

// The other ranks' slabs, as one rank of a group accesses them.
//
// Threads. Safe.
class SlabPeers {
 public:
  // `ranks` are the processes of the group's ranks.
  //   SHERD_UNSUPPORTED  The system does not let this process open the
  //                      descriptors of the peer that `error` names.
  static sherd_code Open(std::span<const ProcessIdentity> ranks,
                         std::unique_ptr<SlabPeers>* peers,
                         sherd_error_v0* error);

  // As sherd_memory_v0.import_memory.
  sherd_code Import(int rank, const sherd_memory_handle_v0& handle,
                    sherd_bytes_v0* range, sherd_error_v0* error);

 private:
  // Indexed by rank; null for the own process.
  std::vector<std::shared_ptr<PeerSlabs>> ranks_;
};

// The functions of the plugin's memory table that need no communicator.
sherd_code AllocateSlab(uint64_t bytes, uint64_t alignment, void** data,
                        sherd_error_v0* error);
// Logs an error if AllocateSlab did not return `data`.
void DeallocateSlab(const sherd_host_v0& host, void* data);
sherd_code ExportSlab(const void* data, uint64_t bytes,
                      sherd_memory_handle_v0* handle, sherd_error_v0* error);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_SLAB_MEMORY_H_
