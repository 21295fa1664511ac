#ifndef SHERD_TESTING_SUITE_RANKS_H_
#define SHERD_TESTING_SUITE_RANKS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/deadline.h"
#include "sherd/testing/rank_supervisor.h"
#include "sherd/testing/run_outcome.h"

namespace sherd::testing::internal {

// Ranks that run the tests of a suite one after another. They are started when
// the first test needs them and end with the suite.
//
// Threads. That of the tests only.
class SuiteRanks {
 public:
  // Those of this process, which has none at first.
  static SuiteRanks& Get();

  // Runs GoogleTest's running test on `world_size` ranks, which see `gpus` GPUs
  // of their own, or all if that is 0. Ranks that have ended since their last
  // test make this one fail. Starting ranks is part of limits.timeout.
  absl::StatusOr<RunOutcome> RunTest(int world_size, int gpus,
                                     const RunLimits& limits);

  // Ends all. Makes the suite fail if ranks that could have gone on do not end
  // as they should.
  void End();

 private:
  class Set;

  SuiteRanks();

  absl::StatusOr<Set*> Find(int world_size, int gpus, Deadline deadline);

  std::vector<std::unique_ptr<Set>> sets_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_SUITE_RANKS_H_
