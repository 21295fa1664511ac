#include "sherd/backends/loader.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/backends/elf_check.h"
#include "sherd/backends/static_plugin.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/backend_registry.h"

namespace sherd {
namespace {

constexpr absl::string_view kFilePrefix = "libsherd_backend_";
constexpr absl::string_view kFileSuffix = ".so";
constexpr absl::string_view kEntry = "sherd_get_plugin_v0";
constexpr absl::string_view kLinkedStatically = "linked statically";

static_assert(static_cast<int>(CollectiveOp::kBarrier) == SHERD_BARRIER);
static_assert(static_cast<int>(CollectiveOp::kBroadcast) == SHERD_BROADCAST);
static_assert(static_cast<int>(CollectiveOp::kAllGather) == SHERD_ALL_GATHER);
static_assert(static_cast<int>(CollectiveOp::kAllToAllV) == SHERD_ALL_TO_ALL_V);
static_assert(sizeof(CollectiveRequest) == sizeof(sherd_request_v0));

int64_t MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

int64_t ToNanoseconds(Deadline deadline) {
  if (deadline.IsInfinite()) return SHERD_NO_DEADLINE;
  // steady_clock is CLOCK_MONOTONIC on Linux.
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             deadline.when().time_since_epoch())
      .count();
}

Deadline FromNanoseconds(int64_t deadline) {
  if (deadline == SHERD_NO_DEADLINE) return Deadline::Infinite();
  return Deadline::After(absl::Nanoseconds(deadline - MonotonicNow()));
}

void LogFromPlugin(int32_t severity, const char* text) {
  if (severity >= 3) {
    SHERD_LOG(kError) << text;
  } else if (severity == 2) {
    SHERD_LOG(kWarning) << text;
  } else if (severity == 1) {
    SHERD_LOG(kInfo) << text;
  } else {
    SHERD_LOG(kDebug) << text;
  }
}

const sherd_host_v0 kHost = {.struct_size = sizeof(sherd_host_v0),
                             .major = SHERD_ABI_MAJOR,
                             .minor = SHERD_ABI_MINOR,
                             .next = nullptr,
                             .log = LogFromPlugin,
                             .now = MonotonicNow};

sherd_error_v0 NoError() {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  error.peer = -1;
  return error;
}

absl::StatusCode ToStatusCode(sherd_code code) {
  switch (code) {
    case SHERD_INVALID_ARGUMENT:
      return absl::StatusCode::kInvalidArgument;
    case SHERD_UNSUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case SHERD_TIMEOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case SHERD_PEER_LOST:
      return absl::StatusCode::kUnavailable;
    case SHERD_ABORTED:
      return absl::StatusCode::kAborted;
    case SHERD_RESOURCE:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status ToStatus(sherd_code code, const sherd_error_v0& error, int size) {
  if (code == SHERD_OK) return absl::OkStatus();
  // The plugin may have filled the array to its last byte.
  std::string text(error.text, strnlen(error.text, sizeof(error.text)));
  if (text.empty()) text = absl::StrCat("the plugin returned code ", code);
  if (error.native_code != 0) {
    absl::StrAppend(&text, " (native code ", error.native_code, ")");
  }
  absl::Status status(ToStatusCode(code), text);
  if (error.peer < 0 || error.peer >= size) return status;
  return WithRank(std::move(status), error.peer);
}

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
  if (!found.ok()) {
    SHERD_LOG(kWarning) << "store: " << found.status().ToString();
    return SHERD_SYSTEM;
  }
  *size = found->size();
  std::memcpy(value, found->data(), std::min<uint64_t>(capacity, *size));
  return SHERD_OK;
}

class PluginCommunicator final : public Communicator {
 public:
  PluginCommunicator(const sherd_plugin_v0& plugin,
                     const CommunicatorOptions& options)
      : plugin_(plugin),
        size_(options.size),
        kv_{.struct_size = sizeof(sherd_kv_v0),
            .context = options.store,
            .set = KvSet,
            .get = KvGet},
        sends_(options.size),
        recvs_(options.size) {}

  ~PluginCommunicator() override {
    if (comm_ != nullptr) plugin_.destroy(comm_);
  }

  absl::Status Connect(const CommunicatorOptions& options) {
    const sherd_comm_config_v0 config = {
        .struct_size = sizeof(config),
        .rank = options.rank,
        .size = options.size,
        .group = options.group.c_str(),
        .kv = &kv_,
        .deadline = ToNanoseconds(options.deadline)};
    sherd_error_v0 error = NoError();
    return ToStatus(plugin_.create(&config, &comm_, &error), error, size_);
  }

  bool CompletesInPost() const override {
    return (plugin_.flags & SHERD_COMPLETES_IN_POST) != 0;
  }

  absl::Status Post(const CollectiveDesc& desc,
                    CollectiveRequest& request) override {
    if ((plugin_.operations >> static_cast<int>(desc.op) & 1) == 0) {
      return absl::UnimplementedError(
          absl::StrCat("backend ", plugin_.name, " has no ", Name(desc.op)));
    }
    for (size_t r = 0; r < desc.sends.size(); ++r) {
      sends_[r] = {const_cast<std::byte*>(desc.sends[r].data()),
                   desc.sends[r].size()};
      recvs_[r] = {desc.recvs[r].data(), desc.recvs[r].size()};
    }
    const sherd_op_v0 op = {.struct_size = sizeof(op),
                            .op = static_cast<int32_t>(desc.op),
                            .root = desc.root,
                            .flags = 0,
                            .in = desc.in,
                            .out = desc.out,
                            .bytes = desc.bytes,
                            .sends = sends_.data(),
                            .recvs = recvs_.data(),
                            .sequence = desc.sequence,
                            .deadline = ToNanoseconds(desc.deadline)};
    sherd_error_v0 error = NoError();
    const sherd_code code =
        plugin_.post(comm_, &op, AsRequest(request), &error);
    if (code == SHERD_IN_PROGRESS && !CompletesInPost()) {
      return absl::OkStatus();
    }
    return ToStatus(code, error, size_);
  }

  absl::StatusOr<bool> Test(CollectiveRequest& request) override {
    sherd_error_v0 error = NoError();
    const sherd_code code = plugin_.test(comm_, AsRequest(request), &error);
    if (code == SHERD_IN_PROGRESS) return false;
    SHERD_RETURN_IF_ERROR(ToStatus(code, error, size_));
    return true;
  }

  void Abort() override { plugin_.abort(comm_); }

 private:
  static sherd_request_v0* AsRequest(CollectiveRequest& request) {
    return reinterpret_cast<sherd_request_v0*>(request.storage);
  }

  const sherd_plugin_v0& plugin_;
  const int size_;
  const sherd_kv_v0 kv_;
  // Rewritten for each operation; kept so that none allocates.
  std::vector<sherd_bytes_v0> sends_;
  std::vector<sherd_bytes_v0> recvs_;
  sherd_comm_v0* comm_ = nullptr;
};

class PluginBackend final : public Backend {
 public:
  PluginBackend(const sherd_plugin_v0& plugin, std::string origin)
      : plugin_(plugin) {
    info_.name = plugin.name;
    info_.origin = std::move(origin);
    info_.ranks_are_threads = (plugin.flags & SHERD_RANKS_ARE_THREADS) != 0;
    if (plugin.library_version != nullptr) {
      info_.library_version = plugin.library_version();
    }
  }

  const BackendInfo& info() const override { return info_; }

  absl::Status Probe() const override {
    sherd_error_v0 error = NoError();
    return Annotate(ToStatus(plugin_.probe(&error), error, 0),
                    absl::StrCat("backend ", info_.name, " unavailable"));
  }

  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const override {
    auto communicator = std::make_unique<PluginCommunicator>(plugin_, options);
    SHERD_RETURN_IF_ERROR(communicator->Connect(options));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

 private:
  const sherd_plugin_v0& plugin_;
  BackendInfo info_;
};

bool IsValidName(absl::string_view name) {
  return !name.empty() && name.size() <= 64 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

std::string OwnDirectory() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : program.parent_path().string();
}

absl::StatusOr<std::unique_ptr<Backend>> LoadForRegistry(
    absl::string_view name) {
  return LoadBackend(name, PluginSearchPath());
}

[[maybe_unused]] const bool kInstalled = [] {
  BackendRegistry::Global().SetLoader(LoadForRegistry);
  return true;
}();

}  // namespace

std::vector<std::string> PluginSearchPath() {
  const std::string variable = GetKnobOr(Knob::kPluginPath, "");
  std::vector<std::string> directories =
      absl::StrSplit(variable, ':', absl::SkipEmpty());
  directories.push_back(OwnDirectory());
  return directories;
}

std::string PluginFileName(absl::string_view name) {
  return absl::StrCat(kFilePrefix, name, kFileSuffix);
}

absl::StatusOr<std::unique_ptr<Backend>> AdaptPlugin(
    const sherd_plugin_v0* plugin, std::string origin) {
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        origin, ": the plugin says that it cannot work with plugin line ",
        SHERD_ABI_MAJOR, ".", SHERD_ABI_MINOR));
  }
  // Size and version are the only fields that every version has.
  if (plugin->struct_size < offsetof(sherd_plugin_v0, next) ||
      plugin->major != SHERD_ABI_MAJOR || plugin->minor != SHERD_ABI_MINOR) {
    return absl::FailedPreconditionError(
        absl::StrCat(origin, ": built for plugin line ", plugin->major, ".",
                     plugin->minor, ", expected ", SHERD_ABI_MAJOR, ".",
                     SHERD_ABI_MINOR, "; rebuild the plugin or the program"));
  }
  const bool complete = plugin->struct_size >= sizeof(sherd_plugin_v0) &&
                        plugin->name != nullptr && IsValidName(plugin->name) &&
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
  return std::unique_ptr<Backend>(
      std::make_unique<PluginBackend>(*plugin, std::move(origin)));
}

absl::StatusOr<std::unique_ptr<Backend>> LoadPlugin(const std::string& path) {
  SHERD_RETURN_IF_ERROR(internal::CheckSharedObject(path));
  // NOW: a missing symbol of the vendor's library is an error here and not a
  // crash in the first call. LOCAL: plugins bring clashing libraries.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " cannot be loaded: ", dlerror()));
  }
  const auto entry = reinterpret_cast<sherd_get_plugin_v0_fn>(
      dlsym(handle, std::string(kEntry).c_str()));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no Sherd plugin: it does not export ", kEntry));
  }
  return AdaptPlugin(entry(&kHost), path);
}

absl::StatusOr<std::unique_ptr<Backend>> LoadBackend(
    absl::string_view name, absl::Span<const std::string> directories) {
  if (!IsValidName(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Backend ", name,
        " not supported! A backend's name may hold a-z, 0-9 and '_' only"));
  }
  for (const auto* plugin = internal::StaticPlugin::Head(); plugin != nullptr;
       plugin = plugin->next) {
    const sherd_plugin_v0* const table = plugin->entry(&kHost);
    if (table != nullptr && table->name == name) {
      return AdaptPlugin(table, std::string(kLinkedStatically));
    }
  }
  std::vector<std::string> tried;
  for (const std::string& directory : directories) {
    const std::string path = JoinPath(directory, PluginFileName(name));
    if (!FileSystem::Posix().Exists(path)) {
      tried.push_back(path);
      continue;
    }
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, LoadPlugin(path));
    if (backend->info().name != name) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " holds the backend \"", backend->info().name,
                       "\", expected \"", name, "\""));
    }
    return backend;
  }
  return absl::NotFoundError(absl::StrCat(
      "Backend ", name,
      " not supported! It is not linked statically, and these do not exist: ",
      absl::StrJoin(tried, ", "),
      ". Set SHERD_PLUGIN_PATH to the directory of the plugin"));
}

std::vector<PluginReport> ReportPlugins() {
  std::vector<PluginReport> reports;
  const auto add = [&reports](std::string name, std::string origin,
                              absl::StatusOr<std::unique_ptr<Backend>> loaded) {
    PluginReport report = {std::move(name), std::move(origin), "",
                           loaded.status()};
    if (loaded.ok()) {
      report.name = (*loaded)->info().name;
      report.library_version = (*loaded)->info().library_version;
      report.status = (*loaded)->Probe();
    }
    reports.push_back(std::move(report));
  };
  for (const auto* plugin = internal::StaticPlugin::Head(); plugin != nullptr;
       plugin = plugin->next) {
    add("(unnamed)", std::string(kLinkedStatically),
        AdaptPlugin(plugin->entry(&kHost), std::string(kLinkedStatically)));
  }
  for (const std::string& directory : PluginSearchPath()) {
    const absl::StatusOr<std::vector<std::string>> names =
        FileSystem::Posix().List(directory);
    if (!names.ok()) continue;
    for (const std::string& file : *names) {
      absl::string_view name = file;
      if (!absl::ConsumePrefix(&name, kFilePrefix) ||
          !absl::ConsumeSuffix(&name, kFileSuffix)) {
        continue;
      }
      const std::string path = JoinPath(directory, file);
      add(std::string(name), path, LoadPlugin(path));
    }
  }
  return reports;
}

}  // namespace sherd
