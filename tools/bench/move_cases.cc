#include "sherd/tools/bench/move_cases.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/move.h"

namespace sherd {
namespace {

struct MoveKind {
  const char* name;
  const char* help;
  MatrixLayout (*to)(const Matrix& matrix, int ranks);
  bool gathers = false;
  bool needs_even_world = false;
};

absl::StatusOr<Move> MoveOf(const MoveKind& kind, int world, int64_t bytes) {
  if (kind.needs_even_world && world % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a grid of 2 x W/2 needs an even world, not ", world));
  }
  SHERD_ASSIGN_OR_RETURN(const Matrix matrix, MatrixOfBytes(bytes));
  return Move{matrix, RowsOver(matrix, world), kind.to(matrix, world)};
}

BenchPeer SherdPeer(const MoveKind& kind) {
  return {.name = "sherd-gloo",
          .help = kind.gathers ? "ShardedTensor::Gather into a tensor"
                               : "ShardedTensor::ReshardInto a tensor",
          .make = [kind](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(
                const Move move,
                MoveOf(kind, context.world(), context.bytes()));
            return kind.gathers ? MakeSherdGather(context, move)
                                : MakeSherdReshard(context, move);
          }};
}

BenchPeer GlooPeer(const MoveKind& kind) {
  return {.name = "gloo",
          .help = "pack by memcpy, bare gloo::alltoallv, unpack",
          .make = [kind](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(
                const Move move,
                MoveOf(kind, context.world(), context.bytes()));
            return MakeGlooMove(context, move);
          }};
}

BenchPeer LimitPeer(const MoveKind& kind) {
  return {.name = "limit",
          .help = "memcpy between shards in shared memory",
          .make = [kind](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(
                const Move move,
                MoveOf(kind, context.world(), context.bytes()));
            return MakeLimitMove(context, move, /*push=*/kind.gathers);
          }};
}

BenchCase CaseOf(const MoveKind& kind) {
  return {.name = kind.name,
          .help = kind.help,
          .peers = {SherdPeer(kind), GlooPeer(kind), LimitPeer(kind)},
          .check =
              [kind](int world, int64_t bytes, const std::string&) {
                return MoveOf(kind, world, bytes).status();
              },
          .shared_bytes =
              [kind](int world, int64_t bytes) {
                const absl::StatusOr<Move> move = MoveOf(kind, world, bytes);
                return move.ok() ? LimitMoveBytes(*move) : 0;
              }};
}

}  // namespace

std::vector<BenchCase> MoveCases() {
  return {
      CaseOf({.name = "reshard_0_to_1",
              .help = "rows to columns",
              .to = ColumnsOver}),
      CaseOf({.name = "reshard_0_to_grid",
              .help = "rows to a grid of 2 x W/2 (columns if W is 2)",
              .to = GridOver,
              .needs_even_world = true}),
      CaseOf({.name = "gather",
              .help = "rows to rank 0",
              .to = AllOnRankZero,
              .gathers = true}),
  };
}

}  // namespace sherd
