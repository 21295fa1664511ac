#ifndef SHERD_CORE_COMM_TENSOR_COLLECTIVES_H_
#define SHERD_CORE_COMM_TENSOR_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// The collectives of ProcessGroup over tensors. P is group.size().
//
// Tensors. Defined, contiguous, and all of one call in host memory or all on
// group.device(), the same on all ranks; receive tensors are also writable. All
// tensors of one call have one dtype, the same on all ranks. An element may be
// of any dtype; CheckReduction defines which dtypes can be reduced. Data moves
// directly between the tensors' memory, without a copy. A receive tensor shares
// no memory with another tensor of the call, except where a call documents it;
// one tensor may be sent several times.
//
// Devices. As in ProcessGroup: a call on a device is queued on the current
// stream; tensors may be dropped once the call has returned.
//
// Collective, errors, threads: as for the method of ProcessGroup of the same
// name. A tensor that breaks a rule stated here is kInvalidArgument with
// operation, tensor and remedy; then nothing was sent, nothing written, and the
// group stays usable.
//
// Twins. FooAsync does what Foo does and returns at once. It keeps the memory
// of the tensors alive until the operation ended, even if the tensors and the
// Work are dropped before; lists are copied.

// Copies root's elements into every rank's tensor. The number of elements is
// the same everywhere; sizes may differ.
absl::Status Broadcast(ProcessGroup& group, Tensor& tensor, int root,
                       const CollectiveOptions& options = {});
Work BroadcastAsync(ProcessGroup& group, Tensor& tensor, int root,
                    const CollectiveOptions& options = {});

// Replaces every rank's elements by their reduction over all ranks.
absl::Status AllReduce(ProcessGroup& group, Tensor& tensor, ReduceOp op,
                       const CollectiveOptions& options = {});
Work AllReduceAsync(ProcessGroup& group, Tensor& tensor, ReduceOp op,
                    const CollectiveOptions& options = {});

// Replaces root's elements by their reduction over all ranks. Other ranks'
// tensors are unchanged.
absl::Status Reduce(ProcessGroup& group, Tensor& tensor, ReduceOp op, int root,
                    const CollectiveOptions& options = {});
Work ReduceAsync(ProcessGroup& group, Tensor& tensor, ReduceOp op, int root,
                 const CollectiveOptions& options = {});

// Fills recvs[r] with rank r's `send`. Ranks may differ in the number of
// elements: on every rank, recvs[r] has as many as rank r's send. recvs[rank]
// may be `send`.
absl::Status AllGather(ProcessGroup& group, const Tensor& send,
                       absl::Span<Tensor> recvs,
                       const CollectiveOptions& options = {});
Work AllGatherAsync(ProcessGroup& group, const Tensor& send,
                    absl::Span<Tensor> recvs,
                    const CollectiveOptions& options = {});

// Joins all ranks' `send`, which have the same sizes [n, …], in rank order:
// along the first dimension if recv has the sizes [P * n, …], or stacked if it
// has the sizes [P, n, …]. `send` may be this rank's part of `recv`.
absl::Status AllGatherIntoTensor(ProcessGroup& group, const Tensor& send,
                                 Tensor& recv,
                                 const CollectiveOptions& options = {});
Work AllGatherIntoTensorAsync(ProcessGroup& group, const Tensor& send,
                              Tensor& recv,
                              const CollectiveOptions& options = {});

// As AllGather, but only root gets the result: others pass an empty list.
absl::Status Gather(ProcessGroup& group, const Tensor& send,
                    absl::Span<Tensor> recvs, int root,
                    const CollectiveOptions& options = {});
Work GatherAsync(ProcessGroup& group, const Tensor& send,
                 absl::Span<Tensor> recvs, int root,
                 const CollectiveOptions& options = {});

// Fills rank r's `recv` with root's sends[r]: others pass an empty list.
absl::Status Scatter(ProcessGroup& group, absl::Span<const Tensor> sends,
                     Tensor& recv, int root,
                     const CollectiveOptions& options = {});
Work ScatterAsync(ProcessGroup& group, absl::Span<const Tensor> sends,
                  Tensor& recv, int root,
                  const CollectiveOptions& options = {});

// Fills rank r's `recv` with the reduction of all ranks' sends[r]. Entries may
// differ in the number of elements: on every rank, sends[r] has as many as rank
// r's recv. `recv` may be sends[rank].
absl::Status ReduceScatter(ProcessGroup& group, absl::Span<const Tensor> sends,
                           Tensor& recv, ReduceOp op,
                           const CollectiveOptions& options = {});
Work ReduceScatterAsync(ProcessGroup& group, absl::Span<const Tensor> sends,
                        Tensor& recv, ReduceOp op,
                        const CollectiveOptions& options = {});

// As ReduceScatter with one tensor: with recv of the sizes [n, …] on all ranks,
// `send` has the sizes [P * n, …] or [P, n, …], and part r is for rank r.
absl::Status ReduceScatterTensor(ProcessGroup& group, const Tensor& send,
                                 Tensor& recv, ReduceOp op,
                                 const CollectiveOptions& options = {});
Work ReduceScatterTensorAsync(ProcessGroup& group, const Tensor& send,
                              Tensor& recv, ReduceOp op,
                              const CollectiveOptions& options = {});

// Sends sends[r] to rank r and fills recvs[r] from rank r; both have as many
// elements. Sizes may differ from entry to entry.
absl::Status AllToAll(ProcessGroup& group, absl::Span<const Tensor> sends,
                      absl::Span<Tensor> recvs,
                      const CollectiveOptions& options = {});
Work AllToAllAsync(ProcessGroup& group, absl::Span<const Tensor> sends,
                   absl::Span<Tensor> recvs,
                   const CollectiveOptions& options = {});

// Numbers of slices of a tensor along its first dimension, by rank; empty means
// equal numbers.
struct Splits {
  absl::Span<const int64_t> send = {};
  absl::Span<const int64_t> recv = {};
};

// Splits `send` along its first dimension into splits.send[r] slices for each
// rank r, and fills `recv` with splits.recv[r] slices from each, in rank order.
// All other dimensions have the same sizes in both tensors. splits.recv[r] on
// rank k is splits.send[k] on rank r.
absl::Status AllToAllSingle(ProcessGroup& group, const Tensor& send,
                            Tensor& recv, const Splits& splits = {},
                            const CollectiveOptions& options = {});
Work AllToAllSingleAsync(ProcessGroup& group, const Tensor& send, Tensor& recv,
                         const Splits& splits = {},
                         const CollectiveOptions& options = {});

// Sends the elements to rank `destination`, which receives them into a tensor
// with as many bytes by Recv with the same tag. Not collective.
absl::Status Send(ProcessGroup& group, const Tensor& tensor, int destination,
                  int64_t tag = 0, const CollectiveOptions& options = {});
Work SendAsync(ProcessGroup& group, const Tensor& tensor, int destination,
               int64_t tag = 0, const CollectiveOptions& options = {});
absl::Status Recv(ProcessGroup& group, Tensor& tensor, int source,
                  int64_t tag = 0, const CollectiveOptions& options = {});
Work RecvAsync(ProcessGroup& group, Tensor& tensor, int source, int64_t tag = 0,
               const CollectiveOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_COMM_TENSOR_COLLECTIVES_H_
