#ifndef SHERD_TOOLS_BENCH_PEERS_MOVE_H_
#define SHERD_TOOLS_BENCH_PEERS_MOVE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/rank_context.h"
#include "sherd/tools/bench/peers/box_layout.h"

namespace sherd {

// The user's name for a move.
enum class MoveVerb { kReshard, kGather, kShard };

// Every rank's boxes before and after.
//
// Each peer creates the result of its first call in fresh memory and drops it;
// later calls write to warm memory.
struct Move {
  MoveVerb verb = MoveVerb::kReshard;
  WordTensor tensor = {};
  BoxLayout from = {};
  BoxLayout to = {};
  // Of matrices.
  std::optional<CyclicLayout> cyclic_from = {};
  std::optional<CyclicLayout> cyclic_to = {};
};

// The move by Reshard, ReshardInto, Gather or ShardTensor over `backend`.
absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdMove(
    RankContext& context, const Move& move, const std::string& backend);

// The move by hand over bare Gloo: pieces that are not contiguous are packed by
// memcpy, then one alltoallv, and the received data is unpacked unless it is
// the shard already.
absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooMove(RankContext& context,
                                                       const Move& move);

// The move if every rank could access every shard: plain memcpy between shards
// in shared memory, without any protocol. Ranks copy the data that they
// receive, or, in a gather, the data that they have: then all ranks work though
// one receives all data.
absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitMove(RankContext& context,
                                                        const Move& move);

// The memory that MakeLimitMove shares.
int64_t LimitMoveBytes(const Move& move);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_MOVE_H_
