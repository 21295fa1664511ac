#ifndef SHERD_TESTING_FAULTS_FAULT_MATRIX_H_
#define SHERD_TESTING_FAULTS_FAULT_MATRIX_H_

#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/faults.h"

namespace sherd::testing::internal {

// What happens to a group when one rank fails at a named point: the failures of
// the conformance suite, from within.

enum class FaultKind {
  kKill,
  kStop,
  // The rank is slow.
  kSlow,
  // The rank gets an error, and leaves.
  kError,
};

struct FaultCase {
  absl::string_view point;
  FaultKind kind;
};

// "before_post_kill", for names of tests.
std::string Name(const FaultCase& fault);

void PrintTo(const FaultCase& fault, std::ostream* out);

// The rank that fails: a different one at each point.
int RankToFail(const FaultCase& fault, int size);

// The timeout of a call that the fault may delay.
absl::Duration TimeoutOf(const FaultCase& fault);

// The code of the error that the others must return.
absl::StatusCode CodeOf(const FaultCase& fault);

// The fault on the rank for which it is; nothing on the others.
class ArmedFault {
 public:
  ArmedFault(const FaultCase& fault, int rank, int size);

 private:
  std::optional<KillRankAt> kill_;
  std::optional<StopRankAt> stop_;
  std::optional<SlowRankAt> slow_;
  std::optional<FailAt> error_;
};

// Returns OK if `status` contains the injected error, otherwise a fault.
absl::Status ExpectInjected(const absl::Status& status);

// One rank fails in a collective; in a message to each of the others; while it
// creates a group; when it destroys or aborts one. All ranks call it. The error
// describes what went wrong on a surviving rank.
absl::Status FaultInACollective(ConformanceRank& rank, const FaultCase& fault);
absl::Status FaultInAMessage(ConformanceRank& rank, const FaultCase& fault);
absl::Status FaultInANewGroup(ConformanceRank& rank, const FaultCase& fault);
absl::Status FaultAtTheEnd(ConformanceRank& rank, const FaultCase& fault);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_FAULTS_FAULT_MATRIX_H_
