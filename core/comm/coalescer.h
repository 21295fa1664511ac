#ifndef SHERD_CORE_COMM_COALESCER_H_
#define SHERD_CORE_COMM_COALESCER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

namespace internal {
class CoalescedBatch;
}  // namespace internal

struct CoalescerOptions {
  // Operations with longer blocks are not copied but started as they are.
  size_t max_packed_block = 64 << 10;
  // Largest size of a pack; further operations go to another pack.
  size_t max_pack = 8 << 20;
};

// Collects operations of a group and launches them together: operations of one
// kind are packed into one buffer and one call, so that many small ones cost
// little more than one.
//
//     Coalescer batch(group);
//     for (Gradient& g : gradients) {
//       SHERD_RETURN_IF_ERROR(
//           batch.AllReduce(g.bytes, g.bytes, kFloat32, ReduceOp::kAvg));
//     }
//     SHERD_RETURN_IF_ERROR(batch.Launch());
//
// Kinds. all_reduce and reduce_scatter of one dtype and reduction, broadcast
// from one root, all_gather; send to, and receive from, one peer with one tag.
//
// Collective. All ranks add the same collectives with the same lengths in the
// same order, with the same options, and launch; at Launch they compare what
// they added. Sends and receives are not compared; both ends of them go through
// a Coalescer, with equal lengths in equal order per peer and tag. A batch of
// these alone is not a collective.
//
// Result. As if each operation had been called by itself, with two exceptions:
// there is no order between operations of one batch; and the rounding of a sum
// of floats may differ, as a backend may reduce in an order that depends on the
// length.
//
// Buffers. Borrowed from Add until Launch returned or its Work ended. Send
// buffers are read at Launch. A receive buffer of one operation overlaps no
// buffer of another one.
//
// Errors. One error fails the batch: that of the operation or pack that failed
// first, which the message names. Receive buffers are then unspecified.
//   kInvalidArgument     From an Add: the operation breaks a rule of
//                        ProcessGroup. Launch repeats it, nothing is sent and
//                        the group stays usable. From Launch: buffers of two
//                        operations overlap, with the same consequence. Or
//                        another rank added other collectives; none of their
//                        buffers was written, and the group is poisoned on all
//                        ranks.
//   kFailedPrecondition  Launch was called before.
//   kUnimplemented       From Launch: the options name a device, and only host
//                        memory can be packed. Nothing is sent, and the batch
//                        can still be launched.
// Otherwise the errors of the operations.
//
// Threads. Not thread-safe. Different batches of one group are ordered by the
// caller, like other collectives.
//
// Cost. One all_gather of 8 bytes per rank; per pack one call and a copy in and
// out. n operations are sorted by their buffers, in O(n log n).
class Coalescer {
 public:
  explicit Coalescer(ProcessGroup& group, const CoalescerOptions& options = {});
  // Without Launch nothing is sent.
  ~Coalescer();
  Coalescer(const Coalescer&) = delete;
  Coalescer& operator=(const Coalescer&) = delete;

  // Each as the method of ProcessGroup of the same name.
  absl::Status AllReduce(ConstBytes send, MutableBytes recv, DType dtype,
                         ReduceOp op);
  absl::Status ReduceScatter(ConstBytes send, MutableBytes recv, DType dtype,
                             ReduceOp op);
  absl::Status Broadcast(MutableBytes buffer, int root);
  absl::Status AllGather(ConstBytes send, MutableBytes recv);
  absl::Status Send(ConstBytes send, int destination, int64_t tag = 0);
  absl::Status Recv(MutableBytes recv, int source, int64_t tag = 0);

  // Runs the added operations; called once.
  absl::Status Launch(const CollectiveOptions& options = {});

  // As Launch, but returns at once. Results are in place when the Work has
  // ended. The Work and this object may be dropped before.
  Work LaunchAsync(const CollectiveOptions& options = {});

  // Number of operations added, and of calls that Launch makes for them.
  int num_operations() const;
  int num_calls() const;

 private:
  const std::shared_ptr<internal::CoalescedBatch> batch_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COALESCER_H_
