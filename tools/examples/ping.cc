// Workers that call each other and read each other's shards, until the time is
// over:
//
//   sherd run -n 4 --on-failure=continue ping --seconds=5
//
// Kill one of them, and the others report the lost worker, continue with the
// rest, and end with 1.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/rpc/rpc.h"

namespace {

constexpr int64_t kRowsPerWorker = 4;
constexpr int64_t kColumns = 256;

struct Ping {
  static constexpr absl::string_view kName = "ping";
  using Signature = absl::StatusOr<int64_t>(int64_t);
};

struct Options {
  double seconds = 5;
  bool idle = false;
};

void Print(const sherd::RpcAgent& agent, absl::string_view text) {
  std::cout << absl::StrCat(agent.name(), ": ", text, "\n") << std::flush;
}

void PrintLosses(sherd::RpcAgent& agent) {
  agent.OnWorkerLost([&agent](int rank, const absl::Status& why) {
    Print(agent,
          absl::StrCat("lost ", agent.workers()[rank], ": ", why.message()));
  });
}

// One call and one shard of each other worker that is not lost; returns how
// many calls that were.
absl::StatusOr<int64_t> Round(sherd::RpcAgent& agent,
                              const sherd::RemoteShards& shards,
                              int64_t number) {
  int64_t calls = 0;
  for (const auto& [rank, theirs] : shards) {
    const absl::StatusOr<int64_t> answer = agent.Call<Ping>(rank, number);
    const absl::StatusOr<sherd::Shard> shard =
        answer.ok() ? theirs[0].ToHere() : answer.status();
    // PrintLosses reports it.
    if (sherd::FailedRank(shard.status()) == rank) continue;
    SHERD_RETURN_IF_ERROR(shard.status());
    if (*answer != number + 1 ||
        *shard->tensor.data_as<int64_t>() != int64_t{rank} * kRowsPerWorker) {
      return absl::DataLossError(
          absl::StrCat("wrong answer of ", theirs[0].owner().name));
    }
    calls += 2;
  }
  return calls;
}

// Each element is the number of its row.
absl::StatusOr<sherd::ShardedTensor> MakeTensor(int workers) {
  std::vector<int> ranks(workers);
  for (int rank = 0; rank < workers; ++rank) ranks[rank] = rank;
  SHERD_ASSIGN_OR_RETURN(
      const sherd::ShardingSpecPtr rows,
      sherd::ChunkShardingSpec::Create(0, sherd::PlacementsOn(ranks)));
  SHERD_ASSIGN_OR_RETURN(sherd::ShardedTensor tensor,
                         sherd::ShardedTensor::Empty(
                             rows, {workers * kRowsPerWorker, kColumns},
                             {.dtype = sherd::kInt64, .init_rrefs = true}));
  for (const sherd::Shard& shard : tensor.local_shards()) {
    sherd::Tensor elements = shard.tensor;
    int64_t* const data = elements.mutable_data_as<int64_t>();
    for (int64_t i = 0; i < elements.numel(); ++i) {
      data[i] = shard.metadata.offsets[0] + i / kColumns;
    }
  }
  return tensor;
}

// Returns whether all workers stayed.
absl::StatusOr<bool> Run(const Options& options) {
  sherd::RegisterHandler<Ping>(
      [](int64_t number) -> absl::StatusOr<int64_t> { return number + 1; });
  SHERD_ASSIGN_OR_RETURN(const auto group, sherd::Init({}));
  SHERD_ASSIGN_OR_RETURN(const auto agent, sherd::InitRpc({}));
  for (const std::string& address : agent->Addresses()) {
    Print(*agent, absl::StrCat("listening on ", address));
  }
  PrintLosses(*agent);
  SHERD_ASSIGN_OR_RETURN(const sherd::ShardedTensor tensor,
                         MakeTensor(group->size()));
  // All have written their rows.
  SHERD_RETURN_IF_ERROR(group->Barrier());
  SHERD_ASSIGN_OR_RETURN(const sherd::RemoteShards shards,
                         tensor.remote_shards());
  const absl::Time begin = absl::Now();
  const absl::Time end = begin + absl::Seconds(options.seconds);
  absl::Time next_report = begin + absl::Seconds(1);
  int64_t calls = 0;
  for (int64_t number = 0; absl::Now() < end; ++number) {
    if (options.idle && number > 0) {
      absl::SleepFor(std::min(next_report, end) - absl::Now());
    } else {
      SHERD_ASSIGN_OR_RETURN(const int64_t more, Round(*agent, shards, number));
      calls += more;
    }
    if (absl::Now() < next_report) continue;
    Print(*agent, absl::StrCat(calls, " calls"));
    next_report += absl::Seconds(1);
  }
  const absl::Status status = agent->Shutdown();
  if (!status.ok() && !absl::IsUnavailable(status)) return status;
  Print(*agent, "shut down");
  if (!status.ok()) return false;
  for (const sherd::WorkerStatistics& worker : agent->Statistics()) {
    if (worker.lost) return false;
  }
  SHERD_RETURN_IF_ERROR(group->Destroy());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Workers that call each other and read each other's shards.");
  app.add_option("--seconds", options.seconds, "how long")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_flag("--idle", options.idle, "stay connected without calls");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<bool> all_stayed = Run(options);
  if (!all_stayed.ok()) {
    std::cerr << all_stayed.status().message() << "\n";
    return 1;
  }
  return *all_stayed ? 0 : 1;
}
