#ifndef SHERD_TOOLS_BENCH_PEERS_RPC_WORKER_H_
#define SHERD_TOOLS_BENCH_PEERS_RPC_WORKER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/tools/bench/harness/rank_context.h"

namespace sherd {

// A rank that answers the calls of the others, on threads of its own, and calls
// them, as one peer does it.
//
// Threads. Calls are made by one thread.
class RpcWorker {
 public:
  virtual ~RpcWorker() = default;

  // Sends `message` to `rank`, and returns what that one sent back.
  virtual absl::StatusOr<std::string> Echo(int rank,
                                           const std::string& message) = 0;

  // The same `calls` times, of which at most `outstanding` are under way.
  //   kDataLoss  An answer differs from the message.
  virtual absl::Status EchoMany(int rank, const std::string& message, int calls,
                                int outstanding) = 0;

  // Copies the tensor that `rank` serves to `out`, which has its size.
  virtual absl::Status Fetch(int rank, Tensor& out) = 0;
};

// Each of these is collective: the ranks are connected, or connect at the first
// call. `served` is what others fetch from this rank; an undefined tensor: they
// call Echo.
using RpcWorkerMaker = absl::StatusOr<std::unique_ptr<RpcWorker>> (*)(
    RankContext& context, const Tensor& served);

// Sherd's RPC over all transports that work here, and over TCP alone.
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeSherdRpc(RankContext& context,
                                                        const Tensor& served);
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeSherdTcpRpc(
    RankContext& context, const Tensor& served);

// A blocking socket per pair of ranks, and no protocol at all. By epoll: the
// same, waited for as by a worker that has more than one connection.
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeUnixSocketRpc(
    RankContext& context, const Tensor& served);
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeEpollSocketRpc(
    RankContext& context, const Tensor& served);
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeTcpSocketRpc(
    RankContext& context, const Tensor& served);

// One memcpy from the memory that all ranks share, which has room for `served`;
// only for Fetch.
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeMemcpyRpc(RankContext& context,
                                                         const Tensor& served);

// gRPC over Unix sockets: generic calls of byte buffers, whose completion
// queues the callers themselves wait on.
absl::StatusOr<std::unique_ptr<RpcWorker>> MakeGrpc(RankContext& context,
                                                    const Tensor& served);
// Returns OK if this program was built with gRPC, and without ThreadSanitizer.
//   kUnimplemented  The message says what to do.
absl::Status FindGrpc();

// The error of an answer that differs from its message.
absl::Status WrongEcho(int rank);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_RPC_WORKER_H_
