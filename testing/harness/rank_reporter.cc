#include "sherd/testing/harness/rank_reporter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/fixtures/announced_skip.h"
#include "sherd/testing/fixtures/distributed_tests.h"
#include "sherd/testing/harness/exit_codes.h"
#include "sherd/testing/harness/launch_shim.h"
#include "sherd/testing/harness/stack_dump.h"

namespace sherd::testing::internal {
namespace {

void WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    // The reader has closed the pipe: this process is about to be killed.
    if (size < 0) return;
    bytes.remove_prefix(size);
  }
}

void FlushOutput() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
}

// The descriptor that `knob` names, made close-on-exec for programs that this
// one starts; nothing if it is not set.
std::optional<int> TakeFd(Knob knob) {
  const absl::StatusOr<std::optional<int64_t>> value =
      GetIntKnob(knob, 3, std::numeric_limits<int>::max());
  if (!value.ok() || !value->has_value()) return std::nullopt;
  unsetenv(GetKnobInfo(knob).variable);
  const int fd = static_cast<int>(**value);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return std::nullopt;
  return fd;
}

// Whether main() has given the harness's arguments to GoogleTest. Otherwise the
// rank would run all tests.
bool HasTakenArguments() {
  for (absl::string_view argument : OwnArguments()) {
    if (absl::ConsumePrefix(&argument, "--gtest_filter=")) {
      return argument == absl::string_view(GTEST_FLAG_GET(filter));
    }
  }
  return false;
}

}  // namespace

// The commands to a persistent rank.
class RankCommands {
 public:
  explicit RankCommands(int fd) : fd_(fd) {}

  // Whether `test` is the one to run now. Waits for the first command.
  bool IsNext(const std::string& test) {
    if (!next_ && !leaving_) Await();
    return next_ == test;
  }

  // Waits for the next test, or for the end.
  void Await() {
    next_.reset();
    std::string line;
    for (char byte; Read(byte);) {
      if (byte == '\n') {
        next_ = std::move(line);
        return;
      }
      line += byte;
    }
    leaving_ = true;
    Leave(/*in_step=*/true);
  }

  void Leave(bool in_step) {
    if (leave != nullptr) std::exchange(leave, nullptr)(in_step);
  }

  bool leaving() const { return leaving_; }

  bool passing_by = false;
  bool can_go_on = true;
  std::function<void(bool in_step)> leave;

 private:
  bool Read(char& byte) const {
    ssize_t size;
    do {
      size = read(fd_, &byte, 1);
    } while (size < 0 && errno == EINTR);
    return size == 1;
  }

  const int fd_;
  std::optional<std::string> next_;
  bool leaving_ = false;
};

// Forwards GoogleTest's events; the usual printer has been taken off.
class RankListener : public ::testing::EmptyTestEventListener {
 public:
  explicit RankListener(RankReporter& reporter) : reporter_(reporter) {}

  void OnTestProgramStart(const ::testing::UnitTest&) override {
    if (HasTakenArguments()) return;
    reporter_.Send({.type = ResultFrame::Type::kFailure,
                    .text = "main() must hand its arguments to InitGoogleTest "
                            "before RUN_ALL_TESTS(): this rank does not know "
                            "which test to run"});
    reporter_.Send(
        {.type = ResultFrame::Type::kDone, .number = 1, .second = 1});
    std::exit(kRankFailed);
  }

  void OnTestStart(const ::testing::TestInfo& test) override {
    reporter_.EndForkedProcess();
    if (RankCommands* const commands = reporter_.commands_.get()) {
      commands->passing_by = !commands->IsNext(FullName(test));
      if (commands->passing_by) return;
    }
    reporter_.Phase("SetUp");
  }

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.passed() || reporter_.IsPassingBy()) return;
    if (reporter_.IsForkedProcess()) {
      std::fprintf(stderr, "process that a rank forked: %s:%d: %s\n",
                   result.file_name() == nullptr ? "" : result.file_name(),
                   result.line_number(), result.message());
      return;
    }
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

  void OnTestEnd(const ::testing::TestInfo& test) override {
    reporter_.EndForkedProcess();
    if (reporter_.commands_ == nullptr) {
      reporter_.Phase("exit");
      return;
    }
    if (!reporter_.IsPassingBy()) EndPersistentTest(*test.result());
    reporter_.commands_->passing_by = false;
  }

  void OnTestIterationEnd(const ::testing::UnitTest& unit_test, int) override {
    // The last one of endless iterations.
    if (reporter_.IsPersistent() && reporter_.commands_->leaving() &&
        GTEST_FLAG_GET(repeat) < 0) {
      EndProgram(unit_test);
      std::exit(kRankPassed);
    }
  }

  void OnTestProgramEnd(const ::testing::UnitTest& unit_test) override {
    EndProgram(unit_test);
  }

 private:
  void EndPersistentTest(const ::testing::TestResult& result) {
    RankCommands& commands = *reporter_.commands_;
    if (!result.Passed()) commands.can_go_on = false;
    // Others may be waiting for this rank.
    if (!commands.can_go_on) commands.Leave(/*in_step=*/false);
    FlushOutput();
    reporter_.Send({.type = ResultFrame::Type::kTestEnd,
                    .number = commands.can_go_on,
                    .second = result.Failed()});
    commands.Await();
    // Of the ranks' end.
    skip_.reset();
    reporter_.Phase("exit");
  }

  // Returns if the rank passed.
  void EndProgram(const ::testing::UnitTest& unit_test) {
    reporter_.Send(
        {.type = ResultFrame::Type::kDone,
         .number = reporter_.IsPersistent() ? 1 : unit_test.test_to_run_count(),
         .second = unit_test.Passed() ? 0 : 1});
    FlushOutput();
    if (!unit_test.Passed()) std::exit(kRankFailed);
    if (skip_) std::exit(static_cast<int>(*skip_));
  }

  RankReporter& reporter_;
  std::optional<SkipReason> skip_;
};

RankReporter::RankReporter(int fd) : fd_(fd), pid_(getpid()) {}

RankReporter::~RankReporter() = default;

RankReporter* RankReporter::Get() {
  static RankReporter* const reporter = Install();
  return reporter;
}

RankReporter* RankReporter::Install() {
  MaybeRunAsLaunchShim();
  const std::optional<int> results = TakeFd(Knob::kTestRankFd);
  if (!results) return nullptr;

  // Shown by ps and stack dumps, instead of the "exe" of /proc/self/exe.
  prctl(PR_SET_NAME, ("rank " + GetKnobOr(Knob::kRank, "?")).c_str());
  // Whole lines, at once: what is in a buffer is lost in a crash.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  // A copy, since the test may redirect standard error. Before the greeting,
  // behind which the harness may ask for stacks.
  InstallStackDump(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  // Programs that this rank starts are not ranks of a user's launcher either,
  // although its variables are set.
  setenv(GetKnobInfo(Knob::kTestExternal).variable, "0", /*overwrite=*/1);
  auto* const reporter = new RankReporter(*results);
  if (const std::optional<int> commands = TakeFd(Knob::kTestCommandFd)) {
    reporter->commands_ = std::make_unique<RankCommands>(*commands);
  }
  reporter->Send({.type = ResultFrame::Type::kHello, .number = kFrameVersion});
  reporter->Phase("main(), before the tests");
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

void RankReporter::EndForkedProcess() const {
  if (!IsForkedProcess()) return;
  FlushOutput();
  _exit(::testing::Test::HasFailure() ? kRankFailed : kRankPassed);
}

void RankReporter::Send(ResultFrame frame) {
  // Before the lock, which may have been taken when the process was forked.
  if (IsForkedProcess()) return;
  const std::string bytes = EncodeFrame(std::move(frame));
  absl::MutexLock lock(&mutex_);
  WriteAll(fd_, bytes);
}

bool RankReporter::IsPassingBy() const {
  return commands_ != nullptr && commands_->passing_by;
}

void RankReporter::CannotGoOn() {
  if (commands_ != nullptr) commands_->can_go_on = false;
}

void RankReporter::OnLeave(std::function<void(bool in_step)> leave) {
  if (commands_ != nullptr) commands_->leave = std::move(leave);
}

namespace {
// Before main().
[[maybe_unused]] const RankReporter* const installed = RankReporter::Get();
}  // namespace

}  // namespace sherd::testing::internal
