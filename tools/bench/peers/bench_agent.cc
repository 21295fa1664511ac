#include "sherd/tools/bench/peers/bench_agent.h"

#include <thread>

#include "sherd/core/base/file.h"
#include "sherd/core/comm/store/file_store.h"

namespace sherd {

absl::StatusOr<std::shared_ptr<RpcAgent>> StartBenchAgent(
    RankContext& context, const std::string& name, RpcOptions options) {
  RegisterHandler<BenchEcho>(
      [](const std::string& message) -> absl::StatusOr<std::string> {
        return message;
      });
  options.rank = context.rank();
  options.world_size = context.world();
  options.store =
      std::make_shared<FileStore>(JoinPath(context.directory(), name));
  // A thread has a default agent of its own, which does not keep other peers
  // from starting theirs.
  options.workers_are_threads = true;
  absl::StatusOr<std::shared_ptr<RpcAgent>> agent;
  std::thread starter([&] { agent = InitRpc(options); });
  starter.join();
  return agent;
}

}  // namespace sherd
