#include "sherd/tools/bench/cases/cases.h"

#include "absl/strings/str_format.h"
#include "sherd/tools/bench/cases/checkpoint_async_cases.h"
#include "sherd/tools/bench/cases/checkpoint_incremental_cases.h"
#include "sherd/tools/bench/cases/checkpoint_load_cases.h"
#include "sherd/tools/bench/cases/checkpoint_save_cases.h"
#include "sherd/tools/bench/cases/collective_cases.h"
#include "sherd/tools/bench/cases/embedding_cases.h"
#include "sherd/tools/bench/cases/gpu_call_cases.h"
#include "sherd/tools/bench/cases/gpu_move_cases.h"
#include "sherd/tools/bench/cases/load_many_cases.h"
#include "sherd/tools/bench/cases/load_plan_cases.h"
#include "sherd/tools/bench/cases/move_cases.h"
#include "sherd/tools/bench/cases/overhead_cases.h"
#include "sherd/tools/bench/cases/plan_cases.h"
#include "sherd/tools/bench/cases/rpc_cases.h"
#include "sherd/tools/bench/cases/rpc_life_cases.h"
#include "sherd/tools/bench/cases/save_many_cases.h"
#include "sherd/tools/bench/cases/save_plan_cases.h"
#include "sherd/tools/bench/cases/start_cases.h"

namespace sherd {
namespace {

std::vector<int> SelectPeers(const BenchCase& bench_case,
                             const BenchOptions& options) {
  std::vector<int> peers;
  if (!Selects(options.cases, bench_case.name)) return peers;
  for (size_t i = 0; i < bench_case.peers.size(); ++i) {
    if (Selects(options.peers, bench_case.peers[i].name)) {
      peers.push_back(static_cast<int>(i));
    }
  }
  return peers;
}

std::vector<int64_t> SizesOf(const BenchCase& bench_case,
                             const BenchOptions& options) {
  if (!bench_case.IsSized()) return {0};
  if (options.bytes.empty()) return bench_case.bytes;
  std::vector<int64_t> sizes = options.bytes;
  for (int64_t& bytes : sizes) {
    if (bench_case.fit != nullptr) bytes = bench_case.fit(bytes);
  }
  return sizes;
}

}  // namespace

const std::vector<BenchCase>& AllBenchCases() {
  static const auto* const cases = [] {
    auto* const all = new std::vector<BenchCase>;
    for (const auto& family :
         {CollectiveCases(), OverheadCases(), MoveCases(), EmbeddingCases(),
          PlanCases(), CheckpointSaveCases(), CheckpointAsyncCases(),
          CheckpointIncrementalCases(), CheckpointLoadCases(), SaveManyCases(),
          SavePlanCases(), LoadManyCases(), LoadPlanCases(), RpcCases(),
          RpcLifeCases(), StartCases(), GpuMoveCases(), GpuCallCases()}) {
      all->insert(all->end(), family.begin(), family.end());
    }
    return all;
  }();
  return *cases;
}

std::string ListCases(const BenchOptions& options) {
  std::string text;
  for (const BenchCase& bench_case : AllBenchCases()) {
    const std::vector<int> peers = SelectPeers(bench_case, options);
    if (peers.empty()) continue;
    absl::StrAppendFormat(&text, "%-26s %s\n", bench_case.name,
                          bench_case.help);
    std::string last;
    for (const int index : peers) {
      const BenchPeer& peer = bench_case.peers[index];
      if (peer.name == last) continue;
      last = peer.name;
      absl::StrAppendFormat(&text, "  %-24s %s\n", peer.name, peer.help);
    }
  }
  return text;
}

std::vector<Measurement> SelectMeasurements(const BenchOptions& options) {
  std::vector<Measurement> list;
  for (const BenchCase& bench_case : AllBenchCases()) {
    const std::vector<int> peers = SelectPeers(bench_case, options);
    if (peers.empty()) continue;
    for (const int world : options.worlds) {
      for (const int64_t bytes : SizesOf(bench_case, options)) {
        list.push_back({&bench_case, peers, world, bytes, options.calls});
      }
    }
  }
  return list;
}

}  // namespace sherd
