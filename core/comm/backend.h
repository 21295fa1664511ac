#ifndef SHERD_CORE_COMM_BACKEND_H_
#define SHERD_CORE_COMM_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store.h"

namespace sherd {

// The seam between the host and whatever moves the bytes. Callers of
// collectives use ProcessGroup; implementers of backends write a plugin
// (backends/backend_abi.h), which the loader adapts to this. Tests implement it
// directly.

// Numbers are those of the plugin line and never change.
enum class CollectiveOp : int32_t {
  kBarrier = 0,
  kBroadcast = 1,
  kAllGather = 2,
  kAllToAllV = 3,
};
inline constexpr int kNumCollectiveOps = 4;

// "barrier", "broadcast", "all_gather", "all_to_all_v".
absl::string_view Name(CollectiveOp op);

// Bytes to send or a place to receive them.
using ConstBytes = absl::Span<const std::byte>;
using MutableBytes = absl::Span<std::byte>;

// One valid collective: the host has checked every field. Which fields an
// operation uses (P = group size):
//   barrier       none
//   broadcast     buffer = out[0, bytes), root
//   all_gather    in[0, bytes), out[0, P * bytes)
//   all_to_all_v  sends[P], recvs[P]; entry r goes to, or comes from, rank r;
//                 an empty entry is no message; entry `rank` has been copied
//                 by the host and is empty
struct CollectiveDesc {
  CollectiveOp op = CollectiveOp::kBarrier;
  int root = 0;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t bytes = 0;
  absl::Span<const ConstBytes> sends = {};
  absl::Span<const MutableBytes> recvs = {};
  uint64_t sequence = 0;
  Deadline deadline = Deadline::Infinite();
};

// Memory for one operation in flight, owned by the host, untouched by it
// between Post and the end of the operation.
struct alignas(64) CollectiveRequest {
  std::byte storage[128];
};

// One rank's connection to the other ranks of a group. One call of Post, Test
// at a time; Abort from any thread.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // True if Post returns only once the operation ended. The host then runs
  // asynchronous calls on a thread of its own.
  virtual bool CompletesInPost() const = 0;

  // Starts `desc`; with CompletesInPost(), also finishes it. Errors carry the
  // peer's rank where it is known (see WithRank); after one the communicator
  // is only good for Abort and destruction.
  virtual absl::Status Post(const CollectiveDesc& desc,
                            CollectiveRequest& request) = 0;

  // True once the operation has ended well. Only without CompletesInPost().
  virtual absl::StatusOr<bool> Test(CollectiveRequest& request) = 0;

  // Makes running and later operations fail soon. Idempotent, never blocks.
  virtual void Abort() = 0;
};

struct CommunicatorOptions {
  std::string group;
  int rank = 0;
  int size = 1;
  // For meeting the other ranks; private to this group. Outlives the
  // communicator.
  Store* store = nullptr;
  Deadline deadline = Deadline::Infinite();
};

struct BackendInfo {
  std::string name;
  // Path of the plugin, or "linked statically".
  std::string origin;
  // Version of the vendor's library, or empty.
  std::string library_version;
  // Ranks are threads of one process, each with a default group of its own.
  bool ranks_are_threads = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // OK if communicators can be made on this machine, otherwise why not.
  // Initialises nothing.
  virtual absl::Status Probe() const = 0;

  // Connects this rank to the others. Collective: returns once all ranks of
  // the group called it, or at the deadline.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_BACKEND_H_
