#ifndef SHERD_RPC_TRANSFER_MEMORY_TRANSFER_H_
#define SHERD_RPC_TRANSFER_MEMORY_TRANSFER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/transfer/exposures.h"
#include "sherd/rpc/transfer/tensor_source.h"

namespace sherd::internal {

// Tensors that move between workers of one host with one copy, which the
// receiver makes: from the sender's memory to their destination.
//
// Two workers first determine who can read whose memory: each sends its Probe
// to the other, which tries it (Examine) and answers with the paths that work
// (SetReadable). Until then, and where no path works, Expose returns null, and
// the tensors travel in the message.
//
// Life. An exposed tensor is kept until its receiver has read it or is lost.
// The owner wipes the nonce before that (Forget), and a reader checks it after
// its copies: so it never takes reused memory for a tensor.
//
// Trust. Addresses that a worker announces may be wrong or hostile: a read
// writes to its destination alone, and fails with an error.
//
// Threads. Safe from any thread. Only Read waits, for its copies.
class MemoryTransfer {
 public:
  // `paths`: those that this worker may use, as reader and as owner. With shm,
  // loads backend shm; if that fails, works without.
  MemoryTransfer(int world_size, MemoryPathSet paths);
  MemoryTransfer(const MemoryTransfer&) = delete;
  MemoryTransfer& operator=(const MemoryTransfer&) = delete;

  // Returns what `peer` needs to read this worker's memory; once for each peer,
  // and nothing if there is no path.
  std::optional<MemoryProbe> IntroduceTo(int peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The last probe was not sent: IntroduceTo returns it again.
  void ProbeUnsent(int peer) { peers_[peer].is_introduced = false; }

  // Tries the probe of `peer`, which sends one only: returns the paths by which
  // this worker can read its memory.
  //   kInvalidArgument  There was a probe before.
  // Cost. A few system calls.
  absl::StatusOr<MemoryPathSet> Examine(int peer, const MemoryProbe& probe)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // `peer` reads this worker's memory by these paths.
  void SetReadable(int peer, MemoryPathSet paths) ABSL_LOCKS_EXCLUDED(mutex_);

  // Invalidates later reads by `peer`, and of its memory, which is unmapped
  // once the last running read has ended: it is lost or has left, or this
  // worker ends. `why` is the error of such reads. Called before anything that
  // is exposed to it is released.
  void Forget(int peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes tensors in host memory, of any strides, readable for `peer` while the
  // result exists. Null if the peer cannot read all of them: then they have to
  // be sent.
  std::shared_ptr<const Exposure> Expose(int peer,
                                         const std::vector<Tensor>& tensors)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies what `peer` exposed to `tensors`, which have the announced sizes and
  // dtypes and any strides.
  //   kUnavailable      Its process has ended; it is the failed rank.
  //   any               It was forgotten, for that reason.
  //   kInvalidArgument  It did not expose what it announced, or has withdrawn
  //                     it.
  //   other             The system does not let this process read its memory.
  // After an error the contents of `tensors` are unspecified.
  absl::Status Read(int peer, uint64_t transfer,
                    const std::vector<TensorSource>& sources,
                    std::vector<Tensor>& tensors) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // How a peer's memory is read.
  struct Reach {
    MemoryPathSet paths;
    ProcessIdentity process;
    std::string nonce;
    uint64_t nonce_address = 0;
    std::shared_ptr<Exposures> exposures;
    std::shared_ptr<PeerMemory> memory;
  };
  struct Peer {
    std::atomic<bool> is_introduced{false};
    // For this peer alone; empty before it is introduced.
    std::string nonce;
    std::shared_ptr<Exposures> exposures;
    // The paths by which it reads this worker's memory.
    MemoryPathSet readable_by;
    std::shared_ptr<const Reach> reach;
    // Not OK once it is forgotten.
    absl::Status gone;
  };

  bool Locate(MemoryPathSet paths, Tensor& tensor, TensorSource& source) const;

  MemoryPathSet paths_;
  // Looked up once: a look-up may wait until other backends are loaded. Null
  // without shm.
  const Backend* shm_ = nullptr;
  // For Export. Null without shm.
  std::shared_ptr<PeerMemory> own_memory_;
  std::atomic<uint64_t> next_transfer_{1};
  absl::Mutex mutex_;
  // By rank; guarded, but for atomic members.
  const std::unique_ptr<Peer[]> peers_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_TRANSFER_MEMORY_TRANSFER_H_
