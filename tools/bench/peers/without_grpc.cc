#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/peers/rpc_worker.h"

namespace sherd {

absl::Status FindGrpc() {
  return absl::UnimplementedError(
      "bench was built without gRPC: apt-get install libgrpc++-dev, and build "
      "again");
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeGrpc(RankContext&,
                                                    const Tensor&) {
  return FindGrpc();
}

}  // namespace sherd
