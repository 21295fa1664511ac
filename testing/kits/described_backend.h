#ifndef SHERD_TESTING_KITS_DESCRIBED_BACKEND_H_
#define SHERD_TESTING_KITS_DESCRIBED_BACKEND_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sherd/backends/host/loader.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/channel/backend.h"

namespace sherd::testing::internal {

// A backend with a description and nothing else.
class DescribedBackend final : public Backend {
 public:
  DescribedBackend(BackendInfo info, absl::Status probe)
      : info_(std::move(info)), probe_(std::move(probe)) {}

  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return probe_; }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions&) const override {
    return absl::UnimplementedError("no communicator");
  }

 private:
  const BackendInfo info_;
  const absl::Status probe_;
};

// Makes Init find it by its name; permanent.
inline void AddBackend(BackendInfo info,
                       absl::Status probe = absl::OkStatus()) {
  const absl::Status added = BackendRegistry::Global().Register(
      std::make_unique<DescribedBackend>(std::move(info), std::move(probe)));
  ASSERT_TRUE(added.ok()) << added;
}

// While it lives, loading a plugin returns `status`.
class WithLoader {
 public:
  explicit WithLoader(absl::Status status) {
    BackendRegistry::Global().SetLoader([status](absl::string_view) {
      return absl::StatusOr<std::unique_ptr<Backend>>(status);
    });
  }
  ~WithLoader() {
    BackendRegistry::Global().SetLoader([](absl::string_view name) {
      return LoadBackend(name, PluginSearchPath());
    });
  }
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_KITS_DESCRIBED_BACKEND_H_
