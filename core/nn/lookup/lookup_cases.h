#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_CASES_H_

#include <cstdint>
#include <random>
#include <vector>

#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

// A table, what each rank looks up in it, and its layout.
struct RandomTable {
  Tensor whole;
  // Null: each rank has all of it.
  ShardingSpecPtr spec;
  BagOptions options;
  std::vector<Bags> bags;
  bool weighted = false;
};
RandomTable MakeRandomTable(int ranks, std::mt19937_64& random);

// From a normal distribution.
Tensor RandomNumbers(const Dims& size, DType dtype, std::mt19937_64& random);

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
