#include "sherd/testing/emulated_gpu/nccl/nccl_functions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_communicator.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_group.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_segment.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"
#include "sherd/testing/emulated_gpu/plan/faults.h"

namespace sherd::testing {

using internal::kNcclInProgress;
using internal::kNcclInvalidArgument;
using internal::kNcclInvalidUsage;
using internal::kNcclSuccess;
using internal::kNcclUnhandledCudaError;
using internal::NcclComm;

namespace {

NcclResult NullArgument(const char* function, const char* argument) {
  return NcclFail(kNcclInvalidArgument, std::string(function) + " : " +
                                            argument + " argument is NULL");
}

// The result that a fault makes a call return at once, if any; *fault is any
// other fault, or null if a call that is to hang never returns.
std::optional<NcclResult> Injected(const GpuCall& call,
                                   std::optional<GpuFault>* fault) {
  std::optional<GpuFault> found = TakeFault(call);
  if (found && found->kind == GpuFault::Kind::kReturn) {
    const auto result = static_cast<NcclResult>(found->code);
    if (result == kNcclSuccess || result == kNcclInProgress) return result;
    return NcclFail(result, std::string(call.function) + " : injected fault");
  }
  if (fault != nullptr) {
    *fault = std::move(found);
  } else {
    while (found && found->kind == GpuFault::Kind::kHang) pause();
  }
  return std::nullopt;
}

const char* BlockingText(const NcclConfig* config) {
  return config != nullptr && config->blocking == 0 ? "non-blocking"
                                                    : "blocking";
}

// Without the prefix "nccl", as in messages.
const char* ShortName(const char* function) { return function + 4; }

NcclResult Find(NcclComm handle, const char* function,
                NcclCommunicatorPtr* communicator) {
  if (handle == nullptr) return NullArgument(ShortName(function), "comm");
  *communicator = FindCommunicator(handle);
  if (*communicator != nullptr) return kNcclSuccess;
  ReportFinding(std::string(function) +
                " of a communicator that was destroyed, or never was");
  return NcclFail(kNcclInvalidArgument,
                  "Error: corrupted comm object detected");
}

// A call with a communicator, which is looked for before anything else: one
// that has ended is a finding whatever a fault makes the call return. Returns
// what the call returns at once, if it does; *fault is as of Injected.
std::optional<NcclResult> EnterOn(const char* function, NcclComm handle,
                                  const std::function<std::string()>& rest,
                                  NcclCommunicatorPtr* own,
                                  std::optional<GpuFault>* fault = nullptr) {
  const NcclResult found = Find(handle, function, own);
  const GpuCall call(function, [&] {
    return (*own == nullptr ? AddressText(handle) : (*own)->label()) +
           (rest ? ", " + rest() : "");
  });
  const std::optional<NcclResult> injected = Injected(call, fault);
  return found == kNcclSuccess ? injected : found;
}

// One call as a group of its own: `call` runs between start and end.
template <typename Call>
NcclResult AsGroup(const Call& call) {
  NcclGroup::Start();
  const NcclResult result = NcclGroup::Check(call());
  const NcclResult end = NcclGroup::End(/*from_user=*/false);
  return result != kNcclSuccess ? result : end;
}

void ReadModes(const std::optional<GpuFault>& fault, NcclSettings* settings) {
  if (!fault || fault->kind != GpuFault::Kind::kOther) return;
  const std::string words = "+" + fault->word + "+";
  const auto has = [&](const char* word) {
    return words.find(std::string("+") + word + "+") != std::string::npos;
  };
  settings->alone = has("alone");
  settings->remote = has("remote");
  settings->mismatch_hangs = has("mismatch");
  settings->eager = has("eager");
}

// "rank 1 of 3, 2 ids, blocking: 17 18", the last being hashes of the ids.
std::string InitText(int rank, int size, std::span<const NcclUniqueId> ids,
                     const NcclConfig* config) {
  std::string text = "rank " + std::to_string(rank) + " of " +
                     std::to_string(size) + ", " + std::to_string(ids.size()) +
                     " ids, " + BlockingText(config) + ":";
  for (const NcclUniqueId& id : ids) {
    const std::string_view bytes(id.internal, sizeof(id.internal));
    text += " " + std::to_string(std::hash<std::string_view>()(bytes));
  }
  return text;
}

NcclResult Init(const char* function, NcclComm* made, int size,
                std::span<const NcclUniqueId> ids, int rank,
                const NcclConfig* config) {
  const GpuCall call(function,
                     [=] { return InitText(rank, size, ids, config); });
  return AsGroup([&]() -> NcclResult {
    std::optional<GpuFault> fault;
    const std::optional<NcclResult> injected = Injected(call, &fault);
    if (injected) return *injected;
    if (made == nullptr) return NullArgument("CommInitRank", "newcomm");
    *made = nullptr;
    if (size < 1 || size > NcclSegment::kMaxRanks || rank < 0 || rank >= size) {
      return NcclFail(kNcclInvalidArgument,
                      "Invalid rank requested : " + std::to_string(rank) + "/" +
                          std::to_string(size));
    }
    NcclSettings settings;
    settings.label = "base";
    settings.origin = rank;
    ReadModes(fault, &settings);
    const NcclResult read = ReadConfig(config, &settings);
    if (read != kNcclSuccess) return read;
    // As the runtime API, which takes device 0 where none is current.
    const int device = std::max(CurrentDevice(), 0);
    if (device >= DeviceCount() || DeviceError(device) != 0) {
      return NcclFail(kNcclUnhandledCudaError,
                      "Cuda failure " + std::to_string(DeviceError(device)));
    }
    auto communicator = std::make_shared<NcclCommunicator>(
        device, settings, std::make_shared<NcclFamily>());
    communicator->SetPlace(rank, size);
    *made = AddCommunicator(communicator);
    const bool hangs = fault && fault->kind == GpuFault::Kind::kHang;
    NcclGroup::AddJob(communicator, [communicator, id = ids[0], hangs] {
      return communicator->Join(id, hangs);
    });
    return kNcclSuccess;
  });
}

// A child is handed over once it is complete: when the call that makes it ends,
// or when NCCL has reported so for a parent that does not block.
NcclResult HandOver(NcclResult result, NcclCommunicator& parent,
                    const NcclCommunicatorPtr& child, NcclComm* made) {
  if (result != kNcclSuccess || child == nullptr) return result;
  parent.AddMade(child, made);
  if (parent.settings().blocking) parent.DeliverMade();
  return result;
}

NcclResult CheckTask(const NcclTask& task, const NcclCommunicator& own) {
  const char* const name = NcclFunctionName(task.function);
  const NcclSignature& signature = task.signature;
  const auto refuse = [&](const std::string& why) {
    return NcclFail(kNcclInvalidArgument, std::string(name) + " : " + why);
  };
  if (signature.root < 0 || signature.root >= own.size()) {
    return refuse("invalid root " + std::to_string(signature.root) +
                  " (root should be in the 0.." + std::to_string(own.size()) +
                  " range)");
  }
  if (signature.type < 0 || signature.type >= kNcclNumTypes) {
    return refuse("invalid type " + std::to_string(signature.type));
  }
  if (signature.op < 0) {
    return refuse("invalid reduction operation " +
                  std::to_string(signature.op));
  }
  return kNcclSuccess;
}

NcclResult FindOperator(NcclTask* task, NcclCommunicator& own) {
  NcclSignature& signature = task->signature;
  if (signature.op < kNcclNumOps) return kNcclSuccess;
  task->factor = own.FindFactor(signature.op);
  if (task->factor == nullptr) {
    return NcclFail(kNcclInvalidArgument,
                    std::string(NcclFunctionName(task->function)) +
                        " : reduction operation " +
                        std::to_string(signature.op) +
                        " unknown to this communicator");
  }
  if (task->factor->type != signature.type) {
    return NcclFail(kNcclInvalidArgument,
                    "Data type supplied to user-created ncclRedOp_t does not "
                    "match type given to reduction operation");
  }
  signature.op = kNcclNumOps;
  return kNcclSuccess;
}

// The text of an operation's arguments after its communicator.
std::string ArgumentText(const NcclTask& task) {
  const auto& [function, type, op, root, count] = task.signature;
  const std::string elements =
      std::to_string(count) + " of type " + std::to_string(type);
  const std::string on = ", stream " + AddressText(task.stream);
  if (task.function == NcclFunction::kSend) {
    return AddressText(task.in) + ", " + elements + ", to " +
           std::to_string(root) + on;
  }
  if (task.function == NcclFunction::kRecv) {
    return AddressText(task.out) + ", " + elements + ", from " +
           std::to_string(root) + on;
  }
  std::string text =
      AddressText(task.in) + " to " + AddressText(task.out) + ", " + elements;
  if (HasReduction(task.function)) text += ", op " + std::to_string(op);
  if (HasRoot(task.function)) text += ", root " + std::to_string(root);
  return text;
}

NcclResult AddOperation(const char* function, NcclComm handle, NcclTask task) {
  std::optional<GpuFault> fault;
  NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once = EnterOn(
      function, handle, [&task] { return ArgumentText(task); }, &own, &fault);
  if (at_once) return *at_once;
  NcclResult result = own->CheckOperational(ShortName(function));
  if (result == kNcclSuccess) result = CheckTask(task, *own);
  if (result == kNcclSuccess) result = FindOperator(&task, *own);
  if (result != kNcclSuccess) return result;
  const bool point_to_point = task.function == NcclFunction::kSend ||
                              task.function == NcclFunction::kRecv;
  if (task.signature.count == 0 && !point_to_point) return kNcclSuccess;
  if (DeviceOfStream(task.stream) != own->device()) {
    return NcclFail(kNcclUnhandledCudaError,
                    "Cuda failure 400 'invalid resource handle': the stream "
                    "is not one of the communicator's device");
  }
  const std::string overlap = BadOverlap(task, own->rank(), own->size());
  if (!overlap.empty()) ReportFinding(overlap);
  if (fault) {
    task.hangs = fault->kind == GpuFault::Kind::kHang;
    if (fault->kind == GpuFault::Kind::kBreak) task.breaks = fault->code;
    task.dies = fault->word == "die_running";
  }
  // A lone rank's collectives are copies, queued at once even in a group.
  if (own->size() == 1 && !point_to_point) return own->Launch({task});
  NcclGroup::AddTask(own, task);
  return kNcclSuccess;
}

NcclResult Operation(const char* function, NcclFunction kind, const void* in,
                     void* out, size_t count, int type, int op, int root,
                     NcclComm comm, void* stream) {
  NcclTask task;
  task.function = kind;
  task.signature = {static_cast<int32_t>(kind), type, op, root, count};
  task.in = in;
  task.out = out;
  task.stream = stream;
  return AsGroup([&] { return AddOperation(function, comm, task); });
}

NcclResult Split(NcclComm comm, int color, int key, NcclComm* made,
                 const NcclConfig* config) {
  const auto text = [=] {
    return "color " + std::to_string(color) + ", key " + std::to_string(key) +
           ", " + BlockingText(config);
  };
  NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once =
      EnterOn("ncclCommSplit", comm, text, &own);
  if (at_once) return *at_once;
  if (made == nullptr) return NullArgument("CommSplit", "newcomm");
  *made = nullptr;
  NcclResult result = own->CheckReady("CommSplit");
  if (result != kNcclSuccess) return result;
  if (color < internal::kNcclSplitNoColor) {
    return NcclFail(kNcclInvalidArgument,
                    "CommSplit : invalid color " + std::to_string(color));
  }
  NcclSettings settings = own->settings();
  result = ReadConfig(config, &settings);
  if (result != kNcclSuccess) return result;
  NcclGroup::AddJob(own, [own, color, key, settings, made] {
    NcclCommunicatorPtr child;
    const NcclResult split = own->Split(color, key, settings, &child);
    return HandOver(split, *own, child, made);
  });
  return kNcclSuccess;
}

NcclResult Shrink(NcclComm comm, const int* excluded, int num_excluded,
                  NcclComm* made, const NcclConfig* config, int flags) {
  const auto text = [=] {
    std::string without = "without";
    for (int i = 0; excluded != nullptr && i < num_excluded; ++i) {
      without += " " + std::to_string(excluded[i]);
    }
    return without + ", flags " + std::to_string(flags);
  };
  NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once =
      EnterOn("ncclCommShrink", comm, text, &own);
  if (at_once) return *at_once;
  if (made == nullptr) return NullArgument("CommShrink", "newcomm");
  *made = nullptr;
  const bool abort_first = flags == internal::kNcclShrinkAbort;
  NcclResult result = own->CheckReady("CommShrink");
  // It serves to go on after an error.
  if (abort_first && result != kNcclInvalidArgument) result = kNcclSuccess;
  if (result != kNcclSuccess) return result;
  if (excluded == nullptr || num_excluded < 1) {
    return NcclFail(kNcclInvalidArgument, "CommShrink : no ranks to exclude");
  }
  std::set<int> ranks(excluded, excluded + num_excluded);
  if (*ranks.begin() < 0 || *ranks.rbegin() >= own->size() ||
      ranks.count(own->rank()) != 0) {
    return NcclFail(kNcclInvalidArgument,
                    "CommShrink : excluded ranks out of range, or the calling "
                    "rank among them");
  }
  NcclSettings settings = own->settings();
  result = ReadConfig(config, &settings);
  if (result != kNcclSuccess) return result;
  NcclGroup::AddJob(own, [own, ranks, abort_first, settings, made] {
    NcclCommunicatorPtr child;
    const NcclResult shrunk = own->Shrink(ranks, abort_first, settings, &child);
    return HandOver(shrunk, *own, child, made);
  });
  return kNcclSuccess;
}

NcclResult Destroy(const NcclCommunicatorPtr& own) {
  if (own->is_finalized() || !own->is_healthy() ||
      own->BeginFinalize() != kNcclSuccess) {
    return kNcclSuccess;
  }
  NcclGroup::AddJob(own, [own] { return own->Finalize(); });
  return kNcclSuccess;
}

NcclResult Finalize(const NcclCommunicatorPtr& own) {
  NcclResult result = own->CheckReady("CommFinalize");
  if (result == kNcclSuccess) result = own->BeginFinalize();
  if (result != kNcclSuccess) return result;
  NcclGroup::AddJob(own, [own] { return own->Finalize(); });
  return kNcclSuccess;
}

// Waits for running operations, or leaves that to a thread.
NcclResult DrainAsConfigured(const NcclCommunicatorPtr& own) {
  if (!own->settings().blocking) {
    own->StartJob([own] {
      own->Drain();
      return kNcclSuccess;
    });
    return kNcclInProgress;
  }
  own->Drain();
  return kNcclSuccess;
}

// ncclCommDestroy and ncclCommAbort: the handle is of no use after them, also
// where a fault made them fail.
template <typename Body>
NcclResult EndCommunicator(const char* function, NcclComm comm,
                           const Body& body) {
  if (comm == nullptr) {
    const GpuCall call(function, [] { return AddressText(nullptr); });
    return Injected(call, nullptr).value_or(kNcclSuccess);
  }
  NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once =
      EnterOn(function, comm, nullptr, &own);
  RemoveCommunicator(comm);
  return at_once ? *at_once : body(own);
}

// Runs `body` unless a fault replaces the result of the call.
template <typename Body>
NcclResult WithFaults(const GpuCall& call, const Body& body) {
  const std::optional<NcclResult> injected = Injected(call, nullptr);
  return injected ? *injected : body();
}

}  // namespace
}  // namespace sherd::testing

using sherd::internal::NcclComm;
using sherd::internal::NcclConfig;
using sherd::internal::NcclDataType;
using sherd::internal::NcclRedOp;
using sherd::internal::NcclResult;
using sherd::internal::NcclStream;
using sherd::internal::NcclUniqueId;
using sherd::testing::NcclFunction;
namespace emulated = sherd::testing;

extern "C" {

NcclResult ncclGetVersion(int* version) {
  if (version == nullptr) return sherd::internal::kNcclInvalidArgument;
  *version = emulated::NcclPretendedVersion();
  return sherd::internal::kNcclSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  return emulated::NcclErrorString(result);
}

const char* ncclGetLastError(NcclComm) {
  const std::optional<emulated::GpuFault> fault =
      emulated::TakeFault("ncclGetLastError");
  if (!fault || fault->kind != emulated::GpuFault::Kind::kOther) {
    return emulated::NcclLastError();
  }
  thread_local std::string planned;
  planned = fault->word;
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.InnerPointer)
  return planned.c_str();
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (id == nullptr) return emulated::NullArgument("GetUniqueId", "out");
  return emulated::WithFaults("ncclGetUniqueId", [&] {
    return emulated::NcclSegment::MakeUniqueId(id);
  });
}

NcclResult ncclCommInitRankConfig(NcclComm* comm, int num_ranks,
                                  NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  return emulated::Init("ncclCommInitRankConfig", comm, num_ranks, {&id, 1},
                        rank, config);
}

NcclResult ncclCommInitRank(NcclComm* comm, int num_ranks, NcclUniqueId id,
                            int rank) {
  return emulated::Init("ncclCommInitRank", comm, num_ranks, {&id, 1}, rank,
                        nullptr);
}

NcclResult ncclCommInitRankScalable(NcclComm* comm, int num_ranks, int rank,
                                    int num_ids, NcclUniqueId* ids,
                                    NcclConfig* config) {
  if (ids == nullptr || num_ids < 1 || num_ids > num_ranks) {
    return emulated::NcclFail(sherd::internal::kNcclInvalidArgument,
                              "CommInitRankScalable : improper usage of "
                              "ncclCommInitRankScalable: nId = " +
                                  std::to_string(num_ids));
  }
  return emulated::Init("ncclCommInitRankScalable", comm, num_ranks,
                        {ids, static_cast<size_t>(num_ids)}, rank, config);
}

NcclResult ncclCommSplit(NcclComm comm, int color, int key, NcclComm* made,
                         NcclConfig* config) {
  return emulated::AsGroup(
      [&] { return emulated::Split(comm, color, key, made, config); });
}

NcclResult ncclCommShrink(NcclComm comm, int* excluded, int num_excluded,
                          NcclComm* made, NcclConfig* config, int flags) {
  return emulated::AsGroup([&] {
    return emulated::Shrink(comm, excluded, num_excluded, made, config, flags);
  });
}

NcclResult ncclCommFinalize(NcclComm comm) {
  emulated::NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once =
      emulated::EnterOn("ncclCommFinalize", comm, nullptr, &own);
  if (at_once) return *at_once;
  return emulated::AsGroup([&] { return emulated::Finalize(own); });
}

NcclResult ncclCommDestroy(NcclComm comm) {
  return emulated::EndCommunicator(
      "ncclCommDestroy", comm, [](const emulated::NcclCommunicatorPtr& own) {
        return emulated::AsGroup([&] { return emulated::Destroy(own); });
      });
}

NcclResult ncclCommAbort(NcclComm comm) {
  return emulated::EndCommunicator(
      "ncclCommAbort", comm, [](const emulated::NcclCommunicatorPtr& own) {
        own->Abort();
        own->AwaitJob();
        own->DeliverMade();
        return emulated::DrainAsConfigured(own);
      });
}

NcclResult ncclCommRevoke(NcclComm comm, int flags) {
  emulated::NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once = emulated::EnterOn(
      "ncclCommRevoke", comm, [=] { return std::to_string(flags); }, &own);
  if (at_once) return *at_once;
  if (flags != sherd::internal::kNcclRevokeDefault) {
    return emulated::NcclFail(
        sherd::internal::kNcclInvalidArgument,
        "CommRevoke : invalid flags " + std::to_string(flags));
  }
  const NcclResult result = own->Revoke();
  if (result != sherd::internal::kNcclSuccess) return result;
  return emulated::DrainAsConfigured(own);
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* error) {
  std::optional<emulated::GpuFault> fault;
  emulated::NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once =
      emulated::EnterOn("ncclCommGetAsyncError", comm, nullptr, &own, &fault);
  if (at_once) return *at_once;
  if (error == nullptr) {
    return emulated::NullArgument("CommGetAsyncError", "asyncError");
  }
  const auto planned = [&](const char* word) -> std::optional<NcclResult> {
    if (!fault || fault->word.rfind(word, 0) != 0) return std::nullopt;
    return static_cast<NcclResult>(
        std::atoi(fault->word.c_str() + std::strlen(word)));
  };
  if (const auto failure = planned("async=")) own->SetError(*failure);
  *error = own->Poll();
  if (const auto state = planned("state=")) *error = *state;
  if (*error != sherd::internal::kNcclInProgress) own->DeliverMade();
  return sherd::internal::kNcclSuccess;
}

NcclResult ncclCommCount(NcclComm comm, int* count) {
  emulated::NcclCommunicatorPtr own;
  const NcclResult result = emulated::Find(comm, "ncclCommCount", &own);
  if (result == sherd::internal::kNcclSuccess) *count = own->size();
  return result;
}

NcclResult ncclCommUserRank(NcclComm comm, int* rank) {
  emulated::NcclCommunicatorPtr own;
  const NcclResult result = emulated::Find(comm, "ncclCommUserRank", &own);
  if (result == sherd::internal::kNcclSuccess) *rank = own->rank();
  return result;
}

NcclResult ncclCommCuDevice(NcclComm comm, int* device) {
  emulated::NcclCommunicatorPtr own;
  const NcclResult result = emulated::Find(comm, "ncclCommCuDevice", &own);
  if (result == sherd::internal::kNcclSuccess) *device = own->device();
  return result;
}

NcclResult ncclGroupStart() {
  return emulated::WithFaults("ncclGroupStart", [] {
    emulated::NcclGroup::Start();
    return sherd::internal::kNcclSuccess;
  });
}

NcclResult ncclGroupEnd() {
  const std::optional<NcclResult> injected =
      emulated::Injected("ncclGroupEnd", nullptr);
  if (injected) emulated::NcclGroup::Check(*injected);
  return emulated::NcclGroup::End(/*from_user=*/true);
}

NcclResult ncclAllReduce(const void* in, void* out, size_t count,
                         NcclDataType type, NcclRedOp op, NcclComm comm,
                         NcclStream stream) {
  return emulated::Operation("ncclAllReduce", NcclFunction::kAllReduce, in, out,
                             count, type, op, 0, comm, stream);
}

NcclResult ncclReduce(const void* in, void* out, size_t count,
                      NcclDataType type, NcclRedOp op, int root, NcclComm comm,
                      NcclStream stream) {
  return emulated::Operation("ncclReduce", NcclFunction::kReduce, in, out,
                             count, type, op, root, comm, stream);
}

NcclResult ncclBroadcast(const void* in, void* out, size_t count,
                         NcclDataType type, int root, NcclComm comm,
                         NcclStream stream) {
  return emulated::Operation("ncclBroadcast", NcclFunction::kBroadcast, in, out,
                             count, type, 0, root, comm, stream);
}

NcclResult ncclBcast(void* buffer, size_t count, NcclDataType type, int root,
                     NcclComm comm, NcclStream stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

NcclResult ncclAllGather(const void* in, void* out, size_t in_count,
                         NcclDataType type, NcclComm comm, NcclStream stream) {
  return emulated::Operation("ncclAllGather", NcclFunction::kAllGather, in, out,
                             in_count, type, 0, 0, comm, stream);
}

NcclResult ncclReduceScatter(const void* in, void* out, size_t out_count,
                             NcclDataType type, NcclRedOp op, NcclComm comm,
                             NcclStream stream) {
  return emulated::Operation("ncclReduceScatter", NcclFunction::kReduceScatter,
                             in, out, out_count, type, op, 0, comm, stream);
}

NcclResult ncclAlltoAll(const void* in, void* out, size_t count,
                        NcclDataType type, NcclComm comm, NcclStream stream) {
  return emulated::Operation("ncclAlltoAll", NcclFunction::kAllToAll, in, out,
                             count, type, 0, 0, comm, stream);
}

NcclResult ncclGather(const void* in, void* out, size_t count,
                      NcclDataType type, int root, NcclComm comm,
                      NcclStream stream) {
  return emulated::Operation("ncclGather", NcclFunction::kGather, in, out,
                             count, type, 0, root, comm, stream);
}

NcclResult ncclScatter(const void* in, void* out, size_t count,
                       NcclDataType type, int root, NcclComm comm,
                       NcclStream stream) {
  return emulated::Operation("ncclScatter", NcclFunction::kScatter, in, out,
                             count, type, 0, root, comm, stream);
}

NcclResult ncclSend(const void* in, size_t count, NcclDataType type, int peer,
                    NcclComm comm, NcclStream stream) {
  return emulated::Operation("ncclSend", NcclFunction::kSend, in, nullptr,
                             count, type, 0, peer, comm, stream);
}

NcclResult ncclRecv(void* out, size_t count, NcclDataType type, int peer,
                    NcclComm comm, NcclStream stream) {
  return emulated::Operation("ncclRecv", NcclFunction::kRecv, nullptr, out,
                             count, type, 0, peer, comm, stream);
}

NcclResult ncclRedOpCreatePreMulSum(NcclRedOp* op, void* scalar,
                                    NcclDataType type, int residence,
                                    NcclComm comm) {
  emulated::NcclCommunicatorPtr own;
  const NcclResult result =
      emulated::Find(comm, "ncclRedOpCreatePreMulSum", &own);
  if (result != sherd::internal::kNcclSuccess) return result;
  const std::optional<sherd::DType> dtype = emulated::DTypeOfNccl(type);
  if (op == nullptr || scalar == nullptr || !dtype || residence < 0 ||
      residence > emulated::kNcclScalarHostImmediate) {
    return emulated::NcclFail(sherd::internal::kNcclInvalidArgument,
                              "RedOpCreatePreMulSum : invalid argument");
  }
  emulated::NcclFactor factor;
  factor.type = type;
  if (residence == emulated::kNcclScalarDevice) {
    factor.device = scalar;
  } else {
    std::memcpy(factor.bytes, scalar, SizeOf(*dtype));
  }
  *op = static_cast<NcclRedOp>(own->AddFactor(factor));
  return sherd::internal::kNcclSuccess;
}

NcclResult ncclRedOpDestroy(NcclRedOp op, NcclComm comm) {
  emulated::NcclCommunicatorPtr own;
  const NcclResult result = emulated::Find(comm, "ncclRedOpDestroy", &own);
  if (result != sherd::internal::kNcclSuccess) return result;
  if (own->RemoveFactor(op)) return sherd::internal::kNcclSuccess;
  return emulated::NcclFail(sherd::internal::kNcclInvalidArgument,
                            "ncclRedOpDestroy : operator unknown to this "
                            "communicator");
}

NcclResult ncclMemAlloc(void** data, size_t bytes) {
  return emulated::WithFaults("ncclMemAlloc", [&]() -> NcclResult {
    if (data == nullptr) return emulated::NullArgument("MemAlloc", "ptr");
    // Whole pages of the device, as cuMemCreate has them.
    constexpr size_t kGranularity = size_t{2} << 20;
    const size_t rounded =
        (std::max<size_t>(bytes, 1) + kGranularity - 1) & ~(kGranularity - 1);
    const int code = emulated::AllocateDeviceMemory(rounded, data);
    if (code == 0) return sherd::internal::kNcclSuccess;
    return emulated::NcclFail(sherd::internal::kNcclUnhandledCudaError,
                              "Cuda failure " + std::to_string(code));
  });
}

NcclResult ncclMemFree(void* data) {
  if (data == nullptr) return sherd::internal::kNcclSuccess;
  const int code = emulated::FreeDeviceMemory(data);
  if (code == 0) return sherd::internal::kNcclSuccess;
  return emulated::NcclFail(sherd::internal::kNcclUnhandledCudaError,
                            "Cuda failure " + std::to_string(code));
}

NcclResult ncclCommRegister(NcclComm comm, void* data, size_t bytes,
                            void** handle) {
  const auto text = [=] {
    return emulated::AddressText(data) + ", " + std::to_string(bytes);
  };
  emulated::NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once =
      emulated::EnterOn("ncclCommRegister", comm, text, &own);
  if (at_once) return *at_once;
  if (handle == nullptr) {
    return emulated::NullArgument("CommRegister", "handle");
  }
  *handle = nullptr;
  return own->Register(data, bytes, handle);
}

NcclResult ncclCommDeregister(NcclComm comm, void* handle) {
  emulated::NcclCommunicatorPtr own;
  const std::optional<NcclResult> at_once = emulated::EnterOn(
      "ncclCommDeregister", comm, [=] { return emulated::AddressText(handle); },
      &own);
  return at_once ? *at_once : own->Deregister(handle);
}

}  // extern "C"

namespace sherd::testing {

internal::NcclApi EmulatedNccl() {
  internal::NcclApi api;
#define SHERD_FILL(member, symbol, required) api.member = symbol;
  SHERD_NCCL_FUNCTIONS(SHERD_FILL)
#undef SHERD_FILL
  return api;
}

}  // namespace sherd::testing
