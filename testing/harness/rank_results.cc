#include "sherd/testing/harness/rank_results.h"

#include <string>
#include <utility>

#include "sherd/testing/fixtures/announced_skip.h"
#include "sherd/testing/harness/exit_codes.h"

namespace sherd::testing::internal {
namespace {

// Of one rank; enough to see what is wrong.
constexpr int kMaxFailures = 1000;

thread_local RankResults* current_results = nullptr;

}  // namespace

RankResults* RankResults::Current() { return current_results; }

absl::Duration RankResults::Now() const {
  return absl::FromChrono(Deadline::Clock::now() - start_);
}

void RankResults::Add(const ::testing::TestPartResult& result) {
  if (result.passed()) return;
  ResultFrame frame = {.type = ResultFrame::Type::kFailure,
                       .number = result.line_number(),
                       .text = result.message()};
  if (result.file_name() != nullptr) frame.file = result.file_name();
  if (result.skipped()) {
    frame.type = ResultFrame::Type::kSkip;
    frame.number = static_cast<int>(TakeAnnouncedSkip());
  }
  absl::MutexLock lock(&mutex_);
  // Failures because it is stopped do not count.
  if (outcome_.stopped) return;
  if (result.skipped()) {
    outcome_.skip = std::move(frame);
    return;
  }
  (result.fatally_failed() ? fatal_ : nonfatal_) = true;
  if (outcome_.failures.size() >= kMaxFailures) {
    ++outcome_.failures_dropped;
  } else {
    outcome_.failures.push_back({Now(), std::move(frame)});
  }
}

void RankResults::Phase(absl::string_view phase) {
  absl::MutexLock lock(&mutex_);
  if (!outcome_.exit) outcome_.phase = std::string(phase);
}

bool RankResults::HasFatalFailure() const {
  absl::MutexLock lock(&mutex_);
  return fatal_;
}

bool RankResults::HasNonfatalFailure() const {
  absl::MutexLock lock(&mutex_);
  return nonfatal_;
}

bool RankResults::HasFailure() const {
  absl::MutexLock lock(&mutex_);
  return fatal_ || nonfatal_;
}

bool RankResults::IsSkipped() const {
  absl::MutexLock lock(&mutex_);
  return outcome_.skip && !fatal_ && !nonfatal_;
}

void RankResults::End() {
  absl::MutexLock lock(&mutex_);
  if (outcome_.exit) return;
  const bool failed = fatal_ || nonfatal_;
  int code = kRankPassed;
  if (failed) {
    code = kRankFailed;
  } else if (outcome_.skip) {
    code = outcome_.skip->number;
  }
  outcome_.phase = "exit";
  outcome_.done = {
      .type = ResultFrame::Type::kDone, .number = 1, .second = failed ? 1 : 0};
  outcome_.exit = ExitStatus::OfCode(code);
  outcome_.ended = Now();
}

void RankResults::Stop() {
  absl::MutexLock lock(&mutex_);
  if (outcome_.exit) return;
  outcome_.exit = ExitStatus::OfCode(kRankFailed);
  outcome_.stopped = true;
  outcome_.ended = Now();
}

bool RankResults::HasEnded() const {
  absl::MutexLock lock(&mutex_);
  return outcome_.exit.has_value();
}

RankOutcome RankResults::outcome() const {
  absl::MutexLock lock(&mutex_);
  return outcome_;
}

ScopedRankResults::ScopedRankResults(RankResults& results, InterceptMode mode)
    : ScopedFakeTestPartResultReporter(mode, nullptr),
      results_(results),
      before_(std::exchange(current_results, &results)) {}

ScopedRankResults::~ScopedRankResults() { current_results = before_; }

void ScopedRankResults::ReportTestPartResult(
    const ::testing::TestPartResult& result) {
  results_.Add(result);
}

}  // namespace sherd::testing::internal
