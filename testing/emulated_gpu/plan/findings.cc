#include "sherd/testing/emulated_gpu/plan/findings.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "sherd/testing/emulated_gpu/driver/stream_queue.h"

namespace sherd::testing {
namespace {

// Never destroyed: threads of streams outlive main.
struct Findings {
  std::mutex mutex;
  bool abort_on_finding = true;
  uint64_t count = 0;
  std::string last;
};
Findings& All() {
  static auto* const findings = new Findings;
  return *findings;
}

}  // namespace

void ReportFinding(const std::string& text) {
  Findings& findings = All();
  const std::lock_guard<std::mutex> lock(findings.mutex);
  std::fprintf(stderr, "emulated GPU: %s\n", text.c_str());
  std::fflush(stderr);
  if (findings.abort_on_finding) std::abort();
  ++findings.count;
  findings.last = text;
}

bool SetAbortOnFinding(bool abort_on_finding) {
  Findings& findings = All();
  const std::lock_guard<std::mutex> lock(findings.mutex);
  return std::exchange(findings.abort_on_finding, abort_on_finding);
}

uint64_t CountFindings(bool reset) {
  Findings& findings = All();
  const std::lock_guard<std::mutex> lock(findings.mutex);
  const uint64_t count = findings.count;
  if (reset) {
    findings.count = 0;
    findings.last.clear();
  }
  return count;
}

std::string LastFinding() {
  Findings& findings = All();
  const std::lock_guard<std::mutex> lock(findings.mutex);
  return findings.last;
}

}  // namespace sherd::testing
