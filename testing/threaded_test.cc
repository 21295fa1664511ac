#include "sherd/testing/threaded_test.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/backend.h"
#include "sherd/core/comm/backend_registry.h"
#include "sherd/core/comm/hash_store.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/random.h"
#include "sherd/testing/external_ranks.h"
#include "sherd/testing/gpus.h"
#include "sherd/testing/rank_results.h"
#include "sherd/testing/rank_threads.h"
#include "sherd/testing/run_outcome.h"
#include "sherd/testing/scoped_directory.h"
#include "sherd/testing/stack_dump.h"
#include "sherd/testing/stoppable_store.h"
#include "sherd/testing/try_step.h"
#include "sherd/testing/verdict_report.h"

namespace sherd::testing {
namespace internal {
namespace {

// How long ranks whose groups are aborted may take to return.
constexpr absl::Duration kReturnTime = absl::Seconds(5);

// Standard error as it is now, since a test may redirect it.
void InstallStackDumpOnce() {
  static const bool installed = [] {
    InstallStackDump(dup(STDERR_FILENO));
    return true;
  }();
  (void)installed;
}

// The process's watchdog has a thread while there is a group. One that stays
// keeps it from ending and starting with each test.
void KeepWatchdogOnce() {
  static const bool kept = [] {
    const absl::StatusOr<const Backend*> local =
        BackendRegistry::Global().Find("local");
    if (!local.ok()) return false;
    static auto* const group =
        new absl::StatusOr<std::shared_ptr<ProcessGroup>>(ProcessGroup::Create(
            **local, {.name = "watchdog of threaded tests",
                      .rank = 0,
                      .size = 1,
                      .store = std::make_shared<HashStore>(),
                      .timeout = absl::Minutes(1)}));
    return group->ok();
  }();
  (void)kept;
}

}  // namespace

// One test while its ranks run.
class ThreadedRun {
 public:
  ThreadedRun(int size, absl::Duration timeout, absl::Duration grace)
      : size_(size),
        timeout_(timeout),
        grace_(grace),
        deadline_(Deadline::After(timeout)),
        groups_(size) {
    for (int r = 0; r < size; ++r) {
      results_.push_back(std::make_unique<RankResults>(start_));
    }
  }

  // The constructor of a fixture asks for which rank it is made.
  struct Making {
    ThreadedRun* run = nullptr;
    int rank = -1;
  };
  static Making& making() {
    thread_local Making making;
    return making;
  }

  void Execute(const TestPlan& plan, const FixtureFactory& make);

  // For the ranks.

  RankResults& results(int rank) { return *results_[rank]; }
  const std::shared_ptr<StoppableStore>& store() const { return store_; }
  CommsPlace PlaceOf(int rank);
  std::string directory() ABSL_LOCKS_EXCLUDED(mutex_);
  // The rank's group, null if it has none any more.
  void SetGroup(int rank, std::shared_ptr<ProcessGroup> group)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void MakeFixtures(const FixtureFactory& make);
  void RunRank(int rank);
  void RankEnded(int rank) ABSL_LOCKS_EXCLUDED(mutex_);

  // Supervision, on the main thread.
  void AwaitRanks();
  bool AwaitAll(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  bool AwaitAllOrEarlyEnd(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWaits(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mutex_);
  void Report();
  [[noreturn]] void EndProgram();

  const int size_;
  const absl::Duration timeout_;
  const absl::Duration grace_;
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
  const Deadline deadline_;
  const pid_t process_ = getpid();
  const TestPlan* plan_ = nullptr;
  const std::shared_ptr<StoppableStore> store_ =
      std::make_shared<StoppableStore>(std::make_shared<HashStore>());
  std::vector<std::unique_ptr<RankResults>> results_;
  std::vector<std::unique_ptr<DistributedFixture>> fixtures_;
  bool timed_out_ = false;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  // The first rank that failed or skipped.
  std::optional<int> ended_early_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ProcessGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  std::optional<ScopedDirectory> directory_ ABSL_GUARDED_BY(mutex_);
};

void ThreadedRun::Execute(const TestPlan& plan, const FixtureFactory& make) {
  plan_ = &plan;
  RankThreads& threads = RankThreads::Global();
  const absl::Status reserved = threads.Reserve(size_);
  ASSERT_TRUE(reserved.ok()) << reserved;
  InstallStackDumpOnce();
  if (plan.comms) KeepWatchdogOnce();
  MakeFixtures(make);
  if (ThreadedDistributedTest::HasFatalFailure()) return;
  {
    absl::MutexLock lock(&mutex_);
    running_ = size_;
  }
  threads.Run(size_, [this](int rank) { RunRank(rank); });
  AwaitRanks();
  Report();
  fixtures_.clear();
}

void ThreadedRun::MakeFixtures(const FixtureFactory& make) {
  for (int r = 0; r < size_; ++r) {
    making() = {this, r};
    fixtures_.push_back(make());
    making() = {};
  }
}

CommsPlace ThreadedRun::PlaceOf(int rank) {
  return {.rank = rank,
          .world_size = size_,
          .ranks = RanksAre::kThreads,
          .init_method = "",
          .store = store_,
          .timeout = timeout_,
          .on_phase = [results = results_[rank].get()](
                          absl::string_view phase) { results->Phase(phase); }};
}

std::string ThreadedRun::directory() {
  absl::MutexLock lock(&mutex_);
  if (!directory_) {
    absl::StatusOr<ScopedDirectory> made = ScopedDirectory::Make();
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return "";
    directory_.emplace(*std::move(made));
  }
  return directory_->path();
}

void ThreadedRun::SetGroup(int rank, std::shared_ptr<ProcessGroup> group) {
  absl::MutexLock lock(&mutex_);
  groups_[rank] = std::move(group);
}

void ThreadedRun::RunRank(int rank) {
  RankResults& results = *results_[rank];
  {
    const ScopedRankResults scope(
        results, ScopedRankResults::INTERCEPT_ONLY_CURRENT_THREAD);
    Generator generator;
    const ScopedDefaultGenerator scoped_generator(generator);
    DistributedFixture& fixture = *fixtures_[rank];
    results.Phase("SetUp");
    TryStep("SetUp", [&] { RankSteps::SetUp(fixture); });
    if (!results.HasFatalFailure() && !results.IsSkipped()) {
      TryStep("the test", [&] { RankSteps::Run(fixture, *plan_); });
    }
    results.Phase("TearDown");
    TryStep("TearDown", [&] { RankSteps::TearDown(fixture); });
    // One that the body made itself and left behind.
    const absl::StatusOr<std::shared_ptr<ProcessGroup>> group = DefaultGroup();
    if (group.ok() && (*group)->backend().ranks_are_threads) {
      (*group)->Destroy().IgnoreError();
    }
  }
  if (getpid() != process_) {
    // Only this thread exists here, and nobody waits for it.
    std::fprintf(stderr,
                 "[rank %d] a process that the body forked returned from the "
                 "body; it must end with _exit()\n",
                 rank);
    _exit(1);
  }
  results.End();
  RankEnded(rank);
}

void ThreadedRun::RankEnded(int rank) {
  const bool early =
      results_[rank]->HasFailure() || results_[rank]->IsSkipped();
  absl::MutexLock lock(&mutex_);
  --running_;
  const bool first = early && !ended_early_;
  if (first) ended_early_ = rank;
  // With the lock held: the last rank's signal lets the run be destroyed.
  if (running_ == 0 || first) changed_.Signal();
}

bool ThreadedRun::AwaitAll(Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  while (running_ > 0 && !deadline.HasPassed()) {
    changed_.WaitWithTimeout(&mutex_, deadline.Remaining());
  }
  return running_ == 0;
}

bool ThreadedRun::AwaitAllOrEarlyEnd(Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  while (running_ > 0 && !ended_early_ && !deadline.HasPassed()) {
    changed_.WaitWithTimeout(&mutex_, deadline.Remaining());
  }
  return running_ == 0;
}

void ThreadedRun::EndWaits(const absl::Status& cause) {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  {
    absl::MutexLock lock(&mutex_);
    groups = groups_;
  }
  for (const std::shared_ptr<ProcessGroup>& group : groups) {
    if (group != nullptr) group->Abort(cause);
  }
  store_->Stop(cause);
}

void ThreadedRun::AwaitRanks() {
  if (AwaitAllOrEarlyEnd(deadline_)) return;
  std::optional<int> early;
  {
    absl::MutexLock lock(&mutex_);
    early = ended_early_;
  }
  if (early) {
    if (AwaitAll(Deadline::Earlier(deadline_, Deadline::After(grace_)))) return;
    EndWaits(WithFailedRank(
        absl::UnavailableError(absl::StrCat(
            "rank ", *early, " has failed or skipped, and left the test")),
        *early));
    if (AwaitAll(deadline_)) return;
  }
  timed_out_ = true;
  for (const std::unique_ptr<RankResults>& results : results_) results->Stop();
  // To the process: a thread's own signal asks for its own stack only.
  kill(getpid(), StackDumpSignal());
  EndWaits(absl::DeadlineExceededError(absl::StrCat(
      "the test did not end within ", absl::FormatDuration(timeout_))));
  if (!AwaitAll(Deadline::After(kReturnTime))) EndProgram();
}

void ThreadedRun::Report() {
  RunOutcome run;
  run.timed_out = timed_out_;
  run.timeout = timeout_;
  for (const std::unique_ptr<RankResults>& results : results_) {
    run.ranks.push_back(results->outcome());
  }
  ReportVerdict(run, Judge(run), plan_->file, plan_->line);
}

void ThreadedRun::EndProgram() {
  Report();
  {
    absl::MutexLock lock(&mutex_);
    directory_.reset();
  }
  const ::testing::TestInfo& test =
      *::testing::UnitTest::GetInstance()->current_test_info();
  std::fflush(stdout);
  std::fprintf(stderr,
               "The test program ends here: %s.%s does not return, and a "
               "thread cannot be killed. The tests behind it did not run. Its "
               "ranks' stacks stand above.\n",
               test.test_suite_name(), test.name());
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace internal

using internal::ThreadedRun;

ThreadedDistributedTest::ThreadedDistributedTest()
    : DistributedFixture(ThreadedRun::making().rank),
      run_(ThreadedRun::making().run) {}

std::shared_ptr<Store> ThreadedDistributedTest::shared_store() {
  return run_ == nullptr ? nullptr : run_->store();
}

std::string ThreadedDistributedTest::temp_dir() const {
  return run_ == nullptr ? "" : run_->directory();
}

void ThreadedDistributedTest::RunDistributed(
    const internal::TestPlan& plan, const internal::FixtureFactory& make) {
  // Rank 0 has all the threads.
  const internal::ExternalRanks* const external =
      internal::ExternalRanks::Get();
  if (external != nullptr && external->rank() != 0) return;
  const internal::CommsPlan comms =
      CheckPlan(plan, internal::RanksAre::kThreads);
  if (HasFatalFailure() || IsSkipped()) return;
  // Held for the test; what the threads see is the process's.
  const absl::StatusOr<internal::GpuLocks> gpus =
      internal::GpuLocks::Acquire(comms.gpus, Deadline::After(timeout()));
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ThreadedRun(world_size(), timeout(), grace()).Execute(plan, make);
}

internal::CommsPlace ThreadedDistributedTest::place() const {
  return run_->PlaceOf(rank());
}

std::shared_ptr<Store> ThreadedDistributedTest::OpenStore() const {
  return run_->store();
}

void ThreadedDistributedTest::EnterPhase(absl::string_view phase) {
  if (run_ != nullptr) run_->results(rank()).Phase(phase);
}

absl::StatusOr<std::shared_ptr<internal::Comms>>
ThreadedDistributedTest::AcquireComms(const WithComms& wanted) {
  absl::StatusOr<std::shared_ptr<internal::Comms>> comms =
      DistributedFixture::AcquireComms(wanted);
  if (comms.ok()) run_->SetGroup(rank(), (*comms)->group());
  return comms;
}

absl::Status ThreadedDistributedTest::ReleaseComms(
    std::shared_ptr<internal::Comms> comms, internal::Leaving leaving) {
  run_->SetGroup(rank(), nullptr);
  return DistributedFixture::ReleaseComms(std::move(comms), leaving);
}

}  // namespace sherd::testing
