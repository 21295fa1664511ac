#ifndef SHERD_CORE_NN_LOOKUP_H_
#define SHERD_CORE_NN_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// What becomes of the rows of a bag.
enum class BagMode : int32_t {
  kSum,
  // The sum divided by the number of ids that are not padding.
  kMean,
  // The largest element of each column; NaN if one is NaN.
  kMax,
  // There are no bags: a row for each id.
  kNone,
};

// "sum", "mean", "max", "none".
absl::string_view Name(BagMode mode);

// The ids of one rank for one table, int32 or int64.
//
// Layout. With 2-D ids, bag b holds ids[b, :]. With 1-D ids and B offsets, bag
// b holds ids[offsets[b]], …, ids[offsets[b + 1] - 1], the last one all ids to
// the end; offsets[0] is 0, and they do not descend. With mode kNone ids have
// any number of dimensions from 1, and there are no offsets.
struct Bags {
  Tensor ids;
  // int32 or int64, 1-D. Undefined: there are none.
  Tensor offsets = {};
  // Factors of the rows, for kSum: sizes as ids, dtype of the table, or float32
  // for a table of 16-bit floats. Undefined: there are none.
  Tensor per_sample_weights = {};
};

struct BagOptions {
  BagMode mode = BagMode::kMean;
  // Ids that are left out of bags; a negative one counts from the end of the
  // table. No effect with kNone: the row is returned as it is stored.
  std::optional<int64_t> padding_idx = std::nullopt;
  // The last offset is not that of a bag but the number of ids.
  bool include_last_offset = false;
  // Before rows are read, those with a larger norm are scaled to this one, in
  // the table: row *= max_norm / (norm + 1e-7), once per row that any rank's
  // ids name, padding included. norm = (sum over the whole row of |x|^p)^(1/p)
  // with p = norm_type > 0, which may be infinite.
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2;
};

using EmbeddingTable = std::variant<Tensor, ShardedTensor>;

// One table, and what a rank looks up in it.
struct TableLookUp {
  // [rows, columns] of float64, float32, float16 or bfloat16. A Tensor is this
  // rank's own.
  EmbeddingTable table;
  Bags bags;
  BagOptions options = {};
};

// How a call moved data, on this rank.
struct LookUpStats {
  // Rows were read where they are.
  bool direct = false;
  // Bytes of ids, and of rows or partial results, to and from other ranks.
  int64_t id_bytes_sent = 0;
  int64_t row_bytes_received = 0;
};

struct LookUpOptions {
  // Of each of the call's collectives. Unset: the group's.
  std::optional<absl::Duration> timeout = std::nullopt;
  // Ranks may read each other's shards where the group allows it, and these are
  // in host memory. The same on all ranks.
  bool direct = true;
  // Filled in after success, if given.
  LookUpStats* stats = nullptr;
};

// Looks up rows of any number of tables in one call.
//
//     SHERD_ASSIGN_OR_RETURN(
//         std::vector<Tensor> y,
//         LookUp({{weight0, {ids0, offsets0}, {.mode = BagMode::kSum}},
//                 {weight1, bags1}}));
//
// Layout. Result i is of table i's dtype, of size [bags, columns], or with
// kNone the sizes of ids and columns: result[b, c] = mode over the ids k of bag
// b of table[k, c] * weight of k. A bag without ids, padding not counted, is 0.
//
// Collective over the group of the sharded tables, which is one and the same;
// without sharded tables, local. Tables, options and whether there are weights
// are the same on all ranks; ids and the number of bags are each rank's own. A
// sharded table may have any layout: rows, columns, whole on one rank, boxes of
// any kind, replicas, several shards per rank or none. The renormalization of
// all tables comes before all reading.
//
// Devices. All tables of a call are in host memory, or on one device of each
// rank (without shards of any on this rank: that of its ids, or else the
// group's or the current one), where the results are, too. Ids, offsets and
// weights are in host memory or on that device; from there they are copied
// first, and the host waits. Ids always travel in host memory. Pooled rows
// travel on the device if the group's device() is that of the tables on every
// rank, and otherwise through pinned memory. The path is that of messages, with
// the same bits as on the host, but for those of a computed NaN.
//
// Values. 16-bit floats are summed as float32 and rounded once. Rows are added
// in the order of the ids. Two paths, chosen alike by all ranks:
//   direct    If every rank can map the others' shards (shm, local, one rank):
//             rows are read where they are. The bits of the same call with
//             whole tables, in every layout.
//   messages  Ids go to the owners of their rows, and rows summed there come
//             back. Bits as above if no column of the table is spread over
//             ranks; otherwise a sum of n products x differs by at most
//             2 n u (|x1| + … + |xn|) with u = 2^-53 or 2^-24, before the
//             rounding to 16 bits. max is exact. With max_norm, a row cut by
//             columns is scaled by a factor that differs by at most 2^-50.
//
// Errors. The same on every rank, with the rank where it is one rank's; tables
// and outputs are as before.
//   kInvalidArgument     A table that is not 2-D or not floating-point, tables
//                        of several devices, ids or offsets of other types or
//                        on another device, "Index out of range in Input"
//                        with table, position and id; see the phrases in
//                        bag_view.cc. Ranks pass other tables or options.
//   kFailedPrecondition  "All distributed tensors should use the same
//                        ProcessGroup"; a table was not created, has no data,
//                        or may not be written to and has max_norm; the
//                        current stream of a device is being captured.
//   kUnimplemented       max_norm with a table on a device; a device that pools
//                        no rows; weights with another mode than kSum.
//   kResourceExhausted   There is no memory for a result; or, with messages,
//                        for another rank's ids: the group is poisoned.
//   kDataLoss            A rank sent lengths or ids that cannot be; with
//                        messages, the group is poisoned.
//   other                Of a user's operation, see LookUpOp; on devices, of
//                        DeviceRuntime.
// After the failure of a rank (kUnavailable, kDeadlineExceeded), or of a rank's
// device while rows are pooled, the group is poisoned, and outputs are
// unspecified; so are rows that max_norm scales.
//
// Completion. When it returns, no rank reads this one's shards any more. On a
// device the results are queued on its current stream, as are the reads.
//
// Cost. A group remembers the plans and buffers of its last table sets, up to
// eight; later calls for the same tables allocate nothing but results. Direct:
// one small all_gather before and one after. Messages: an all_gather of 8 bytes
// per rank and rank, and two all_to_all_v for all tables together. max_norm:
// two all_gathers of ids, an all_reduce and a barrier for each such table. On a
// device: for each rank that asks, table and strip of columns a copy of 8 bytes
// per id to the device and a launch, and the same for what comes back, in
// memory from the device's pools; without a group that moves its memory, one
// wait for it.
absl::StatusOr<std::vector<Tensor>> LookUp(
    absl::Span<const TableLookUp> lookups, const LookUpOptions& options = {});

// As LookUp, into `outputs`, one per table: a defined one is filled, which has
// the result's size, dtype and device, is contiguous and shares no memory with
// the tables and bags; an undefined one is set to a new tensor.
//   kInvalidArgument  An output is of another size, dtype or device, or not
//                     contiguous.
absl::Status LookUpInto(absl::Span<const TableLookUp> lookups,
                        absl::Span<Tensor> outputs,
                        const LookUpOptions& options = {});

// An operation that users may implement for a spec of theirs:
//
//     RegisterShardedOp<LookUpOp, MySpec>(
//         [](const MySpec& spec, const ShardedTensor& table, const Bags& bags,
//            const BagOptions& options) -> absl::StatusOr<Tensor> { … });
//
// LookUp then calls it for tables with such a spec, after all others, in their
// order. All ranks register alike. It may be collective over the table's group,
// and may call LookUp for other tables.
//
// Errors. Its error on one rank becomes that of all, "rank 1: table 2: …",
// before the next operation is called; outputs are as before, rows that
// max_norm has scaled stay so.
//   kInvalidArgument  It returned no tensor, or one that a given output does
//                     not fit.
struct LookUpOp {
  static constexpr absl::string_view kName = "look_up";
  using Signature = absl::StatusOr<Tensor>(const ShardedTensor& table,
                                           const Bags& bags,
                                           const BagOptions& options);
};

namespace internal {

// The numbers by which messages name the tables of a call that is a part of
// another; empty: their positions.
using TableNumbers = absl::Span<const size_t>;

// LookUpInto for modules: an error in `local`, found in the inputs of this rank
// before the call, becomes that of all ranks. Without a shared table the error
// is not yet one of LookUpOp: the caller may have ranks to report it to.
absl::Status LookUpAfter(const absl::Status& local,
                         absl::Span<const TableLookUp> lookups,
                         absl::Span<Tensor> outputs, TableNumbers numbers = {});

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_NN_LOOKUP_H_
