#include "sherd/core/sharding/sharded_ops.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

template <typename Op>
absl::Status CheckCreated(Op op, const ShardedTensor& tensor) {
  if (tensor.defined()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Name(op), ": the ShardedTensor was not created"));
}

absl::Status CheckOperands(BinaryOp op, const ShardedTensor& a,
                           const ShardedTensor& b) {
  SHERD_RETURN_IF_ERROR(CheckCreated(op, a));
  SHERD_RETURN_IF_ERROR(CheckCreated(op, b));
  if (a.group() != b.group()) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(op),
        ": All distributed tensors should use the same ProcessGroup"));
  }
  if (a.dtype() != b.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(op), ": the operands have the dtypes ", Name(a.dtype()), " and ",
        Name(b.dtype()), "; convert one with To()"));
  }
  if (a.size() != b.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(op), ": the operands have the sizes ", FormatDims(a.size()),
        " and ", FormatDims(b.size()), "; there is no broadcasting"));
  }
  if (internal::SameLayout(a.metadata(), b.metadata()) &&
      a.local_shard_indices() == b.local_shard_indices()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Name(op), ": the operands have different layouts, ", a.spec()->ToString(),
      " and ", b.spec()->ToString(), "; Reshard one to that of the other"));
}

absl::Status PlainOperand(BinaryOp op) {
  return absl::FailedPreconditionError(
      absl::StrCat(Name(op),
                   " with a plain tensor, which is to be sharded alike first "
                   "(ShardTensor), is not supported for ShardedTensor!"));
}

// Calls `apply(a, out)` for each local shard of `a` and the one of `out` that
// corresponds to it. A shard may be refused for the values of its elements.
template <typename Op, typename Apply>
absl::Status ForEachShard(Op op, const ShardedTensor& a,
                          const ShardedTensor& out, const Apply& apply) {
  for (size_t i = 0; i < a.local_shards().size(); ++i) {
    Tensor result = out.local_shards()[i].tensor;
    const absl::Status status = apply(i, a.local_shards()[i].tensor, result);
    if (status.ok()) continue;
    return Annotate(
        status,
        absl::StrCat(Name(op), ": ", a.local_shards()[i].metadata.ToString()));
  }
  return absl::OkStatus();
}

absl::Status ComputeInto(UnaryOp op, const ShardedTensor& a,
                         const ShardedTensor& out) {
  SHERD_RETURN_IF_ERROR(CheckElementwise(op, a.dtype()));
  return ForEachShard(op, a, out,
                      [&](size_t, const Tensor& shard, Tensor& result) {
                        return ApplyInto(op, shard, result);
                      });
}

absl::Status ComputeInto(BinaryOp op, const ShardedTensor& a,
                         absl::Span<const Shard> b, const ShardedTensor& out) {
  SHERD_RETURN_IF_ERROR(CheckElementwise(op, a.dtype()));
  return ForEachShard(op, a, out,
                      [&](size_t i, const Tensor& shard, Tensor& result) {
                        return ApplyInto(op, shard, b[i].tensor, result);
                      });
}

// That the shards of `a` can be replaced, one after the other.
template <typename Op>
absl::Status CheckInPlace(Op op, const ShardedTensor& a) {
  SHERD_RETURN_IF_ERROR(CheckCreated(op, a));
  return Annotate(internal::CheckDestinations(a.local_shards()), Name(op));
}

// Ranks without shards refuse a scalar too.
absl::Status CheckScalar(BinaryOp op, DType dtype, const Scalar& scalar,
                         bool scalar_first) {
  SHERD_ASSIGN_OR_RETURN(const Tensor none,
                         Tensor::Empty({0}, {.dtype = dtype}));
  return scalar_first ? Apply(op, scalar, none).status()
                      : Apply(op, none, scalar).status();
}

absl::Status ComputeInto(BinaryOp op, const ShardedTensor& a,
                         const Scalar& scalar, bool scalar_first,
                         const ShardedTensor& out) {
  SHERD_RETURN_IF_ERROR(CheckScalar(op, a.dtype(), scalar, scalar_first));
  return ForEachShard(
      op, a, out, [&](size_t, const Tensor& shard, Tensor& result) {
        return scalar_first ? ApplyInto(op, scalar, shard, result)
                            : ApplyInto(op, shard, scalar, result);
      });
}

}  // namespace

absl::StatusOr<ShardedTensor> Apply(UnaryOp op, const ShardedTensor& a) {
  SHERD_RETURN_IF_ERROR(CheckCreated(op, a));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor out, EmptyLike(a));
  SHERD_RETURN_IF_ERROR(ComputeInto(op, a, out));
  return out;
}

absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const ShardedTensor& a,
                                    const ShardedTensor& b) {
  SHERD_RETURN_IF_ERROR(CheckOperands(op, a, b));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor out, EmptyLike(a));
  SHERD_RETURN_IF_ERROR(ComputeInto(op, a, b.local_shards(), out));
  return out;
}

absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const ShardedTensor& a,
                                    const Scalar& b) {
  SHERD_RETURN_IF_ERROR(CheckCreated(op, a));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor out, EmptyLike(a));
  SHERD_RETURN_IF_ERROR(ComputeInto(op, a, b, /*scalar_first=*/false, out));
  return out;
}

absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const Scalar& a,
                                    const ShardedTensor& b) {
  SHERD_RETURN_IF_ERROR(CheckCreated(op, b));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor out, EmptyLike(b));
  SHERD_RETURN_IF_ERROR(ComputeInto(op, b, a, /*scalar_first=*/true, out));
  return out;
}

absl::Status ApplyInPlace(UnaryOp op, ShardedTensor& a) {
  SHERD_RETURN_IF_ERROR(CheckInPlace(op, a));
  return ComputeInto(op, a, a);
}

absl::Status ApplyInPlace(BinaryOp op, ShardedTensor& a,
                          const ShardedTensor& b) {
  SHERD_RETURN_IF_ERROR(CheckOperands(op, a, b));
  SHERD_RETURN_IF_ERROR(CheckInPlace(op, a));
  std::vector<Shard> copies;
  absl::StatusOr<absl::Span<const Shard>> from =
      internal::ApartFrom(a.local_shards(), b.local_shards(), copies);
  if (!from.ok()) return Annotate(from.status(), Name(op));
  return ComputeInto(op, a, *from, a);
}

absl::Status ApplyInPlace(BinaryOp op, ShardedTensor& a, const Scalar& b) {
  SHERD_RETURN_IF_ERROR(CheckInPlace(op, a));
  return ComputeInto(op, a, b, /*scalar_first=*/false, a);
}

absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const ShardedTensor&,
                                    const Tensor&) {
  return PlainOperand(op);
}
absl::StatusOr<ShardedTensor> Apply(BinaryOp op, const Tensor&,
                                    const ShardedTensor&) {
  return PlainOperand(op);
}
absl::Status ApplyInPlace(BinaryOp op, ShardedTensor&, const Tensor&) {
  return PlainOperand(op);
}

}  // namespace sherd
