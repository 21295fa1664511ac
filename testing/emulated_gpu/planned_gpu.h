#ifndef SHERD_TESTING_EMULATED_GPU_PLANNED_GPU_H_
#define SHERD_TESTING_EMULATED_GPU_PLANNED_GPU_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "sherd/testing/emulated_gpu/driver/linked_driver.h"
#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/plan/faults.h"

namespace sherd::testing {

// The emulated GPU that is linked into a test, as in a new process, with a plan
// of what goes wrong in it, and a record of what is called.
//
// Calls are named as in plan/faults.h: by a function ("cuMemAlloc"), or by how
// they begin ("ncclCommAbort(base"). A function that is not one of
// SHERD_CUDA_FUNCTIONS, SHERD_TEST_CUDA_FUNCTIONS and SHERD_NCCL_FUNCTIONS ends
// the process by abort(): a plan for it would never be carried out, and its
// calls would always be none.
//
// Who: tests of what calls CUDA's driver or NCCL. One at a time exists.
// Threads: safe from any, but for the constructor, the destructor and Restart.
class PlannedGpu {
 public:
  PlannedGpu();
  // Drops the plan; what was made stays until the next one begins.
  ~PlannedGpu();
  PlannedGpu(const PlannedGpu&) = delete;
  PlannedGpu& operator=(const PlannedGpu&) = delete;

  // As in a new process, without a plan: contexts, with all that is on the
  // devices, pinned memory and imports go. Not so NCCL's communicators and the
  // contexts that are current in other threads: they stay, and what refers to
  // devices through them is invalid.
  void Restart();

  // Call number `call` from now on, 0 being the next, does nothing and returns
  // `code`.
  void Return(const std::string& calls, int code, int call = 0);
  // That one and all later ones, whatever was planned for these calls.
  void Fail(const std::string& calls, int code, int call = 0);
  // All go with a word of faults.h, whatever was planned for these calls.
  void Answer(const std::string& calls, const std::string& word);
  // Nothing is planned for these calls any more.
  void Pass(const std::string& calls);
  // As OnEachCall of faults.h.
  void OnCall(std::function<void(const std::string& call)> hook);

  // All since the last ForgetCalls, in order.
  std::vector<std::string> calls() const;
  std::vector<std::string> CallsOf(absl::string_view calls) const;
  int Count(absl::string_view calls) const;
  void ForgetCalls();

  // Memory that was not freed, by address.
  static std::vector<MemoryLocation> Memory(MemoryLocation::Kind kind);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_PLANNED_GPU_H_
