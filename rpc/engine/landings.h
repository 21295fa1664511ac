#ifndef SHERD_RPC_ENGINE_LANDINGS_H_
#define SHERD_RPC_ENGINE_LANDINGS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/engine/call_codec.h"

namespace sherd::internal {

// Messages whose tails are being received into this process's memory.
//
// Threads. Safe from any thread.
class Landings {
 public:
  // Called once, without a lock: with OK when all bytes have arrived, otherwise
  // with why no more will. Its captures keep the memory until then.
  using End = std::function<void(const absl::Status& status)>;

  // Returns the ticket.
  uint64_t Add(int from, End end) ABSL_LOCKS_EXCLUDED(mutex_);
  // All bytes of that ticket have arrived. An unknown ticket is ignored.
  void Land(int from, uint64_t ticket) ABSL_LOCKS_EXCLUDED(mutex_);
  // No more bytes arrive from `worker`; -1: from any.
  void Fail(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Landing {
    int from = 0;
    End end;
  };

  absl::Mutex mutex_;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, Landing> landings_ ABSL_GUARDED_BY(mutex_);
};

// Tensors of these layouts, in host memory. Defined tensors of `out` are used
// if they are in host memory and, unless any strides will do, contiguous; the
// others are new.
//   kInvalidArgument     `out` is not empty and has another number of tensors,
//                        or one of other sizes or dtype, without data, or that
//                        may not be written to; names both.
//   kFailedPrecondition  A tensor goes to a device that this worker does not
//                        have.
//   kResourceExhausted   There is not that much memory.
absl::StatusOr<std::vector<Tensor>> TensorsToLandIn(
    const std::vector<TensorLayout>& layouts, const std::vector<Tensor>& out,
    bool any_strides);

// Their devices after they have arrived, as Payload::devices: a tensor with a
// place in `out` goes to no other.
std::vector<Device> DevicesAfterLanding(
    const std::vector<TensorLayout>& layouts, const std::vector<Tensor>& out);

// The destinations of the tail of these tensors.
std::vector<absl::Span<std::byte>> DestinationsOf(std::vector<Tensor>& tensors);

// Copies what arrived elsewhere into the defined tensors of `out`, which the
// result then has; not on a thread that must not block.
absl::Status CopyIntoOut(const std::vector<Tensor>& out,
                         std::vector<Tensor>& landed);

// Whether CopyIntoOut has something to copy.
bool NeedsCopyIntoOut(const std::vector<Tensor>& out,
                      const std::vector<Tensor>& landed);

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_LANDINGS_H_
