// Collectives of NVIDIA GPUs, by NCCL: a library that is found when it is
// needed, so that one program runs with and without it.
//
// Operations are queued on streams that the host chooses; whatever is policy -
// streams, events, deadlines, what NCCL lacks - is the host's.

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_communicator.h"
#include "sherd/backends/nccl/nccl_error.h"
#include "sherd/backends/nccl/nccl_library.h"
#include "sherd/backends/nccl/nccl_types.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/static_plugin.h"

using sherd::internal::Fail;
using sherd::internal::FailWithNccl;
using sherd::internal::NcclCommunicator;
using sherd::internal::NcclLibrary;
using sherd::internal::NcclReductionBits;
using sherd::internal::NcclResult;

namespace {

// What a sherd_comm_v0 is here: a plugin that defines that type itself cannot
// be linked into one program with another that does.
struct Rank {
  std::shared_ptr<NcclCommunicator> comm;
};

NcclCommunicator& From(sherd_comm_v0* comm) {
  return *reinterpret_cast<Rank*>(comm)->comm;
}

const sherd_host_v0* the_host = nullptr;

// Opened at the first use.
const NcclLibrary& Library() {
  static const auto* const library =
      new NcclLibrary(sherd::internal::OpenNcclLibrary(*the_host));
  return *library;
}

// Runs body(); turns what it throws into a code.
template <typename Body>
sherd_code Guarded(sherd_error_v0* error, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(error, SHERD_RESOURCE, -1, "out of memory");
  } catch (const std::exception& e) {
    return Fail(error, SHERD_INTERNAL, -1, e.what());
  }
}

// The same for a function that makes a communicator.
template <typename Make>
sherd_code Making(sherd_comm_v0** comm, sherd_error_v0* error, Make make) {
  *comm = nullptr;
  return Guarded(error, [&]() -> sherd_code {
    auto made = std::make_unique<Rank>();
    const sherd_code code = make(&made->comm);
    if (code == SHERD_OK && made->comm != nullptr) {
      *comm = reinterpret_cast<sherd_comm_v0*>(made.release());
    }
    return code;
  });
}

const char* LibraryVersion() {
  const NcclLibrary& library = Library();
  return library.description.empty() ? nullptr : library.description.c_str();
}

sherd_code Probe(sherd_error_v0* error) {
  return Guarded(error,
                 [&] { return sherd::internal::ProbeNccl(Library(), error); });
}

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  return Making(comm, error, [&](std::shared_ptr<NcclCommunicator>* made) {
    return NcclCommunicator::Create(Library(), *the_host, *config, made, error);
  });
}

void Destroy(sherd_comm_v0* comm) {
  sherd_error_v0 ignored;
  Guarded(&ignored, [&] {
    From(comm).Destroy();
    return SHERD_OK;
  });
  delete reinterpret_cast<Rank*>(comm);
}

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm).Post(*op, error); });
}

void Abort(sherd_comm_v0* comm) {
  sherd_error_v0 ignored;
  Guarded(&ignored, [&] {
    From(comm).Abort();
    return SHERD_OK;
  });
}

sherd_code Poll(sherd_comm_v0* comm, sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm).Poll(error); });
}

sherd_code BeginBatch(sherd_comm_v0* comm, sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm).BeginBatch(error); });
}

sherd_code EndBatch(sherd_comm_v0* comm, sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm).EndBatch(error); });
}

sherd_code Split(sherd_comm_v0* parent, const sherd_comm_config_v0* config,
                 int32_t color, int32_t key, sherd_comm_v0** comm,
                 sherd_error_v0* error) {
  return Making(comm, error, [&](std::shared_ptr<NcclCommunicator>* made) {
    return From(parent).Split(*config, color, key, made, error);
  });
}

sherd_code Shrink(sherd_comm_v0* parent, const sherd_comm_config_v0* config,
                  const int32_t* excluded, int32_t num_excluded,
                  sherd_comm_v0** comm, sherd_error_v0* error) {
  return Making(comm, error, [&](std::shared_ptr<NcclCommunicator>* made) {
    return From(parent).Shrink(*config, excluded, num_excluded, made, error);
  });
}

sherd_code Finalize(sherd_comm_v0* comm, int64_t deadline,
                    sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm).Finalize(deadline, error); });
}

sherd_code Allocate(int32_t, uint64_t bytes, void** data,
                    sherd_error_v0* error) {
  return Guarded(error, [&]() -> sherd_code {
    const NcclLibrary& library = Library();
    if (library.api.mem_alloc == nullptr || library.api.mem_free == nullptr) {
      return Fail(error, SHERD_UNSUPPORTED, -1, "this NCCL has no memory");
    }
    const NcclResult result = library.api.mem_alloc(data, bytes);
    if (result == sherd::internal::kNcclSuccess) return SHERD_OK;
    return FailWithNccl(library.api, result, "ncclMemAlloc", error);
  });
}

void Deallocate(int32_t, void* data, uint64_t) { Library().api.mem_free(data); }

sherd_code Register(sherd_comm_v0* comm, void* data, uint64_t bytes,
                    void** registration, sherd_error_v0* error) {
  return Guarded(error, [&] {
    return From(comm).Register(data, bytes, registration, error);
  });
}

void Deregister(sherd_comm_v0* comm, void* registration) {
  From(comm).Deregister(registration);
}

constexpr int32_t kCudaDevice = 1;

constexpr sherd_on_device_v0 kOnDevice = {
    .struct_size = sizeof(sherd_on_device_v0),
    .device_type = kCudaDevice,
    .poll = Poll,
    .begin_batch = BeginBatch,
    .end_batch = EndBatch,
    .split = Split,
    .shrink = Shrink,
    .finalize = Finalize,
    .allocate = Allocate,
    .deallocate = Deallocate,
    .register_memory = Register,
    .deregister_memory = Deregister};

constexpr sherd_plugin_v0 MakePlugin() {
  sherd_plugin_v0 plugin = {
      .struct_size = sizeof(sherd_plugin_v0),
      .major = SHERD_ABI_MAJOR,
      .minor = SHERD_ABI_MINOR,
      .next = nullptr,
      .name = "nccl",
      .operations = (uint64_t{1} << SHERD_NUM_OPERATIONS) - 1,
      .flags = SHERD_COMPLETES_IN_POST,
      .reserved = 0,
      .library_version = LibraryVersion,
      .probe = Probe,
      .create = Create,
      .destroy = Destroy,
      .post = Post,
      .test = nullptr,
      .abort = Abort,
      .reductions = {},
      .reserved2 = 0,
      .bootstrap = nullptr,
      .memory = nullptr,
      .on_device = &kOnDevice};
  for (int32_t dtype = 0; dtype < SHERD_NUM_DTYPES; ++dtype) {
    plugin.reductions[dtype] = NcclReductionBits(dtype);
  }
  return plugin;
}

constexpr sherd_plugin_v0 kPlugin = MakePlugin();

const sherd_plugin_v0* GetPlugin(const sherd_host_v0* host) {
  // Older hosts know of no streams.
  if (host->minor < 4) return nullptr;
  the_host = host;
  return &kPlugin;
}

}  // namespace

SHERD_BACKEND_PLUGIN(GetPlugin)
