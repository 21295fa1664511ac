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

// Tensors that go from worker to worker within one host, with one copy, which
// the receiver makes: out of the sender's memory, to where it wants them.
//
// Two workers find out first who can read whose memory: each sends its Probe to
// the other, who tries what it says (Examine) and answers with the paths that
// work (SetReadable). Until then, and wherever none works, Expose returns null,
// and the tensors travel in the message.
//
// Life. What is exposed is kept until its receiver has read it or is lost. The
// owner wipes the nonce before (Forget), and a reader looks at it behind its
// copies: so it takes nothing for a tensor that was something else already.
//
// Trust. What a worker announces is wrong or hostile until it was tried: reads
// write to their destination alone, and fail with an error.
//
// Threads. Safe from any thread. Nothing waits, but Read for its copies.
class MemoryTransfer {
 public:
  // `paths`: those that this worker may use, for reading and for being read.
  // With shm, backend shm is loaded; where that fails, it does without.
  MemoryTransfer(int world_size, MemoryPathSet paths);
  MemoryTransfer(const MemoryTransfer&) = delete;
  MemoryTransfer& operator=(const MemoryTransfer&) = delete;

  // What `peer` needs to read this worker's memory; once for each peer, and
  // nothing if there is no path.
  std::optional<MemoryProbe> IntroduceTo(int peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The last one did not leave: IntroduceTo returns it again.
  void ProbeUnsent(int peer) { peers_[peer].is_introduced = false; }

  // Tries the probe of `peer`, of which there is one: the paths by which this
  // worker reads its memory.
  //   kInvalidArgument  There was one before.
  // Cost. A few system calls.
  absl::StatusOr<MemoryPathSet> Examine(int peer, const MemoryProbe& probe)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // `peer` reads this worker's memory by these paths.
  void SetReadable(int peer, MemoryPathSet paths) ABSL_LOCKS_EXCLUDED(mutex_);

  // What `peer` reads from now on does not count: it is lost, or this worker
  // ends. Before anything that is exposed to it is released.
  void Forget(int peer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes tensors in host memory, of any strides, readable for `peer` while the
  // result exists. Null if the peer does not reach all of them: then they are
  // to be sent.
  std::shared_ptr<const Exposure> Expose(int peer,
                                         const std::vector<Tensor>& tensors)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies what `peer` exposed to `tensors`, which have the announced sizes and
  // dtypes and any strides.
  //   kUnavailable      Its process has ended; it is the failed rank.
  //   kInvalidArgument  It did not expose what it announced, or has taken it
  //                     back.
  //   other             The system does not let its memory be read.
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
    // For it alone; empty before it is introduced.
    std::string nonce;
    std::shared_ptr<Exposures> exposures;
    // How it reads this worker's memory.
    MemoryPathSet readable_by;
    std::shared_ptr<const Reach> reach;
  };

  bool Locate(MemoryPathSet paths, Tensor& tensor, TensorSource& source) const;

  MemoryPathSet paths_;
  // Found once: to look for it may mean to wait until others are loaded. Null
  // without shm.
  const Backend* shm_ = nullptr;
  // For Export. Null without shm.
  std::shared_ptr<PeerMemory> own_memory_;
  std::atomic<uint64_t> next_transfer_{1};
  absl::Mutex mutex_;
  // By rank; guarded, but for what is atomic.
  const std::unique_ptr<Peer[]> peers_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_TRANSFER_MEMORY_TRANSFER_H_
