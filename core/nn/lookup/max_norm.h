#ifndef SHERD_CORE_NN_LOOKUP_MAX_NORM_H_
#define SHERD_CORE_NN_LOOKUP_MAX_NORM_H_

#include "absl/status/status.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup/planned_table.h"

namespace sherd::internal {

// Scales the rows that the ids of any rank name to BagOptions::max_norm, in the
// table. Afterwards all ranks may read them.
//
// How. All ranks learn all ids, each sums the powers of some elements, an
// all_reduce makes norms of these, and each rank scales the rows that it holds,
// replicas too. With `direct` one rank sums a whole row, in the order of its
// columns, so that the norm does not depend on the layout.
//
// Collective for a shared table; otherwise `group` is null. Errors. kDataLoss
// for ids of a rank that are none, with rows as before; those of the
// collectives, after which rows are as before or scaled.
absl::Status Renormalize(PlannedTable& table, ProcessGroup* group,
                         const CollectiveOptions& options, bool direct);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_MAX_NORM_H_
