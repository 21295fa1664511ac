#include "sherd/testing/harness/rank_supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/marked_processes.h"
#include "sherd/core/process/process_set.h"
#include "sherd/core/process/process_status.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/harness/exit_codes.h"
#include "sherd/testing/harness/flight_report.h"
#include "sherd/testing/harness/launched_ranks.h"
#include "sherd/testing/harness/rank_output.h"
#include "sherd/testing/harness/stack_dump.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kMaxFailures = 200;
constexpr absl::Duration kDumpTime = absl::Seconds(3);
constexpr absl::Duration kTerminateTime = absl::Seconds(1);
// For a launcher to end once all ranks have.
constexpr absl::Duration kLauncherTime = absl::Seconds(10);
// The longest interval of checks for the end of a launcher.
constexpr absl::Duration kLauncherPeriod = absl::Seconds(1);

class LaunchedProcess final : public ProcessSet::Process {
 public:
  LaunchedProcess(LaunchedRank& rank, Launcher& launcher)
      : rank_(rank), launcher_(launcher) {}

  pid_t pid() const override { return rank_.process(); }
  int exit_fd() const override { return rank_.control_fd(); }
  const std::optional<ExitStatus>& Poll() override {
    if (launcher_.Poll()) rank_.LauncherEnded();
    return rank_.Poll();
  }
  void Signal(int signal) override { rank_.Signal(signal); }
  void SignalGroup(int signal) override { rank_.Signal(signal); }

 private:
  LaunchedRank& rank_;
  Launcher& launcher_;
};

// Ends of a connection: data written to one end is read from the other, even
// after the writer has closed it.
absl::StatusOr<Pipe> MakeCommandPipe() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus(errno, "making", "a pair of sockets");
  }
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// One rank's reports and output, and the commands to it.
class RunningRank {
 public:
  // Through the end of a pipe to write to, if the rank is persistent.
  void SetCommands(UniqueFd commands) { commands_ = std::move(commands); }

  // Reports from now on belong to the next run, whose output is also
  // written to `file`.
  void BeginRun(std::string file) {
    output_ = RankOutput(std::move(file));
    waits_ = false;
  }

  // If a rank no longer reads it, its end is detected elsewhere.
  void Command(const std::string& test) {
    const std::string line = test + "\n";
    while (send(commands_.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0 &&
           errno == EINTR) {
    }
  }
  void NoMoreCommands() { commands_.Reset(); }

  // It has reached the end of the run's test.
  bool waits() const { return waits_; }
  // And may run another one.
  bool is_fit() const { return waits_ && is_fit_; }
  bool has_dumped() const {
    return output_.EndHas(kStackDumpEnd) || output_closed_;
  }
  bool results_closed() const { return results_closed_; }
  std::string output() const { return output_.ToString(); }

  // For the readers of its pipes.

  void TakeResults(absl::string_view bytes, absl::Duration now, RunOutcome& run,
                   RankOutcome& rank) {
    results_closed_ = results_closed_ || bytes.empty();
    absl::Status status = decoder_.Feed(bytes, [&](ResultFrame frame) {
      Take(now, std::move(frame), run, rank);
    });
    if (rank.pipe.ok()) rank.pipe = std::move(status);
  }

  void TakeOutput(absl::string_view bytes) {
    output_closed_ = output_closed_ || bytes.empty();
    output_.Append(bytes);
  }

 private:
  void Take(absl::Duration now, ResultFrame frame, RunOutcome& run,
            RankOutcome& rank) {
    switch (frame.type) {
      case ResultFrame::Type::kHello:
        return;
      case ResultFrame::Type::kFailure:
        if (rank.failures.size() >= kMaxFailures) {
          ++rank.failures_dropped;
        } else {
          rank.failures.push_back({now, std::move(frame)});
        }
        return;
      case ResultFrame::Type::kSkip:
        rank.skip = std::move(frame);
        return;
      case ResultFrame::Type::kPhase:
        rank.phase = std::move(frame.text);
        return;
      case ResultFrame::Type::kExpectDeath:
        if (frame.number >= 0 &&
            frame.number < static_cast<int>(run.ranks.size())) {
          run.expected_deaths[frame.number] = frame.second;
        }
        return;
      case ResultFrame::Type::kTestEnd:
        waits_ = true;
        is_fit_ = frame.number != 0;
        rank.done = ResultFrame{.type = ResultFrame::Type::kDone,
                                .number = 1,
                                .second = frame.second};
        return;
      case ResultFrame::Type::kDone:
        // It did not reach the test that it was asked to run.
        if (commands_.is_open() && frame.second == 0) return;
        rank.done = std::move(frame);
        return;
    }
  }

  UniqueFd commands_;
  FrameDecoder decoder_;
  RankOutput output_{""};
  bool results_closed_ = false;
  bool output_closed_ = false;
  bool waits_ = false;
  bool is_fit_ = false;
};

}  // namespace

class RankSupervisor::Impl {
 public:
  explicit Impl(SupervisorOptions options)
      : options_(std::move(options)), ranks_(options_.world_size) {
    run_.ranks.resize(options_.world_size);
  }

  absl::Status StartAll() {
    if (options_.launcher) return LaunchAll();
    for (int r = 0; r < options_.world_size; ++r) {
      const absl::Status status = StartRank(r);
      if (status.ok()) continue;
      return absl::Status(status.code(),
                          absl::StrCat("rank ", r, " of ", options_.world_size,
                                       ": ", status.message()));
    }
    return absl::OkStatus();
  }

  RunOutcome RunTest(const std::string& name, const RunLimits& limits) {
    BeginRun(limits);
    for (RunningRank& rank : ranks_) rank.Command(name);
    return Run();
  }

  bool AllRanksFinished() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const RunningRank& rank) { return rank.is_fit(); });
  }

  bool DoAllRun() {
    processes_.CollectEnds();
    return processes_.ended().empty();
  }

  RunOutcome RunToEnd(const RunLimits& limits) {
    BeginRun(limits);
    for (RunningRank& rank : ranks_) rank.NoMoreCommands();
    is_last_run_ = true;
    RunOutcome run = Run();
    if (launcher_ != nullptr) FinishLauncher(run);
    return run;
  }

 private:
  using Stage = ProcessSet::Stage;

  ProcessSet::Reader ResultsOf(int r) {
    return {.take = [this, r](absl::string_view bytes) {
      ranks_[r].TakeResults(bytes, Now(), run_, run_.ranks[r]);
    }};
  }
  ProcessSet::Reader OutputOf(int r) {
    return {.take = [this, r](absl::string_view bytes) {
      ranks_[r].TakeOutput(bytes);
    }};
  }

  absl::Status StartRank(int r) {
    SHERD_ASSIGN_OR_RETURN(Pipe results, MakePipe());
    Pipe commands;
    RankFds fds = {.results = results.write.get()};
    std::vector<int> inherited = {fds.results};
    if (options_.persistent) {
      SHERD_ASSIGN_OR_RETURN(commands, MakeCommandPipe());
      fds.commands = commands.read.get();
      inherited.push_back(fds.commands);
    }
    ranks_[r].SetCommands(std::move(commands.write));
    ProcessSet::Launch launch = {
        .process = {.program = options_.program,
                    .arguments = options_.arguments,
                    .environment = options_.environment(r, fds),
                    .inherited_fds = std::move(inherited)},
        .output = OutputOf(r)};
    // Read before the output: output that precedes the report of the test's end
    // belongs to the test.
    launch.streams.push_back({std::move(results.read), ResultsOf(r)});
    return processes_.Start(std::move(launch));
  }

  void BeginRun(const RunLimits& limits) {
    run_ = RunOutcome();
    run_.timeout = limits.timeout;
    run_.ranks.resize(options_.world_size);
    start_ = Deadline::Clock::now();
    FileSystem& system = FileSystem::Posix();
    for (const std::string* files :
         {&options_.files.outputs, &options_.files.flights}) {
      // Files that cannot be collected are missing in the report, and nothing
      // else.
      if (!files->empty()) system.RemoveAll(*files).IgnoreError();
    }
    const std::string& outputs = options_.files.outputs;
    if (!outputs.empty()) system.CreateDirectories(outputs).IgnoreError();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].BeginRun(
          outputs.empty()
              ? ""
              : JoinPath(outputs, absl::StrCat("rank-", r, ".log")));
    }
    flights_ = FlightRequests(options_.files.flights);
    asked_.clear();
    was_ended_ = false;
    processes_.BeginRun(
        {.deadline = Deadline::After(limits.timeout),
         .grace = limits.grace,
         .dump = kDumpTime,
         .terminate = kTerminateTime,
         .ask_for_dumps = [this] { AskForStacks(); },
         .have_dumped =
             [this] { return AllHaveDumped() && flights_.AllAnswered(); }});
  }

  RunOutcome Run() {
    // Processes that ended before the run.
    processes_.CollectEnds();
    for (int r = 0; r < options_.world_size; ++r) Look(r);
    while (processes_.AnyRuns()) {
      Await();
      for (int r = 0; r < options_.world_size; ++r) Look(r);
      Decide();
    }
    for (int r = 0; r < options_.world_size; ++r) {
      run_.ranks[r].output = ranks_[r].output();
    }
    // All ranks have ended, but another process has their pipes open.
    const bool has_leftovers = processes_.HasOpenStreams();
    if (is_last_run_ && has_leftovers && !options_.mark.empty()) {
      KillMarkedProcesses(options_.mark);
    }
    if (was_ended_) run_.flight = SummarizeFlights(options_.files.flights);
    return std::move(run_);
  }

  absl::Status LaunchAll() {
    for (int r = 0; r < options_.world_size; ++r) {
      SHERD_ASSIGN_OR_RETURN(
          std::unique_ptr<LaunchedRank> rank,
          LaunchedRank::Prepare(options_.launcher->directory, r));
      launched_.push_back(std::move(rank));
    }
    SHERD_ASSIGN_OR_RETURN(
        launcher_,
        Launcher::Start(*options_.launcher, options_.world_size,
                        options_.program, options_.arguments,
                        options_.environment(/*rank=*/-1, RankFds())));
    for (int r = 0; r < options_.world_size; ++r) {
      LaunchedRank& rank = *launched_[r];
      std::vector<ProcessSet::Stream> streams;
      streams.push_back({rank.TakeResults(), ResultsOf(r)});
      streams.push_back({rank.TakeOutput(), OutputOf(r)});
      SHERD_RETURN_IF_ERROR(
          processes_.Add(std::make_unique<LaunchedProcess>(rank, *launcher_),
                         std::move(streams)));
    }
    return absl::OkStatus();
  }

  void FinishLauncher(RunOutcome& run) {
    const bool all_started =
        std::all_of(launched_.begin(), launched_.end(),
                    [](const auto& rank) { return rank->has_started(); });
    launcher_->Finish(kLauncherTime);
    run.launcher_output = launcher_->output();
    if (all_started) return;
    const std::optional<ExitStatus>& exit = launcher_->Poll();
    run.start = absl::InternalError(
        absl::StrCat(options_.launcher->program, " ",
                     exit ? exit->ToString() : std::string("does not end"),
                     "\n", run.launcher_output));
  }

  absl::Duration Now() const {
    return absl::FromChrono(Deadline::Clock::now() - start_);
  }

  void Await() {
    if (launcher_ == nullptr) {
      processes_.Await();
      return;
    }
    launcher_->DrainOutput();
    pollfd others[] = {{launcher_->output_fd(), POLLIN, 0},
                       {launcher_->exit_fd(), POLLIN, 0}};
    processes_.Await(absl::MakeSpan(others), kLauncherPeriod);
    // When the launcher has ended, all ranks have.
    processes_.CollectEnds();
  }

  void Look(int r) {
    RankOutcome& rank = run_.ranks[r];
    if (rank.exit) return;
    std::optional<ExitStatus> exit = processes_.status(r);
    if (!exit && !EndsRun(r)) return;
    processes_.ReadRest(r);
    if (!exit) {
      exit = ExitStatus::OfCode(rank.done->second != 0 ? kRankFailed
                                : rank.skip            ? rank.skip->number
                                                       : kRankPassed);
    }
    processes_.Release(r);
    flights_.Forget(r);
    rank.exit = exit;
    rank.ended = Now();
    rank.stopped = processes_.stage() >= Stage::kTerminate;
    rank.ended_by_launcher = !rank.stopped && launcher_ != nullptr &&
                             launched_[r]->ended_by_launcher();
  }

  // The end of the test ends the rank's part of this run.
  bool EndsRun(int r) const { return !is_last_run_ && ranks_[r].waits(); }

  bool ARankEndedAbnormally() {
    for (int r = 0; r < options_.world_size; ++r) {
      if (EndedAbnormally(run_, r)) return true;
      const RankOutcome& rank = run_.ranks[r];
      if (!rank.exit &&
          (!rank.pipe.ok() || (ranks_[r].results_closed() && !rank.done))) {
        return true;
      }
    }
    return false;
  }

  void Decide() {
    if (processes_.stage() == Stage::kRunning) {
      if (ARankEndedAbnormally()) {
        return processes_.Enter(Stage::kGrace);
      }
      run_.timed_out = processes_.StageIsOver() && processes_.AnyRuns();
    } else if (processes_.stage() == Stage::kGrace) {
      // Another rank may have reported this rank's death meanwhile.
      if (!ARankEndedAbnormally()) {
        return processes_.Enter(Stage::kRunning);
      }
      if (processes_.StageIsOver()) RecordClosedPipes();
    }
    processes_.Advance();
  }

  void RecordClosedPipes() {
    for (int r = 0; r < options_.world_size; ++r) {
      RankOutcome& rank = run_.ranks[r];
      if (!rank.exit && ranks_[r].results_closed() && !rank.done) {
        rank.pipe = absl::DataLossError("closed before the end");
      }
    }
  }

  void AskForStacks() {
    was_ended_ = true;
    for (int r = 0; r < options_.world_size; ++r) {
      RankOutcome& rank = run_.ranks[r];
      if (rank.exit) continue;
      ProcessSet::Process& process = processes_.process(r);
      const std::optional<ProcessStatus> status =
          ReadProcessStatus(process.pid());
      if (!status) continue;
      const bool is_stopped = status->state == ProcessState::kStopped;
      if (is_stopped) rank.suspended_in = rank.phase;
      // Without a handler, at its very start, the signal would end the rank.
      if (status->Catches(StackDumpSignal())) {
        process.Signal(StackDumpSignal());
        asked_.insert(r);
      }
      flights_.Ask(r, process.pid());
      if (is_stopped) process.Signal(SIGCONT);
    }
  }

  bool AllHaveDumped() const {
    return std::all_of(asked_.begin(), asked_.end(), [this](int r) {
      return run_.ranks[r].exit || ranks_[r].has_dumped();
    });
  }

  const SupervisorOptions options_;
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
  bool is_last_run_ = false;
  std::unique_ptr<Launcher> launcher_;
  std::vector<std::unique_ptr<LaunchedRank>> launched_;
  std::vector<RunningRank> ranks_;
  RunOutcome run_;
  // The run did not end by itself, so the ranks were asked for their stacks and
  // the contents of their flight recorders.
  bool was_ended_ = false;
  std::set<int> asked_;
  FlightRequests flights_{""};
  // After all that its readers use.
  ProcessSet processes_;
};

absl::StatusOr<std::unique_ptr<RankSupervisor>> RankSupervisor::Start(
    SupervisorOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  SHERD_RETURN_IF_ERROR(impl->StartAll());
  return std::unique_ptr<RankSupervisor>(new RankSupervisor(std::move(impl)));
}

RankSupervisor::RankSupervisor(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

RankSupervisor::~RankSupervisor() = default;

RunOutcome RankSupervisor::RunTest(const std::string& name,
                                   const RunLimits& limits) {
  return impl_->RunTest(name, limits);
}

bool RankSupervisor::AllRanksFinished() const {
  return impl_->AllRanksFinished();
}

bool RankSupervisor::DoAllRun() { return impl_->DoAllRun(); }

RunOutcome RankSupervisor::RunToEnd(const RunLimits& limits) {
  return impl_->RunToEnd(limits);
}

RunOutcome SuperviseRanks(SupervisorOptions options, const RunLimits& limits) {
  auto supervisor = RankSupervisor::Start(std::move(options));
  if (!supervisor.ok()) {
    RunOutcome run;
    run.start = supervisor.status();
    return run;
  }
  return (*supervisor)->RunToEnd(limits);
}

}  // namespace sherd::testing::internal
