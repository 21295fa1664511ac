#ifndef SHERD_CORE_NN_UPDATE_H_
#define SHERD_CORE_NN_UPDATE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// How the gradient g of a row changes the row w, whose accumulator is s; lr is
// the learning rate. The formulas are those of torch.optim.SGD and
// torch.optim.Adagrad, and of FBGEMM's EXACT_SGD, EXACT_ADAGRAD and
// EXACT_ROWWISE_ADAGRAD, all without weight decay.
enum class SparseRule : int32_t {
  // w -= lr * g
  kSgd,
  // s += g * g;  w -= lr * g / (sqrt(s) + eps), each column for itself.
  kAdagrad,
  // s += mean(g * g) over the columns;  w -= lr / (sqrt(s) + eps) * g. One s
  // per row.
  kRowWiseAdagrad,
};

// "sgd", "adagrad", "rowwise_adagrad".
absl::string_view Name(SparseRule rule);

struct UpdateOptions {
  SparseRule rule = SparseRule::kSgd;
  double learning_rate = 0.01;
  // Of Adagrad. torch.optim.Adagrad and torchrec.optim.RowWiseAdagrad have this
  // default, FBGEMM has 1e-8.
  double eps = 1e-10;
  // Of each of the call's collectives. Unset: the group's.
  std::optional<absl::Duration> timeout = std::nullopt;
  // Ranks may read each other's gradients where the group allows it. The same
  // on all ranks.
  bool direct = true;
};

// Subtracts the gradients of lookups from the tables, at the owners of the
// rows: the backward pass of LookUp and a step of the optimizer in one.
//
//     SHERD_ASSIGN_OR_RETURN(std::vector<Tensor> y, LookUp(lookups));
//     …                                     // gradients[i] of y[i]
//     SHERD_RETURN_IF_ERROR(
//         Update(lookups, gradients, {.rule = SparseRule::kRowWiseAdagrad,
//                                     .learning_rate = 0.1}));
//
// Layout. `lookups` are those of LookUp: tables, bags and options of this rank.
// gradients[i] has the size and dtype of lookup i's result. The gradient of a
// row is
//
//     g[c] = sum of gradients[b, c] * f over the row's ids in the bags b
//
// with f = 1 for kSum and kNone, the id's weight where there are weights, and
// for kMean 1 / n with the n ids of bag b that are not padding. Padding has no
// gradient, with kNone either. max_norm is that of reading and has no effect.
//
// A table that occurs in several lookups has one gradient, their sum, and takes
// one step. Rows without ids do not change, nor do their accumulators.
//
// Accumulators. Adagrad's sums lie beside the weight: float32, or float64 for
// float64, of the table's size and layout, or with kRowWiseAdagrad of size
// [rows, 1], where each row's is held by the owners of its column 0. The first
// Update makes them, 0, in the same kind of tensor as the table; see
// GetAccumulator.
//
// Collective as LookUp; without sharded tables, local. Ranks also pass the same
// rule, learning rate and eps.
//
// Values. Computed in float32, or float64 for float64, without fused
// multiply-adds. The terms of g are added in the order of the global batch:
// the ids of rank 0 in their order, then those of rank 1, and so on; of several
// lookups, all ranks' ids of the first one before those of the second. The mean
// of squares is that of sums over blocks of 16 columns, each added as
// ((x0 + x8) + (x4 + x12)) + …, in ascending order; see update_kernels.h. So
// tables and accumulators have the same bits in every layout, on any number of
// ranks and on both paths. 16-bit rows are rounded once. Replicas stay equal.
//
// Errors. The same on every rank, with the rank where it is one rank's; tables
// and accumulators are as before.
//   kInvalidArgument     As LookUp; there is not one gradient per lookup, or it
//                        is of another size or dtype than the result; the
//                        learning rate or eps is not finite or negative; the
//                        accumulator of a table is of another size or dtype;
//                        rows of a table coincide in memory, or shards of
//                        this rank do, of one table or of several.
//                        Ranks pass other tables or options.
//   kFailedPrecondition  As LookUp; a table may not be written to.
//   kUnimplemented       As LookUp; tables or gradients on a device; mode kMax,
//                        whose gradient needs the rows that were largest.
//   kResourceExhausted   There is no memory for an accumulator or a buffer.
//   kDataLoss            A rank sent a malformed message, or lengths that are
//                        impossible.
// After kDataLoss and the failure of a rank (kUnavailable, kDeadlineExceeded)
// tables and accumulators are unspecified, and the group may be poisoned.
//
// Completion. When it returns, this rank's shards have been updated. Where
// ranks read each other's gradients, those of all ranks have, and none reads
// this one's gradients any more.
//
// Cost. No gradient of the table's size: O(ids + gradients) of memory, kept
// with what LookUp keeps for the same tables, so that later calls allocate
// nothing. Each rank sorts the ids of the rows that it owns. Direct: gradients
// are copied once and read by the owners; one all_gather before and one after,
// and one more if a table with kRowWiseAdagrad is cut by columns. Messages: an
// all_gather, an all_to_all_v of ids and of the gradients' columns to their
// owners, and in that case an all_gather_v of sums of squares; an all_gather
// where a rank's memory for what it receives is to grow.
absl::Status Update(absl::Span<const TableLookUp> lookups,
                    absl::Span<const Tensor> gradients,
                    const UpdateOptions& options = {});

// The accumulator of a table: a handle of the one that Update uses, a Tensor or
// ShardedTensor as the table is; none if there is none yet.
//
// It belongs to the table's elements, as optimizer.state[parameter] of PyTorch
// belongs to the parameter: all handles of the table have it. It goes with a
// handle that Reshard gives another layout, as a handle that the next Update of
// that one copies. Copies (Clone, Resharded, To) begin without one, as copies
// of a parameter do. Embedding and EmbeddingBag have it as their buffer
// `accumulator`, so that State, LoadState, checkpoints, Clone and plans take it
// along. A table that belongs to no module is saved like this:
//
//     SHERD_ASSIGN_OR_RETURN(ShardedTensor sums,
//                            GetAccumulator(table).Get<ShardedTensor>());
//     SHERD_RETURN_IF_ERROR(state.Set("optimizer.user", sums));
//
// Memory. It is released after the table: when as many accumulators as there
// are have been looked for or set.
//
// Threads. Safe.
Value GetAccumulator(const EmbeddingTable& table);

// Replaces the accumulator of a table, as after loading a checkpoint or for a
// copy of the table. none: the next Update begins with 0. A sharded one of
// another layout than the table's, and for a sharded table a Tensor, which is
// the whole on every rank, are copied into the table's layout by the next
// Update. On all ranks alike. Does nothing for a table that was not created.
//
// Threads. Safe, but not during an Update of the table.
void SetAccumulator(const EmbeddingTable& table, Value accumulator);

// Gives a table that has none the accumulator with which the first Update by
// this rule would begin, so that there is something to load a saved one into.
// Does nothing where the table has one for the rule (after Reshard perhaps that
// of another handle, which the next Update copies) or no elements, and for
// kSgd.
//
// Not collective; on all ranks alike.
//
// Errors. The table has what it had.
//   kInvalidArgument     As Update, of the table and its accumulator.
//   kFailedPrecondition  As Update, of the accumulator; the table was not
//                        created or is on meta.
//   kUnimplemented       The table is on a device.
//   kResourceExhausted   There is no memory.
//
// Threads. As SetAccumulator.
absl::Status MakeAccumulator(const EmbeddingTable& table, SparseRule rule);

struct SgdOptions {
  double learning_rate = 1e-3;
  double weight_decay = 0;
};

// A step of torch.optim.SGD without momentum for dense parameters: p -=
// learning_rate * (gradient + weight_decay * p). The gradient of a Tensor is a
// Tensor, that of a ShardedTensor a ShardedTensor of the same layout; where it
// is none, the parameter stays as it is.
//
//     SHERD_RETURN_IF_ERROR(SgdStep({weight, bias}, {gradient0, gradient1},
//                                   {.learning_rate = 0.1}));
//
// Not collective: each rank updates its shards.
//
// Values. Each of the operations rounds to the parameter's dtype.
//
// Errors. Nothing has changed.
//   kInvalidArgument     There is not one gradient per parameter; kinds, sizes,
//                        dtypes, devices or layouts differ; a parameter is
//                        neither a Tensor nor a ShardedTensor of floating
//                        point, or its elements coincide in memory.
//   kFailedPrecondition  A parameter has no data, is on a device, or may not be
//                        written to.
//   kResourceExhausted   There is no memory for a copy of a gradient.
absl::Status SgdStep(absl::Span<const Value> parameters,
                     absl::Span<const Value> gradients,
                     const SgdOptions& options = {});

namespace internal {

// Update for modules: an error in `local`, found on this rank before the call,
// becomes that of all ranks of a shared table.
absl::Status UpdateAfter(const absl::Status& local,
                         absl::Span<const TableLookUp> lookups,
                         absl::Span<const Tensor> gradients,
                         const UpdateOptions& options);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_NN_UPDATE_H_
