#ifndef SHERD_TESTING_LOCAL_RANKS_H_
#define SHERD_TESTING_LOCAL_RANKS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"

namespace sherd::testing {

struct LocalRanksOptions {
  // A backend whose ranks are threads.
  std::string backend = "local";
  // For Init and for each collective, so that waiting for a missing rank is an
  // error and not a hang.
  absl::Duration timeout = absl::Seconds(60);
};

// Runs `body` on `n` ranks, each a thread of this process, and returns when all
// of them have ended.
//
// Each rank has its own default group (DefaultGroup() is the argument of
// `body`), its own default generator, which starts with the default seed, and
// its rank in log lines. Failed expectations count for the running test and
// carry "rank R" in their trace; ASSERT_* ends the body of its rank only.
//
// A rank whose body returns leaves the group, and one whose body throws aborts
// it and fails the test: ranks that wait for either get an error that names it.
void RunLocalRanks(int n, absl::FunctionRef<void(ProcessGroup&)> body,
                   const LocalRanksOptions& options = {});

}  // namespace sherd::testing

#endif  // SHERD_TESTING_LOCAL_RANKS_H_
