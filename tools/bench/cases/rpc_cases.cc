#include "sherd/tools/bench/cases/rpc_cases.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/tools/bench/peers/rpc_work.h"
#include "sherd/tools/bench/peers/rpc_worker.h"
#include "sherd/tools/bench/peers/torch_program.h"

namespace sherd {
namespace {

// Of a call, which a bare socket holds kRpcOutstanding times.
constexpr int64_t kMaxMessageBytes = 4096;
constexpr int64_t kSmallMessage = 64;
// How many units of work and calls are timed together.
constexpr int kBusyRepeats = 200;

BenchPeer PeerOf(const char* name, const char* help, RpcWorkMaker make,
                 RpcWorkerMaker make_worker) {
  return {.name = name, .help = help, .make = [=](RankContext& context) {
            return make(context, make_worker);
          }};
}

std::vector<BenchPeer> RpcPeers(RpcWorkMaker make, const std::string& work) {
  std::vector<BenchPeer> peers = {
      PeerOf("sherd", "RpcAgent over all transports that work here", make,
             MakeSherdRpc),
      PeerOf("sherd-tcp", "RpcAgent over TCP alone", make, MakeSherdTcpRpc),
      PeerOf("grpc", "gRPC's calls of byte buffers over a Unix socket", make,
             MakeGrpc)};
  peers.back().check = [](int, int64_t, const std::string&) {
    return FindGrpc();
  };
  peers.push_back(
      {.name = "torch",
       .help = "torch.distributed.rpc over TensorPipe",
       .measuring_program =
           [work](const BenchTask& task, const std::string& report) {
             return TorchRpcProgram(work, task, report);
           },
       .check = [](int, int64_t, const std::string&) { return FindTorch(); }});
  return peers;
}

absl::Status CheckCalls(int world, int64_t bytes, const std::string&) {
  if (world < 2) return absl::InvalidArgumentError("needs two ranks");
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "calls carry up to ", kMaxMessageBytes, " bytes, not ", bytes));
}

absl::Status CheckFetch(int world, int64_t bytes, const std::string&) {
  if (world < 2) return absl::InvalidArgumentError("needs two ranks");
  if (bytes % 4 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor of 32-bit words has not ", bytes, " bytes"));
}

BenchCase CallCase(const char* name, const char* help, RpcWorkMaker make,
                   const std::string& work) {
  BenchCase bench_case = {.name = name,
                          .help = help,
                          .peers = RpcPeers(make, work),
                          .bytes = {kSmallMessage},
                          .check = CheckCalls};
  bench_case.peers.push_back(
      PeerOf("limit", "a bare Unix socket", make, MakeUnixSocketRpc));
  bench_case.peers.push_back(
      PeerOf("limit-epoll", "the same by epoll, as for more than one worker",
             make, MakeEpollSocketRpc));
  bench_case.peers.push_back(
      PeerOf("limit-tcp", "a bare TCP socket", make, MakeTcpSocketRpc));
  return bench_case;
}

BenchCase FetchCase() {
  BenchCase fetch = {
      .name = "rpc_fetch",
      .help = "N from rank 1 into a tensor of rank 0",
      .peers = RpcPeers(MakeFetches, "fetch"),
      .bytes = {int64_t{64} << 10, int64_t{1} << 20, int64_t{64} << 20},
      .check = CheckFetch,
      .shared_bytes = [](int world, int64_t bytes) { return world * bytes; }};
  fetch.peers.push_back(PeerOf("limit-unix", "a bare Unix socket", MakeFetches,
                               MakeUnixSocketRpc));
  fetch.peers.push_back(
      PeerOf("limit-tcp", "a bare TCP socket", MakeFetches, MakeTcpSocketRpc));
  fetch.peers.push_back(
      PeerOf("limit", "memcpy from shared memory", MakeFetches, MakeMemcpyRpc));
  return fetch;
}

BenchCase BusyCase() {
  BenchCase busy = {
      .name = "rpc_busy",
      .help = "500 us of work and a call of the next rank, on every rank",
      .peers = RpcPeers(MakeBusyCalls, "busy"),
      .bytes = {kSmallMessage},
      .check = CheckCalls,
      .repeats = [](int64_t) { return kBusyRepeats; }};
  busy.peers.push_back(PeerOf("limit-epoll", "a bare Unix socket by epoll",
                              MakeBusyCalls, MakeEpollSocketRpc));
  busy.peers.push_back(
      PeerOf("limit", "the work alone", MakeBusyCalls, nullptr));
  return busy;
}

}  // namespace

std::vector<BenchCase> RpcCases() {
  return {CallCase("rpc_round_trip",
                   "a call between cores, N bytes there and back, p50",
                   MakeRoundTrips, "round_trip"),
          CallCase("rpc_round_trip_one_core", "the same on one core",
                   MakeRoundTripsOnOneCore, "round_trip_one_core"),
          CallCase("rpc_calls", "a call, 64 of them outstanding",
                   MakeOutstandingCalls, "calls"),
          FetchCase(), BusyCase()};
}

}  // namespace sherd
