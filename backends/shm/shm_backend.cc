// Collectives of ranks on one host, through memory that they share.
//
// The table of the plugin; see communicator.h for the implementation.

#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/plugin.h"
#include "sherd/backends/shm/communicator.h"
#include "sherd/backends/shm/slab_memory.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/process/shared_segment.h"

namespace {

using sherd::SharedSegment;
using sherd::internal::ShmCommunicator;
using sherd::internal::SlabPeers;
using sherd::plugin::Fail;
using sherd::plugin::FromHandle;
using sherd::plugin::Guard;

sherd_code Probe(sherd_error_v0* error) {
  SharedSegment probe;
  if (probe.Create("sherd_probe", /*bytes=*/1) !=
      SharedSegment::Failure::kNone) {
    char text[160];
    std::snprintf(text, sizeof(text), "cannot make shared memory: %s",
                  strerror(errno));
    return Fail(error, SHERD_UNSUPPORTED, -1, text);
  }
  if (access("/proc/self/fd", X_OK) != 0) {
    return Fail(error, SHERD_UNSUPPORTED, -1,
                "/proc, by which ranks open each other's memory, is missing");
  }
  return SHERD_OK;
}

sherd_code Allocate(uint64_t bytes, uint64_t alignment, void** data,
                    sherd_error_v0* error) {
  return Guard(error, [&] {
    return sherd::internal::AllocateSlab(bytes, alignment, data, error);
  });
}

void Deallocate(void* data, uint64_t) {
  sherd::internal::DeallocateSlab(sherd::plugin::Host(), data);
}

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0* error) {
  return sherd::plugin::MakeHandle<SlabPeers>(
      peers, error, [&](std::unique_ptr<SlabPeers>* made) {
        return SlabPeers::Open(FromHandle<ShmCommunicator>(comm).Processes(),
                               made, error);
      });
}

sherd_code OpenProcesses(const sherd_process_v0* processes,
                         int32_t num_processes, sherd_peers_v0** peers,
                         sherd_error_v0* error) {
  return sherd::plugin::MakeHandle<SlabPeers>(
      peers, error, [&](std::unique_ptr<SlabPeers>* made) {
        std::vector<sherd::ProcessIdentity> given;
        for (int32_t p = 0; p < num_processes; ++p) {
          given.push_back({processes[p].pid, processes[p].start_time});
        }
        return SlabPeers::Open(given, made, error);
      });
}

sherd_code Export(sherd_peers_v0*, const void* data, uint64_t bytes,
                  sherd_memory_handle_v0* handle, sherd_error_v0* error) {
  return Guard(error, [&] {
    return sherd::internal::ExportSlab(data, bytes, handle, error);
  });
}

sherd_code Import(sherd_peers_v0* peers, int32_t peer,
                  const sherd_memory_handle_v0* handle, sherd_bytes_v0* range,
                  sherd_error_v0* error) {
  return Guard(error, [&] {
    return FromHandle<SlabPeers>(peers).Import(peer, *handle, range, error);
  });
}

constexpr sherd_memory_v0 kMemory = sherd::plugin::WithHeader(sherd_memory_v0{
    .allocate = Allocate,
    .deallocate = Deallocate,
    .open_peers = OpenPeers,
    .close_peers = sherd::plugin::DeleteHandle<SlabPeers, sherd_peers_v0>,
    .export_memory = Export,
    .import_memory = Import,
    .open_processes = OpenProcesses});

constexpr sherd_plugin_v0 kPlugin = sherd::plugin::WithHostReductions(
    sherd::plugin::BackendTable<ShmCommunicator>(
        {.name = "shm",
         .operations = sherd::plugin::kAllOperations,
         .flags = SHERD_ONE_HOST_ONLY | SHERD_COMPARES_CALLS,
         .probe = Probe,
         .memory = &kMemory}));

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
