#ifndef SHERD_TESTING_EMULATED_GPU_PLAN_FINDINGS_H_
#define SHERD_TESTING_EMULATED_GPU_PLAN_FINDINGS_H_

#include <cstdint>
#include <string>

namespace sherd::testing {

// The checker's findings; ReportFinding() is in stream_queue.h. All are safe
// from any thread; see control.h.
bool SetAbortOnFinding(bool abort_on_finding);
uint64_t CountFindings(bool reset);
std::string LastFinding();

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_PLAN_FINDINGS_H_
