#ifndef SHERD_TOOLS_BENCH_PEERS_MPI_PEERS_H_
#define SHERD_TOOLS_BENCH_PEERS_MPI_PEERS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/rank_context.h"
#include "sherd/tools/bench/peers/collective_work.h"
#include "sherd/tools/bench/peers/move.h"

// The peers over Open MPI, in processes that mpirun started. If HasOpenMpi() is
// false, all others are kUnimplemented.
namespace sherd {

// True if this program was built with Open MPI and mpirun is found.
bool HasOpenMpi();

// Open MPI's own collectives.
absl::StatusOr<std::unique_ptr<RankWork>> MakeOpenMpiCollective(
    RankContext& context, const CollectiveShape& shape);

// As MakeGlooMove, over bare MPI.
absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiPackedMove(
    RankContext& context, const Move& move);

// The move by MPI_Alltoallw, with a derived datatype for the data between each
// pair of ranks.
absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiTypedMove(RankContext& context,
                                                           const Move& move);

// By MPI_Gatherv or MPI_Scatterv; for gathers and shards of rows.
absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiRootMove(RankContext& context,
                                                          const Move& move);

// By ScaLAPACK's pdgemr2d, or pigemr2d if blocks have an odd number of columns;
// for moves with cyclic layouts.
absl::StatusOr<std::unique_ptr<RankWork>> MakeScalapackMove(
    RankContext& context, const Move& move);
// Returns OK if there is a ScaLAPACK.
//   kNotFound  The message names the package to install.
absl::Status FindScalapack();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_MPI_PEERS_H_
