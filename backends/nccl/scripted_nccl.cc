#include "sherd/backends/nccl/scripted_nccl.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sherd::internal {

struct ScriptedNcclComm {
  std::string name;
  int rank = 0;
  bool blocking = false;
  int polls_until_ready = 0;
  std::optional<NcclResult> state;
  // A communicator that is made of this one, and where it is wanted.
  NcclComm child = nullptr;
  NcclComm* wanted = nullptr;
  bool dead = false;
};

namespace {

ScriptedNccl* the_script = nullptr;

// A driver that has one device.
int Succeed(unsigned int) { return 0; }
int CountOneDevice(int* count) { return *count = 1, 0; }
int NameError(int, const char** name) { return *name = "CUDA_ERROR", 0; }
int GetNoContext(void** context) { return *context = nullptr, 0; }
int SetContext(void*) { return 0; }

ScriptedNcclComm& Of(NcclComm comm) {
  return *reinterpret_cast<ScriptedNcclComm*>(comm);
}

}  // namespace

// The functions of the table.
struct ScriptedNcclCalls {
  static NcclResult GetVersion(int* version) {
    *version = NcclVersion(2, 28, 9);
    return kNcclSuccess;
  }

  static const char* GetErrorString(NcclResult result) {
    switch (result) {
      case kNcclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
      case kNcclInternalError:
        return "internal error";
      case kNcclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
      case kNcclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
      case kNcclRemoteError:
        return "remote process exited or there was a network error";
      default:
        return "unknown result code";
    }
  }

  static const char* GetLastError(NcclComm) {
    std::lock_guard<std::mutex> lock(the_script->mutex_);
    return the_script->last_error_.c_str();
  }

  static NcclResult GetUniqueId(NcclUniqueId* id) {
    const NcclResult result = the_script->Enter("ncclGetUniqueId", "");
    std::lock_guard<std::mutex> lock(the_script->mutex_);
    std::snprintf(id->internal, sizeof(id->internal), "id %d",
                  the_script->next_id_++);
    return result;
  }

  static NcclResult Init(NcclComm* comm, int num_ranks, NcclUniqueId id,
                         int rank, NcclConfig* config) {
    return InitScalable(comm, num_ranks, rank, 1, &id, config);
  }

  static NcclResult InitScalable(NcclComm* comm, int num_ranks, int rank,
                                 int num_ids, NcclUniqueId* ids,
                                 NcclConfig* config) {
    const NcclResult result = the_script->Enter(
        "ncclCommInitRank",
        absl::StrCat("rank ", rank, " of ", num_ranks, ", ", num_ids, " ids, ",
                     config->blocking ? "blocking" : "non-blocking"));
    {
      std::lock_guard<std::mutex> lock(the_script->mutex_);
      for (int i = 0; i < num_ids; ++i) {
        ++the_script->ids_[ids[i].internal];
      }
    }
    if (result != kNcclSuccess) return result;
    *comm =
        the_script->Make(absl::StrCat("base ", rank), config->blocking != 0);
    Of(*comm).rank = rank;
    return Of(*comm).blocking ? kNcclSuccess : kNcclInProgress;
  }

  static NcclResult Split(NcclComm comm, int color, int key, NcclComm* made,
                          NcclConfig* config) {
    const NcclResult result = the_script->Enter(
        "ncclCommSplit",
        absl::StrCat(Of(comm).name, ", color ", color, ", key ", key, ", ",
                     config->blocking ? "blocking" : "non-blocking"));
    *made = nullptr;
    if (result != kNcclSuccess) return result;
    BeginChild(comm, color == kNcclSplitNoColor, "split", config, made);
    return kNcclSuccess;
  }

  static NcclResult Shrink(NcclComm comm, int* excluded, int num_excluded,
                           NcclComm* made, NcclConfig* config, int flags) {
    const NcclResult result = the_script->Enter(
        "ncclCommShrink",
        absl::StrCat(
            Of(comm).name, ", without ",
            absl::StrJoin(std::vector<int>(excluded, excluded + num_excluded),
                          " "),
            ", flags ", flags));
    *made = nullptr;
    if (result != kNcclSuccess) return result;
    BeginChild(comm, false, "shrunk", config, made);
    return kNcclSuccess;
  }

  static void BeginChild(NcclComm comm, bool none, const std::string& how,
                         NcclConfig* config, NcclComm* made) {
    const bool blocking = config->blocking != 0;
    ScriptedNcclComm& parent = Of(comm);
    NcclComm child = nullptr;
    if (!none) {
      child = the_script->Make(
          absl::StrCat(blocking ? "work" : how, " ", parent.rank), blocking);
      Of(child).rank = parent.rank;
    }
    std::lock_guard<std::mutex> lock(the_script->mutex_);
    parent.child = child;
    parent.wanted = made;
    parent.polls_until_ready = 2;
  }

  static NcclResult GetAsyncError(NcclComm comm, NcclResult* error) {
    std::lock_guard<std::mutex> lock(the_script->mutex_);
    ++the_script->polls_;
    ScriptedNcclComm& self = Of(comm);
    if (self.dead) std::abort();
    *error = kNcclInProgress;
    if (self.state.has_value()) {
      *error = *self.state;
      // A child that could not be made is handed over as well.
      if (self.wanted != nullptr) *self.wanted = self.child;
      self.wanted = nullptr;
    } else if (!the_script->never_ready_ && --self.polls_until_ready < 0) {
      if (self.wanted != nullptr) *self.wanted = self.child;
      self.wanted = nullptr;
      *error = kNcclSuccess;
    }
    return kNcclSuccess;
  }

  static NcclResult OnComm(const char* function, NcclComm comm,
                           const std::string& arguments = "") {
    if (Of(comm).dead) std::abort();
    return the_script->Enter(function, Of(comm).name + arguments);
  }

  static NcclResult Finalize(NcclComm comm) {
    return OnComm("ncclCommFinalize", comm);
  }
  static NcclResult Destroy(NcclComm comm) {
    const NcclResult result = OnComm("ncclCommDestroy", comm);
    Of(comm).dead = true;
    return result;
  }
  static NcclResult Abort(NcclComm comm) {
    const NcclResult result = OnComm("ncclCommAbort", comm);
    Of(comm).dead = true;
    // What was being made of it is finished in that moment.
    if (Of(comm).wanted != nullptr) *Of(comm).wanted = Of(comm).child;
    return result;
  }
  static NcclResult Revoke(NcclComm comm, int flags) {
    return OnComm("ncclCommRevoke", comm, absl::StrCat(", ", flags));
  }
  static NcclResult GroupStart() {
    return the_script->Enter("ncclGroupStart", "");
  }
  static NcclResult GroupEnd() { return the_script->Enter("ncclGroupEnd", ""); }

  // Addresses as the tests choose them: offsets from 0.
  static std::string At(const void* data) {
    return absl::StrCat("@", reinterpret_cast<uintptr_t>(data));
  }
  static std::string Reduction(const void* in, void* out, size_t count,
                               NcclDataType type, NcclRedOp op) {
    return absl::StrCat(", ", At(in), " to ", At(out), ", ", count, " of type ",
                        type, ", op ", op);
  }

  static NcclResult AllReduce(const void* in, void* out, size_t count,
                              NcclDataType type, NcclRedOp op, NcclComm comm,
                              NcclStream) {
    return OnComm("ncclAllReduce", comm, Reduction(in, out, count, type, op));
  }
  static NcclResult Reduce(const void* in, void* out, size_t count,
                           NcclDataType type, NcclRedOp op, int root,
                           NcclComm comm, NcclStream) {
    return OnComm(
        "ncclReduce", comm,
        absl::StrCat(Reduction(in, out, count, type, op), ", root ", root));
  }
  static NcclResult Broadcast(const void* in, void* out, size_t count,
                              NcclDataType type, int root, NcclComm comm,
                              NcclStream) {
    return OnComm("ncclBroadcast", comm,
                  absl::StrCat(", ", At(in), " to ", At(out), ", ", count,
                               " of type ", type, ", root ", root));
  }
  static NcclResult AllGather(const void* in, void* out, size_t count,
                              NcclDataType type, NcclComm comm, NcclStream) {
    return OnComm("ncclAllGather", comm,
                  absl::StrCat(", ", At(in), " to ", At(out), ", ", count,
                               " of type ", type));
  }
  static NcclResult ReduceScatter(const void* in, void* out, size_t count,
                                  NcclDataType type, NcclRedOp op,
                                  NcclComm comm, NcclStream) {
    return OnComm("ncclReduceScatter", comm,
                  Reduction(in, out, count, type, op));
  }
  static NcclResult Send(const void* in, size_t count, NcclDataType type,
                         int peer, NcclComm comm, NcclStream stream) {
    return OnComm("ncclSend", comm,
                  absl::StrCat(", ", At(in), ", ", count, " of type ", type,
                               ", to ", peer, ", stream ", At(stream)));
  }
  static NcclResult Recv(void* out, size_t count, NcclDataType type, int peer,
                         NcclComm comm, NcclStream stream) {
    return OnComm("ncclRecv", comm,
                  absl::StrCat(", ", At(out), ", ", count, " of type ", type,
                               ", from ", peer, ", stream ", At(stream)));
  }

  static NcclResult MemAlloc(void** data, size_t bytes) {
    *data = reinterpret_cast<void*>(4096);
    return the_script->Enter("ncclMemAlloc", absl::StrCat(bytes));
  }
  static NcclResult MemFree(void* data) {
    return the_script->Enter("ncclMemFree", At(data));
  }
  static NcclResult Register(NcclComm comm, void* data, size_t bytes,
                             void** handle) {
    *handle = reinterpret_cast<void*>(77);
    return OnComm("ncclCommRegister", comm,
                  absl::StrCat(", ", At(data), ", ", bytes));
  }
  static NcclResult Deregister(NcclComm comm, void* handle) {
    return OnComm("ncclCommDeregister", comm, absl::StrCat(", ", At(handle)));
  }
};

ScriptedNccl::ScriptedNccl() { the_script = this; }

ScriptedNccl::~ScriptedNccl() { the_script = nullptr; }

NcclLibrary ScriptedNccl::Library() const {
  using Calls = ScriptedNcclCalls;
  NcclLibrary library;
  library.version = NcclVersion(2, 28, 9);
  library.description = "2.28.9 from a script";
  library.cuda = {.init = Succeed,
                  .device_get_count = CountOneDevice,
                  .get_error_name = NameError,
                  .ctx_get_current = GetNoContext,
                  .ctx_set_current = SetContext};
  library.api = {.get_version = Calls::GetVersion,
                 .get_error_string = Calls::GetErrorString,
                 .get_last_error = Calls::GetLastError,
                 .get_unique_id = Calls::GetUniqueId,
                 .comm_init_rank_config = Calls::Init,
                 .comm_init_rank_scalable = Calls::InitScalable,
                 .comm_split = Calls::Split,
                 .comm_shrink = Calls::Shrink,
                 .comm_finalize = Calls::Finalize,
                 .comm_destroy = Calls::Destroy,
                 .comm_abort = Calls::Abort,
                 .comm_revoke = Calls::Revoke,
                 .comm_get_async_error = Calls::GetAsyncError,
                 .group_start = Calls::GroupStart,
                 .group_end = Calls::GroupEnd,
                 .all_reduce = Calls::AllReduce,
                 .reduce = Calls::Reduce,
                 .broadcast = Calls::Broadcast,
                 .all_gather = Calls::AllGather,
                 .reduce_scatter = Calls::ReduceScatter,
                 .send = Calls::Send,
                 .recv = Calls::Recv,
                 .mem_alloc = Calls::MemAlloc,
                 .mem_free = Calls::MemFree,
                 .comm_register = Calls::Register,
                 .comm_deregister = Calls::Deregister};
  return library;
}

NcclResult ScriptedNccl::Enter(const std::string& function,
                               const std::string& arguments) {
  const std::string call = absl::StrCat(function, "(", arguments, ")");
  std::function<void(const std::string&)> hook;
  NcclResult result = kNcclSuccess;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(call);
    hook = hook_;
    const int number = counts_[function]++;
    const auto found = results_[function].find(number);
    if (found != results_[function].end()) result = found->second;
  }
  if (hook) hook(call);
  return result;
}

NcclComm ScriptedNccl::Make(const std::string& name, bool blocking) {
  auto comm = std::make_unique<ScriptedNcclComm>();
  comm->name = name;
  comm->blocking = blocking;
  comm->polls_until_ready = blocking ? 0 : 2;
  std::lock_guard<std::mutex> lock(mutex_);
  comms_.push_back(std::move(comm));
  return reinterpret_cast<NcclComm>(comms_.back().get());
}

void ScriptedNccl::Return(const std::string& function, NcclResult result,
                          int call) {
  std::lock_guard<std::mutex> lock(mutex_);
  results_[function][counts_[function] + call] = result;
}

void ScriptedNccl::SetLastError(std::string text) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_error_ = std::move(text);
}

void ScriptedNccl::SetState(const std::string& name, NcclResult state) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& comm : comms_) {
    if (comm->name == name) comm->state = state;
  }
}

void ScriptedNccl::NeverReady() {
  std::lock_guard<std::mutex> lock(mutex_);
  never_ready_ = true;
}

void ScriptedNccl::OnCall(std::function<void(const std::string&)> hook) {
  std::lock_guard<std::mutex> lock(mutex_);
  hook_ = std::move(hook);
}

std::vector<std::string> ScriptedNccl::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

int ScriptedNccl::Count(absl::string_view prefix) const {
  int count = 0;
  for (const std::string& call : calls()) {
    if (absl::StartsWith(call, prefix)) ++count;
  }
  return count;
}

void ScriptedNccl::ForgetCalls() {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

int ScriptedNccl::polls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return polls_;
}

size_t ScriptedNccl::num_ids() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ids_.size();
}

}  // namespace sherd::internal
