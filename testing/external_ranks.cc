#include "sherd/testing/external_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init_method.h"
#include "sherd/core/comm/rendezvous.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/announced_skip.h"
#include "sherd/testing/distributed_tests.h"
#include "sherd/testing/exit_codes.h"
#include "sherd/testing/rank_reporter.h"
#include "sherd/testing/result_frames.h"
#include "sherd/testing/scoped_directory.h"
#include "sherd/testing/stack_dump.h"
#include "sherd/testing/try_step.h"
#include "sherd/testing/verdict_report.h"

namespace sherd::testing::internal {
namespace {

constexpr char kGroup[] = "sherd.testing";
// For all ranks to come.
constexpr absl::Duration kStartTime = absl::Minutes(2);
// How often a wait looks whether the other process still lives.
constexpr absl::Duration kLook = absl::Milliseconds(200);
// Beyond the test's timeout, for stacks and for what ranks then say.
constexpr absl::Duration kMargin = absl::Seconds(5);
// For the last words of a rank to all others.
constexpr absl::Duration kEndTime = absl::Seconds(10);
// Of rank 0 between two tests, where nobody can tell whether it lives.
constexpr absl::Duration kLongestSilence = absl::Hours(1);
// Values of stores have 16 MiB at most.
constexpr size_t kMaxResultBytes = size_t{12} << 20;
constexpr int kMaxFailuresOfOthers = 1000;

const ::testing::TestInfo& CurrentTest() {
  return *::testing::UnitTest::GetInstance()->current_test_info();
}

// The tests that are going to run, and how.
std::string DescribeTests(const ::testing::UnitTest& tests) {
  std::string text =
      absl::StrCat("repeat ", ::testing::GTEST_FLAG(repeat), "\n", "shuffle ",
                   ::testing::GTEST_FLAG(shuffle)
                       ? absl::StrCat("with seed ", tests.random_seed())
                       : "off",
                   "\n");
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *tests.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (test.should_run()) {
        absl::StrAppend(&text, "test ", FullName(test), "\n");
      }
    }
  }
  return text;
}

// The first line in which two descriptions differ.
std::string Difference(absl::string_view first, absl::string_view other) {
  const std::vector<absl::string_view> a = absl::StrSplit(first, '\n');
  const std::vector<absl::string_view> b = absl::StrSplit(other, '\n');
  size_t i = 0;
  while (i + 1 < std::min(a.size(), b.size()) && a[i] == b[i]) ++i;
  return absl::StrCat("\"", a[i].substr(0, 200), "\" on rank 0, \"",
                      b[i].substr(0, 200), "\" there");
}

// A failure's time travels as its second number, in milliseconds.
std::string EncodeOutcome(const RankOutcome& outcome) {
  std::string bytes =
      EncodeFrame({.type = ResultFrame::Type::kHello, .number = kFrameVersion});
  int dropped = outcome.failures_dropped;
  for (const TimedFrame& timed : outcome.failures) {
    ResultFrame frame = timed.frame;
    frame.second = static_cast<int32_t>(absl::ToInt64Milliseconds(timed.when));
    std::string encoded = EncodeFrame(std::move(frame));
    if (bytes.size() + encoded.size() > kMaxResultBytes) {
      ++dropped;
    } else {
      bytes += encoded;
    }
  }
  if (outcome.skip) bytes += EncodeFrame(*outcome.skip);
  bytes +=
      EncodeFrame({.type = ResultFrame::Type::kPhase, .text = outcome.phase});
  if (outcome.done) {
    ResultFrame done = *outcome.done;
    done.text = absl::StrCat(dropped);
    bytes += EncodeFrame(std::move(done));
  }
  return bytes;
}

void TakeFrame(ResultFrame frame, RankOutcome& outcome) {
  switch (frame.type) {
    case ResultFrame::Type::kFailure: {
      const absl::Duration when =
          absl::Milliseconds(std::exchange(frame.second, 0));
      if (outcome.failures.size() >= kMaxFailuresOfOthers) {
        ++outcome.failures_dropped;
      } else {
        outcome.failures.push_back({when, std::move(frame)});
      }
      return;
    }
    case ResultFrame::Type::kSkip:
      outcome.skip = std::move(frame);
      return;
    case ResultFrame::Type::kPhase:
      outcome.phase = std::move(frame.text);
      return;
    case ResultFrame::Type::kDone: {
      int dropped = 0;
      if (absl::SimpleAtoi(frame.text, &dropped)) {
        outcome.failures_dropped += std::max(dropped, 0);
      }
      frame.text.clear();
      outcome.done = std::move(frame);
      return;
    }
    default:
      return;
  }
}

// As the rank would end if it were a process of one test.
int ExitCodeOf(const RankOutcome& outcome) {
  if (outcome.done->second != 0) return kRankFailed;
  return outcome.skip ? outcome.skip->number : kRankPassed;
}

RankOutcome DecodeOutcome(absl::string_view bytes) {
  RankOutcome outcome;
  FrameDecoder decoder;
  outcome.pipe = decoder.Feed(bytes, [&outcome](ResultFrame frame) {
    TakeFrame(std::move(frame), outcome);
  });
  if (outcome.pipe.ok() && !decoder.AtFrameBorder()) {
    outcome.pipe = absl::DataLossError("cut off");
  }
  // Without the last frame it was stopped at the timeout.
  outcome.stopped = !outcome.done;
  outcome.exit =
      ExitStatus::OfCode(outcome.done ? ExitCodeOf(outcome) : kRankFailed);
  return outcome;
}

// Has a rank that does not come back by itself write its stacks, say where it
// hangs, and end.
class HangGuard {
 public:
  HangGuard(absl::Duration timeout, std::function<void()> last_words)
      : thread_([this, timeout, last_words = std::move(last_words)] {
          if (done_.WaitForNotificationWithTimeout(timeout)) return;
          has_fired_ = true;
          kill(getpid(), StackDumpSignal());
          if (done_.WaitForNotificationWithTimeout(kMargin / 2)) return;
          last_words();
          std::fflush(nullptr);
          _exit(kRankFailed);
        }) {}
  ~HangGuard() {
    done_.Notify();
    thread_.join();
  }

  bool has_fired() const { return has_fired_; }

 private:
  absl::Notification done_;
  std::atomic<bool> has_fired_{false};
  std::thread thread_;
};

std::string TestKey(int test, absl::string_view name) {
  return absl::StrCat("test/", test, "/", name);
}

std::string RankKey(int test, absl::string_view name, int rank) {
  return absl::StrCat(TestKey(test, name), "/", rank);
}

}  // namespace

// Ranks but 0 run the same tests as rank 0, unheard.
class ExternalListener : public ::testing::EmptyTestEventListener {
 public:
  explicit ExternalListener(ExternalRanks& ranks) : ranks_(ranks) {}

  void OnTestProgramStart(const ::testing::UnitTest& tests) override;
  void OnTestStart(const ::testing::TestInfo& test) override {
    if (ranks_.rank() != 0 && !IsDistributedTest(test)) {
      GTEST_SKIP() << "runs on rank 0";
    }
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (ranks_.rank() == 0 || ranks_.is_telling_ || !result.failed()) return;
    ranks_.strays_.push_back(
        {.type = ResultFrame::Type::kFailure,
         .number = result.line_number(),
         .file = result.file_name() == nullptr ? "" : result.file_name(),
         .text = result.message()});
  }
  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    ranks_.EndProgram();
  }

 private:
  ExternalRanks& ranks_;
};

// Appended last, and so called first: before the XML is written.
class ExternalEndListener : public ::testing::EmptyTestEventListener {
 public:
  explicit ExternalEndListener(ExternalRanks& ranks) : ranks_(ranks) {}

  void OnTestIterationEnd(const ::testing::UnitTest& tests, int) override {
    ranks_.EndIteration(tests);
  }

 private:
  ExternalRanks& ranks_;
};

void ExternalListener::OnTestProgramStart(const ::testing::UnitTest& tests) {
  ::testing::TestEventListeners& listeners =
      ::testing::UnitTest::GetInstance()->listeners();
  if (ranks_.rank() != 0) {
    delete listeners.Release(listeners.default_xml_generator());
  }
  listeners.Append(new ExternalEndListener(ranks_));
  // A copy, since a test may redirect standard error.
  InstallStackDump(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  const absl::Status connected = ranks_.Connect(tests);
  if (connected.ok()) return;
  if (ranks_.rank() == 0 || !ranks_.lost_rank_zero_) {
    std::fprintf(stderr, "rank %d of %d (%s): the tests cannot run: %s\n",
                 ranks_.rank(), ranks_.world_size(),
                 ranks_.place_.launcher.c_str(), connected.ToString().c_str());
  }
  std::exit(1);
}

ExternalRanks* ExternalRanks::Get() {
  static ExternalRanks* const ranks = Install();
  return ranks;
}

ExternalRanks* ExternalRanks::Install() {
  if (RankReporter::Get() != nullptr) return nullptr;
  const std::string wish = GetKnobOr(Knob::kTestExternal, "");
  if (wish == "0") return nullptr;
  absl::StatusOr<LaunchEnvironment> place = ReadLaunchEnvironment();
  if (wish == "1" && !place.ok()) {
    std::fprintf(stderr, "SHERD_TEST_EXTERNAL=1: %s\n",
                 place.status().ToString().c_str());
    std::exit(1);
  }
  if (!place.ok() || (place->world_size == 1 && wish != "1")) return nullptr;
  auto* const ranks = new ExternalRanks(*std::move(place));
  ::testing::TestEventListeners& listeners =
      ::testing::UnitTest::GetInstance()->listeners();
  if (ranks->rank() != 0) {
    // Files that Bazel and others expect once.
    for (const char* variable :
         {"XML_OUTPUT_FILE", "TEST_PREMATURE_EXIT_FILE",
          "TEST_SHARD_STATUS_FILE", "GTEST_SHARD_STATUS_FILE",
          "TEST_WARNINGS_OUTPUT_FILE"}) {
      unsetenv(variable);
    }
    delete listeners.Release(listeners.default_result_printer());
  }
  listeners.Append(new ExternalListener(*ranks));
  return ranks;
}

int ExternalRanks::RankBeingMade() {
  const ExternalRanks* const ranks = Get();
  return ranks == nullptr || ranks->test() == nullptr ? -1 : ranks->rank();
}

absl::Status ExternalRanks::Connect(const ::testing::UnitTest& tests) {
  SHERD_ASSIGN_OR_RETURN(const std::optional<absl::Duration> timeout,
                         GetDurationKnob(Knob::kTimeout));
  const Deadline deadline = Deadline::After(timeout.value_or(kStartTime));
  ::sherd::internal::RendezvousOptions options = {
      .group = kGroup, .place = place_, .deadline = deadline};
  // Of its own, since the last rank to leave a group removes the file.
  if (!place_.job_id.empty()) options.place.job_id += "-tests";
  const std::string url = GetKnobOr(Knob::kInitMethod, "");
  if (!url.empty()) {
    SHERD_ASSIGN_OR_RETURN(options.method, InitMethod::Parse(url));
    if (options.method->kind == InitMethod::Kind::kFile) {
      options.method->path += "-tests";
    }
  }
  SHERD_ASSIGN_OR_RETURN(::sherd::internal::Rendezvous met,
                         ::sherd::internal::Meet(options));
  life_ = std::move(met.life);
  store_ = life_->store();
  return CompareRanks(DescribeTests(tests), deadline);
}

absl::Status ExternalRanks::CompareRanks(const std::string& own,
                                         Deadline deadline) {
  const auto process_key = [](int r) { return absl::StrCat("process/", r); };
  const auto tests_key = [](int r) { return absl::StrCat("tests/", r); };
  SHERD_RETURN_IF_ERROR(store_->Set(tests_key(rank()), own));
  SHERD_RETURN_IF_ERROR(store_->Set(process_key(rank()), DescribeOwnProcess()));
  processes_.assign(world_size(), "");
  if (rank() != 0) {
    SHERD_ASSIGN_OR_RETURN(processes_[0],
                           store_->Get(process_key(0), deadline));
    SHERD_ASSIGN_OR_RETURN(const std::string refusal,
                           Await("refusal", 0, deadline));
    if (refusal.empty()) return absl::OkStatus();
    // Rank 0 says it.
    lost_rank_zero_ = true;
    return absl::InvalidArgumentError(refusal);
  }
  absl::Status refusal;
  std::vector<int> absent;
  for (int r = 1; r < world_size(); ++r) {
    const auto process = store_->Get(process_key(r), deadline);
    const auto theirs = store_->Get(tests_key(r), deadline);
    if (!process.ok() || !theirs.ok()) {
      absent.push_back(r);
      continue;
    }
    processes_[r] = *process;
    if (*theirs != own && refusal.ok()) {
      refusal = WithRank(
          absl::InvalidArgumentError(absl::StrCat(
              "rank ", r, " is about to run other tests than rank 0: ",
              Difference(own, *theirs),
              ". All ranks need the same flags and variables; to shuffle, "
              "also the same --gtest_random_seed=N")),
          r);
    }
  }
  if (!absent.empty()) {
    refusal = WithFailedRank(
        absl::DeadlineExceededError(absl::StrCat(
            "ranks that did not come in time: ", absl::StrJoin(absent, ", "))),
        absent[0]);
  }
  SHERD_RETURN_IF_ERROR(store_->Set("refusal", refusal.message()));
  return refusal;
}

absl::StatusOr<std::string> ExternalRanks::Await(const std::string& key,
                                                 int peer, Deadline deadline) {
  for (;;) {
    // Asked first, so that what it wrote before its end is found.
    const bool gone = StateOf(processes_[peer]) == ProcessState::kEnded;
    absl::StatusOr<std::string> value = store_->Get(
        key,
        Deadline::Earlier(
            deadline, Deadline::After(gone ? absl::ZeroDuration() : kLook)));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    if (gone) {
      return WithFailedRank(absl::UnavailableError(absl::StrCat(
                                "the process of rank ", peer, " has ended")),
                            peer);
    }
    if (deadline.HasPassed() &&
        StateOf(processes_[peer]) == ProcessState::kUnknown) {
      return value;
    }
    if (deadline.HasPassed() && peer != 0) return value;
  }
}

void ExternalRanks::Tell(const std::string& key, absl::string_view value) {
  const absl::Status told = store_->Set(key, value);
  if (!told.ok()) {
    std::fprintf(stderr, "[rank %d] the store of the job: %s\n", rank(),
                 told.ToString().c_str());
  }
}

// "run", "skip" or "fail"; then the test's name; then its directory, or why.
struct ExternalRanks::Opening {
  std::string kind = "run";
  std::string name;
  std::string text;

  std::string Encode() const {
    return absl::StrCat(kind, "\n", name, "\n", text);
  }
  static Opening Decode(absl::string_view bytes) {
    const std::vector<std::string> parts =
        absl::StrSplit(bytes, absl::MaxSplits('\n', 2));
    if (parts.size() != 3) return {"fail", "", "not an opening"};
    return {parts[0], parts[1], parts[2]};
  }
};

void ExternalRanks::Run(const TestPlan& plan, int world_size,
                        absl::Duration timeout,
                        const std::function<void()>& check,
                        const FixtureFactory& make) {
  ++tests_;
  if (rank() == 0) {
    RunAsFirst(plan, world_size, timeout, check, make);
  } else {
    is_telling_ = true;
    RunAsOther(plan, world_size, timeout, make);
    is_telling_ = false;
  }
  test_.reset();
}

void ExternalRanks::TakePart(const TestPlan& plan, RankResults& results,
                             const FixtureFactory& make) {
  const HangGuard guard(test_->timeout, [this, &results] {
    results.Stop();
    std::fprintf(stderr,
                 "[rank %d] does not return in phase %s; its stacks stand "
                 "above. The process ends here.\n",
                 rank(), results.outcome().phase.c_str());
    if (rank() == 0) {
      Tell(TestKey(tests_, "verdict"), "fail\nrank 0 did not return");
      Tell("end", "");
    } else {
      Tell(RankKey(tests_, "result", rank()), EncodeOutcome(results.outcome()));
    }
  });
  const ScopedRankResults scope(results,
                                ScopedRankResults::INTERCEPT_ALL_THREADS);
  std::unique_ptr<DistributedFixture> fixture;
  TryStep("the fixture's constructor", [&] { fixture = make(); });
  if (fixture != nullptr) {
    results.Phase("SetUp");
    TryStep("SetUp", [&] { RankSteps::SetUp(*fixture); });
    if (!results.HasFatalFailure() && !results.IsSkipped()) {
      TryStep("the test", [&] { RankSteps::Run(*fixture, plan); });
    }
    results.Phase("TearDown");
    TryStep("TearDown", [&] { RankSteps::TearDown(*fixture); });
    fixture.reset();
  }
  EXPECT_FALSE(guard.has_fired()) << absl::DeadlineExceededError(absl::StrCat(
      "the test did not end within ", absl::FormatDuration(test_->timeout)));
  results.End();
}

void ExternalRanks::RunAsFirst(const TestPlan& plan, int size,
                               absl::Duration timeout,
                               const std::function<void()>& check,
                               const FixtureFactory& make) {
  using ::testing::Test;
  Refuse(plan, size, check);
  absl::StatusOr<ScopedDirectory> directory = ScopedDirectory::Make();
  EXPECT_TRUE(directory.ok()) << directory.status();
  Opening opening = {.name = FullName(CurrentTest())};
  if (Test::HasFailure()) {
    opening.kind = "fail";
  } else if (Test::IsSkipped()) {
    opening.kind = "skip";
  } else {
    opening.text = directory->path();
  }
  Tell(TestKey(tests_, "opening"), opening.Encode());
  if (opening.kind != "run") return;
  const RunOutcome run =
      RunAndCollect(plan, size, timeout, directory->path(), make);
  const Verdict verdict = Judge(run);
  ReportVerdict(run, verdict, plan.file, plan.line);
  Tell(TestKey(tests_, "verdict"),
       absl::StrCat(verdict.kind == Verdict::Kind::kPassed    ? "pass"
                    : verdict.kind == Verdict::Kind::kSkipped ? "skip"
                                                              : "fail",
                    "\n", verdict.text));
  // All ranks of the test have come to it, and so are done with the one before.
  if (size == world_size() && lost_.empty()) {
    store_->DeletePrefix(absl::StrCat("test/", tests_ - 1)).IgnoreError();
  }
}

// Skips or fails the test, on rank 0, if it cannot run.
void ExternalRanks::Refuse(const TestPlan& plan, int size,
                           const std::function<void()>& check) {
  if (size > world_size()) {
    SHERD_SKIP(SkipReason::kSmallWorldSize)
        << "The test has " << size << " ranks, and " << place_.launcher
        << " started " << world_size();
  }
  check();
  if (const std::string lost = WhoIsLost(size); !lost.empty()) {
    ADD_FAILURE_AT(plan.file, plan.line) << lost;
  }
}

RunOutcome ExternalRanks::RunAndCollect(const TestPlan& plan, int size,
                                        absl::Duration timeout,
                                        const std::string& directory,
                                        const FixtureFactory& make) {
  const Deadline deadline = Deadline::After(timeout + kMargin);
  RankResults results(Deadline::Clock::now());
  test_ = {
      .rank = 0,
      .world_size = size,
      .store = std::make_shared<PrefixStore>(TestKey(tests_, "store"), store_),
      .temp_dir = directory,
      .timeout = timeout,
      .results = &results};
  TakePart(plan, results, make);
  RunOutcome run;
  run.timeout = timeout;
  run.ranks.push_back(results.outcome());
  for (int r = 1; r < size; ++r) {
    run.ranks.push_back(OutcomeOf(r, deadline));
    run.timed_out = run.timed_out || run.ranks.back().stopped;
  }
  for (int r = 0; r < size; ++r) {
    const absl::StatusOr<std::string> signal_number = store_->Get(
        RankKey(tests_, "dies", r), Deadline::After(absl::ZeroDuration()));
    int number;
    if (!signal_number.ok() || !absl::SimpleAtoi(*signal_number, &number)) {
      continue;
    }
    run.expected_deaths[r] = number;
    RankOutcome& rank = run.ranks[r];
    // How it died nobody saw.
    if (!std::exchange(rank.vanished, "").empty())
      rank.exit = ExitStatus(number);
  }
  return run;
}

RankOutcome ExternalRanks::OutcomeOf(int rank, Deadline deadline) {
  const absl::StatusOr<std::string> bytes =
      Await(RankKey(tests_, "result", rank), rank, deadline);
  RankOutcome outcome;
  if (bytes.ok()) {
    outcome = DecodeOutcome(*bytes);
  } else {
    outcome.vanished = absl::IsUnavailable(bytes.status())
                           ? "vanished: its process has ended"
                           : "sent no result in time";
  }
  if (!bytes.ok() || outcome.stopped) {
    lost_.emplace(rank, FullName(CurrentTest()));
  }
  return outcome;
}

void ExternalRanks::RunAsOther(const TestPlan& plan, int size,
                               absl::Duration timeout,
                               const FixtureFactory& make) {
  // Rank 0 may have been at a test of its own for any time.
  const absl::StatusOr<std::string> bytes =
      Await(TestKey(tests_, "opening"), 0, Deadline::After(kLongestSilence));
  if (!bytes.ok()) return LoseRankZero(bytes.status(), nullptr);
  const Opening opening = Opening::Decode(*bytes);
  if (opening.kind == "skip") GTEST_SKIP() << opening.text;
  if (opening.kind == "fail") FAIL() << opening.text;
  RankResults results(Deadline::Clock::now());
  if (rank() < size) {
    if (opening.name == FullName(CurrentTest())) {
      test_ = {.rank = rank(),
               .world_size = size,
               .store = std::make_shared<PrefixStore>(TestKey(tests_, "store"),
                                                      store_),
               .temp_dir = opening.text,
               .timeout = timeout,
               .results = &results};
      TakePart(plan, results, make);
    } else {
      const ScopedRankResults scope(results,
                                    ScopedRankResults::INTERCEPT_ALL_THREADS);
      ADD_FAILURE_AT(plan.file, plan.line)
          << "this rank is at " << FullName(CurrentTest()) << ", rank 0 at "
          << opening.name;
      results.End();
    }
    Tell(RankKey(tests_, "result", rank()), EncodeOutcome(results.outcome()));
  }
  const absl::StatusOr<std::string> verdict =
      Await(TestKey(tests_, "verdict"), 0,
            Deadline::After(timeout + kMargin + kEndTime));
  if (!verdict.ok()) return LoseRankZero(verdict.status(), &results);
  if (absl::StartsWith(*verdict, "skip\n")) GTEST_SKIP() << *verdict;
  if (!absl::StartsWith(*verdict, "pass\n")) FAIL() << *verdict;
}

void ExternalRanks::LoseRankZero(const absl::Status& why,
                                 const RankResults* results) {
  ADD_FAILURE() << why;
  if (std::exchange(lost_rank_zero_, true)) return;
  std::string text =
      absl::StrCat("[rank ", rank(), "] rank 0, which reports, is lost in ",
                   FullName(CurrentTest()), ": ", why.ToString(), "\n");
  if (results != nullptr) {
    for (const TimedFrame& timed : results->outcome().failures) {
      absl::StrAppend(&text, "[rank ", rank(), "] ", timed.frame.file, ":",
                      timed.frame.number, ": ", timed.frame.text, "\n");
    }
  }
  std::fputs(text.c_str(), stderr);
}

void ExternalRanks::ExpectDeath(int rank, int signal_number) {
  Tell(RankKey(tests_, "dies", rank), absl::StrCat(signal_number));
}

void ExternalRanks::EndIteration(const ::testing::UnitTest& tests) {
  const std::string prefix = absl::StrCat("iteration/", ++iterations_, "/");
  const Deadline deadline = Deadline::After(kEndTime);
  if (rank() != 0) {
    RankOutcome outcome;
    for (ResultFrame& frame : strays_) {
      outcome.failures.push_back({absl::ZeroDuration(), std::move(frame)});
    }
    strays_.clear();
    outcome.done = {.type = ResultFrame::Type::kDone, .number = 1};
    if (!lost_rank_zero_) {
      Tell(absl::StrCat(prefix, rank()), EncodeOutcome(outcome));
    }
    is_telling_ = true;
    const absl::StatusOr<std::string> verdict =
        lost_rank_zero_ ? absl::UnavailableError("rank 0 is lost")
                        : Await(absl::StrCat(prefix, "verdict"), 0,
                                Deadline::After(kLongestSilence));
    EXPECT_TRUE(verdict.ok() && *verdict == "pass");
    is_telling_ = false;
    return;
  }
  for (int r = 1; r < world_size(); ++r) {
    if (lost_.count(r) > 0) continue;
    const absl::StatusOr<std::string> bytes =
        Await(absl::StrCat(prefix, r), r, deadline);
    if (!bytes.ok()) {
      ADD_FAILURE() << "[rank " << r
                    << "] lost between the tests: " << bytes.status();
      lost_.emplace(r, "the time between the tests");
      continue;
    }
    for (const TimedFrame& timed : DecodeOutcome(*bytes).failures) {
      ADD_FAILURE_AT(timed.frame.file.c_str(), timed.frame.number)
          << "[rank " << r << "] " << timed.frame.text;
    }
  }
  Tell(absl::StrCat(prefix, "verdict"), tests.Passed() ? "pass" : "fail");
}

void ExternalRanks::EndProgram() {
  std::fflush(nullptr);
  if (rank() == 0) {
    Tell("end", "");
  } else if (!lost_rank_zero_) {
    // Not before rank 0 has written everything: launchers end all ranks as soon
    // as one fails.
    Await("end", 0, Deadline::After(kEndTime)).status().IgnoreError();
  }
  life_->Leave();
}

std::string ExternalRanks::WhoIsLost(int size) const {
  for (const auto& [lost, test] : lost_) {
    if (lost < size) {
      return absl::StrCat("rank ", lost, " was lost in ", test,
                          ", and this test needs it");
    }
  }
  return "";
}

namespace {
// Before main().
[[maybe_unused]] const ExternalRanks* const installed = ExternalRanks::Get();
}  // namespace

}  // namespace sherd::testing::internal
