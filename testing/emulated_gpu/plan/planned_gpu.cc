#include "sherd/testing/emulated_gpu/planned_gpu.h"

#include <mutex>
#include <utility>

#include "sherd/testing/emulated_gpu/driver/driver.h"

namespace sherd::testing {

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
  AddFault(calls, call + 1, call + 1, {Fault::Kind::kReturn, code, ""});
}

void PlannedGpu::Fail(const std::string& calls, int code, int call) {
  DropFaults(calls);
  AddFault(calls, call + 1, INT64_MAX, {Fault::Kind::kReturn, code, ""});
}

void PlannedGpu::Answer(const std::string& calls, const std::string& word) {
  DropFaults(calls);
  AddFault(calls, 1, INT64_MAX, {Fault::Kind::kOther, 0, word});
}

void PlannedGpu::Pass(const std::string& calls) { DropFaults(calls); }

void PlannedGpu::OnCall(std::function<void(const std::string&)> hook) {
  OnEachCall(std::move(hook));
}

std::vector<std::string> PlannedGpu::calls() const { return RecordedCalls(); }

std::vector<std::string> PlannedGpu::CallsOf(absl::string_view calls) const {
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
