#ifndef SHERD_BACKENDS_NCCL_PLANNED_NCCL_H_
#define SHERD_BACKENDS_NCCL_PLANNED_NCCL_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/backends/nccl/nccl_library.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_functions.h"
#include "sherd/testing/emulated_gpu/planned_gpu.h"

namespace sherd::internal {

// The emulated NCCL for the communicators of one process, whose threads are the
// ranks: each is alone, as if its peers came at once, and every operation
// succeeds without effect. A test plans the deviations, and reads which
// functions were called.
//
// Calls, and communicators in them, are named as the emulated NCCL does
// (nccl_functions.h): "ncclSend(work 0, @64, 5 of type 1, to 2, stream @0)".
class PlannedNccl {
 public:
  PlannedNccl() {
    gpu_.Answer("ncclCommInitRankConfig", "alone");
    gpu_.Answer("ncclCommInitRankScalable", "alone");
    for (const char* function :
         {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather",
          "ncclReduceScatter", "ncclSend", "ncclRecv"}) {
      gpu_.Fail(function, kNcclSuccess);
    }
    SetLastError("");
  }

  // With all functions.
  static NcclLibrary Library() {
    const CudaFunctions& cuda = sherd::testing::LinkedCuda();
    NcclLibrary library;
    library.api = sherd::testing::EmulatedNccl();
    library.api.get_version(&library.version);
    library.description = NcclVersionText(library.version) + ", emulated";
    library.cuda = {.init = cuda.Init,
                    .device_get_count = cuda.DeviceGetCount,
                    .get_error_name = cuda.GetErrorName,
                    .ctx_get_current =
                        [](void** context) {
                          return sherd::testing::LinkedCuda().CtxGetCurrent(
                              reinterpret_cast<CUcontext*>(context));
                        },
                    .ctx_set_current =
                        [](void* context) {
                          return sherd::testing::LinkedCuda().CtxSetCurrent(
                              static_cast<CUcontext>(context));
                        }};
    return library;
  }

  // As the functions of PlannedGpu.
  void Return(const std::string& function, NcclResult result, int call = 0) {
    gpu_.Return(function, result, call);
  }
  void OnCall(std::function<void(const std::string& call)> hook) {
    gpu_.OnCall(std::move(hook));
  }
  void ForgetCalls() { gpu_.ForgetCalls(); }

  // Sets NCCL's text for its last error.
  void SetLastError(const std::string& text) {
    gpu_.Answer("ncclGetLastError", text);
  }
  // Sets the state that NCCL reports for a communicator.
  void SetState(const std::string& comm, NcclResult state) {
    gpu_.Answer(absl::StrCat("ncclCommGetAsyncError(", comm, ")"),
                absl::StrCat("state=", state));
  }
  // Communicators do not become ready from now on.
  void NeverReady() {
    gpu_.Answer("ncclCommGetAsyncError",
                absl::StrCat("state=", kNcclInProgress));
  }

  // The calls of NCCL so far, except polls and queries for texts and the
  // version.
  std::vector<std::string> calls() const {
    std::vector<std::string> calls = gpu_.calls();
    std::erase_if(calls, [](const std::string& call) {
      return !absl::StartsWith(call, "nccl") ||
             absl::StartsWith(call, "ncclCommGetAsyncError(") ||
             absl::StartsWith(call, "ncclGetLastError(") ||
             absl::StartsWith(call, "ncclGetVersion(");
    });
    return calls;
  }
  // The number of calls that begin with `prefix`.
  int Count(absl::string_view prefix) const {
    int count = 0;
    for (const std::string& call : calls()) {
      if (absl::StartsWith(call, prefix)) ++count;
    }
    return count;
  }
  int polls() const { return gpu_.Count("ncclCommGetAsyncError"); }
  // The number of different ids that communicators were made with.
  size_t num_ids() const {
    std::set<std::string> ids;
    for (const std::string& call : calls()) {
      const std::vector<std::string> parts = absl::StrSplit(call, ": ");
      if (!absl::StartsWith(call, "ncclCommInitRank") || parts.size() != 2) {
        continue;
      }
      for (const absl::string_view id :
           absl::StrSplit(parts[1], absl::ByAnyChar(" )"), absl::SkipEmpty())) {
        ids.emplace(id);
      }
    }
    return ids.size();
  }

 private:
  sherd::testing::PlannedGpu gpu_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_PLANNED_NCCL_H_
