#ifndef SHERD_CORE_NN_LOOKUP_OWN_OPS_H_
#define SHERD_CORE_NN_LOOKUP_OWN_OPS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"

namespace sherd::internal {

// Looks up tables as LookUpInto does.
using LookUpFunction = absl::FunctionRef<absl::Status(
    const absl::Status& local, absl::Span<const TableLookUp> lookups,
    absl::Span<Tensor> outputs, const LookUpOptions& options,
    TableNumbers numbers)>;

// A LookUpInto where users' operations serve some of the tables (see LookUpOp):
// `look_up` serves all others, then each operation is called. `local`: an error
// of this rank's arguments. `group`: of the sharded tables; null: there is
// none.
//
// Collective over the group. Errors. Those of `look_up` and of the operations,
// the same on every rank; outputs are as before.
//
// Cost. An agreement after each operation, since the next one may be
// collective; and one before the first, if `look_up` has no sharded table. The
// results for outputs that are given are copied. None of that where no table
// of the call has an operation.
absl::Status LookUpWithOwnOps(const absl::Status& local, ProcessGroup* group,
                              absl::Span<const TableLookUp> lookups,
                              absl::Span<Tensor> outputs,
                              const LookUpOptions& options,
                              TableNumbers numbers, LookUpFunction look_up);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_OWN_OPS_H_
