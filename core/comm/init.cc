#include "sherd/core/comm/init.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/backend_registry.h"
#include "sherd/core/comm/file_store.h"

namespace sherd {
namespace {

constexpr int kMaxWorldSize = 1 << 20;
constexpr absl::string_view kFileScheme = "file://";

using GroupPointer = std::shared_ptr<ProcessGroup>;

// The default groups of this process and, where ranks are threads, of each.
// Leaked, so that a group nobody destroyed is not torn down among static
// destructors.
struct Defaults {
  absl::Mutex mutex;
  GroupPointer process ABSL_GUARDED_BY(mutex);
  // How often each rank has met others at a path, so that init, destroy, init
  // on one file finds keys of its own.
  std::map<std::pair<std::string, int>, int> generations ABSL_GUARDED_BY(mutex);
};

Defaults& GetDefaults() {
  static Defaults* const defaults = new Defaults;
  return *defaults;
}

GroupPointer& ThreadDefault() {
  thread_local GroupPointer group;
  return group;
}

bool IsAlive(const GroupPointer& group) {
  return group != nullptr && !group->IsDestroyed();
}

absl::StatusOr<int> NumberFrom(std::optional<int> option, Knob knob, int low,
                               int high, absl::string_view option_name) {
  if (option) {
    if (*option < low || *option > high) {
      return absl::InvalidArgumentError(
          absl::StrCat("Init: ", option_name, " is ", *option, ", expected ",
                       low, " to ", high));
    }
    return *option;
  }
  SHERD_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                         GetIntKnob(knob, low, high));
  if (!value) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Init: environment variable ", GetKnobInfo(knob).variable,
        " expected, but not set: start the program with \"sherd run -n N "
        "PROGRAM\", or set InitOptions::",
        option_name));
  }
  return static_cast<int>(*value);
}

struct Rendezvous {
  std::shared_ptr<Store> store;
  std::function<void()> on_destroy;
};

absl::StatusOr<Rendezvous> MeetAtFile(const std::string& path, int rank,
                                      int world_size) {
  int generation;
  {
    Defaults& defaults = GetDefaults();
    absl::MutexLock lock(&defaults.mutex);
    generation = ++defaults.generations[{path, rank}];
  }
  const std::string prefix = absl::StrCat("generation/", generation);
  auto file = std::make_shared<FileStore>(path);
  Rendezvous rendezvous;
  rendezvous.store = std::make_shared<PrefixStore>(prefix, file);
  rendezvous.on_destroy = [file, prefix, world_size] {
    // A file that stays behind harms nobody: its rank keys say whose it was.
    if (absl::Status status = file->Retire(prefix, world_size); !status.ok()) {
      SHERD_LOG(kWarning) << "rendezvous file not cleaned up: "
                          << status.ToString();
    }
  };
  return rendezvous;
}

absl::StatusOr<Rendezvous> Meet(const InitOptions& options, int rank,
                                int world_size) {
  if (options.store != nullptr) {
    if (!options.init_method.empty()) {
      return absl::InvalidArgumentError(
          "Init: store and init_method are mutually exclusive");
    }
    return Rendezvous{options.store, nullptr};
  }
  const std::string method = options.init_method.empty()
                                 ? GetKnobOr(Knob::kInitMethod, "")
                                 : options.init_method;
  if (method.empty()) {
    return absl::InvalidArgumentError(
        "Init: neither init_method nor SHERD_INIT_METHOD says where the ranks "
        "meet: start the program with \"sherd run -n N PROGRAM\", or name a "
        "file that does not exist yet: file:///PATH");
  }
  absl::string_view path = method;
  if (!absl::ConsumePrefix(&path, kFileScheme)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "No rendezvous handler for \"", method, "\": expected file:///PATH"));
  }
  if (!absl::StartsWith(path, "/")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Error initializing using file:// rendezvous: path missing or not "
        "absolute in \"",
        method, "\", expected file:///PATH"));
  }
  return MeetAtFile(std::string(path), rank, world_size);
}

absl::StatusOr<absl::Duration> TimeoutFrom(const InitOptions& options) {
  if (options.timeout) {
    if (*options.timeout <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError("Init: timeout must be above zero");
    }
    return *options.timeout;
  }
  SHERD_ASSIGN_OR_RETURN(const std::optional<absl::Duration> value,
                         GetDurationKnob(Knob::kTimeout));
  return value.value_or(absl::Minutes(5));
}

absl::Status CheckNoDefault(bool ranks_are_threads) {
  Defaults& defaults = GetDefaults();
  absl::MutexLock lock(&defaults.mutex);
  if (IsAlive(ranks_are_threads ? ThreadDefault() : defaults.process)) {
    return absl::FailedPreconditionError(
        "trying to initialize the default process group twice: destroy the "
        "first one before");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> Init(const InitOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const int world_size,
                         NumberFrom(options.world_size, Knob::kWorldSize, 1,
                                    kMaxWorldSize, "world_size"));
  SHERD_ASSIGN_OR_RETURN(const int rank, NumberFrom(options.rank, Knob::kRank,
                                                    0, world_size - 1, "rank"));
  SHERD_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFrom(options));
  const std::string name = options.backend.empty()
                               ? GetKnobOr(Knob::kBackend, "auto")
                               : options.backend;
  SHERD_ASSIGN_OR_RETURN(const Backend* backend,
                         BackendRegistry::Global().Find(name));
  SHERD_RETURN_IF_ERROR(backend->Probe());
  const bool threads = backend->info().ranks_are_threads;
  SHERD_RETURN_IF_ERROR(CheckNoDefault(threads));
  SHERD_ASSIGN_OR_RETURN(Rendezvous rendezvous,
                         Meet(options, rank, world_size));
  SHERD_ASSIGN_OR_RETURN(
      GroupPointer group,
      ProcessGroup::Create(*backend,
                           {.name = options.group_name,
                            .rank = rank,
                            .size = world_size,
                            .store = std::move(rendezvous.store),
                            .timeout = timeout,
                            .on_destroy = std::move(rendezvous.on_destroy)}));
  if (threads) {
    SetThreadLogRank(rank);
    ThreadDefault() = group;
  } else {
    SetLogRank(rank);
    Defaults& defaults = GetDefaults();
    absl::MutexLock lock(&defaults.mutex);
    defaults.process = group;
  }
  return group;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> DefaultGroup() {
  if (IsAlive(ThreadDefault())) return ThreadDefault();
  Defaults& defaults = GetDefaults();
  absl::MutexLock lock(&defaults.mutex);
  if (IsAlive(defaults.process)) return defaults.process;
  return absl::FailedPreconditionError(
      "Default process group has not been initialized, call sherd::Init");
}

}  // namespace sherd
