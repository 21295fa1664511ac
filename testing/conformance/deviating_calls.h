#ifndef SHERD_TESTING_CONFORMANCE_DEVIATING_CALLS_H_
#define SHERD_TESTING_CONFORMANCE_DEVIATING_CALLS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/testing/conformance/conformance_call.h"
#include "sherd/testing/conformance/conformance_case.h"

namespace sherd::testing::internal {

// Random sequences of collectives in which at most one rank deviates once: in
// the operation, a length (0 too), type, reduction, root, list, form or order,
// or by leaving. Each rank ends with right data or an error that names the
// deviating rank.

// How the ranks' next calls contradict each other.
enum class Contradiction {
  kNone,
  // In the part that all must have in common; the majority shows which rank
  // deviates.
  kInTheCall,
  // The same between two ranks, without a majority.
  kInADraw,
  // The length of a message between two ranks: neither is right.
  kInALength,
};

// The contract's result of calls[r] of rank r.
Contradiction FindContradiction(absl::Span<const CallSpec> calls);

struct CallSequence {
  // calls[r][i] is the i-th call of rank r.
  std::vector<std::vector<CallSpec>> calls;
  // The rank that deviates, in or before its call number `step`, if any.
  std::optional<int> deviating;
  size_t step = 0;
  bool leaves = false;
  Contradiction contradiction = Contradiction::kNone;

  int ranks() const { return static_cast<int>(calls.size()); }
};

std::string Describe(const CallSequence& sequence);

// For 2 to `max_ranks` ranks. `only_short`: calls of some hundred bytes.
CallSequence RandomSequence(uint64_t seed, int max_ranks,
                            bool only_short = false);

// Runs `count` sequences, each on a group of its own of the first ranks of
// rank.group. All ranks call it, and all of them finish all sequences. The
// error describes the first failure on this rank, and its sequence.
absl::Status TryRandomSequences(ConformanceRank& rank, int64_t count);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_CONFORMANCE_DEVIATING_CALLS_H_
