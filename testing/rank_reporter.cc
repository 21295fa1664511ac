#include "sherd/testing/rank_reporter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/rank_keeper.h"
#include "sherd/testing/stack_dump.h"

namespace sherd::testing::internal {
namespace {

thread_local std::optional<SkipReason> announced_skip;

void WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    // Nobody listens any more: this process is about to be killed.
    if (size < 0) return;
    bytes.remove_prefix(size);
  }
}

}  // namespace

// Forwards GoogleTest's events; the usual printer has been taken off.
class RankListener : public ::testing::EmptyTestEventListener {
 public:
  explicit RankListener(RankReporter& reporter) : reporter_(reporter) {}

  void OnTestStart(const ::testing::TestInfo&) override {
    reporter_.Phase("SetUp");
  }

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.passed()) return;
    ResultFrame frame = {.type = ResultFrame::Type::kFailure,
                         .number = result.line_number(),
                         .text = result.message()};
    if (result.file_name() != nullptr) frame.file = result.file_name();
    if (result.skipped()) {
      skip_ = TakeAnnouncedSkip();
      frame.type = ResultFrame::Type::kSkip;
      frame.number = static_cast<int>(*skip_);
    }
    reporter_.Send(std::move(frame));
  }

  void OnTestEnd(const ::testing::TestInfo&) override {
    reporter_.Phase("exit");
  }

  void OnTestProgramEnd(const ::testing::UnitTest& unit_test) override {
    reporter_.Send({.type = ResultFrame::Type::kDone,
                    .number = unit_test.test_to_run_count(),
                    .second = unit_test.Passed() ? 0 : 1});
    std::fflush(nullptr);
    if (!unit_test.Passed()) std::exit(kRankFailed);
    if (skip_) std::exit(static_cast<int>(*skip_));
  }

 private:
  RankReporter& reporter_;
  std::optional<SkipReason> skip_;
};

RankReporter* RankReporter::Get() {
  static RankReporter* const reporter = Install();
  return reporter;
}

RankReporter* RankReporter::Install() {
  BecomeKeeperIfAsked();
  const absl::StatusOr<std::optional<int64_t>> knob =
      GetIntKnob(Knob::kTestRankFd, 3, std::numeric_limits<int>::max());
  if (!knob.ok() || !knob->has_value()) return nullptr;
  const int fd = static_cast<int>(**knob);
  // Programs that this rank starts are no ranks of the test.
  unsetenv(GetKnobInfo(Knob::kTestRankFd).variable);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return nullptr;

  // What ps and stack dumps show, instead of the "exe" of /proc/self/exe.
  prctl(PR_SET_NAME, ("rank " + GetKnobOr(Knob::kRank, "?")).c_str());
  auto* const reporter = new RankReporter(fd);
  reporter->Send({.type = ResultFrame::Type::kHello, .number = kFrameVersion});
  // A copy, since the test may redirect standard error.
  InstallStackDump(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  ::testing::TestEventListeners& listeners =
      ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankListener(*reporter));
  return reporter;
}

void RankReporter::Phase(absl::string_view phase) {
  Send({.type = ResultFrame::Type::kPhase, .text = std::string(phase)});
}

void RankReporter::ExpectDeath(int rank, int signal) {
  Send({.type = ResultFrame::Type::kExpectDeath,
        .number = rank,
        .second = signal});
}

void RankReporter::Send(ResultFrame frame) {
  const std::string bytes = EncodeFrame(std::move(frame));
  absl::MutexLock lock(&mutex_);
  WriteAll(fd_, bytes);
}

absl::string_view AnnounceSkip(SkipReason reason) {
  announced_skip = reason;
  return SkipText(reason);
}

SkipReason TakeAnnouncedSkip() {
  return std::exchange(announced_skip, std::nullopt)
      .value_or(SkipReason::kGeneric);
}

namespace {
// Before main().
[[maybe_unused]] const RankReporter* const installed = RankReporter::Get();
}  // namespace

}  // namespace sherd::testing::internal
