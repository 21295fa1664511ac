// Collectives of ranks on one host, through memory that they share.
//
// The table of the plugin; see communicator.h for what stands behind it.

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/host_reductions.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/shm/communicator.h"
#include "sherd/backends/shm/slab_memory.h"
#include "sherd/backends/static_plugin.h"

namespace {

using sherd::internal::Fail;
using sherd::internal::ShmCommunicator;
using sherd::internal::SlabPeers;
using sherd::internal::UseHostReductions;

const sherd_host_v0* host = nullptr;

// Runs `body`, whose exceptions must not cross the plugin line.
template <typename Body>
sherd_code Guarded(sherd_error_v0* error, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(error, SHERD_RESOURCE, -1, "out of memory");
  } catch (const std::exception& e) {
    return Fail(error, SHERD_INTERNAL, -1, e.what());
  }
}

ShmCommunicator* From(sherd_comm_v0* comm) {
  return reinterpret_cast<ShmCommunicator*>(comm);
}

sherd_code Probe(sherd_error_v0* error) {
  const int fd = memfd_create("sherd_probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    char text[160];
    std::snprintf(text, sizeof(text), "cannot make shared memory: %s",
                  strerror(errno));
    return Fail(error, SHERD_UNSUPPORTED, -1, text);
  }
  close(fd);
  if (access("/proc/self/fd", X_OK) != 0) {
    return Fail(error, SHERD_UNSUPPORTED, -1,
                "/proc, by which ranks open each other's memory, is missing");
  }
  return SHERD_OK;
}

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  return Guarded(error, [&] {
    std::unique_ptr<ShmCommunicator> made;
    const sherd_code code =
        ShmCommunicator::Create(*config, *host, &made, error);
    if (code == SHERD_OK) {
      *comm = reinterpret_cast<sherd_comm_v0*>(made.release());
    }
    return code;
  });
}

void Destroy(sherd_comm_v0* comm) { delete From(comm); }

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm)->Run(*op, error); });
}

void Abort(sherd_comm_v0* comm) { From(comm)->Abort(); }

sherd_code Allocate(uint64_t bytes, uint64_t alignment, void** data,
                    sherd_error_v0* error) {
  return Guarded(error, [&] {
    return sherd::internal::AllocateSlab(bytes, alignment, data, error);
  });
}

void Deallocate(void* data, uint64_t) {
  sherd::internal::DeallocateSlab(*host, data);
}

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0* error) {
  return Guarded(error, [&] {
    std::unique_ptr<SlabPeers> opened;
    const sherd_code code =
        SlabPeers::Open(From(comm)->Processes(), &opened, error);
    if (code == SHERD_OK) {
      *peers = reinterpret_cast<sherd_peers_v0*>(opened.release());
    }
    return code;
  });
}

void ClosePeers(sherd_peers_v0* peers) {
  delete reinterpret_cast<SlabPeers*>(peers);
}

sherd_code Export(sherd_peers_v0*, const void* data, uint64_t bytes,
                  sherd_memory_handle_v0* handle, sherd_error_v0* error) {
  return Guarded(error, [&] {
    return sherd::internal::ExportSlab(data, bytes, handle, error);
  });
}

sherd_code Import(sherd_peers_v0* peers, int32_t peer,
                  const sherd_memory_handle_v0* handle, sherd_bytes_v0* range,
                  sherd_error_v0* error) {
  return Guarded(error, [&] {
    return reinterpret_cast<SlabPeers*>(peers)->Import(peer, *handle, range,
                                                       error);
  });
}

const sherd_memory_v0 memory = {.struct_size = sizeof(sherd_memory_v0),
                                .reserved = 0,
                                .allocate = Allocate,
                                .deallocate = Deallocate,
                                .open_peers = OpenPeers,
                                .close_peers = ClosePeers,
                                .export_memory = Export,
                                .import_memory = Import};

sherd_plugin_v0 plugin = {
    .struct_size = sizeof(sherd_plugin_v0),
    .major = SHERD_ABI_MAJOR,
    .minor = SHERD_ABI_MINOR,
    .next = nullptr,
    .name = "shm",
    .operations = (uint64_t{1} << SHERD_NUM_OPERATIONS) - 1,
    .flags =
        SHERD_COMPLETES_IN_POST | SHERD_ONE_HOST_ONLY | SHERD_COMPARES_CALLS,
    .reserved = 0,
    .library_version = nullptr,
    .probe = Probe,
    .create = Create,
    .destroy = Destroy,
    .post = Post,
    .test = nullptr,
    .abort = Abort,
    .reductions = {},
    .reserved2 = 0,
    .bootstrap = nullptr,
    .memory = &memory};

const sherd_plugin_v0* GetPlugin(const sherd_host_v0* given) {
  // Line 0.1 does not say whether all ranks are on one host.
  if (given->minor < 2) return nullptr;
  host = given;
  UseHostReductions(*given, plugin);
  return &plugin;
}

}  // namespace

SHERD_BACKEND_PLUGIN(GetPlugin)
