// Collectives of NVIDIA GPUs, by NCCL: a library that is opened on first use,
// so that one program runs with and without it.
//
// Operations are queued on streams that the host chooses; the host implements
// all policy: streams, events, deadlines, and operations that NCCL lacks.

#include <memory>
#include <utility>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_communicator.h"
#include "sherd/backends/nccl/nccl_error.h"
#include "sherd/backends/nccl/nccl_library.h"
#include "sherd/backends/nccl/nccl_types.h"
#include "sherd/backends/plugin.h"

using sherd::internal::FailWithNccl;
using sherd::internal::NcclCommunicator;
using sherd::internal::NcclLibrary;
using sherd::internal::NcclReductionBits;
using sherd::internal::NcclResult;
using sherd::plugin::Fail;
using sherd::plugin::FromHandle;
using sherd::plugin::Guard;
using sherd::plugin::Host;

namespace {

// Opened at the first use.
const NcclLibrary& Library() {
  static const auto* const library =
      new NcclLibrary(sherd::internal::OpenNcclLibrary(Host()));
  return *library;
}

// The object behind sherd_comm_v0. It shares the communicator with NCCL's
// threads, which may outlive it.
class Rank {
 public:
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Rank>* made, sherd_error_v0* error) {
    return Make(made, [&](std::shared_ptr<NcclCommunicator>* comm) {
      return NcclCommunicator::Create(Library(), Host(), config, comm, error);
    });
  }

  // Makes `made` from the communicator that make(comm) sets, if any.
  template <typename MakeComm>
  static sherd_code Make(std::unique_ptr<Rank>* made, const MakeComm& make) {
    std::shared_ptr<NcclCommunicator> comm;
    const sherd_code code = make(&comm);
    if (code == SHERD_OK && comm != nullptr) {
      *made = std::make_unique<Rank>(std::move(comm));
    }
    return code;
  }

  explicit Rank(std::shared_ptr<NcclCommunicator> comm)
      : comm_(std::move(comm)) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    sherd::plugin::GuardQuietly([this] { comm_->Destroy(); });
  }

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error) {
    return comm_->Post(op, error);
  }
  void Abort() { comm_->Abort(); }

  NcclCommunicator& comm() { return *comm_; }

 private:
  const std::shared_ptr<NcclCommunicator> comm_;
};

NcclCommunicator& From(sherd_comm_v0* comm) {
  return FromHandle<Rank>(comm).comm();
}

// Makes a communicator from another one, by make(comm).
template <typename MakeComm>
sherd_code MakeChild(sherd_comm_v0** comm, sherd_error_v0* error,
                     const MakeComm& make) {
  return sherd::plugin::MakeHandle<Rank>(
      comm, error,
      [&](std::unique_ptr<Rank>* made) { return Rank::Make(made, make); });
}

const char* LibraryVersion() {
  const NcclLibrary& library = Library();
  return library.description.empty() ? nullptr : library.description.c_str();
}

sherd_code Probe(sherd_error_v0* error) {
  return Guard(error,
               [&] { return sherd::internal::ProbeNccl(Library(), error); });
}

sherd_code Poll(sherd_comm_v0* comm, sherd_error_v0* error) {
  return Guard(error, [&] { return From(comm).Poll(error); });
}

sherd_code BeginBatch(sherd_comm_v0* comm, sherd_error_v0* error) {
  return Guard(error, [&] { return From(comm).BeginBatch(error); });
}

sherd_code EndBatch(sherd_comm_v0* comm, sherd_error_v0* error) {
  return Guard(error, [&] { return From(comm).EndBatch(error); });
}

sherd_code Split(sherd_comm_v0* parent, const sherd_comm_config_v0* config,
                 int32_t color, int32_t key, sherd_comm_v0** comm,
                 sherd_error_v0* error) {
  return MakeChild(comm, error, [&](std::shared_ptr<NcclCommunicator>* made) {
    return From(parent).Split(*config, color, key, made, error);
  });
}

sherd_code Shrink(sherd_comm_v0* parent, const sherd_comm_config_v0* config,
                  const int32_t* excluded, int32_t num_excluded,
                  sherd_comm_v0** comm, sherd_error_v0* error) {
  return MakeChild(comm, error, [&](std::shared_ptr<NcclCommunicator>* made) {
    return From(parent).Shrink(*config, excluded, num_excluded, made, error);
  });
}

sherd_code Finalize(sherd_comm_v0* comm, int64_t deadline,
                    sherd_error_v0* error) {
  return Guard(error, [&] { return From(comm).Finalize(deadline, error); });
}

sherd_code Allocate(int32_t, uint64_t bytes, void** data,
                    sherd_error_v0* error) {
  return Guard(error, [&]() -> sherd_code {
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
  return Guard(error, [&] {
    return From(comm).Register(data, bytes, registration, error);
  });
}

void Deregister(sherd_comm_v0* comm, void* registration) {
  From(comm).Deregister(registration);
}

constexpr int32_t kCudaDevice = 1;

constexpr sherd_on_device_v0 kOnDevice = sherd::plugin::WithHeader(
    sherd_on_device_v0{.device_type = kCudaDevice,
                       .poll = Poll,
                       .begin_batch = BeginBatch,
                       .end_batch = EndBatch,
                       .split = Split,
                       .shrink = Shrink,
                       .finalize = Finalize,
                       .allocate = Allocate,
                       .deallocate = Deallocate,
                       .register_memory = Register,
                       .deregister_memory = Deregister});

constexpr sherd_plugin_v0 MakeTable() {
  auto table = sherd::plugin::BackendTable<Rank>(
      {.name = "nccl",
       .operations = sherd::plugin::kAllOperations,
       .library_version = LibraryVersion,
       .probe = Probe,
       .on_device = &kOnDevice});
  for (int32_t dtype = 0; dtype < SHERD_NUM_DTYPES; ++dtype) {
    table.reductions[dtype] = NcclReductionBits(dtype);
  }
  return table;
}

constexpr sherd_plugin_v0 kPlugin = MakeTable();

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
