#ifndef SHERD_CORE_NN_UPDATE_UPDATE_CHECKS_H_
#define SHERD_CORE_NN_UPDATE_UPDATE_CHECKS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/tensor/dtype.h"
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

// Equal for handles of the same elements of a table.
struct TableIdentity {
  // The list of shards that handles share, also where it is empty; the memory
  // of a Tensor, which may be one of several views of it.
  const void* memory = nullptr;
  const void* data = nullptr;
  DType dtype = kFloat32;
  int64_t rows = 0;
  int64_t columns = 0;
  // From a row to the next; 0 if there is none.
  int64_t stride = 0;

  friend auto operator<=>(const TableIdentity&, const TableIdentity&) = default;
};
// Without memory for a table that was not created, has no data or no two dims.
TableIdentity IdentityOf(const EmbeddingTable& table);

// Sets `same`[t] to the first lookup with the table of lookup t. `order` is
// scratch.
void FindSameTables(absl::Span<const TableLookUp> lookups,
                    std::vector<std::pair<TableIdentity, size_t>>& order,
                    std::vector<size_t>& same);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_UPDATE_CHECKS_H_
