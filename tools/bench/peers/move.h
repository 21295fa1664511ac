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

// What users call a move.
enum class MoveVerb { kReshard, kGather, kShard };

// Every rank's boxes before and after.
//
// Each peer makes the result of its first call in fresh memory and lets it go;
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

// The move by hand over bare Gloo: pieces that are not runs of memory are
// packed by memcpy, one alltoallv, and unpacked where what arrives is not the
// shard as it stands.
absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooMove(RankContext& context,
                                                       const Move& move);

// The move if every rank could reach every shard: plain memcpy between shards
// in shared memory, without any protocol. Ranks copy what they get, or, in a
// gather, what they have: then all ranks work though one gets everything.
absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitMove(RankContext& context,
                                                        const Move& move);

// The memory that MakeLimitMove shares.
int64_t LimitMoveBytes(const Move& move);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_MOVE_H_
