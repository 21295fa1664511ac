#include "sherd/testing/suite_ranks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/distributed_fixture.h"
#include "sherd/testing/distributed_tests.h"
#include "sherd/testing/gpus.h"
#include "sherd/testing/rank_program.h"
#include "sherd/testing/verdict_report.h"

namespace sherd::testing::internal {
namespace {

// Sets of ranks at one time.
constexpr size_t kMaxSets = 4;
// A filter must fit into an argument, which may have 128 KiB.
constexpr size_t kMaxFilter = size_t{96} << 10;
// For the ranks to end. Not of the tests' own time.
constexpr absl::Duration kEndTime = absl::Seconds(60);
constexpr absl::Duration kEndGrace = absl::Seconds(3);

// The running test and those of its suite that may follow it.
std::vector<std::string> TestsFromHere() {
  const ::testing::UnitTest& unit_test = *::testing::UnitTest::GetInstance();
  const ::testing::TestSuite& suite = *unit_test.current_test_suite();
  std::vector<std::string> tests;
  size_t bytes = 0;
  for (int i = 0; i < suite.total_test_count(); ++i) {
    const ::testing::TestInfo& test = *suite.GetTestInfo(i);
    const bool is_here = &test == unit_test.current_test_info();
    if (tests.empty() && !is_here) continue;
    if (!is_here && (!test.should_run() || !IsDistributedTest(test))) continue;
    tests.push_back(FullName(test));
    bytes += tests.back().size() + 1;
    if (bytes > kMaxFilter) break;
  }
  return tests;
}

// Ends the ranks with the suite. Has no state, since it lives as long as
// GoogleTest.
class SuiteEndListener : public ::testing::EmptyTestEventListener {
  void OnTestSuiteEnd(const ::testing::TestSuite&) override {
    SuiteRanks::Get().End();
  }
};

}  // namespace

// Ranks of one world size.
class SuiteRanks::Set {
 public:
  static absl::StatusOr<std::unique_ptr<Set>> Start(int world_size, int gpus,
                                                    Deadline deadline) {
    SHERD_ASSIGN_OR_RETURN(GpuLocks locks, GpuLocks::Acquire(gpus, deadline));
    SHERD_ASSIGN_OR_RETURN(RankDirectory directory, RankDirectory::Make());
    std::unique_ptr<Set> set(new Set(world_size, gpus, std::move(locks),
                                     std::move(directory), TestsFromHere()));
    RankProgram program = {.world_size = world_size,
                           .tests = set->tests_,
                           .persistent = true,
                           .again = GTEST_FLAG_GET(shuffle),
                           .time_left = TimeToTimeout()};
    if (gpus > 0) {
      program.visible_gpus = set->gpu_locks_.Visible();
      program.shares_gpus =
          static_cast<int>(set->gpu_locks_.gpus().size()) < gpus;
    }
    SHERD_ASSIGN_OR_RETURN(SupervisorOptions options,
                           RankOptions(program, set->directory_));
    SHERD_ASSIGN_OR_RETURN(set->ranks_,
                           RankSupervisor::Start(std::move(options)));
    return set;
  }

  bool HoldsGpus() const { return gpus_ > 0; }

  bool Suits(int world_size, int gpus) const {
    return world_size == world_size_ && gpus == gpus_;
  }

  // Whether the ranks come to that test: from one to the next in the order in
  // which they are declared, or, when that is not the order of the suite, any
  // number of times to all of them.
  bool ComesTo(const std::string& test) const {
    const auto from =
        GTEST_FLAG_GET(shuffle) ? tests_.begin() : tests_.begin() + next_;
    return std::find(from, tests_.end(), test) != tests_.end();
  }

  bool CanGoOn() { return is_fit_ && ranks_->DoAllRun(); }

  absl::StatusOr<RunOutcome> RunTest(const std::string& test,
                                     const RunLimits& limits) {
    SHERD_RETURN_IF_ERROR(directory_.Empty());
    RunOutcome run = ranks_->RunTest(test, limits);
    KeepIfFailed(run, directory_.run_files());
    next_ = std::find(tests_.begin(), tests_.end(), test) - tests_.begin() + 1;
    is_fit_ = ranks_->AllCameToTheEnd();
    return run;
  }

  // Fails the running test, or the suite, if ranks that were fit for another
  // test do not end in order.
  void End() {
    const RunOutcome run = ranks_->RunToEnd(
        {.timeout = std::min(kEndTime, std::max(TimeLeft(), kEndGrace)),
         .grace = kEndGrace});
    if (!is_fit_) return;
    Verdict verdict = Judge(run);
    if (verdict.kind != Verdict::Kind::kFailed) return;
    verdict.text = absl::StrCat(
        "the ranks that have run tests of this suite do not end as they "
        "should; ",
        verdict.text);
    ReportVerdict(run, verdict, __FILE__, __LINE__);
  }

 private:
  Set(int world_size, int gpus, GpuLocks gpu_locks, RankDirectory directory,
      std::vector<std::string> tests)
      : world_size_(world_size),
        gpus_(gpus),
        gpu_locks_(std::move(gpu_locks)),
        directory_(std::move(directory)),
        tests_(std::move(tests)) {}

  const int world_size_;
  const int gpus_;
  const GpuLocks gpu_locks_;
  const RankDirectory directory_;
  const std::vector<std::string> tests_;
  std::unique_ptr<RankSupervisor> ranks_;
  // Of tests_.
  size_t next_ = 0;
  // The ranks passed all tests so far and stayed in step: from then on they are
  // to end in order, and no sooner than they are told to.
  bool is_fit_ = true;
};

SuiteRanks& SuiteRanks::Get() {
  static auto* const ranks = new SuiteRanks;
  return *ranks;
}

SuiteRanks::SuiteRanks() {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SuiteEndListener);
}

absl::StatusOr<RunOutcome> SuiteRanks::RunTest(int world_size, int gpus,
                                               const RunLimits& limits) {
  const Deadline deadline = Deadline::After(limits.timeout);
  SHERD_ASSIGN_OR_RETURN(Set * set, Find(world_size, gpus, deadline));
  absl::StatusOr<RunOutcome> run = set->RunTest(
      FullName(*::testing::UnitTest::GetInstance()->current_test_info()),
      {.timeout = deadline.Remaining(), .grace = limits.grace});
  if (run.ok()) run->timeout = limits.timeout;
  if (!run.ok() || !set->CanGoOn()) {
    set->End();
    sets_.erase(std::find_if(
        sets_.begin(), sets_.end(),
        [set](const auto& candidate) { return candidate.get() == set; }));
  }
  return run;
}

absl::StatusOr<SuiteRanks::Set*> SuiteRanks::Find(int world_size, int gpus,
                                                  Deadline deadline) {
  const std::string test =
      FullName(*::testing::UnitTest::GetInstance()->current_test_info());
  for (auto set = sets_.begin(); set != sets_.end(); ++set) {
    if (!(*set)->Suits(world_size, gpus)) continue;
    if ((*set)->CanGoOn() && (*set)->ComesTo(test)) return set->get();
    (*set)->End();
    sets_.erase(set);
    break;
  }
  // GPUs that a set holds would be waited for in vain.
  for (auto set = sets_.begin(); set != sets_.end();) {
    const bool is_in_the_way =
        (gpus > 0 && (*set)->HoldsGpus()) || sets_.size() == kMaxSets;
    if (is_in_the_way) (*set)->End();
    set = is_in_the_way ? sets_.erase(set) : set + 1;
  }
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<Set> set,
                         Set::Start(world_size, gpus, deadline));
  sets_.push_back(std::move(set));
  return sets_.back().get();
}

void SuiteRanks::End() {
  for (const auto& set : sets_) set->End();
  sets_.clear();
}

}  // namespace sherd::testing::internal
