#include "sherd/testing/emulated_gpu/control.h"

#include <cstdio>
#include <mutex>
#include <string>

#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/driver/stream_worker.h"
#include "sherd/testing/emulated_gpu/plan/faults.h"
#include "sherd/testing/emulated_gpu/plan/findings.h"

using sherd::testing::Driver;

extern "C" {

int sherd_emulated_gpu_set_abort_on_finding(int abort_on_finding) {
  return sherd::testing::SetAbortOnFinding(abort_on_finding != 0) ? 1 : 0;
}

uint64_t sherd_emulated_gpu_findings(int reset) {
  return sherd::testing::CountFindings(reset != 0);
}

uint64_t sherd_emulated_gpu_last_finding(char* text, uint64_t size) {
  const std::string last = sherd::testing::LastFinding();
  if (size > 0) std::snprintf(text, size, "%s", last.c_str());
  return last.size();
}

void sherd_emulated_gpu_set_seed(uint64_t seed) {
  sherd::testing::StreamWorker::SetSeed(seed);
}

int sherd_emulated_gpu_set_faults(const char* faults) {
  std::string problem;
  if (sherd::testing::SetFaults(faults, &problem)) return 0;
  std::fprintf(stderr, "emulated GPU: %s\n", problem.c_str());
  return -1;
}

void sherd_emulated_gpu_set_device_bytes(uint64_t bytes) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  for (const auto& device : driver.devices) device->limit = bytes;
}

int sherd_emulated_gpu_hold_streams(int change) {
  return sherd::testing::StreamWorker::Hold(change);
}

}  // extern "C"
