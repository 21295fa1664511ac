#ifndef SHERD_CORE_SHARDING_SHARDED_STATISTICS_H_
#define SHERD_CORE_SHARDING_SHARDED_STATISTICS_H_

#include "absl/status/statusor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// Statistics of all elements of a sharded tensor. An element with replicas
// counts once, from one of its holders.
//
// Collective over the group of the tensor: every rank gets the same bits.
// Without a group nothing is sent.
//
// Result. Depends on the elements alone: not on layout, number of ranks, order
// or backend. Sums are exact and rounded once, at the end.
//
// Errors. The same on every rank, except that a tensor which was not created
// has no group: then this rank fails and the others wait for it.
//   kFailedPrecondition  The tensor was not created, or a shard has no data;
//                        this rank is not in the group; without a group, shards
//                        are missing here.
//   kInvalidArgument     The dtype has no such number; ranks pass different
//                        tensors or arguments.
//   kUnimplemented       The dtype is carried.
//
// Cost. Each rank reads its shards once (see ExactSum for the speed); one round
// of agreement, and for sums an all_reduce of about 600 bytes. Shards on a
// device are copied to host memory, and the host waits for them.

// The sum, as a tensor of rank 0 of dtype
//
//     bool and integers   int64, of uint64 uint64
//     floats              float64
//     complex             complex128
//
// A NaN, or infinities of both signs, give NaN. A sum of zeros is 0, and so is
// that of no elements.
//   kOutOfRange  A sum of integers does not fit. Nothing wraps.
absl::StatusOr<Tensor> Sum(const ShardedTensor& tensor);

// The sum divided by the number of elements; of none: NaN.
//   kInvalidArgument  The dtype is neither floating-point nor complex.
absl::StatusOr<Tensor> Mean(const ShardedTensor& tensor);

// The smallest and the largest element, of rank 0 and the tensor's dtype. NaN
// if an element is NaN. -0 is smaller than 0.
//   kInvalidArgument  Complex numbers have no order; there are no elements.
absl::StatusOr<Tensor> Min(const ShardedTensor& tensor);
absl::StatusOr<Tensor> Max(const ShardedTensor& tensor);

// The p-norm, (sum of |x|^p)^(1/p); for p = infinity the largest |x|, for p = 0
// the number of elements that are not 0. NaN if an element is
// NaN, which for p = 0 counts as not 0; 0 of no elements. Does not overflow or
// underflow in between: a norm that is a finite number is returned as one.
//   kInvalidArgument  p is negative or NaN; the dtype is neither floating-point
//                     nor complex.
//
// Cost. For p other than 0, 1, 2 and infinity each shard is read twice, after
// another round of agreement; with p = 2 only if the squares are out of the
// range of double.
absl::StatusOr<double> Norm(const ShardedTensor& tensor, double p = 2);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_STATISTICS_H_
