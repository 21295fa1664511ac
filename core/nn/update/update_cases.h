#ifndef SHERD_CORE_NN_UPDATE_UPDATE_CASES_H_
#define SHERD_CORE_NN_UPDATE_UPDATE_CASES_H_

#include <cstdint>

#include "sherd/core/comm/process_group.h"

namespace sherd::testing {

// Updates random tables of random layouts by the gradients of random bags,
// several times, and expects the bits of what ModelUpdate computes, in tables
// and accumulators. The same `seed` on all ranks gives the same case.
void CheckRandomUpdate(ProcessGroup& group, uint64_t seed);

}  // namespace sherd::testing

#endif  // SHERD_CORE_NN_UPDATE_UPDATE_CASES_H_
