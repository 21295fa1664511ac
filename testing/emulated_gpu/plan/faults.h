#ifndef SHERD_TESTING_EMULATED_GPU_PLAN_FAULTS_H_
#define SHERD_TESTING_EMULATED_GPU_PLAN_FAULTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::testing {

// What goes wrong on purpose: SHERD_EMULATED_GPU_FAULTS, or SetFaults.
//
// FUNCTION:CALL:FAULT, with ',' between. FUNCTION is the name of an exported
// function ("cuLaunchKernel", "ncclAllReduce"). CALL counts from 1 in each
// process; "3+" is the third and all later ones, "*" all. FAULT is
//   a number     the call does nothing and returns it;
//   break=CODE   the call is queued, and breaks its device with CODE when its
//                turn comes (calls that queue only);
//   hang         the call is queued and does not end, until the process does
//                or its communicator is aborted (calls that queue; others do
//                not return);
//   die          the process ends by SIGKILL;
//   WORD         anything else that the function knows: "old", "remote".
struct Fault {
  enum class Kind { kReturn, kBreak, kHang, kDie, kOther };

  Kind kind = Kind::kOther;
  int code = 0;
  std::string word;
};

// Counts a call of `function` and returns what is to go wrong with it; kDie
// does not return. Safe from any thread.
std::optional<Fault> TakeFault(const char* function);

// Replaces all faults and starts counting again; false, with `problem`, and no
// change if the text is not understood.
bool SetFaults(const std::string& text, std::string* problem);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_PLAN_FAULTS_H_
