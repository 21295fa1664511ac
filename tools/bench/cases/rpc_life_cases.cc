#include "sherd/tools/bench/cases/rpc_life_cases.h"

#include <signal.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/rpc/rpc.h"
#include "sherd/tools/bench/harness/proportional_memory.h"
#include "sherd/tools/bench/peers/bench_agent.h"

namespace sherd {
namespace {

constexpr absl::Duration kIdleTime = absl::Milliseconds(500);
constexpr char kMessage[] = "message";

RpcOptions Over(const std::vector<std::string>& transports) {
  RpcOptions options;
  options.transports = transports;
  return options;
}

absl::Status CallOnce(RpcAgent& agent, int rank) {
  return agent.Call<BenchEcho>(rank, kMessage).status();
}

// Nothing to prepare, and that it ended well is the result.
class Start : public RankWork {
 public:
  explicit Start(RankContext&) {}

  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::Status Run() override { return absl::OkStatus(); }
  absl::Status Check() override { return absl::OkStatus(); }
};

class WorkerStart final : public Start {
 public:
  WorkerStart(RankContext& context, RpcOptions options)
      : Start(context), context_(context), options_(std::move(options)) {}

  absl::Status Run() override {
    SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<RpcAgent> agent,
                           StartBenchAgent(context_, "rpc", options_));
    SHERD_RETURN_IF_ERROR(
        CallOnce(*agent, (context_.rank() + 1) % context_.world()));
    return agent->Shutdown();
  }

 private:
  RankContext& context_;
  const RpcOptions options_;
};

// A process that does nothing, and how much CPU time that takes.
class Idle : public RankWork {
 public:
  explicit Idle(RankContext&) {}

  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::Status Run() override {
    const double begin = CpuSeconds();
    absl::SleepFor(kIdleTime);
    seconds_ = (CpuSeconds() - begin) / absl::ToDoubleSeconds(kIdleTime);
    return absl::OkStatus();
  }
  std::optional<double> OwnSeconds() const override { return seconds_; }
  absl::Status Check() override { return absl::OkStatus(); }

 private:
  static double CpuSeconds() {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_nsec) * 1e-9;
  }

  double seconds_ = 0;
};

class IdleWorker final : public Idle {
 public:
  IdleWorker(RankContext& context, RpcOptions options)
      : Idle(context), context_(context), options_(std::move(options)) {
    // So that the measurement contains some: twenty times as many as by
    // default.
    options_.heartbeat_interval = kIdleTime;
  }

  absl::Status Prepare() override {
    SHERD_ASSIGN_OR_RETURN(
        agent_,
        StartBenchAgent(context_, absl::StrCat("rpc-", runs_), options_));
    if (runs_++ > 0) return CallAll();
    return MeasureConnections();
  }

  absl::Status Check() override { return agent_->Shutdown(); }

  std::optional<WorkFigures> Figures() const override {
    WorkFigures figures;
    figures.way = connection_memory_;
    return figures;
  }

 private:
  // One rank after another, so that no more threads are needed than for one
  // call.
  absl::Status CallAll() {
    for (int rank = 0; rank < context_.world(); ++rank) {
      for (int to = 0; rank == context_.rank() && to < context_.world(); ++to) {
        SHERD_RETURN_IF_ERROR(CallOnce(*agent_, to));
      }
      context_.Meet();
    }
    return absl::OkStatus();
  }

  absl::Status MeasureConnections() {
    // Threads that answer calls begin at the first; with rank 0 all have been
    // connected from the start.
    SHERD_RETURN_IF_ERROR(CallOnce(*agent_, 0));
    SHERD_RETURN_IF_ERROR(CallOnce(*agent_, context_.rank()));
    context_.Meet();
    const int64_t before = ProportionalMemory();
    context_.Meet();
    SHERD_RETURN_IF_ERROR(CallAll());
    const int64_t after = ProportionalMemory();
    context_.Meet();
    const int connections = context_.world() - 2;
    if (context_.rank() > 0 && connections > 0 && before >= 0 && after >= 0) {
      connection_memory_ = absl::StrFormat(
          "%.1f KiB per connection",
          static_cast<double>(after - before) / 1024 / connections);
    }
    return absl::OkStatus();
  }

  RankContext& context_;
  RpcOptions options_;
  int runs_ = 0;
  std::shared_ptr<RpcAgent> agent_;
  std::string connection_memory_;
};

// An agent's report of a lost worker; its threads may outlive the agent.
class LossRecord {
 public:
  void Set(const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    if (!why_.has_value()) why_ = why;
  }
  absl::Status Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::optional<absl::Status>* why) { return why->has_value(); },
        &why_));
    return *why_;
  }

 private:
  absl::Mutex mutex_;
  std::optional<absl::Status> why_ ABSL_GUARDED_BY(mutex_);
};

// The last rank is not a worker, but starts one in a process of its own and
// kills it. The time ends when the other ranks, which are not connected to it
// except for rank 0, have its name.
class Loss final : public RankWork {
 public:
  Loss(RankContext& context, RpcOptions options)
      : context_(context), options_(std::move(options)) {}

  absl::Status Prepare() override {
    // A store that a worker never left is not used again.
    const std::string name =
        absl::StrCat("rpc-", absl::StrCat(runs_++, options_.transports.size()));
    if (starts_victim()) {
      SHERD_ASSIGN_OR_RETURN(Subprocess victim, Subprocess::Fork([&] {
                               const auto agent =
                                   StartBenchAgent(context_, name, options_);
                               while (agent.ok()) pause();
                               return 1;
                             }));
      victim_.emplace(std::move(victim));
      return absl::OkStatus();
    }
    SHERD_ASSIGN_OR_RETURN(agent_, StartBenchAgent(context_, name, options_));
    record_ = std::make_shared<LossRecord>();
    agent_->OnWorkerLost([record = record_, victim = victim_rank()](
                             int rank, const absl::Status& why) {
      if (rank == victim) record->Set(why);
    });
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (starts_victim()) {
      victim_->Signal(SIGKILL);
      victim_->Wait();
      return absl::OkStatus();
    }
    why_ = record_->Await();
    return absl::OkStatus();
  }

  absl::Status Check() override {
    if (starts_victim()) {
      victim_.reset();
      return absl::OkStatus();
    }
    const std::string name = agent_->workers()[victim_rank()];
    const absl::Status after = CallOnce(*agent_, victim_rank());
    agent_->Shutdown({.graceful = false}).IgnoreError();
    agent_.reset();
    if (absl::IsUnavailable(why_) && absl::IsUnavailable(after) &&
        after.message().find(name) != std::string::npos) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("the loss of ", name, " was reported as ", why_.ToString(),
                     ", and a call of it ended with ", after.ToString()));
  }

 private:
  int victim_rank() const { return context_.world() - 1; }
  bool starts_victim() const { return context_.rank() == victim_rank(); }

  RankContext& context_;
  const RpcOptions options_;
  int runs_ = 0;
  std::optional<Subprocess> victim_;
  std::shared_ptr<RpcAgent> agent_;
  std::shared_ptr<LossRecord> record_;
  absl::Status why_;
};

template <typename Work>
BenchPeer PeerOver(const char* name, const char* help,
                   std::vector<std::string> transports) {
  return {.name = name,
          .help = help,
          .make = [transports](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            return std::make_unique<Work>(context, Over(transports));
          }};
}

template <typename Work>
std::vector<BenchPeer> SherdPeers() {
  return {PeerOver<Work>("sherd", "over all transports that work here", {}),
          PeerOver<Work>("sherd-tcp", "over TCP alone", {"tcp"})};
}

template <typename Work>
BenchPeer LimitOf(const char* help) {
  return {.name = "limit",
          .help = help,
          .make = [](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            return std::make_unique<Work>(context);
          }};
}

absl::Status NeedsTwo(int world, int64_t, const std::string&) {
  if (world >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError("needs two ranks");
}

}  // namespace

std::vector<BenchCase> RpcLifeCases() {
  BenchCase start = {.name = "rpc_start",
                     .help = "start workers, each calls the next, stop them",
                     .peers = SherdPeers<WorkerStart>(),
                     .starts_ranks = true};
  start.peers.push_back(LimitOf<Start>("processes that are not workers"));
  BenchCase idle = {.name = "rpc_idle",
                    .help = "CPU time of a worker in a second without calls",
                    .peers = SherdPeers<IdleWorker>(),
                    .bytes = {}};
  idle.peers.push_back(LimitOf<Idle>("a process that is not a worker"));
  return {start,
          idle,
          {.name = "rpc_loss",
           .help = "from a worker's death until all others have its name",
           .peers = SherdPeers<Loss>(),
           .bytes = {},
           .check = NeedsTwo}};
}

}  // namespace sherd
