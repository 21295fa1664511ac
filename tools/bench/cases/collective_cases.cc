#include "sherd/tools/bench/cases/collective_cases.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "sherd/tools/bench/peers/collective_work.h"
#include "sherd/tools/bench/peers/mpi_peers.h"

namespace sherd {
namespace {

using Maker = absl::StatusOr<std::unique_ptr<RankWork>> (*)(
    RankContext&, const CollectiveShape&);

CollectiveShape ShapeOf(BenchCollective kind, RankContext& context) {
  return {kind, context.world(), context.bytes()};
}

BenchPeer SherdPeer(BenchCollective kind, const std::string& backend) {
  return {.name = absl::StrCat("sherd-", backend),
          .help = absl::StrCat("ProcessGroup over ", backend),
          .make =
              [kind, backend](RankContext& context) {
                return MakeSherdCollective(context, ShapeOf(kind, context),
                                           backend);
              },
          .needs_mpirun = backend == "mpi"};
}

BenchPeer BarePeer(BenchCollective kind, const char* name, const char* help,
                   Maker maker) {
  return {
      .name = name, .help = help, .make = [kind, maker](RankContext& context) {
        return maker(context, ShapeOf(kind, context));
      }};
}

// Many short calls are timed together: the ranks' meeting before a call takes
// longer than one of them.
int RepeatsOf(int64_t bytes) {
  if (bytes <= int64_t{4} << 10) return 50;
  return bytes <= int64_t{64} << 10 ? 10 : 1;
}

BenchCase CaseOf(BenchCollective kind, const char* name, const char* help) {
  BenchCase bench_case = {
      .name = name,
      .help = help,
      .peers = {SherdPeer(kind, "shm"), SherdPeer(kind, "gloo")},
      .check =
          [kind](int world, int64_t bytes, const std::string&) {
            return CollectiveShape{kind, world, bytes}.Check();
          },
      .shared_bytes =
          [kind](int world, int64_t bytes) {
            return LimitCollectiveBytes({kind, world, bytes});
          },
      .repeats = RepeatsOf};
  if (HasOpenMpi()) bench_case.peers.push_back(SherdPeer(kind, "mpi"));
  bench_case.peers.push_back(
      BarePeer(kind, "gloo", "Gloo's own collective", MakeGlooCollective));
  if (HasOpenMpi()) {
    bench_case.peers.push_back(BarePeer(
        kind, "openmpi", "Open MPI's own collective", MakeOpenMpiCollective));
    bench_case.peers.back().needs_mpirun = true;
  }
  bench_case.peers.push_back(BarePeer(kind, "limit",
                                      "memcpy and adding in shared memory",
                                      MakeLimitCollective));
  return bench_case;
}

}  // namespace

std::vector<BenchCase> CollectiveCases() {
  return {
      CaseOf(BenchCollective::kBarrier, "barrier", "all ranks wait for all"),
      CaseOf(BenchCollective::kBroadcast, "broadcast", "N from rank 0 to all"),
      CaseOf(BenchCollective::kAllReduce, "all_reduce",
             "sum of N bytes of floats, to all"),
      CaseOf(BenchCollective::kAllGather, "all_gather",
             "N/W of each rank to all"),
      CaseOf(BenchCollective::kAllToAll, "all_to_all",
             "N/W of each rank, in W blocks"),
  };
}

}  // namespace sherd
