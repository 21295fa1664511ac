#include "sherd/core/comm/remote_access.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using WeakAccess = std::weak_ptr<RemoteAccess>;

struct Registry {
  absl::Mutex mutex;
  RemoteAccessStarter starter ABSL_GUARDED_BY(mutex);
  // The default of the process.
  WeakAccess process ABSL_GUARDED_BY(mutex);
};

// Created by the first user, since others register among static initialisers;
// leaked.
Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

RemoteAccessStarter GetStarter() {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mutex);
  return registry.starter;
}

WeakAccess& ThreadDefault() {
  thread_local WeakAccess access;
  return access;
}

std::shared_ptr<RemoteAccess> ProcessDefault() {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mutex);
  return registry.process.lock();
}

bool IsRunning(const std::shared_ptr<RemoteAccess>& access) {
  return access != nullptr && access->is_running();
}

absl::Status Check(const RemoteAccessOptions& options) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote access: rank ", options.rank, " of ",
                     options.world_size, ", expected 0 <= rank < world size"));
  }
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(
        "remote access: a store that all workers share is missing");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "remote access: the timeout must be above zero");
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterRemoteAccess(RemoteAccessStarter starter) {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mutex);
  registry.starter = std::move(starter);
}

absl::Status AddDeviceMap(DeviceMaps& maps, const std::string& worker,
                          const std::map<Device, Device>& devices) {
  const auto before = maps.find(worker);
  std::map<Device, Device> merged;
  if (before != maps.end()) merged = before->second;
  std::map<Device, Device> sources;
  for (const auto& [from, to] : merged) sources.emplace(to, from);
  const auto conflict = [&](const Device& from, const Device& to,
                            absl::string_view other) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device_maps only supports 1-to-1 mapping, trying to map ",
        from.ToString(), " to ", to.ToString(), " of ", worker, ": ", other));
  };
  for (const auto& [from, to] : devices) {
    const auto [target, is_new] = merged.emplace(from, to);
    if (target->second != to) {
      return conflict(from, to,
                      absl::StrCat("it goes to ", target->second.ToString()));
    }
    const auto source = sources.emplace(to, from).first;
    if (source->second != from) {
      return conflict(
          from, to,
          absl::StrCat(source->second.ToString(), " goes there already"));
    }
  }
  maps[worker] = std::move(merged);
  return absl::OkStatus();
}

bool HasRemoteAccess() { return GetStarter() != nullptr; }

absl::StatusOr<std::shared_ptr<RemoteAccess>> StartRemoteAccess(
    const RemoteAccessOptions& options) {
  SHERD_RETURN_IF_ERROR(Check(options));
  SHERD_RETURN_IF_ERROR(
      internal::CheckNoDefaultRemoteAccess(options.workers_are_threads));
  const RemoteAccessStarter starter = GetStarter();
  if (starter == nullptr) {
    return absl::UnimplementedError(
        "remote access: no RPC is linked: depend on @sherd//rpc");
  }
  RemoteAccessOptions complete = options;
  if (complete.name.empty()) {
    complete.name = absl::StrCat("worker", options.rank);
  }
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<RemoteAccess> access,
                         starter(complete));
  SetDefaultRemoteAccess(access, options.workers_are_threads);
  return access;
}

std::shared_ptr<RemoteAccess> DefaultRemoteAccess() {
  std::shared_ptr<RemoteAccess> access = ThreadDefault().lock();
  if (!IsRunning(access)) access = ProcessDefault();
  return IsRunning(access) ? access : nullptr;
}

void SetDefaultRemoteAccess(const std::shared_ptr<RemoteAccess>& access,
                            bool workers_are_threads) {
  if (workers_are_threads) {
    ThreadDefault() = access;
    return;
  }
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mutex);
  registry.process = access;
}

std::string PublicationId::ToString() const {
  return absl::StrCat(scope, " #", number);
}

uint64_t RemoteAccess::TakeNumber(absl::string_view scope) {
  absl::MutexLock lock(&mutex_);
  return next_numbers_[std::string(scope)]++;
}

void RemoteAccess::SkipNumbers(absl::string_view scope, uint64_t number) {
  absl::MutexLock lock(&mutex_);
  uint64_t& next = next_numbers_[std::string(scope)];
  next = std::max(next, number + 1);
}

namespace internal {

absl::Status CheckNoDefaultRemoteAccess(bool workers_are_threads) {
  if (!IsRunning(workers_are_threads ? ThreadDefault().lock()
                                     : ProcessDefault())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "RPC is already initialized: shut it down before it is started again");
}

absl::StatusOr<Tensor> SelectPublished(const Publication& publication,
                                       const FetchRequest& request) {
  const std::string id = publication.id.ToString();
  if (request.fingerprint != publication.fingerprint) {
    return absl::FailedPreconditionError(absl::StrCat(
        "fetch: publication ", id,
        " is another tensor on its owner: the workers created tensors over "
        "this group in different orders"));
  }
  if (request.shard < 0 ||
      static_cast<size_t>(request.shard) >= publication.shards.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch: shard ", request.shard, " of publication ", id,
                     ", which has ", publication.shards.size()));
  }
  const Tensor& shard = publication.shards[request.shard];
  if (shard.device().is_meta()) {
    return absl::FailedPreconditionError(
        absl::StrCat("fetch: shard ", request.shard, " of publication ", id,
                     " is on the meta device and has no data"));
  }
  if (!request.box) return shard;
  const size_t dims = shard.sizes().size();
  if (request.box->offsets.size() != dims ||
      request.box->sizes.size() != dims ||
      !IsInside(*request.box, shard.sizes())) {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch: a box at ", FormatDims(request.box->offsets),
                     " of size ", FormatDims(request.box->sizes), " in shard ",
                     request.shard, " of publication ", id, ", which has size ",
                     FormatDims(shard.sizes())));
  }
  return shard.Narrow(request.box->offsets, request.box->sizes);
}

absl::StatusOr<Tensor> DeliverFetched(Tensor elements,
                                      const FetchRequest& request) {
  if (!request.out.defined()) return elements;
  Tensor out = request.out;
  if (out.sizes() != elements.sizes() || out.dtype() != elements.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fetch: `out` has size ", FormatDims(out.sizes()), " and dtype ",
        Name(out.dtype()), ", but should have ", FormatDims(elements.sizes()),
        " and ", Name(elements.dtype())));
  }
  SHERD_RETURN_IF_ERROR(out.CopyFrom(elements));
  return out;
}

}  // namespace internal
}  // namespace sherd
