#include "sherd/tools/bench/cases/move_cases.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/harness/mpirun.h"
#include "sherd/tools/bench/peers/move.h"
#include "sherd/tools/bench/peers/mpi_peers.h"
#include "sherd/tools/bench/peers/torch_program.h"

namespace sherd {
namespace {

using LayoutOf = CyclicLayout (*)(const WordTensor& matrix, int ranks);
using Maker = absl::StatusOr<std::unique_ptr<RankWork>> (*)(RankContext&,
                                                            const Move&);

struct MoveKind {
  const char* name;
  const char* help;
  MoveVerb verb = MoveVerb::kReshard;
  // Of a matrix.
  LayoutOf from = nullptr;
  LayoutOf to = nullptr;
  // Instead of these: a tensor of three dims that is cut along the first, and
  // then along this one.
  int cube_dim = 0;
  bool needs_even_world = false;
  // The name of the work in torch_moves.py; null: PyTorch has nothing like it.
  const char* torch_sharded = nullptr;
  const char* torch_dtensor = nullptr;
};

// ScaLAPACK's users take some such numbers.
CyclicLayout LargeBlocks(const WordTensor&, int ranks) {
  return BlocksOver(/*block=*/256, /*grid_rows=*/2, ranks);
}
CyclicLayout SmallBlocks(const WordTensor&, int ranks) {
  return BlocksOver(/*block=*/192, /*grid_rows=*/1, ranks);
}

absl::StatusOr<Move> MoveOf(const MoveKind& kind, int world, int64_t bytes) {
  if (kind.needs_even_world && world % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a grid of 2 x W/2 needs an even world, not ", world));
  }
  Move move{.verb = kind.verb};
  if (kind.cube_dim > 0) {
    SHERD_ASSIGN_OR_RETURN(move.tensor, CubeOfBytes(bytes));
    move.from = CutAlong(move.tensor, 0, world);
    move.to = CutAlong(move.tensor, kind.cube_dim, world);
    return move;
  }
  SHERD_ASSIGN_OR_RETURN(move.tensor, MatrixOfBytes(bytes));
  move.cyclic_from = kind.from(move.tensor, world);
  move.cyclic_to = kind.to(move.tensor, world);
  move.from = BoxesOf(move.tensor, *move.cyclic_from);
  move.to = BoxesOf(move.tensor, *move.cyclic_to);
  return move;
}

const char* SherdHelp(MoveVerb verb) {
  switch (verb) {
    case MoveVerb::kReshard:
      return "ShardedTensor::ReshardInto a tensor; first, Reshard";
    case MoveVerb::kGather:
      return "ShardedTensor::Gather into a tensor; first, into a new one";
    case MoveVerb::kShard:
      return "ShardTensor";
  }
  return "";
}

BenchPeer SherdPeer(const MoveKind& kind, const std::string& backend) {
  return {.name = absl::StrCat("sherd-", backend),
          .help = absl::StrCat(SherdHelp(kind.verb), ", over ", backend),
          .make = [kind, backend](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(
                const Move move,
                MoveOf(kind, context.world(), context.bytes()));
            return MakeSherdMove(context, move, backend);
          },
          .needs_mpirun = backend == "mpi"};
}

BenchPeer BarePeer(const MoveKind& kind, const char* name, const char* help,
                   Maker maker, bool needs_mpirun = false) {
  return {.name = name,
          .help = help,
          .make = [kind, maker](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(
                const Move move,
                MoveOf(kind, context.world(), context.bytes()));
            return maker(context, move);
          },
          .needs_mpirun = needs_mpirun};
}

// Open MPI by every call that does the work and over every transport.
std::vector<BenchPeer> OpenMpiPeers(const MoveKind& kind) {
  struct Call {
    const char* name;
    Maker maker;
  };
  std::vector<Call> calls = {{"alltoallw", MakeMpiTypedMove},
                             {"alltoallv", MakeMpiPackedMove}};
  if (kind.verb == MoveVerb::kGather) {
    calls.push_back({"gatherv", MakeMpiRootMove});
  }
  if (kind.verb == MoveVerb::kShard) {
    calls.push_back({"scatterv", MakeMpiRootMove});
  }
  std::vector<BenchPeer> peers;
  for (const MpiTransport transport :
       {MpiTransport::kVader, MpiTransport::kVaderTwoCopies,
        MpiTransport::kUcx}) {
    for (const Call& call : calls) {
      peers.push_back(BarePeer(kind, "openmpi",
                               "Open MPI's fastest call and transport",
                               call.maker, /*needs_mpirun=*/true));
      peers.back().transport = transport;
      peers.back().way = absl::StrCat(call.name, ", ", NameOf(transport));
    }
  }
  return peers;
}

BenchPeer ScalapackPeer(const MoveKind& kind) {
  BenchPeer peer = BarePeer(kind, "scalapack", "ScaLAPACK's pdgemr2d",
                            MakeScalapackMove, /*needs_mpirun=*/true);
  peer.check = [](int, int64_t, const std::string&) {
    static const absl::Status found = FindScalapack();
    return found;
  };
  return peer;
}

BenchPeer TorchPeer(const MoveKind& kind, const char* name, const char* help,
                    const char* work) {
  return {
      .name = name,
      .help = help,
      .measuring_program =
          [kind, work](const BenchTask& task, const std::string& report) {
            const absl::StatusOr<Move> move =
                MoveOf(kind, task.world, task.bytes);
            return TorchProgram(work, task, move->tensor, report);
          },
      .check = [](int, int64_t, const std::string&) { return FindTorch(); }};
}

std::vector<BenchPeer> PeersOf(const MoveKind& kind) {
  std::vector<BenchPeer> peers = {SherdPeer(kind, "shm"),
                                  SherdPeer(kind, "gloo")};
  if (HasOpenMpi()) peers.push_back(SherdPeer(kind, "mpi"));
  if (kind.torch_sharded != nullptr) {
    peers.push_back(TorchPeer(kind, "torch-sharded",
                              "PyTorch's ShardedTensor, over its gloo",
                              kind.torch_sharded));
  }
  if (kind.torch_dtensor != nullptr) {
    peers.push_back(TorchPeer(kind, "torch-dtensor",
                              "PyTorch's DTensor, over its gloo",
                              kind.torch_dtensor));
  }
  if (HasOpenMpi() && kind.cube_dim == 0) peers.push_back(ScalapackPeer(kind));
  if (HasOpenMpi()) {
    const std::vector<BenchPeer> ways = OpenMpiPeers(kind);
    peers.insert(peers.end(), ways.begin(), ways.end());
    peers.push_back(BarePeer(kind, "mpi",
                             "pack by memcpy, bare MPI_Alltoallv, unpack",
                             MakeMpiPackedMove, /*needs_mpirun=*/true));
  }
  peers.push_back(BarePeer(kind, "gloo",
                           "pack by memcpy, bare gloo::alltoallv, unpack",
                           MakeGlooMove));
  peers.push_back(BarePeer(
      kind, "limit", "memcpy between shards in shared memory", MakeLimitMove));
  return peers;
}

BenchCase CaseOf(const MoveKind& kind) {
  return {.name = kind.name,
          .help = kind.help,
          .peers = PeersOf(kind),
          .check =
              [kind](int world, int64_t bytes, const std::string&) {
                return MoveOf(kind, world, bytes).status();
              },
          .shared_bytes =
              [kind](int world, int64_t bytes) {
                const absl::StatusOr<Move> move = MoveOf(kind, world, bytes);
                return move.ok() ? LimitMoveBytes(*move) : 0;
              },
          .lower_bound =
              [kind](int world, int64_t bytes) {
                const absl::StatusOr<Move> move = MoveOf(kind, world, bytes);
                return move.ok() ? LowerBoundBytes(move->from, move->to) : 0;
              }};
}

}  // namespace

std::vector<BenchCase> MoveCases() {
  return {
      CaseOf({.name = "reshard_0_to_1",
              .help = "rows to columns",
              .from = RowsOver,
              .to = ColumnsOver,
              .torch_sharded = "sharded:reshard:1",
              .torch_dtensor = "dtensor:reshard:1"}),
      CaseOf({.name = "reshard_0_to_grid",
              .help = "rows to a grid of 2 x W/2 (columns if W is 2)",
              .from = RowsOver,
              .to = GridOver,
              .needs_even_world = true,
              .torch_dtensor = "dtensor:grid"}),
      CaseOf({.name = "reshard_block_cyclic",
              .help = "256 x 256 blocks on 2 x W/2 to 192 x 192 on 1 x W",
              .from = LargeBlocks,
              .to = SmallBlocks,
              .needs_even_world = true}),
      CaseOf({.name = "reshard_3d_0_to_2",
              .help = "three dims, cut along the first to along the last",
              .cube_dim = 2,
              .torch_sharded = "sharded:reshard:2",
              .torch_dtensor = "dtensor:reshard:2"}),
      CaseOf({.name = "reshard_3d_0_to_1",
              .help = "three dims, cut along the first to along the second",
              .cube_dim = 1,
              .torch_sharded = "sharded:reshard:1",
              .torch_dtensor = "dtensor:reshard:1"}),
      CaseOf({.name = "gather",
              .help = "rows to rank 0",
              .verb = MoveVerb::kGather,
              .from = RowsOver,
              .to = AllOnRankZero,
              .torch_sharded = "sharded:gather",
              .torch_dtensor = "dtensor:gather"}),
      CaseOf({.name = "shard",
              .help = "rank 0 to rows",
              .verb = MoveVerb::kShard,
              .from = AllOnRankZero,
              .to = RowsOver,
              .torch_sharded = "sharded:shard",
              .torch_dtensor = "dtensor:shard"}),
  };
}

}  // namespace sherd
