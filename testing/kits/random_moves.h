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
  // Use messages even if ranks can access each other's memory.
  bool messages_only = false;
  // For each rank of the world: devices of its shards in some of the cases, the
  // group's first. Empty: all memory is host memory.
  std::vector<std::vector<Device>> devices;
  // Whether random numbers are generated there too.
  bool draw_on_devices = true;
};

// Every path of data through sharded tensors, on random layouts, against a
// model in one process: contents that are a function of their position.
// Failures are GoogleTest's, and report how to repeat the case.
//
// A case draws a size, a dtype, a group (all ranks or some of them, also in
// another order than the world's), layouts (chunks, boxes, meshes with
// replicas; several shards on a rank or none, empty ones), the origin of memory
// and the amount of staging. It cuts, fills or assembles a tensor and applies a
// few operations to it: into other layouts, new ones or existing ones, to one
// rank or to all, boxes of it, copies, other dtypes, sums of partial tensors,
// random numbers, and from one group to another.
//
// Collective over `world`, with equal options.
void RunRandomMoves(const std::shared_ptr<ProcessGroup>& world,
                    const RandomMovesOptions& options);

// Returns rank 0's number, for the seed.
uint64_t SameOnAllRanks(ProcessGroup& world, uint64_t number);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_RANDOM_MOVES_H_
