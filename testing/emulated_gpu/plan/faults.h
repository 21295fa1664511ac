#ifndef SHERD_TESTING_EMULATED_GPU_PLAN_FAULTS_H_
#define SHERD_TESTING_EMULATED_GPU_PLAN_FAULTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace sherd::testing {

// Injected faults: SHERD_EMULATED_GPU_FAULTS, SetFaults, AddFault.
//
// FUNCTION:CALL:FAULT, separated by ','. FUNCTION is the name of an exported
// function ("cuLaunchKernel", "ncclAllReduce"), without a "_v2" of the driver's
// symbols, or the beginning of a call's text ("ncclCommAbort(base"). CALL
// counts from 1 in each process; "3+" is the third and all later ones, "*" all.
// FAULT is
//   a number     the call does nothing and returns it;
//   break=CODE   the call is queued, and breaks its device with CODE when its
//                turn comes (calls that queue only);
//   hang         the call is queued and does not end, until the process does
//                or its communicator is aborted (calls that queue; others do
//                not return);
//   die          the process ends by SIGKILL;
//   WORD         anything else that the function knows. Of the driver:
//                  value=N        the number that the function gives out
//                                 (cuDriverGetVersion, cuDeviceGetCount,
//                                 cuDeviceGetAttribute, cuDeviceCanAccessPeer)
//                  needs_context  the function fails without a current context
//                                 though newer drivers need none
//                  misaligned     cuMemHostAlloc cuts blocks out of pages
//                  own            cuIpcOpenMemHandle also opens what this very
//                                 process exports
//                Of NCCL: see nccl/nccl_functions.h.
struct GpuFault {
  enum class Kind { kReturn, kBreak, kHang, kDie, kOther };

  Kind kind = Kind::kOther;
  int code = 0;
  std::string word;
};

// A call of an exported function. Its arguments are described only if a plan or
// a test needs the text.
struct GpuCall {
  GpuCall(const char* function)  // NOLINT(google-explicit-constructor)
      : function(function) {}
  GpuCall(const char* function, std::function<std::string()> arguments)
      : function(function), arguments(std::move(arguments)) {}

  const char* function;
  std::function<std::string()> arguments;
};

// The name of addresses and handles in texts of calls: "@4096".
std::string AddressText(uint64_t address);
std::string AddressText(const void* address);

// Counts a call and returns its fault, if any; kDie does not return. Safe from
// any thread.
std::optional<GpuFault> TakeFault(const GpuCall& call);

// Replaces all faults and starts counting again. Returns false, with `problem`,
// and changes nothing if the text is invalid.
bool SetFaults(const std::string& text, std::string* problem);

// ---- Of plans that are made call by call (planned_gpu.h). Safe from any
// thread.

// Plans a fault for calls number `first` to `last` from now on, 1 being the
// next, of `function`; takes precedence over earlier plans. The word of a fault
// may be any text.
void AddFault(const std::string& function, int64_t first, int64_t last,
              GpuFault fault);
// Drops the plans for exactly these calls.
void DropFaults(const std::string& function);

// Whether `call`, such as "cuMemAlloc(8)", is one of `function`.
bool IsCallOf(absl::string_view function, absl::string_view call);

// Starts or stops recording calls; forgets those so far.
void RecordCalls(bool records);
std::vector<std::string> RecordedCalls();
// Sets a function that runs in each call of any thread, whether or not calls
// are recorded, with the call as it would be recorded, before it does anything;
// it may wait, and may call the driver. Null: none.
void OnEachCall(std::function<void(const std::string& call)> hook);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_PLAN_FAULTS_H_
