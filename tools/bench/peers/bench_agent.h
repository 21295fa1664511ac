#ifndef SHERD_TOOLS_BENCH_PEERS_BENCH_AGENT_H_
#define SHERD_TOOLS_BENCH_PEERS_BENCH_AGENT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/rpc/rpc.h"
#include "sherd/tools/bench/harness/rank_context.h"

namespace sherd {

struct BenchEcho {
  static constexpr absl::string_view kName = "bench.echo";
  using Signature = absl::StatusOr<std::string>(const std::string& message);
};

// Has this rank answer BenchEcho, and makes it a worker of all ranks, who meet
// in a file `name`; `options` has the rest. Collective. Agents of several names
// may run at once.
absl::StatusOr<std::shared_ptr<RpcAgent>> StartBenchAgent(
    RankContext& context, const std::string& name, RpcOptions options);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_BENCH_AGENT_H_
