#ifndef SHERD_CORE_NN_UPDATE_UPDATE_CHECKS_H_
#define SHERD_CORE_NN_UPDATE_UPDATE_CHECKS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/tensor/tensor.h"

// What Update refuses on this rank, before the ranks agree and a table changes.
// Errors as Update has them, without the table's number.
namespace sherd::internal {

absl::Status CheckUpdateOptions(const UpdateOptions& options);

absl::Status CheckTableWritable(const EmbeddingTable& table);

// Refuses shards of this rank that share memory, of one table or of several:
// each has a step of its own. `same`[t]: the first lookup with the table of
// lookup t.
absl::Status CheckTablesApart(absl::Span<const TableLookUp> lookups,
                              absl::Span<const size_t> same);

// Sets `held` to the contiguous elements of the gradient of a lookup.
absl::Status HoldGradient(const Tensor& gradient, const PlannedTable& table,
                          Tensor& held);

// Whether both are handles of the same elements.
bool IsSameTable(const EmbeddingTable& a, const EmbeddingTable& b);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_UPDATE_CHECKS_H_
