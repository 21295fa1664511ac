#include "sherd/testing/distributed_test.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/file_store.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/distributed_tests.h"
#include "sherd/testing/external_ranks.h"
#include "sherd/testing/gpus.h"
#include "sherd/testing/launched_ranks.h"
#include "sherd/testing/rank_program.h"
#include "sherd/testing/rank_reporter.h"
#include "sherd/testing/rank_results.h"
#include "sherd/testing/rank_supervisor.h"
#include "sherd/testing/run_outcome.h"
#include "sherd/testing/verdict_report.h"

namespace sherd::testing {
namespace {

using internal::ExternalRanks;
using internal::FullName;
using internal::RankReporter;
using internal::RunOutcome;

// Of the object that is being made; -1 outside of ranks.
int OwnRank() {
  const RankReporter* const reporter = RankReporter::Get();
  if (reporter == nullptr) return ExternalRanks::RankBeingMade();
  if (reporter->IsPassingBy()) return -1;
  const absl::StatusOr<std::optional<int64_t>> rank =
      GetIntKnob(Knob::kRank, 0, internal::kMaxTestRanks - 1);
  SHERD_CHECK(rank.ok() && rank->has_value()) << "a rank without RANK";
  return static_cast<int>(**rank);
}

// Of a rank that somebody else started, otherwise null.
const ExternalRanks::Test* ExternalTest() {
  const ExternalRanks* const ranks = ExternalRanks::Get();
  return ranks == nullptr ? nullptr : ranks->test();
}

absl::StatusOr<RunOutcome> RunRanks(const internal::RankProgram& program,
                                    const internal::RunLimits& limits) {
  SHERD_ASSIGN_OR_RETURN(const internal::RankDirectory directory,
                         internal::RankDirectory::Make());
  SHERD_ASSIGN_OR_RETURN(internal::SupervisorOptions options,
                         internal::RankOptions(program, directory));
  RunOutcome run = internal::SuperviseRanks(std::move(options), limits);
  internal::KeepIfFailed(run, directory.run_files());
  return run;
}

void SendPhase(absl::string_view phase) {
  if (const auto* const external = ExternalTest()) {
    external->results->Phase(phase);
  } else {
    RankReporter::Get()->Phase(phase);
  }
}

}  // namespace

DistributedTest::DistributedTest() : DistributedFixture(OwnRank()) {}

std::string DistributedTest::temp_dir() const {
  if (const auto* const external = ExternalTest()) return external->temp_dir;
  return GetKnobOr(Knob::kTestTmpDir, "");
}

std::string DistributedTest::init_method() const {
  return GetKnobOr(Knob::kInitMethod, "");
}

internal::CommsPlace DistributedTest::place() const {
  internal::CommsPlace place = {
      .rank = rank(),
      .world_size = world_size(),
      .ranks = internal::RanksAre::kProcesses,
      .store = OpenStore(),
      .timeout = timeout(),
      .on_phase = [](absl::string_view phase) { SendPhase(phase); }};
  // Ranks that somebody else started may have no file in common.
  if (ExternalTest() == nullptr) place.init_method = init_method();
  return place;
}

std::shared_ptr<Store> DistributedTest::OpenStore() const {
  if (const auto* const external = ExternalTest()) return external->store;
  return std::make_shared<FileStore>(internal::StoreFile(temp_dir()));
}

void DistributedTest::EnterPhase(absl::string_view phase) { SendPhase(phase); }

bool DistributedTest::HasFailedOrSkipped() const {
  if (const auto* const external = ExternalTest()) {
    return external->results->HasFailure() || external->results->IsSkipped();
  }
  return DistributedFixture::HasFailedOrSkipped();
}

void DistributedTest::OnBodyEnd() {
  if (RankReporter* const reporter = RankReporter::Get()) {
    reporter->EndForkedProcess();
  }
}

void DistributedTest::ExpectRankDies(int rank, int signal) {
  ASSERT_TRUE(IsRank()) << "ExpectRankDies is for the ranks";
  ASSERT_GE(rank, 0);
  ASSERT_LT(rank, world_size());
  SkipFinalBarrier();
  if (RankReporter* const reporter = RankReporter::Get()) {
    reporter->CannotGoOn();
    reporter->ExpectDeath(rank, signal);
  } else {
    ExternalRanks::Get()->ExpectDeath(rank, signal);
  }
}

void DistributedTest::RunDistributed(const internal::TestPlan& plan,
                                     const internal::FixtureFactory& make) {
  if (RankReporter::Get() != nullptr) {
    if (IsRank()) RunAsRank(plan);
  } else if (ExternalRanks* const external = ExternalRanks::Get()) {
    external->Run(
        plan, world_size(), timeout(),
        [&] { CheckPlan(plan, internal::RanksAre::kProcesses); }, make);
  } else {
    RunAsParent(plan);
  }
}

void DistributedTest::RefuseDeathTest() {
  for (const std::string& argument : OwnArguments()) {
    if (!absl::StartsWith(argument, "--gtest_internal_run_death_test=")) {
      continue;
    }
    std::fprintf(stderr,
                 "death tests on the ranks of a test must be of style fast: "
                 "GTEST_FLAG_SET(death_test_style, \"fast\")\n");
    _exit(1);
  }
}

void DistributedTest::RunAsParent(const internal::TestPlan& plan) {
  RefuseDeathTest();
  const internal::CommsPlan comms =
      CheckPlan(plan, internal::RanksAre::kProcesses);
  if (HasFatalFailure() || IsSkipped()) return;
  const absl::Duration limit = timeout();
  const Deadline deadline = Deadline::After(limit);
  internal::RankProgram program = {
      .world_size = world_size(),
      .tests = {FullName(
          *::testing::UnitTest::GetInstance()->current_test_info())},
      .launcher_name = LauncherName(comms)};
  if (!program.launcher_name.empty()) {
    absl::StatusOr<std::string> path =
        internal::FindLauncher(program.launcher_name);
    if (!path.ok()) {
      SHERD_SKIP(SkipReason::kMissingDependency) << path.status().message();
    }
    program.launcher = *std::move(path);
  }
  absl::StatusOr<internal::GpuLocks> gpus =
      internal::GpuLocks::Acquire(comms.gpus, deadline);
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  if (comms.gpus > 0) {
    program.visible_gpus = gpus->Visible();
    program.shares_gpus = static_cast<int>(gpus->gpus().size()) < comms.gpus;
  }
  program.time_left = internal::TimeToTimeout();
  absl::StatusOr<RunOutcome> outcome =
      RunRanks(program, {.timeout = deadline.Remaining(), .grace = grace()});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  outcome->timeout = limit;
  internal::ReportVerdict(*outcome, internal::Judge(*outcome), plan.file,
                          plan.line);
}

std::string DistributedTest::LauncherName(const internal::CommsPlan& comms) {
  std::string name = GetKnobOr(Knob::kTestLauncher, "");
  if (name.empty() && comms.needs_launcher) name = "mpirun";
  return name;
}

}  // namespace sherd::testing
