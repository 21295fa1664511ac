// One worker: InitRpc from the environment, calls to all workers, and small
// calls beside large ones. Prints its addresses and the outcome.

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"

namespace sherd {
namespace {

// 32 MiB each, together the limit of bytes under way to one worker.
constexpr int64_t kLarge = int64_t{8} << 20;
constexpr int kLargeCalls = 8;

struct Count {
  static constexpr absl::string_view kName = "count";
  using Signature = absl::StatusOr<int64_t>(const Tensor&);
};

absl::Status CallAll(RpcAgent& agent) {
  SHERD_ASSIGN_OR_RETURN(const Tensor x, Tensor::Ones({100000}, {}));
  for (size_t to = 0; to < agent.workers().size(); ++to) {
    SHERD_ASSIGN_OR_RETURN(const int64_t elements,
                           agent.Call<Count>(static_cast<int>(to), x));
    std::cout << "elements at " << agent.workers()[to] << ": " << elements
              << std::endl;
  }
  return absl::OkStatus();
}

// Between hosts, large messages use a second connection, beside the one of
// small calls.
absl::Status CallBesideLargeOnes(RpcAgent& agent, int to) {
  SHERD_ASSIGN_OR_RETURN(const Tensor large, Tensor::Ones({kLarge}, {}));
  SHERD_ASSIGN_OR_RETURN(const Tensor small, Tensor::Ones({1}, {}));
  SHERD_RETURN_IF_ERROR(agent.Call<Count>(to, large).status());
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < kLargeCalls; ++i) {
    calls.push_back(agent.CallAsync<Count>(to, large));
  }
  SHERD_RETURN_IF_ERROR(agent.Call<Count>(to, small).status());
  for (const Future<int64_t>& call : calls) {
    SHERD_RETURN_IF_ERROR(call.Wait().status());
  }
  std::cout << "a small call among " << kLargeCalls << " large ones"
            << std::endl;
  return absl::OkStatus();
}

absl::Status RunWorker() {
  RegisterHandler<Count>(
      [](const Tensor& x) -> absl::StatusOr<int64_t> { return x.numel(); });
  RpcOptions options;
  options.timeout = absl::Seconds(20);
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<RpcAgent> agent,
                         InitRpc(options));
  for (const std::string& address : agent->Addresses()) {
    std::cout << "listening on " << address << std::endl;
  }
  SHERD_RETURN_IF_ERROR(CallAll(*agent));
  const int other_host = (agent->rank() + 2) % 4;
  SHERD_RETURN_IF_ERROR(CallBesideLargeOnes(*agent, other_host));
  SHERD_RETURN_IF_ERROR(agent->Shutdown());
  std::cout << "shut down" << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace sherd

int main() {
  const absl::Status status = sherd::RunWorker();
  if (!status.ok()) std::cout << status << std::endl;
  return status.ok() ? 0 : 1;
}
