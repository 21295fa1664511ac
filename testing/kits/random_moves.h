#ifndef SHERD_TESTING_KITS_RANDOM_MOVES_H_
#define SHERD_TESTING_KITS_RANDOM_MOVES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/device.h"

namespace sherd::testing {

struct RandomMovesOptions {
  // Case i is drawn from seed + i: "SHERD_TEST_SEED=<seed + i>
  // SHERD_TEST_CASES=1" repeats it on as many ranks.
  uint64_t seed = 0;
  int64_t cases = 1;
  // Even if ranks could reach each other's memory.
  bool messages_only = false;
  // Of each rank of the world, by rank: devices on which its shards are in some
  // of the cases, the group's first. Empty: everything is in host memory.
  std::vector<std::vector<Device>> devices;
  // Whether random numbers are drawn there too.
  bool draw_on_devices = true;
};

// Every way that data takes through sharded tensors, on random layouts, against
// a model in one process: contents that are a function of their place. Failures
// are GoogleTest's, and say how to repeat the case.
//
// A case draws a size, a dtype, a group (all ranks or some of them, also in
// another order than the world's), layouts (chunks, boxes, meshes with
// replicas; several shards on a rank or none, empty ones), where memory comes
// from and how much staging there is; cuts or fills or puts together a tensor
// and sends it through a few operations: into other layouts, new ones or
// existing ones, to one rank or to all, boxes of it, copies, other dtypes, sums
// of partial tensors, random numbers, and from one group to another.
//
// Collective over `world`, with equal options.
void RunRandomMoves(const std::shared_ptr<ProcessGroup>& world,
                    const RandomMovesOptions& options);

// A number from rank 0, for the seed.
uint64_t SameOnAllRanks(ProcessGroup& world, uint64_t number);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_RANDOM_MOVES_H_
