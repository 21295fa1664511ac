#ifndef SHERD_TOOLS_BENCH_PEERS_RPC_WORK_H_
#define SHERD_TOOLS_BENCH_PEERS_RPC_WORK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/peers/rpc_worker.h"

namespace sherd {

// Measurements of RPC; N is the size of the measurement. All are collective and
// made with the worker of any peer.
using RpcWorkMaker = absl::StatusOr<std::unique_ptr<RankWork>> (*)(
    RankContext& context, RpcWorkerMaker make_worker);

// Calls of rank 1 by rank 0, one after another, N bytes there and back. The
// time is the median of a call. Each rank stays on a core of its own: left to
// the scheduler, both ends of a bare socket share one, and then the wake-up
// between cores, which is most of a call, is measured for one peer alone.
absl::StatusOr<std::unique_ptr<RankWork>> MakeRoundTrips(
    RankContext& context, RpcWorkerMaker make_worker);

// The same with all threads of all ranks on one core. From then on this process
// runs there.
absl::StatusOr<std::unique_ptr<RankWork>> MakeRoundTripsOnOneCore(
    RankContext& context, RpcWorkerMaker make_worker);

// The same calls, kRpcOutstanding of them under way. The time is that of all,
// divided by their number.
inline constexpr int kRpcOutstanding = 64;
absl::StatusOr<std::unique_ptr<RankWork>> MakeOutstandingCalls(
    RankContext& context, RpcWorkerMaker make_worker);

// Rank 0 fetches a tensor of N bytes from rank 1 into one that it has. The time
// is the median of a fetch.
absl::StatusOr<std::unique_ptr<RankWork>> MakeFetches(
    RankContext& context, RpcWorkerMaker make_worker);

// Each rank computes for 500 us of its thread's CPU time, then calls the next
// rank, N bytes there and back. Without `make_worker` it only computes.
absl::StatusOr<std::unique_ptr<RankWork>> MakeBusyCalls(
    RankContext& context, RpcWorkerMaker make_worker);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_RPC_WORK_H_
