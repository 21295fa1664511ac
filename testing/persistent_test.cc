#include "sherd/testing/persistent_test.h"

#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/external_ranks.h"
#include "sherd/testing/rank_reporter.h"
#include "sherd/testing/run_outcome.h"
#include "sherd/testing/suite_ranks.h"
#include "sherd/testing/verdict_report.h"

namespace sherd::testing {
namespace {

using internal::Comms;
using internal::Leaving;
using internal::RankReporter;

// Of this rank, between its tests.
std::shared_ptr<Comms>& KeptComms() {
  static auto* const comms = new std::shared_ptr<Comms>;
  return *comms;
}

absl::Status DropKeptComms(Leaving leaving) {
  const std::shared_ptr<Comms> comms = std::exchange(KeptComms(), nullptr);
  return comms == nullptr ? absl::OkStatus() : comms->TearDown(leaving);
}

void Leave(bool in_step) {
  const absl::Status status =
      DropKeptComms(in_step ? Leaving::kTogether : Leaving::kFailed);
  if (!in_step) return;
  EXPECT_TRUE(status.ok()) << "end of the group behind the last test: "
                           << status;
}

bool IsPersistentRank() {
  const RankReporter* const reporter = RankReporter::Get();
  return reporter != nullptr && reporter->IsPersistent();
}

}  // namespace

void PersistentDistributedTest::RunDistributed(
    const internal::TestPlan& plan, const internal::FixtureFactory& make) {
  if (IsPersistentRank()) {
    if (!IsRank()) return;
    if (!plan.comms) {
      // All ranks come here, since all have kept it.
      const absl::Status status = DropKeptComms(Leaving::kTogether);
      ASSERT_TRUE(status.ok()) << status;
    }
    RunAsRank(plan);
    // A group that is left over would be in the way of the next test's.
    if (!plan.comms && DefaultGroup().ok()) RankReporter::Get()->CannotGoOn();
  } else if (RankReporter::Get() != nullptr ||
             internal::ExternalRanks::Get() != nullptr) {
    DistributedTest::RunDistributed(plan, make);
  } else {
    RunOnSuiteRanks(plan);
  }
}

void PersistentDistributedTest::RunOnSuiteRanks(
    const internal::TestPlan& plan) {
  RefuseDeathTest();
  const internal::CommsPlan comms =
      CheckPlan(plan, internal::RanksAre::kProcesses);
  if (HasFatalFailure() || IsSkipped()) return;
  if (!LauncherName(comms).empty()) {
    RunAsParent(plan);
    return;
  }
  const absl::StatusOr<internal::RunOutcome> outcome =
      internal::SuiteRanks::Get().RunTest(
          world_size(), comms.gpus, {.timeout = timeout(), .grace = grace()});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  internal::ReportVerdict(*outcome, internal::Judge(*outcome), plan.file,
                          plan.line);
}

absl::StatusOr<std::shared_ptr<Comms>> PersistentDistributedTest::AcquireComms(
    const WithComms& wanted) {
  if (!IsPersistentRank()) return DistributedTest::AcquireComms(wanted);
  if (KeptComms() != nullptr && KeptComms()->Serves(wanted)) {
    return std::exchange(KeptComms(), nullptr);
  }
  SHERD_RETURN_IF_ERROR(DropKeptComms(Leaving::kTogether));
  return DistributedTest::AcquireComms(wanted);
}

absl::Status PersistentDistributedTest::ReleaseComms(
    std::shared_ptr<Comms> comms, Leaving leaving) {
  RankReporter* const reporter = RankReporter::Get();
  if (leaving != Leaving::kTogether && reporter != nullptr) {
    reporter->CannotGoOn();
  }
  if (leaving != Leaving::kTogether || !IsPersistentRank()) {
    return DistributedTest::ReleaseComms(std::move(comms), leaving);
  }
  KeptComms() = std::move(comms);
  reporter->OnLeave(Leave);
  return absl::OkStatus();
}

}  // namespace sherd::testing
