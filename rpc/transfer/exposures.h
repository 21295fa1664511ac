#ifndef SHERD_RPC_TRANSFER_EXPOSURES_H_
#define SHERD_RPC_TRANSFER_EXPOSURES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/transfer/tensor_source.h"

namespace sherd::internal {

class Exposures;

// The tensors of one message, which its receiver reads in this worker's memory.
// Kept while this object exists.
struct Exposure {
  ~Exposure();

  uint64_t transfer = 0;
  uint64_t bytes = 0;
  std::vector<Tensor> tensors;
  std::vector<TensorSource> sources;
  // The table that lists it, if the receiver is a worker of this process.
  std::shared_ptr<Exposures> listed;
};

// The memory that a worker exposes to another worker of its process. The other
// finds it by the nonce that it was sent, and does not trust addresses in
// messages.
//
// Threads. Safe from any thread.
class Exposures {
 public:
  // Creates the table of `nonce`, which others find while the result exists.
  static std::shared_ptr<Exposures> Announce(const std::string& nonce);
  // Null if there are none in this process.
  static std::shared_ptr<Exposures> Of(const std::string& nonce);

  void Add(const std::shared_ptr<const Exposure>& exposure)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t transfer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null if there is none (any more).
  std::shared_ptr<const Exposure> Find(uint64_t transfer)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<const Exposure>> exposures_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_TRANSFER_EXPOSURES_H_
