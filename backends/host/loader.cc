#include "sherd/backends/host/loader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/backends/host/plugin_call.h"
#include "sherd/backends/host/plugin_entry.h"
#include "sherd/backends/host/plugin_file.h"
#include "sherd/backends/host/plugin_host.h"
#include "sherd/backends/host/plugin_memory.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {
namespace {

using internal::DevicePluginAllocator;
using internal::FromNanoseconds;
using internal::Guarded;
using internal::GuardedQuietly;
using internal::IsPluginName;
using internal::NoError;
using internal::PluginAllocator;
using internal::PluginPeerMemory;
using internal::ToNanoseconds;
using internal::ToStatus;
using Opened = internal::PluginTable<sherd_plugin_v0>;

// Both sides of the ABI have the same values.
static_assert(static_cast<int>(CollectiveOp::kAllToAllV) == SHERD_ALL_TO_ALL_V);
static_assert(static_cast<int>(CollectiveOp::kAllReduce) == SHERD_ALL_REDUCE);
static_assert(static_cast<int>(CollectiveOp::kRecv) == SHERD_RECV);
static_assert(kNumCollectiveOps == SHERD_NUM_OPERATIONS);
static_assert(sizeof(CollectiveRequest) == sizeof(sherd_request_v0));

sherd_code KvSet(void* context, const char* key, const void* value,
                 uint64_t size) {
  auto* const store = static_cast<Store*>(context);
  const absl::Status status =
      store->Set(key, absl::string_view(static_cast<const char*>(value), size));
  if (status.ok()) return SHERD_OK;
  SHERD_LOG(kWarning) << "store: " << status.ToString();
  return SHERD_SYSTEM;
}

sherd_code KvGet(void* context, const char* key, int64_t deadline, void* value,
                 uint64_t capacity, uint64_t* size) {
  auto* const store = static_cast<Store*>(context);
  const absl::StatusOr<std::string> found =
      store->Get(key, FromNanoseconds(deadline));
  if (absl::IsDeadlineExceeded(found.status())) return SHERD_TIMEOUT;
  // The error has only a code; the host knows the rank.
  if (absl::IsUnavailable(found.status()) && ErrorRank(found.status())) {
    return SHERD_PEER_LOST;
  }
  if (!found.ok()) {
    SHERD_LOG(kWarning) << "store: " << found.status().ToString();
    return SHERD_SYSTEM;
  }
  *size = found->size();
  std::memcpy(value, found->data(), std::min<uint64_t>(capacity, *size));
  return SHERD_OK;
}

sherd_code KvAdd(void* context, const char* key, int64_t amount, int64_t* sum) {
  const absl::StatusOr<int64_t> added =
      static_cast<Store*>(context)->Add(key, amount);
  if (!added.ok()) {
    SHERD_LOG(kWarning) << "store: " << added.status().ToString();
    return SHERD_SYSTEM;
  }
  *sum = *added;
  return SHERD_OK;
}

sherd_code KvRemove(void* context, const char* key) {
  const absl::StatusOr<bool> removed =
      static_cast<Store*>(context)->Delete(key);
  if (removed.ok()) return SHERD_OK;
  SHERD_LOG(kWarning) << "store: " << removed.status().ToString();
  return SHERD_SYSTEM;
}

class PluginCommunicator final : public Communicator {
 public:
  PluginCommunicator(const sherd_plugin_v0& plugin,
                     const NativeOperations& native,
                     const CommunicatorOptions& options)
      : plugin_(plugin),
        native_(native),
        memory_(plugin.memory),
        on_device_(plugin.on_device),
        size_(options.size),
        world_rank_(options.world_ranks.empty()
                        ? options.rank
                        : options.world_ranks[options.rank]),
        kv_{.struct_size = sizeof(sherd_kv_v0),
            .context = options.store,
            .set = KvSet,
            .get = KvGet,
            .add = KvAdd,
            .remove = KvRemove},
        sends_(options.size),
        recvs_(options.size) {}

  ~PluginCommunicator() override {
    if (comm_ != nullptr) GuardedQuietly([this] { plugin_.destroy(comm_); });
  }

  absl::Status Connect(const CommunicatorOptions& options) {
    const sherd_comm_config_v0 config = ConfigOf(options);
    return Adopt("create", [&](sherd_error_v0* error) {
      return plugin_.create(&config, &comm_, error);
    });
  }

  // Makes comm_ by `make`, which is `what` of the plugin.
  template <typename Make>
  absl::Status Adopt(absl::string_view what, const Make& make) {
    sherd_error_v0 error = NoError();
    SHERD_RETURN_IF_ERROR(
        ToStatus(Guarded(&error, [&] { return make(&error); }), error, size_));
    if (comm_ == nullptr) {
      return absl::InternalError(
          absl::StrCat("the plugin's ", what, " returned no communicator"));
    }
    if (memory_ != nullptr) {
      peer_memory_ = PluginPeerMemory::Open(*memory_, comm_, size_);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Post(const Collective& desc,
                            CollectiveRequest& request) override {
    if (!native_.Has(desc.op)) {
      return absl::UnimplementedError(
          absl::StrCat("backend ", plugin_.name, " has no ", Name(desc.op)));
    }
    sherd_op_v0 op = {.struct_size = sizeof(op),
                      .op = static_cast<int32_t>(desc.op),
                      .root = desc.root,
                      .flags = (desc.even ? uint32_t{SHERD_OP_EVEN} : 0) |
                               (desc.typed ? uint32_t{SHERD_OP_TYPED} : 0),
                      .in = desc.in,
                      .out = desc.out,
                      .bytes = desc.bytes,
                      .sends = nullptr,
                      .recvs = nullptr,
                      .sequence = desc.sequence,
                      .deadline = ToNanoseconds(desc.deadline),
                      .dtype = static_cast<int32_t>(desc.dtype),
                      .reduction = static_cast<int32_t>(desc.reduction),
                      .tag = desc.tag,
                      .stream = desc.stream};
    // Empty for send and recv, which may overlap with other operations.
    if (!desc.sends.empty()) {
      for (int r = 0; r < size_; ++r) {
        sends_[r] = {const_cast<std::byte*>(desc.sends[r].data()),
                     desc.sends[r].size()};
      }
      op.sends = sends_.data();
    }
    if (!desc.recvs.empty()) {
      for (int r = 0; r < size_; ++r) {
        recvs_[r] = {desc.recvs[r].data(), desc.recvs[r].size()};
      }
      op.recvs = recvs_.data();
    }
    if (FaultPointsAreArmed()) [[unlikely]] {
      SHERD_RETURN_IF_ERROR(MaybeInjectFault({.point = FaultPoint::kPluginPost,
                                              .rank = world_rank_,
                                              .subject = Name(desc.op)}));
    }
    sherd_error_v0 error = NoError();
    const sherd_code code = Guarded(&error, [&] {
      return plugin_.post(comm_, &op, AsRequest(request), &error);
    });
    if (code == SHERD_OK) return true;
    if (code == SHERD_IN_PROGRESS && plugin_.test != nullptr) return false;
    return ToStatus(code, error, size_);
  }

  absl::StatusOr<bool> Test(CollectiveRequest& request) override {
    sherd_error_v0 error = NoError();
    const sherd_code code = Guarded(&error, [&] {
      return plugin_.test(comm_, AsRequest(request), &error);
    });
    if (code == SHERD_IN_PROGRESS) return false;
    SHERD_RETURN_IF_ERROR(ToStatus(code, error, size_));
    return true;
  }

  void Abort() override {
    GuardedQuietly([this] { plugin_.abort(comm_); });
  }

  std::shared_ptr<PeerMemory> peer_memory() override { return peer_memory_; }

  absl::Status Poll() override {
    return Call([this](sherd_error_v0* error) {
      return on_device_->poll(comm_, error);
    });
  }

  absl::Status BeginBatch() override {
    return Call([this](sherd_error_v0* error) {
      return on_device_->begin_batch(comm_, error);
    });
  }

  absl::Status EndBatch() override {
    return Call([this](sherd_error_v0* error) {
      return on_device_->end_batch(comm_, error);
    });
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      const CommunicatorOptions& options, int color, int key) override {
    if (on_device_->split == nullptr) {
      return Communicator::Split(options, color, key);
    }
    auto child =
        std::make_unique<PluginCommunicator>(plugin_, native_, options);
    const sherd_comm_config_v0 config = child->ConfigOf(options);
    const auto make = [&](sherd_error_v0* error) {
      return on_device_->split(comm_, &config, color, key, &child->comm_,
                               error);
    };
    if (color < 0) {
      SHERD_RETURN_IF_ERROR(Call(make));
      return std::unique_ptr<Communicator>();
    }
    SHERD_RETURN_IF_ERROR(child->Adopt("split", make));
    return child;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Shrink(
      const CommunicatorOptions& options,
      absl::Span<const int> excluded) override {
    if (on_device_->shrink == nullptr) {
      return Communicator::Shrink(options, excluded);
    }
    auto child =
        std::make_unique<PluginCommunicator>(plugin_, native_, options);
    const sherd_comm_config_v0 config = child->ConfigOf(options);
    SHERD_RETURN_IF_ERROR(child->Adopt("shrink", [&](sherd_error_v0* error) {
      return on_device_->shrink(comm_, &config, excluded.data(),
                                static_cast<int32_t>(excluded.size()),
                                &child->comm_, error);
    }));
    return child;
  }

  absl::Status Finalize(Deadline deadline) override {
    return Call([&](sherd_error_v0* error) {
      return on_device_->finalize(comm_, ToNanoseconds(deadline), error);
    });
  }

  absl::StatusOr<void*> Register(MutableBytes buffer) override {
    void* registration = nullptr;
    if (on_device_->register_memory == nullptr) return registration;
    const absl::Status status = Call([&](sherd_error_v0* error) {
      return on_device_->register_memory(comm_, buffer.data(), buffer.size(),
                                         &registration, error);
    });
    if (absl::IsUnimplemented(status)) return nullptr;
    SHERD_RETURN_IF_ERROR(status);
    return registration;
  }

  void Deregister(void* registration) override {
    GuardedQuietly([&] { on_device_->deregister_memory(comm_, registration); });
  }

 private:
  sherd_comm_config_v0 ConfigOf(const CommunicatorOptions& options) const {
    return {.struct_size = sizeof(sherd_comm_config_v0),
            .rank = options.rank,
            .size = options.size,
            .group = options.group.c_str(),
            .kv = &kv_,
            .deadline = ToNanoseconds(options.deadline),
            .world_ranks = options.world_ranks.data(),
            .world_size = options.world_size,
            .one_host = options.one_host ? 1 : 0,
            .address = options.address.c_str(),
            .device = options.device,
            .device_id = options.device_id.empty() ? nullptr
                                                   : options.device_id.c_str()};
  }

  template <typename Function>
  absl::Status Call(const Function& function) {
    sherd_error_v0 error = NoError();
    return ToStatus(Guarded(&error, [&] { return function(&error); }), error,
                    size_);
  }

  static sherd_request_v0* AsRequest(CollectiveRequest& request) {
    return reinterpret_cast<sherd_request_v0*>(request.storage);
  }

  const sherd_plugin_v0& plugin_;
  const NativeOperations& native_;
  const sherd_memory_v0* const memory_;
  // Not null where the host calls what belongs to it.
  const sherd_on_device_v0* const on_device_;
  const int size_;
  const int world_rank_;
  const sherd_kv_v0 kv_;
  // Rewritten for each operation; kept so that none allocates.
  std::vector<sherd_bytes_v0> sends_;
  std::vector<sherd_bytes_v0> recvs_;
  sherd_comm_v0* comm_ = nullptr;
  std::shared_ptr<PeerMemory> peer_memory_;
};

class PluginBackend final : public Backend {
 public:
  PluginBackend(const sherd_plugin_v0& plugin, std::string origin)
      : plugin_(plugin) {
    info_.name = plugin.name;
    info_.origin = std::move(origin);
    const auto has = [&plugin](uint32_t flag) {
      return (plugin.flags & flag) != 0;
    };
    info_.ranks_are_threads = has(SHERD_RANKS_ARE_THREADS);
    info_.one_host_only = has(SHERD_ONE_HOST_ONLY);
    info_.needs_launcher = has(SHERD_NEEDS_LAUNCHER);
    info_.dies_together = has(SHERD_DIES_TOGETHER);
    info_.compares_calls = has(SHERD_COMPARES_CALLS);
    info_.native.operations =
        plugin.operations & ((uint64_t{1} << kNumCollectiveOps) - 1);
    std::copy_n(plugin.reductions, kNumComputedDTypes,
                info_.native.reductions.begin());
    if (plugin.library_version != nullptr) {
      const char* version = nullptr;
      GuardedQuietly([&] { version = plugin.library_version(); });
      if (version != nullptr) info_.library_version = version;
    }
    if (plugin.memory != nullptr && plugin.memory->allocate != nullptr) {
      allocator_ = &PluginAllocator::Of(*plugin.memory, info_.name);
    }
    if (plugin.on_device != nullptr) {
      info_.device_type =
          static_cast<DeviceType>(plugin.on_device->device_type);
    }
  }

  const BackendInfo& info() const override { return info_; }

  absl::Status Probe() const override {
    sherd_error_v0 error = NoError();
    return Annotate(
        ToStatus(Guarded(&error, [&] { return plugin_.probe(&error); }), error,
                 0),
        absl::StrCat("backend ", info_.name, " unavailable"));
  }

  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const override {
    auto communicator =
        std::make_unique<PluginCommunicator>(plugin_, info_.native, options);
    SHERD_RETURN_IF_ERROR(communicator->Connect(options));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

  absl::StatusOr<LaunchedWorld> FindLaunchedWorld() const override {
    if (plugin_.bootstrap == nullptr) return Backend::FindLaunchedWorld();
    LaunchedWorld world;
    sherd_error_v0 error = NoError();
    SHERD_RETURN_IF_ERROR(ToStatus(
        Guarded(&error,
                [&] {
                  return plugin_.bootstrap(&world.rank, &world.size, nullptr, 0,
                                           SHERD_NO_DEADLINE, &error);
                }),
        error, 0));
    return world;
  }

  absl::StatusOr<std::string> Bootstrap(absl::string_view blob,
                                        Deadline deadline) const override {
    if (plugin_.bootstrap == nullptr) return Backend::Bootstrap(blob, deadline);
    if (blob.size() >= kMaxBootstrapBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the blob has ", blob.size(), " bytes, expected below ",
                       kMaxBootstrapBytes));
    }
    // One length for all, the true one first.
    std::array<char, kMaxBootstrapBytes> buffer = {};
    buffer[0] = static_cast<char>(blob.size());
    std::copy(blob.begin(), blob.end(), buffer.begin() + 1);
    LaunchedWorld world;
    sherd_error_v0 error = NoError();
    SHERD_RETURN_IF_ERROR(ToStatus(
        Guarded(&error,
                [&] {
                  return plugin_.bootstrap(&world.rank, &world.size,
                                           buffer.data(), buffer.size(),
                                           ToNanoseconds(deadline), &error);
                }),
        error, 0));
    return std::string(buffer.data() + 1,
                       static_cast<unsigned char>(buffer[0]));
  }

  Allocator* peer_memory_allocator() const override { return allocator_; }

  absl::StatusOr<std::shared_ptr<PeerMemory>> OpenPeerMemory(
      absl::Span<const ProcessIdentity> processes) const override {
    if (plugin_.memory == nullptr) return Backend::OpenPeerMemory(processes);
    return PluginPeerMemory::OpenProcesses(*plugin_.memory, processes);
  }

  Allocator* device_allocator(int device) const override {
    const sherd_on_device_v0* const on_device = plugin_.on_device;
    return on_device == nullptr || on_device->allocate == nullptr
               ? nullptr
               : &DevicePluginAllocator::Of(*on_device, info_.name, device);
  }

 private:
  const sherd_plugin_v0& plugin_;
  BackendInfo info_;
  Allocator* allocator_ = nullptr;
};

absl::StatusOr<std::unique_ptr<Backend>> LoadForRegistry(
    absl::string_view name) {
  return LoadBackend(name, PluginSearchPath());
}

[[maybe_unused]] const bool kInstalled = [] {
  BackendRegistry::Global().SetLoader(LoadForRegistry);
  return true;
}();

}  // namespace

std::string PluginFileName(absl::string_view name) {
  return internal::PluginFileNameOf<sherd_plugin_v0>(name);
}

absl::StatusOr<std::unique_ptr<Backend>> AdaptPlugin(
    const sherd_plugin_v0* plugin, std::string origin) {
  SHERD_RETURN_IF_ERROR(internal::CheckTable(plugin, origin));
  const bool complete = plugin->struct_size == sizeof(sherd_plugin_v0) &&
                        plugin->name != nullptr && IsPluginName(plugin->name) &&
                        plugin->probe != nullptr && plugin->create != nullptr &&
                        plugin->destroy != nullptr && plugin->post != nullptr &&
                        plugin->abort != nullptr &&
                        (plugin->test != nullptr ||
                         (plugin->flags & SHERD_COMPLETES_IN_POST) != 0);
  if (!complete) {
    return absl::FailedPreconditionError(
        absl::StrCat(origin, ": the plugin's table has ", plugin->struct_size,
                     " bytes and lacks its name or a function, expected ",
                     sizeof(sherd_plugin_v0), " bytes and all of them"));
  }
  if (const sherd_memory_v0* const memory = plugin->memory;
      memory != nullptr && !internal::IsComplete(*memory)) {
    return absl::FailedPreconditionError(absl::StrCat(
        origin, ": the plugin's table for memory has ", memory->struct_size,
        " bytes and lacks a function, expected ", sizeof(sherd_memory_v0),
        " bytes and all of them, or no such table"));
  }
  if (const sherd_on_device_v0* const on_device = plugin->on_device;
      on_device != nullptr && !internal::IsComplete(*on_device)) {
    return absl::FailedPreconditionError(absl::StrCat(
        origin, ": the plugin's table for devices has ", on_device->struct_size,
        " bytes and lacks a function, expected ", sizeof(sherd_on_device_v0),
        " bytes, a type of device and all but the optional ones, or no such ",
        "table"));
  }
  return std::unique_ptr<Backend>(
      std::make_unique<PluginBackend>(*plugin, std::move(origin)));
}

absl::StatusOr<std::unique_ptr<Backend>> LoadPlugin(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(Opened opened,
                         internal::OpenPlugin<sherd_plugin_v0>(path));
  return AdaptPlugin(opened.table, std::move(opened.origin));
}

absl::StatusOr<std::unique_ptr<Backend>> LoadBackend(
    absl::string_view name, absl::Span<const std::string> directories) {
  if (!IsPluginName(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Backend ", name,
        " not supported! A backend's name may hold a-z, 0-9 and '_' only"));
  }
  absl::StatusOr<Opened> found =
      internal::FindPlugin<sherd_plugin_v0>(name, directories);
  if (absl::IsNotFound(found.status())) {
    return absl::NotFoundError(absl::StrCat(
        "Backend ", name, " not supported! ", found.status().message()));
  }
  SHERD_RETURN_IF_ERROR(found.status());
  return AdaptPlugin(found->table, std::move(found->origin));
}

std::vector<PluginReport> ReportPlugins() {
  std::vector<PluginReport> reports;
  for (auto& listed : internal::ListPlugins<sherd_plugin_v0>()) {
    const absl::StatusOr<std::unique_ptr<Backend>> loaded =
        listed.opened.ok() ? AdaptPlugin(listed.opened->table, listed.origin)
                           : listed.opened.status();
    PluginReport report = {std::move(listed.name), std::move(listed.origin), "",
                           loaded.status()};
    if (loaded.ok()) {
      report.name = (*loaded)->info().name;
      report.library_version = (*loaded)->info().library_version;
      report.status = (*loaded)->Probe();
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace sherd
