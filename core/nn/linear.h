#ifndef SHERD_CORE_NN_LINEAR_H_
#define SHERD_CORE_NN_LINEAR_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

struct LinearOptions {
  bool bias = true;
  // float32, float64, float16 or bfloat16.
  DType dtype = kFloat32;
};

// y = x W^T + b, with the parameters `weight` of size [out, in] and `bias` of
// size [out], which may be none.
//
// Layout. Takes one input x of size [..., in]. By the layout of the weight:
//
//   plain    y is a Tensor of size [..., out].
//   sharded  The inputs of all ranks are one: along their first dimension, in
//            the order of the ranks, an input of one dimension being one row.
//            They may differ in the size of the first dimension. With B rows
//            in all, and y of size [B, ..., out]:
//     by rows     (every shard has all columns)  y is a ShardedTensor: the rank
//                 with rows [r, s) of the weight has [..., r:s].
//     otherwise   y is a PartialTensor: each rank has the products of its
//                 shards. By columns, each rank receives only the columns of x
//                 that its shards need; otherwise all of x.
//
// x may also be a ShardedTensor of size [B, ..., in], in any layout, such as
// the output of a Linear whose weight is sharded by rows. A sharded bias is
// gathered.
//
//     column-parallel, then row-parallel:
//       {.plan = {{"up.weight", rows}, {"down.weight", columns}},
//        .output_plan = {{"down", rows}}, .return_local_tensor = {"down"}}
//
// Values. CBLAS multiplies and adds, in any order; 16-bit types are converted
// to float32 before and rounded once after. The ranks add the parts of a
// PartialTensor in its order.
//
// Threads. As Module. Threads of one process multiply one after another, since
// CBLAS may have no locks; where it has none, as Debian's serial OpenBLAS, a
// program's own calls must not run meanwhile.
//
// Collective over the group of the weight if that is sharded, or of x.
//
// Errors. With a sharded weight the same on every rank.
//   kInvalidArgument  There is not one input; x, weight or bias is not a
//                     tensor or sharded tensor; the last size of x is not `in`;
//                     dtypes differ or are none of the above; weight or bias
//                     have other sizes; kinds of x or bias, or other sizes of
//                     x, differ between ranks.
//   kFailedPrecondition
//                     x or bias is sharded, but the weight is not, or over
//                     another group; the sharded weight has no group.
//   kUnimplemented    A tensor is not in host memory; the weight has replicas.
//   kResourceExhausted
//                     There is no memory.
class Linear : public Module {
 public:
  // Uniform in [-k, k) with k = 1 / sqrt(in_features), as in PyTorch, from
  // DefaultGenerator().
  //   kInvalidArgument    A number of features is negative, the weight has 2^63
  //                       bytes or more, or the dtype is not one of the above.
  //   kResourceExhausted  There is no memory.
  static absl::StatusOr<std::shared_ptr<Linear>> Create(
      int64_t in_features, int64_t out_features,
      const LinearOptions& options = {});

  explicit Linear(Value weight, Value bias = Value())
      : weight_(std::move(weight)), bias_(std::move(bias)) {}

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "Linear"; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override;

 private:
  Value weight_;
  Value bias_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NN_LINEAR_H_
