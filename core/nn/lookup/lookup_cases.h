#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_

#include <cstdint>

#include "sherd/core/comm/process_group.h"

namespace sherd::testing {

// Looks up random bags in random tables of random layouts, twice, and expects
// what ModelLookUp computes. The same `seed` on all ranks gives the same case.
// `reachable`: whether the ranks of `group`, the default group, can read each
// other's shards.
void CheckRandomLookUp(ProcessGroup& group, uint64_t seed, bool reachable);

}  // namespace sherd::testing

#endif  // SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_
