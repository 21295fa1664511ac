#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/core/base/status_macros.h"
#include "sherd/rpc/rpc.h"
#include "sherd/tools/bench/peers/bench_agent.h"
#include "sherd/tools/bench/peers/rpc_worker.h"

namespace sherd {
namespace {

struct BenchFetch {
  static constexpr absl::string_view kName = "bench.fetch";
  using Signature = absl::StatusOr<Tensor>();
};

class SherdRpc final : public RpcWorker {
 public:
  explicit SherdRpc(std::shared_ptr<RpcAgent> agent)
      : agent_(std::move(agent)) {}
  ~SherdRpc() override { agent_->Shutdown({.graceful = false}).IgnoreError(); }

  absl::StatusOr<std::string> Echo(int rank,
                                   const std::string& message) override {
    return agent_->Call<BenchEcho>(rank, message);
  }

  absl::Status EchoMany(int rank, const std::string& message, int calls,
                        int outstanding) override {
    std::deque<Future<std::string>> under_way;
    for (int ended = 0; ended < calls; ++ended) {
      while (static_cast<int>(under_way.size()) <
             std::min(outstanding, calls - ended)) {
        under_way.push_back(agent_->CallAsync<BenchEcho>(rank, message));
      }
      SHERD_ASSIGN_OR_RETURN(const std::string answer,
                             under_way.front().Wait());
      if (answer != message) return WrongEcho(rank);
      under_way.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(int rank, Tensor& out) override {
    return agent_->Call<BenchFetch>(To{.worker = rank, .out = {out}}).status();
  }

 private:
  const std::shared_ptr<RpcAgent> agent_;
};

absl::StatusOr<std::unique_ptr<RpcWorker>> Make(
    RankContext& context, const Tensor& served, const char* name,
    std::vector<std::string> transports) {
  RegisterHandler<BenchFetch>(
      [served]() -> absl::StatusOr<Tensor> { return served; });
  RpcOptions options;
  options.transports = std::move(transports);
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<RpcAgent> agent,
                         StartBenchAgent(context, name, std::move(options)));
  return std::make_unique<SherdRpc>(std::move(agent));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeSherdRpc(RankContext& context,
                                                        const Tensor& served) {
  return Make(context, served, "rpc", {});
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeSherdTcpRpc(
    RankContext& context, const Tensor& served) {
  return Make(context, served, "rpc-tcp", {"tcp"});
}

}  // namespace sherd
