#include "sherd/testing/conformance.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/local_ranks.h"

namespace sherd::testing::internal {
namespace {

constexpr int kLives = 20;

struct Trial {
  ConformanceCase conformance_case;
  ConformanceOptions options;
  int world_size;
  const char* file;
  int line;
};

std::string BackendUnderTest() {
  return GetKnobOr(Knob::kTestBackend,
                   GetKnobInfo(Knob::kTestBackend).default_text);
}

// A placeholder for the case without a group: the driver creates one generation
// of a group after another.
absl::Status ManyGenerations(ConformanceRank& rank) {
  return CheckCall(
      rank, {.op = CollectiveOp::kAllReduce, .count = 3, .dtype = kFloat32});
}

bool IsManyLives(const Trial& trial) {
  return trial.conformance_case.run == ManyGenerations;
}

ConformanceRank MakeRank(const Trial& trial, ProcessGroup& group) {
  return {.group = group,
          .small_floats_rounded_once = trial.options.small_floats_rounded_once,
          .ranks_are_threads = trial.options.ranks_are_threads,
          .dies_together = trial.options.dies_together};
}

// Ranks are processes.
class ProcessTrial : public DistributedTest {
 public:
  explicit ProcessTrial(const Trial& trial) : trial_(trial) {}

 protected:
  int world_size() const override { return trial_.world_size; }

 private:
  void TestBody() override {
    TestPlan plan = {.comms = WithComms{.timeout = ConformanceTimeout()},
                     .file = trial_.file,
                     .line = trial_.line};
    if (IsManyLives(trial_)) plan.comms = std::nullopt;
    RunDistributed(plan,
                   [this] { return std::make_unique<ProcessTrial>(trial_); });
  }

  void RankBody() override {
    if (IsManyLives(trial_)) {
      Report(Live());
      return;
    }
    ConformanceRank rank = MakeRank(trial_, group());
    rank.expect_death = [this](int dying, int signal) {
      ExpectRankDies(dying, signal);
    };
    Report(trial_.conformance_case.run(rank));
  }

  absl::Status Live() {
    for (int life = 0; life < kLives; ++life) {
      SHERD_ASSIGN_OR_RETURN(const auto group,
                             Init({.timeout = ConformanceTimeout()}));
      ConformanceRank rank = MakeRank(trial_, *group);
      SHERD_RETURN_IF_ERROR(trial_.conformance_case.run(rank));
      SHERD_RETURN_IF_ERROR(group->Barrier());
      SHERD_RETURN_IF_ERROR(group->Destroy());
    }
    return absl::OkStatus();
  }

  void Report(const absl::Status& status) {
    if (status.ok()) return;
    ADD_FAILURE_AT(trial_.file, trial_.line)
        << trial_.conformance_case.name << ": " << status.message();
  }

  const Trial trial_;
};

// Ends the process if a plugin blocks a rank's thread forever: nothing else
// would end the wait.
class Watchdog {
 public:
  Watchdog(const char* name, absl::Duration limit)
      : thread_([this, name, limit] {
          if (ended_.WaitForNotificationWithTimeout(limit)) return;
          std::fprintf(stderr,
                       "conformance: %s hangs: a call of the plugin does not "
                       "return, in spite of its deadline\n",
                       name);
          std::fflush(stdout);
          std::abort();
        }) {}
  ~Watchdog() {
    ended_.Notify();
    thread_.join();
  }

 private:
  absl::Notification ended_;
  std::thread thread_;
};

// Ranks are threads.
class ThreadTrial : public ::testing::Test {
 public:
  explicit ThreadTrial(const Trial& trial) : trial_(trial) {}

 private:
  void TestBody() override {
    const Watchdog watchdog(trial_.conformance_case.name,
                            3 * ConformanceTimeout() + absl::Minutes(1));
    for (int life = 0; life < (IsManyLives(trial_) ? kLives : 1); ++life) {
      RunLocalRanks(
          trial_.world_size, [this](ProcessGroup& group) { RunRank(group); },
          {.backend = BackendUnderTest(), .timeout = ConformanceTimeout()});
      if (HasFailure()) break;
    }
    Report();
  }

  void RunRank(ProcessGroup& group) {
    ConformanceRank rank = MakeRank(trial_, group);
    absl::Status status = trial_.conformance_case.run(rank);
    // A rank that leaves cleanly does so together with the others.
    if (status.ok()) status = group.Barrier();
    if (status.ok()) return;
    absl::MutexLock lock(&mutex_);
    faults_.push_back(absl::StrCat("rank ", group.rank(), ": ",
                                   trial_.conformance_case.name, ": ",
                                   status.message()));
  }

  // Omits consequences of another rank's failure if that failure is known.
  void Report() {
    absl::MutexLock lock(&mutex_);
    const auto consequences = std::stable_partition(
        faults_.begin(), faults_.end(), [](const std::string& fault) {
          return !absl::StrContains(fault, "left the group");
        });
    if (consequences != faults_.begin()) {
      faults_.erase(consequences, faults_.end());
    }
    for (const std::string& fault : faults_) {
      ADD_FAILURE_AT(trial_.file, trial_.line) << fault;
    }
  }

  const Trial trial_;
  absl::Mutex mutex_;
  std::vector<std::string> faults_ ABSL_GUARDED_BY(mutex_);
};

std::vector<int> WorldSizes() {
  const absl::StatusOr<std::optional<int64_t>> size =
      GetIntKnob(Knob::kTestWorldSize, 1, 256);
  if (size.ok() && *size) return {static_cast<int>(**size)};
  return {1, 2, 3, 4, 5, 8};
}

std::vector<ConformanceCase> CasesFor(const ConformanceOptions& options,
                                      int world_size) {
  std::vector<ConformanceCase> all;
  const auto add = [&all](absl::Span<const ConformanceCase> cases) {
    all.insert(all.end(), cases.begin(), cases.end());
  };
  add(ArgumentCases());
  add(OperationCases());
  add(FailureCases());
  if (!options.on_devices) {
    all.insert(all.begin(), {"ManyGenerations", ManyGenerations});
    add(AsynchronousCases());
    add(GroupCases());
    add(MemoryCases());
  }
  const bool may_kill = !options.ranks_are_threads && !options.dies_together;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const ConformanceCase& candidate) {
                             return candidate.min_size > world_size ||
                                    (candidate.kills && !may_kill);
                           }),
            all.end());
  return all;
}

void Register(const char* suite, const Trial& trial) {
  const std::string name = absl::StrCat(trial.conformance_case.name, "On",
                                        trial.world_size, "Ranks");
  if (trial.options.ranks_are_threads) {
    ::testing::RegisterTest(
        absl::StrCat(suite, "Conformance").c_str(), name.c_str(), nullptr,
        nullptr, trial.file, trial.line,
        [trial]() -> ThreadTrial* { return new ThreadTrial(trial); });
  } else {
    ::testing::RegisterTest(
        absl::StrCat(suite, "Conformance").c_str(), name.c_str(), nullptr,
        nullptr, trial.file, trial.line,
        [trial]() -> ProcessTrial* { return new ProcessTrial(trial); });
  }
}

}  // namespace

bool RegisterConformanceSuite(const char* name,
                              const ConformanceOptions& options,
                              const char* file, int line) {
  for (const int world_size : WorldSizes()) {
    for (const ConformanceCase& candidate : CasesFor(options, world_size)) {
      Register(name, {candidate, options, world_size, file, line});
    }
  }
  return true;
}

}  // namespace sherd::testing::internal
