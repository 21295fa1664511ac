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
// of its faults, and a record of calls.
//
// Calls are named as in plan/faults.h: by a function ("cuMemAlloc"), or by the
// beginning of their text ("ncclCommAbort(base"). A function that is not one of
// SHERD_CUDA_FUNCTIONS, SHERD_TEST_CUDA_FUNCTIONS and SHERD_NCCL_FUNCTIONS ends
// the process by abort(): a plan for it would have no effect, and it would have
// no calls.
//
// For tests of code that calls CUDA's driver or NCCL. One object at a time
// exists. Threads. Safe from any, except for the constructor, the destructor
// and Restart.
class PlannedGpu {
 public:
  PlannedGpu();
  // Drops the plan; objects stay until the next PlannedGpu begins.
  ~PlannedGpu();
  PlannedGpu(const PlannedGpu&) = delete;
  PlannedGpu& operator=(const PlannedGpu&) = delete;

  // Resets the state to that of a new process, without a plan: destroys
  // contexts, with all memory on the devices, pinned memory and imports. NCCL's
  // communicators, and contexts that are current in other threads, stay, but
  // references to devices through them are invalid.
  void Restart();

  // Call number `call` from now on, 0 being the next, does nothing and returns
  // `code`.
  void Return(const std::string& calls, int code, int call = 0);
  // The same for that call and all later ones; replaces the plans for these
  // calls.
  void Fail(const std::string& calls, int code, int call = 0);
  // All calls have a word of faults.h; replaces the plans for these calls.
  void Answer(const std::string& calls, const std::string& word);
  // Drops all plans for these calls.
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
