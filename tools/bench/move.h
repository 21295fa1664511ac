#ifndef SHERD_TOOLS_BENCH_MOVE_H_
#define SHERD_TOOLS_BENCH_MOVE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "sherd/tools/bench/bench_case.h"
#include "sherd/tools/bench/matrix_layout.h"
#include "sherd/tools/bench/rank_context.h"

namespace sherd {

// Every rank's shards before and after.
struct Move {
  Matrix matrix;
  MatrixLayout from;
  MatrixLayout to;
};

// The move by ShardedTensor::ReshardInto, into a tensor that is there.
absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdReshard(RankContext& context,
                                                           const Move& move);
// The same by Gather; `move.to` is everything on rank 0.
absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdGather(RankContext& context,
                                                          const Move& move);

// The move by hand over bare Gloo: pieces that are not runs of memory are
// packed by memcpy, one alltoallv, and unpacked where what arrives is not the
// shard as it stands.
absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooMove(RankContext& context,
                                                       const Move& move);

// The move if every rank could reach every shard: plain memcpy between warm
// shards in shared memory, without any protocol. Ranks copy what they get, or,
// with `push`, what they have: then all ranks work also if one gets
// everything.
absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitMove(RankContext& context,
                                                        const Move& move,
                                                        bool push);

// The memory that MakeLimitMove shares.
int64_t LimitMoveBytes(const Move& move);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_MOVE_H_
