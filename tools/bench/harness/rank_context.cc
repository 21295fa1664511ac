#include "sherd/tools/bench/harness/rank_context.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/tools/bench/peers/bare_gloo.h"

namespace sherd {
namespace {

// For connecting and for each call, of any peer.
constexpr absl::Duration kTimeout = absl::Minutes(2);

// Beside a backend on devices.
constexpr char kHostPart[] = "shm";

absl::StatusOr<const Backend*> Usable(const std::string& name) {
  SHERD_ASSIGN_OR_RETURN(const Backend* backend,
                         BackendRegistry::Global().Find(name));
  SHERD_RETURN_IF_ERROR(backend->Probe());
  return backend;
}

// Later versions of Gloo keep the store.
template <typename Mesh>
void Connect(Mesh& mesh,
             const std::shared_ptr<gloo::rendezvous::FileStore>& store,
             std::shared_ptr<gloo::transport::Device>& device) {
  if constexpr (requires { mesh.connectFullMesh(store, device); }) {
    mesh.connectFullMesh(store, device);
  } else {
    mesh.connectFullMesh(*store, device);
  }
}

}  // namespace

RankContext::~RankContext() {
  common_.reset();
  for (const auto& [backend, group] : groups_) group->Destroy().IgnoreError();
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> RankContext::Group(
    const std::string& backend) {
  std::shared_ptr<ProcessGroup>& group = groups_[backend];
  if (group != nullptr) return group;
  // Not Init: that makes one default group per process.
  ProcessGroupOptions options = {
      .name = backend,
      .rank = rank_,
      .size = world(),
      .store = std::make_shared<FileStore>(
          JoinPath(directory(), absl::StrCat("group-", backend))),
      .timeout = kTimeout};
  SHERD_ASSIGN_OR_RETURN(const Backend* implementation, Usable(backend));
  if (implementation->info().on_device()) {
    options.device_backend = implementation;
    options.device = {implementation->info().device_type, rank_};
    SHERD_ASSIGN_OR_RETURN(implementation, Usable(kHostPart));
  }
  SHERD_ASSIGN_OR_RETURN(
      group, ProcessGroup::Create(*implementation, std::move(options)));
  return group;
}

absl::StatusOr<std::shared_ptr<gloo::Context>> RankContext::GlooMesh() {
  if (mesh_ != nullptr) return mesh_;
  const std::string path = JoinPath(directory(), "gloo-mesh");
  SHERD_RETURN_IF_ERROR(FileSystem::Posix().CreateDirectories(path));
  SHERD_RETURN_IF_ERROR(CallGloo([&] {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(attributes);
    const auto store = std::make_shared<gloo::rendezvous::FileStore>(path);
    auto mesh = std::make_shared<gloo::rendezvous::Context>(rank_, world());
    mesh->setTimeout(absl::ToChronoMilliseconds(kTimeout));
    Connect(*mesh, store, device);
    mesh_ = std::move(mesh);
  }));
  return mesh_;
}

}  // namespace sherd
