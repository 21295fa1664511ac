#include "sherd/testing/emulated_gpu/planned_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/graph_api.h"

namespace sherd::testing {
namespace {

// The functions that calls can be of, as faults.h names them.
const std::set<std::string, std::less<>>& Functions() {
  static const auto* const functions = [] {
    auto* const made = new std::set<std::string, std::less<>>;
#define SHERD_ADD_CUDA(name, symbol, parameters) \
  made->emplace(absl::StripSuffix(symbol, "_v2"));
    SHERD_CUDA_FUNCTIONS(SHERD_ADD_CUDA)
    SHERD_TEST_CUDA_FUNCTIONS(SHERD_ADD_CUDA)
#undef SHERD_ADD_CUDA
#define SHERD_ADD_NCCL(member, symbol, required) made->emplace(#symbol);
    SHERD_NCCL_FUNCTIONS(SHERD_ADD_NCCL)
#undef SHERD_ADD_NCCL
    return made;
  }();
  return *functions;
}

// Ends the process unless `calls` are of a function that exists.
void CheckFunction(absl::string_view calls) {
  const absl::string_view function = calls.substr(0, calls.find('('));
  if (Functions().contains(function)) return;
  std::fprintf(
      stderr, "%s\n",
      absl::StrCat("PlannedGpu: expected calls of a function of CUDA's driver "
                   "or NCCL, without \"_v2\", got '",
                   calls, "'; name one of SHERD_CUDA_FUNCTIONS, ",
                   "SHERD_TEST_CUDA_FUNCTIONS or SHERD_NCCL_FUNCTIONS")
          .c_str());
  std::abort();
}

}  // namespace

PlannedGpu::PlannedGpu() { Restart(); }

PlannedGpu::~PlannedGpu() {
  OnEachCall(nullptr);
  RecordCalls(false);
  std::string problem;
  SetFaults("", &problem);
}

void PlannedGpu::Restart() {
  OnEachCall(nullptr);
  std::string problem;
  SetFaults("", &problem);
  ResetDriver();
  RecordCalls(true);
}

void PlannedGpu::Return(const std::string& calls, int code, int call) {
  CheckFunction(calls);
  AddFault(calls, call + 1, call + 1, {GpuFault::Kind::kReturn, code, ""});
}

void PlannedGpu::Fail(const std::string& calls, int code, int call) {
  Pass(calls);
  AddFault(calls, call + 1, INT64_MAX, {GpuFault::Kind::kReturn, code, ""});
}

void PlannedGpu::Answer(const std::string& calls, const std::string& word) {
  Pass(calls);
  AddFault(calls, 1, INT64_MAX, {GpuFault::Kind::kOther, 0, word});
}

void PlannedGpu::Pass(const std::string& calls) {
  CheckFunction(calls);
  DropFaults(calls);
}

void PlannedGpu::OnCall(std::function<void(const std::string&)> hook) {
  OnEachCall(std::move(hook));
}

std::vector<std::string> PlannedGpu::calls() const { return RecordedCalls(); }

std::vector<std::string> PlannedGpu::CallsOf(absl::string_view calls) const {
  CheckFunction(calls);
  std::vector<std::string> found = RecordedCalls();
  std::erase_if(found, [calls](const std::string& call) {
    return !IsCallOf(calls, call);
  });
  return found;
}

int PlannedGpu::Count(absl::string_view calls) const {
  return static_cast<int>(CallsOf(calls).size());
}

void PlannedGpu::ForgetCalls() { RecordCalls(true); }

std::vector<MemoryLocation> PlannedGpu::Memory(MemoryLocation::Kind kind) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  return driver.memory().Live(kind);
}

}  // namespace sherd::testing
