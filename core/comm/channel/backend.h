#ifndef SHERD_CORE_COMM_CHANNEL_BACKEND_H_
#define SHERD_CORE_COMM_CHANNEL_BACKEND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/collective/collective.h"
#include "sherd/core/comm/collective/operations.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

// The interface between the host and the library that moves the bytes. Callers
// of collectives use ProcessGroup; implementers of backends write a plugin
// (backends/backend_abi.h), which the loader adapts to this. Tests implement it
// directly.

// How a group carries out an operation.
enum class OperationPath {
  kNative,       // by the backend
  kEmulated,     // by the host, from other operations of the backend
  kUnsupported,  // not at all
};

// "native", "emulated", "unsupported".
absl::string_view Name(OperationPath path);

// Memory for one operation in flight, owned by the host, untouched by it
// between Post and the end of the operation.
struct alignas(64) CollectiveRequest {
  std::byte storage[128];
};

struct CommunicatorOptions;

// One rank's connection to the other ranks of a group. One call of Post, Test
// at a time, but for send and recv, which come from any thread at any time;
// Abort from any thread.
//
// On a device (BackendInfo::device_type) Post queues the operation on
// desc.stream and returns true; only Poll reports that it cannot end. All calls
// but Abort and Poll, send and recv included, come from one thread at a time,
// on which the device is current, in an order that is the same on all ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Starts `desc`; true if it has already completed successfully. Errors carry
  // the peer's rank where it is known (see WithRank); after an error only Abort
  // and destruction are allowed.
  virtual absl::StatusOr<bool> Post(const Collective& desc,
                                    CollectiveRequest& request) = 0;

  // True once the operation has completed successfully. Only after Post
  // returned false.
  virtual absl::StatusOr<bool> Test(CollectiveRequest& request) = 0;

  // Makes running and later operations fail soon. Idempotent, never blocks.
  virtual void Abort() = 0;

  // The memory of this rank's peers that it can access, or null. It may outlive
  // the communicator.
  virtual std::shared_ptr<PeerMemory> peer_memory() { return nullptr; }

  // The following is for communicators on devices.

  // OK while all is well, otherwise what ended the communicator. Never waits;
  // any thread.
  virtual absl::Status Poll() { return absl::OkStatus(); }

  // Operations posted between BeginBatch and EndBatch are one operation. Not
  // nested.
  virtual absl::Status BeginBatch();
  virtual absl::Status EndBatch();

  // A communicator of the ranks of this one with the same color, in the order
  // of `key`; null with a negative color. Collective over this one, on which no
  // operation is under way. `options` are those of the new one.
  //   kUnimplemented  There is nothing like it.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(
      const CommunicatorOptions& options, int color, int key);

  // A communicator without `excluded`, ascending ranks which need not take
  // part. Also valid after Abort.
  //   kUnimplemented  There is nothing like it.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Shrink(
      const CommunicatorOptions& options, absl::Span<const int> excluded);

  // Waits until all ranks have called it and all operations have ended. Only
  // destruction may follow. Without Finalize, destruction ends running
  // operations.
  virtual absl::Status Finalize(Deadline deadline);

  // Registers memory that is used often. A result other than null is passed to
  // Deregister; null: nothing to deregister.
  virtual absl::StatusOr<void*> Register(MutableBytes buffer);
  virtual void Deregister(void* registration);
};

struct CommunicatorOptions {
  std::string group;
  int rank = 0;
  int size = 1;
  // For meeting the other ranks; private to this group. Outlives the
  // communicator.
  Store* store = nullptr;
  Deadline deadline = Deadline::Infinite();
  // Place of each rank among all ranks of the job.
  absl::Span<const int> world_ranks = {};
  int world_size = 1;
  // All ranks run on this host and see each other's processes.
  bool one_host = true;
  // Numeric address on which this rank is to listen.
  std::string address = "127.0.0.1";
  // Of a backend on devices: the number of this rank's device, and its
  // DeviceProperties::bus_id.
  int device = 0;
  std::string device_id;
};

// Operations that a backend implements. The host emulates the others where it
// can.
struct NativeOperations {
  // Bit 1 << CollectiveOp.
  uint64_t operations = 0;
  // Bit 1 << ReduceOp of entry DType, which is not carried: which reductions
  // its operations have.
  std::array<uint32_t, kNumComputedDTypes> reductions = {};

  bool Has(CollectiveOp op) const {
    return (operations >> static_cast<int>(op) & 1) != 0;
  }
  bool Has(CollectiveOp op, DType dtype, ReduceOp reduction) const {
    return Has(op) && (reductions[static_cast<size_t>(dtype)] >>
                           static_cast<int>(reduction) &
                       1) != 0;
  }
};

struct BackendInfo {
  std::string name;
  // Path of the plugin, or "linked statically".
  std::string origin;
  // Version of the vendor's library, or empty.
  std::string library_version;
  // Ranks are threads of one process, each with a default group of its own.
  bool ranks_are_threads = false;
  // All ranks must run on one host.
  bool one_host_only = false;
  // Ranks are started by the vendor's launcher, which also numbers them.
  bool needs_launcher = false;
  // If one rank dies, the vendor's library ends all of them.
  bool dies_together = false;
  // The backend compares the ranks' calls itself before it moves data.
  bool compares_calls = false;
  // The type of device whose memory operations work on.
  DeviceType device_type = DeviceType::kCpu;
  NativeOperations native;

  bool on_device() const { return device_type != DeviceType::kCpu; }
};

// A process's place among those that a launcher started together.
struct LaunchedWorld {
  int rank = 0;
  int size = 1;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // OK if communicators can be made on this machine, otherwise why not.
  // Initialises nothing.
  virtual absl::Status Probe() const = 0;

  // Connects this rank to the others. Collective: returns once all ranks of
  // the group have called it, or at the deadline.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const = 0;

  // For backends that need their launcher: this process's place, before there
  // is a group. Starts the vendor's library.
  //   kUnimplemented  The backend has nothing like it.
  virtual absl::StatusOr<LaunchedWorld> FindLaunchedWorld() const;

  // Copies rank 0's blob, at most kMaxBootstrapBytes, to all processes of the
  // launched world. Collective over them.
  //   kUnimplemented  The backend has nothing like it.
  virtual absl::StatusOr<std::string> Bootstrap(absl::string_view blob,
                                                Deadline deadline) const;
  static constexpr size_t kMaxBootstrapBytes = 256;

  // Allocates memory that the peers of this process reach through PeerMemory;
  // null if the backend has no such allocator. The allocator and its memory
  // live as long as the process, even if this object does not.
  virtual Allocator* peer_memory_allocator() const { return nullptr; }

  // As sherd::OpenPeerMemory.
  //   kUnimplemented  The backend has nothing like it.
  virtual absl::StatusOr<std::shared_ptr<PeerMemory>> OpenPeerMemory(
      absl::Span<const ProcessIdentity> processes) const;

  // Of a backend on devices: allocates device memory that is best for Register;
  // null if any memory is. Lifetime as above.
  virtual Allocator* device_allocator(int device) const;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_CHANNEL_BACKEND_H_
