#ifndef SHERD_CORE_SHARDING_SHARDED_OPS_H_
#define SHERD_CORE_SHARDING_SHARDED_OPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/scalar.h"

namespace sherd {

// Operations on each element, for sharded tensors of any layout. Dtypes, values
// and scalars: as for tensors, see elementwise.h. Two operands have the same
// layout: the same shards on the same ranks, in the same order.
//
//     SHERD_ASSIGN_OR_RETURN(ShardedTensor y, Apply(UnaryOp::kExp, x));
//     SHERD_RETURN_IF_ERROR(ApplyInPlace(BinaryOp::kMul, y, 0.5));
//
// Result. Apply makes a tensor like the (first) operand, in memory of its own;
// ApplyInPlace writes to the shards of `a`, which all its handles share. `b`
// may share memory with `a` in any way: the result is as if `b` had been copied
// before. It is copied unless each shard is the corresponding shard of `a` or
// shares no memory with `a`. Each rank that holds a replica computes it.
//
// Not collective: no rank waits for another, and an error may occur on one rank
// only (its shards may hold the 0 by which an integer is divided).
//
// Errors. Nothing has changed on this rank, unless a later one of several
// shards was refused for its memory or an integer division.
//   kInvalidArgument     As for tensors; layouts differ: Reshard one; or, in
//                        place, shards of `a` share memory.
//   kFailedPrecondition  An operand was not created; "All distributed tensors
//                        should use the same ProcessGroup"; "not supported for
//                        ShardedTensor!": the other operand is a plain tensor.
//                        Or as for tensors.
//   kResourceExhausted   There is no memory for the result, or for a copy of
//                        `b`.
absl::StatusOr<ShardedTensor> Apply(UnaryOp op, const ShardedTensor& a);
absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const ShardedTensor& a,
                                    const ShardedTensor& b);
absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const ShardedTensor& a,
                                    const Scalar& b);
absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const Scalar& a,
                                    const ShardedTensor& b);

absl::Status ApplyInPlace(UnaryOp op, ShardedTensor& a);
absl::Status ApplyInPlace(BinaryOp op, ShardedTensor& a,
                          const ShardedTensor& b);
absl::Status ApplyInPlace(BinaryOp op, ShardedTensor& a, const Scalar& b);

// Always returns the error "… not supported for ShardedTensor!": first shard
// the plain tensor with the same layout (ShardTensor).
absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const ShardedTensor& a,
                                    const Tensor& b);
absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const Tensor& a,
                                    const ShardedTensor& b);
absl::Status ApplyInPlace(BinaryOp op, ShardedTensor& a, const Tensor& b);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_OPS_H_
