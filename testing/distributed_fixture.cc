#include "sherd/testing/distributed_fixture.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/testing/rank_results.h"
#include "sherd/testing/run_outcome.h"
#include "sherd/testing/try_step.h"

namespace sherd::testing {
namespace {

using internal::RankResults;

constexpr int kDefaultWorldSize = 4;

// Of the whole process, for what is left of TEST_TIMEOUT.
const Deadline::Clock::time_point process_start = Deadline::Clock::now();

absl::StatusOr<std::optional<int64_t>> TargetWorldSize() {
  return GetIntKnob(Knob::kTestWorldSize, 1, internal::kMaxTestRanks);
}

absl::Duration TestTimeout() {
  const absl::StatusOr<std::optional<int64_t>> seconds =
      GetIntKnob(Knob::kTestTimeout, 1, int64_t{1} << 30);
  EXPECT_TRUE(seconds.ok()) << seconds.status();
  return absl::Seconds(seconds.ok() ? seconds->value_or(300) : 300);
}

}  // namespace

namespace internal {

absl::Duration TimeToTimeout() {
  return TestTimeout() -
         absl::FromChrono(Deadline::Clock::now() - process_start);
}

absl::Duration TimeLeft() {
  // For stacks, termination and the report.
  return TimeToTimeout() - std::min(absl::Seconds(15), TestTimeout() / 4);
}

void RankSteps::SetUp(DistributedFixture& fixture) { fixture.SetUp(); }

void RankSteps::Run(DistributedFixture& fixture, const TestPlan& plan) {
  fixture.RunAsRank(plan);
}

void RankSteps::TearDown(DistributedFixture& fixture) { fixture.TearDown(); }

}  // namespace internal

bool DistributedFixture::HasFatalFailure() {
  const RankResults* const results = RankResults::Current();
  return results != nullptr ? results->HasFatalFailure()
                            : ::testing::Test::HasFatalFailure();
}

bool DistributedFixture::HasNonfatalFailure() {
  const RankResults* const results = RankResults::Current();
  return results != nullptr ? results->HasNonfatalFailure()
                            : ::testing::Test::HasNonfatalFailure();
}

bool DistributedFixture::HasFailure() {
  const RankResults* const results = RankResults::Current();
  return results != nullptr ? results->HasFailure()
                            : ::testing::Test::HasFailure();
}

bool DistributedFixture::IsSkipped() {
  const RankResults* const results = RankResults::Current();
  return results != nullptr ? results->IsSkipped()
                            : ::testing::Test::IsSkipped();
}

int DistributedFixture::world_size() const {
  const absl::StatusOr<std::optional<int64_t>> size = TargetWorldSize();
  // 0 is refused by CheckPlan, with what is wrong.
  if (!size.ok()) return 0;
  return static_cast<int>(size->value_or(kDefaultWorldSize));
}

absl::Duration DistributedFixture::timeout() const {
  return internal::TimeLeft();
}

ProcessGroup& DistributedFixture::group() { return *shared_group(); }

std::shared_ptr<ProcessGroup> DistributedFixture::shared_group() {
  SHERD_CHECK(comms_ != nullptr)
      << "group() is there only in the body of a test with communication";
  return comms_->group();
}

Store& DistributedFixture::store() {
  SHERD_CHECK(IsRank()) << "store() is there only on ranks";
  if (store_ == nullptr) store_ = OpenStore();
  return *store_;
}

RemoteAccess& DistributedFixture::remote_access() {
  SHERD_CHECK(comms_ != nullptr && comms_->remote_access() != nullptr)
      << "remote_access() is there only in the body of a test with "
         "WithComms{.init_rpc = true}";
  return *comms_->remote_access();
}

internal::CommsPlan DistributedFixture::CheckPlan(
    const internal::TestPlan& plan, internal::RanksAre ranks) {
  internal::CommsPlan comms;
  Check(plan, ranks, comms);
  return comms;
}

void DistributedFixture::Check(const internal::TestPlan& plan,
                               internal::RanksAre ranks,
                               internal::CommsPlan& comms) {
  const int size = world_size();
  if (size < 1 || size > internal::kMaxTestRanks) {
    const absl::Status target = TargetWorldSize().status();
    FAIL() << "world size " << size << ", expected 1 to "
           << internal::kMaxTestRanks
           << (target.ok() ? "" : absl::StrCat("; ", target.message()));
  }
  for (const Requirement& requirement : plan.requirements) {
    if (const std::optional<Skip> skip = requirement.Check(size)) {
      SHERD_SKIP(skip->reason) << skip->detail;
    }
  }
  absl::StatusOr<internal::CommsPlan> planned =
      internal::PlanComms(plan.comms, size, ranks);
  ASSERT_TRUE(planned.ok()) << planned.status();
  comms = *std::move(planned);
  if (comms.skip) SHERD_SKIP(comms.skip->reason) << comms.skip->detail;
  ASSERT_GT(timeout(), absl::ZeroDuration())
      << "no time is left of TEST_TIMEOUT for this test";
}

void DistributedFixture::RunAsRank(const internal::TestPlan& plan) {
  if (plan.comms) {
    absl::StatusOr<std::shared_ptr<internal::Comms>> comms =
        AcquireComms(*plan.comms);
    ASSERT_TRUE(comms.ok()) << comms.status();
    comms_ = *std::move(comms);
  }
  EnterPhase("body");
  internal::TryStep("the body", [this] { RankBody(); });
  OnBodyEnd();
  if (comms_ != nullptr) EndComms();
  EnterPhase("TearDown");
}

void DistributedFixture::EndComms() {
  // Whoever failed may be out of step with the others.
  internal::Leaving leaving = internal::Leaving::kFailed;
  if (!HasFailedOrSkipped()) leaving = internal::Leaving::kAlone;
  if (leaving == internal::Leaving::kAlone && final_barrier_ &&
      comms_->group()->health().ok()) {
    EnterPhase("barrier");
    const absl::Status status = comms_->Barrier();
    EXPECT_TRUE(status.ok()) << internal::kFinalBarrier << ": " << status;
    leaving =
        status.ok() ? internal::Leaving::kTogether : internal::Leaving::kFailed;
  }
  const absl::Status status =
      ReleaseComms(std::exchange(comms_, nullptr), leaving);
  EXPECT_TRUE(status.ok()) << status;
}

bool DistributedFixture::HasFailedOrSkipped() const {
  return HasFailure() || IsSkipped();
}

absl::StatusOr<std::shared_ptr<internal::Comms>>
DistributedFixture::AcquireComms(const WithComms& wanted) {
  return internal::Comms::SetUp(wanted, place());
}

absl::Status DistributedFixture::ReleaseComms(
    std::shared_ptr<internal::Comms> comms, internal::Leaving leaving) {
  return comms->TearDown(leaving);
}

}  // namespace sherd::testing
