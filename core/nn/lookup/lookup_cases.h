#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_

#include <cstdint>

#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/device.h"

namespace sherd::testing {

// Both expect what ModelLookUp computes. Collective over `group`, the default
// group. `reachable`: whether its ranks can read each other's shards. `device`:
// where this rank's rows are; without max_norm unless it is the CPU.

// Looks up random bags in random tables of random layouts, twice; on a device,
// the results have the bits of the same call on the host. The same `seed` on
// all ranks gives the same case.
void CheckRandomLookUp(ProcessGroup& group, uint64_t seed, bool reachable,
                       const Device& device = {});

// The cases of PyTorch's tests of embeddings and bags, on four ranks, by rows
// and columns in three orders of the ranks.
void CheckReferenceLookUps(ProcessGroup& group, bool reachable,
                           const Device& device = {});

}  // namespace sherd::testing

#endif  // SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_
