#ifndef SHERD_CORE_NN_UPDATE_ACCUMULATORS_H_
#define SHERD_CORE_NN_UPDATE_ACCUMULATORS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/sharded_tensor.h"

namespace sherd::internal {

// The accumulator of a table for a call of Update.
struct PreparedAccumulator {
  // In the layout of the table; none for SGD and for tables without elements.
  Value value;
  // It is not yet that of the table.
  bool is_new = false;
  // Defined if its elements are still there, in another layout.
  ShardedTensor moves_from;
  // They are copied from a Tensor, which is the whole on every rank.
  bool from_whole = false;
};

// Finds the accumulator of a table, or makes one. `planned` is the table. Not
// collective.
//
// Errors. As Update, without the table's number.
absl::StatusOr<PreparedAccumulator> PrepareAccumulator(
    const EmbeddingTable& table, const PlannedTable& planned, SparseRule rule);

// The rows of an accumulator in the table's layout that belong to a shard of
// this rank; null if this rank does not hold them.
ShardRows RowsOfAccumulator(const Value& accumulator,
                            const PlannedTable& planned, size_t box,
                            SparseRule rule);

// Gives a table without an accumulator that of another one of its size: a
// handle, which the next Update of `to` copies, unless the tables have the same
// elements. Thread-safe.
void InheritAccumulator(const EmbeddingTable& from, const EmbeddingTable& to,
                        bool same_elements = false);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_ACCUMULATORS_H_
