#ifndef SHERD_TESTING_KITS_FAKE_WORKERS_H_
#define SHERD_TESTING_KITS_FAKE_WORKERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

// A RemoteAccess that only knows the names of workers, by rank.
class FakeWorkers final : public RemoteAccess {
 public:
  static std::shared_ptr<RemoteAccess> Make(std::vector<std::string> names) {
    return std::make_shared<FakeWorkers>(std::move(names));
  }

  explicit FakeWorkers(std::vector<std::string> names)
      : names_(std::move(names)) {}

  int rank() const override { return 0; }
  const std::vector<std::string>& workers() const override { return names_; }
  bool is_running() const override { return true; }
  absl::Status Publish(Publication) override { return NoRpc(); }
  absl::Status Withdraw(const PublicationId&) override { return NoRpc(); }
  absl::StatusOr<Tensor> Fetch(int, const FetchRequest&) override {
    return NoRpc();
  }
  absl::Status Shutdown(const ShutdownOptions&) override {
    return absl::OkStatus();
  }

 private:
  static absl::Status NoRpc() { return absl::UnimplementedError("no RPC"); }

  const std::vector<std::string> names_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_FAKE_WORKERS_H_
