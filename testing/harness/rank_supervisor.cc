#include "sherd/testing/harness/rank_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/marked_processes.h"
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
// Read from one pipe before the others have their turn.
constexpr size_t kMaxDrain = size_t{256} << 10;
// So many times, once the rank has ended: a pipe holds 1 MiB at most, and
// somebody else may write into it for ever.
constexpr int kLastDrains = 5;
// How often one looks for files that have no descriptor to wait for.
constexpr absl::Duration kFilePeriod = absl::Milliseconds(10);
constexpr absl::Duration kDumpTime = absl::Seconds(3);
constexpr absl::Duration kTerminateTime = absl::Seconds(1);
// For a launcher to end once all ranks have.
constexpr absl::Duration kLauncherTime = absl::Seconds(10);

// The process of a rank, whoever started it.
class RankProcess {
 public:
  virtual ~RankProcess() = default;
  // -1 if it is not known yet.
  virtual pid_t pid() const = 0;
  // Readable once it may have ended; -1 if there is no such descriptor.
  virtual int exit_fd() const = 0;
  virtual const std::optional<ExitStatus>& Poll() = 0;
  virtual void Signal(int signal) = 0;
  // Also what it started itself.
  virtual void SignalAll(int signal) = 0;
  virtual bool ended_by_launcher() const { return false; }
};

class SpawnedProcess final : public RankProcess {
 public:
  explicit SpawnedProcess(Subprocess process) : process_(std::move(process)) {}

  pid_t pid() const override { return process_.pid(); }
  int exit_fd() const override { return process_.exit_fd(); }
  const std::optional<ExitStatus>& Poll() override { return process_.Poll(); }
  void Signal(int signal) override { process_.Signal(signal); }
  void SignalAll(int signal) override { process_.SignalGroup(signal); }

 private:
  Subprocess process_;
};

class LaunchedProcess final : public RankProcess {
 public:
  LaunchedProcess(std::unique_ptr<LaunchedRank> rank, Launcher& launcher)
      : rank_(std::move(rank)), launcher_(launcher) {}

  pid_t pid() const override { return rank_->process(); }
  int exit_fd() const override { return rank_->control_fd(); }
  const std::optional<ExitStatus>& Poll() override {
    if (launcher_.Poll()) rank_->LauncherEnded();
    return rank_->Poll();
  }
  void Signal(int signal) override { rank_->Signal(signal); }
  void SignalAll(int signal) override { rank_->Signal(signal); }
  bool ended_by_launcher() const override { return rank_->ended_by_launcher(); }

 private:
  const std::unique_ptr<LaunchedRank> rank_;
  Launcher& launcher_;
};

// Ends of a connection: what is written to one, even to one whose other end is
// gone, is read from the other.
absl::StatusOr<Pipe> MakeCommandPipe() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus(errno, "making", "a pair of sockets");
  }
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// One rank while it runs.
class RunningRank {
 public:
  static absl::StatusOr<std::unique_ptr<RunningRank>> Spawn(
      const SupervisorOptions& options, int rank) {
    SHERD_ASSIGN_OR_RETURN(Pipe results, MakePipe());
    SHERD_ASSIGN_OR_RETURN(Pipe output, MakePipe());
    Pipe commands;
    RankFds fds = {.results = results.write.get()};
    std::vector<int> inherited = {fds.results};
    if (options.persistent) {
      SHERD_ASSIGN_OR_RETURN(commands, MakeCommandPipe());
      fds.commands = commands.read.get();
      inherited.push_back(fds.commands);
    }
    SHERD_ASSIGN_OR_RETURN(
        Subprocess process,
        Subprocess::Start({.program = options.program,
                           .arguments = options.arguments,
                           .environment = options.environment(rank, fds),
                           .output_fd = output.write.get(),
                           .inherited_fds = std::move(inherited)}));
    for (const UniqueFd* fd : {&results.read, &output.read}) {
      if (fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0) {
        return ErrnoStatus(errno, "setting up", "a pipe");
      }
    }
    auto running = std::make_unique<RunningRank>(
        std::make_unique<SpawnedProcess>(std::move(process)),
        std::move(results.read), std::move(output.read));
    running->commands_ = std::move(commands.write);
    return running;
  }

  RunningRank(std::unique_ptr<RankProcess> process, UniqueFd results,
              UniqueFd output)
      : process_(std::move(process)),
        results_(std::move(results)),
        output_fd_(std::move(output)) {}

  // Whatever comes from now on belongs to the next run, whose output is also
  // written to `file`.
  void BeginRun(std::string file) {
    output_ = RankOutput(std::move(file));
    waits_ = false;
  }

  // Whoever does not read it any more is found to have ended.
  void Command(const std::string& test) {
    const std::string line = test + "\n";
    while (send(commands_.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0 &&
           errno == EINTR) {
    }
  }
  void NoMoreCommands() { commands_.Reset(); }

  // It has come to the end of the run's test.
  bool waits() const { return waits_; }
  // And may run another one.
  bool is_fit() const { return waits_ && is_fit_; }
  RankProcess& process() { return *process_; }
  bool has_dumped() const {
    return output_.EndHas(kStackDumpEnd) || !output_fd_.is_open();
  }
  bool results_closed() const { return !results_.is_open(); }
  // Once it has ended: somebody else has.
  bool holds_pipes() const {
    return results_.is_open() || output_fd_.is_open();
  }

  void AddTo(std::vector<pollfd>& fds) const {
    for (int fd : {results_.get(), output_fd_.get(), process_->exit_fd()}) {
      // Negative ones are ignored by poll().
      fds.push_back({fd, POLLIN, 0});
    }
  }

  // Takes what has arrived. True if there may be more.
  bool Drain(absl::Duration now, RunOutcome& run, RankOutcome& rank) {
    const bool more_results = DrainFd(results_, [&](absl::string_view bytes) {
      absl::Status status = decoder_.Feed(bytes, [&](ResultFrame frame) {
        Take(now, std::move(frame), run, rank);
      });
      if (rank.pipe.ok()) rank.pipe = std::move(status);
    });
    // Behind the results: what the rank printed before it told of its test's
    // end belongs to the test.
    const bool more_output = DrainFd(
        output_fd_, [this](absl::string_view bytes) { output_.Append(bytes); });
    return more_output || more_results;
  }

  std::string output() const { return output_.ToString(); }

 private:
  static bool DrainFd(UniqueFd& fd,
                      absl::FunctionRef<void(absl::string_view)> take) {
    char buffer[64 << 10];
    for (size_t total = 0; fd.is_open();) {
      if (total >= kMaxDrain) return true;
      const ssize_t size = read(fd.get(), buffer, sizeof(buffer));
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) break;
      if (size == 0) fd.Reset();
      take(absl::string_view(buffer, size));
      total += size;
    }
    return false;
  }

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
        // Without having come to the test that it was asked for.
        if (commands_.is_open() && frame.second == 0) return;
        rank.done = std::move(frame);
        return;
    }
  }

  const std::unique_ptr<RankProcess> process_;
  UniqueFd results_;
  UniqueFd output_fd_;
  UniqueFd commands_;
  FrameDecoder decoder_;
  RankOutput output_{""};
  bool waits_ = false;
  bool is_fit_ = false;
};

}  // namespace

class RankSupervisor::Impl {
 public:
  explicit Impl(SupervisorOptions options) : options_(std::move(options)) {}

  absl::Status StartAll() {
    if (options_.launcher) return LaunchAll();
    for (int r = 0; r < options_.world_size; ++r) {
      absl::StatusOr<std::unique_ptr<RunningRank>> rank =
          RunningRank::Spawn(options_, r);
      if (!rank.ok()) {
        return absl::Status(
            rank.status().code(),
            absl::StrCat("rank ", r, " of ", options_.world_size, ": ",
                         rank.status().message()));
      }
      ranks_.push_back(*std::move(rank));
    }
    return absl::OkStatus();
  }

  RunOutcome RunTest(const std::string& name, const RunLimits& limits) {
    BeginRun(limits);
    for (const auto& rank : ranks_) rank->Command(name);
    return Run();
  }

  bool AllCameToTheEnd() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->is_fit(); });
  }

  bool DoAllRun() {
    return std::none_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
      return rank->process().Poll().has_value();
    });
  }

  RunOutcome RunToEnd(const RunLimits& limits) {
    BeginRun(limits);
    for (const auto& rank : ranks_) rank->NoMoreCommands();
    is_last_run_ = true;
    RunOutcome run = Run();
    if (launcher_ != nullptr) FinishLauncher(run);
    return run;
  }

 private:
  // kGrace: somebody ended abnormally, the others may report. Then those that
  // still run dump their stacks, are terminated, are killed.
  enum class Stage { kRunning, kGrace, kDump, kTerminate, kKill };

  void BeginRun(const RunLimits& limits) {
    limits_ = limits;
    run_ = RunOutcome();
    run_.timeout = limits.timeout;
    run_.ranks.resize(options_.world_size);
    start_ = Deadline::Clock::now();
    FileSystem& system = FileSystem::Posix();
    for (const std::string* files :
         {&options_.files.outputs, &options_.files.flights}) {
      // What cannot be collected is missing in a report: no more than that.
      if (!files->empty()) system.RemoveAll(*files).IgnoreError();
    }
    const std::string& outputs = options_.files.outputs;
    if (!outputs.empty()) system.CreateDirectories(outputs).IgnoreError();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r]->BeginRun(
          outputs.empty()
              ? ""
              : JoinPath(outputs, absl::StrCat("rank-", r, ".log")));
    }
    flights_ = FlightRequests(options_.files.flights);
    asked_.clear();
    was_ended_ = false;
  }

  RunOutcome Run() {
    Enter(Stage::kRunning, limits_.timeout);
    // Those that ended before the run, or have nothing to wait for.
    for (int r = 0; r < options_.world_size; ++r) Look(r);
    while (CountRunning() > 0) {
      AwaitEvents();
      for (int r = 0; r < options_.world_size; ++r) Look(r);
      Decide();
    }
    bool has_leftovers = false;
    for (int r = 0; r < options_.world_size; ++r) {
      run_.ranks[r].output = ranks_[r]->output();
      has_leftovers = has_leftovers || ranks_[r]->holds_pipes();
    }
    if (is_last_run_ && has_leftovers && !options_.mark.empty()) {
      KillMarkedProcesses(options_.mark);
    }
    if (was_ended_) run_.flight = SummarizeFlights(options_.files.flights);
    return std::move(run_);
  }

  absl::Status LaunchAll() {
    std::vector<std::unique_ptr<LaunchedRank>> launched;
    for (int r = 0; r < options_.world_size; ++r) {
      SHERD_ASSIGN_OR_RETURN(
          std::unique_ptr<LaunchedRank> rank,
          LaunchedRank::Prepare(options_.launcher->directory, r));
      launched.push_back(std::move(rank));
    }
    SHERD_ASSIGN_OR_RETURN(
        launcher_,
        Launcher::Start(*options_.launcher, options_.world_size,
                        options_.program, options_.arguments,
                        options_.environment(/*rank=*/-1, RankFds())));
    for (std::unique_ptr<LaunchedRank>& rank : launched) {
      launched_.push_back(rank.get());
      UniqueFd results = rank->TakeResults();
      UniqueFd output = rank->TakeOutput();
      ranks_.push_back(std::make_unique<RunningRank>(
          std::make_unique<LaunchedProcess>(std::move(rank), *launcher_),
          std::move(results), std::move(output)));
    }
    return absl::OkStatus();
  }

  void FinishLauncher(RunOutcome& run) {
    const bool all_started = std::all_of(
        launched_.begin(), launched_.end(),
        [](const LaunchedRank* rank) { return rank->has_started(); });
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

  void Enter(Stage stage, absl::Duration at_most) {
    stage_ = stage;
    stage_end_ = Deadline::After(at_most);
  }

  int CountRunning() const {
    return static_cast<int>(
        std::count_if(run_.ranks.begin(), run_.ranks.end(),
                      [](const RankOutcome& rank) { return !rank.exit; }));
  }

  void AwaitEvents() {
    std::vector<pollfd> fds;
    bool has_exit_fds = true;
    for (int r = 0; r < options_.world_size; ++r) {
      if (run_.ranks[r].exit) continue;
      ranks_[r]->AddTo(fds);
      has_exit_fds = has_exit_fds && ranks_[r]->process().exit_fd() >= 0;
    }
    if (launcher_ != nullptr) {
      launcher_->DrainOutput();
      fds.push_back({launcher_->output_fd(), POLLIN, 0});
      fds.push_back({launcher_->exit_fd(), POLLIN, 0});
    }
    const absl::Duration longest = stage_ == Stage::kDump ? kFilePeriod
                                   : has_exit_fds         ? absl::Seconds(1)
                                                  : absl::Milliseconds(5);
    const absl::Duration wait = std::min(longest, stage_end_.Remaining());
    poll(fds.data(), fds.size(),
         static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
  }

  void Look(int r) {
    RankOutcome& rank = run_.ranks[r];
    if (rank.exit) return;
    // Asked first, so that what the rank wrote before its end is read.
    std::optional<ExitStatus> exit = ranks_[r]->process().Poll();
    for (int drains = 0; ranks_[r]->Drain(Now(), run_, rank);) {
      if (!exit && !EndsRun(r)) break;
      if (++drains >= kLastDrains) break;
    }
    if (!exit && EndsRun(r)) {
      exit = ExitStatus::OfCode(rank.done->second != 0 ? kRankFailed
                                : rank.skip            ? rank.skip->number
                                                       : kRankPassed);
    }
    if (!exit) return;
    flights_.Forget(r);
    rank.exit = exit;
    rank.ended = Now();
    rank.stopped = stage_ >= Stage::kTerminate;
    rank.ended_by_launcher =
        !rank.stopped && ranks_[r]->process().ended_by_launcher();
  }

  // With the end of the test the rank's part of this run is over.
  bool EndsRun(int r) const { return !is_last_run_ && ranks_[r]->waits(); }

  bool SomebodyEndedAbnormally() {
    for (int r = 0; r < options_.world_size; ++r) {
      if (EndedAbnormally(run_, r)) return true;
      const RankOutcome& rank = run_.ranks[r];
      if (!rank.exit &&
          (!rank.pipe.ok() || (ranks_[r]->results_closed() && !rank.done))) {
        return true;
      }
    }
    return false;
  }

  void Decide() {
    switch (stage_) {
      case Stage::kRunning:
        if (SomebodyEndedAbnormally()) {
          Enter(Stage::kGrace, limits_.grace);
        } else if (stage_end_.HasPassed()) {
          run_.timed_out = CountRunning() > 0;
          AskForStacks();
        }
        return;
      case Stage::kGrace:
        // The rank's death may have been announced by another rank meanwhile.
        if (!SomebodyEndedAbnormally()) {
          Enter(Stage::kRunning, limits_.timeout - Now());
        } else if (stage_end_.HasPassed()) {
          BlameClosedPipes();
          AskForStacks();
        }
        return;
      case Stage::kDump:
        if ((AllHaveDumped() && flights_.AllAnswered()) ||
            stage_end_.HasPassed()) {
          SignalAll(SIGTERM);
          Enter(Stage::kTerminate, kTerminateTime);
        }
        return;
      case Stage::kTerminate:
        if (stage_end_.HasPassed()) {
          SignalAll(SIGKILL);
          Enter(Stage::kKill, absl::Seconds(1));
        }
        return;
      case Stage::kKill:
        // A process in an uninterruptible call takes as long as it takes.
        if (stage_end_.HasPassed()) Enter(Stage::kKill, absl::Seconds(1));
        return;
    }
  }

  void BlameClosedPipes() {
    for (int r = 0; r < options_.world_size; ++r) {
      RankOutcome& rank = run_.ranks[r];
      if (!rank.exit && ranks_[r]->results_closed() && !rank.done) {
        rank.pipe = absl::DataLossError("closed before the end");
      }
    }
  }

  void AskForStacks() {
    was_ended_ = true;
    for (int r = 0; r < options_.world_size; ++r) {
      RankOutcome& rank = run_.ranks[r];
      if (rank.exit) continue;
      RankProcess& process = ranks_[r]->process();
      const std::optional<ProcessStatus> status =
          ReadProcessStatus(process.pid());
      if (!status) continue;
      const bool is_stopped = status->state == ProcessState::kStopped;
      if (is_stopped) rank.suspended_in = rank.phase;
      // Without a handler, at its very start, the rank would die of it.
      if (status->Catches(StackDumpSignal())) {
        process.Signal(StackDumpSignal());
        asked_.insert(r);
      }
      flights_.Ask(r, process.pid());
      if (is_stopped) process.Signal(SIGCONT);
    }
    Enter(Stage::kDump, kDumpTime);
  }

  bool AllHaveDumped() const {
    return std::all_of(asked_.begin(), asked_.end(), [this](int r) {
      return run_.ranks[r].exit || ranks_[r]->has_dumped();
    });
  }

  void SignalAll(int signal) {
    for (int r = 0; r < options_.world_size; ++r) {
      if (!run_.ranks[r].exit) ranks_[r]->process().SignalAll(signal);
    }
  }

  const SupervisorOptions options_;
  RunLimits limits_;
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
  bool is_last_run_ = false;
  Stage stage_ = Stage::kRunning;
  Deadline stage_end_ = Deadline::Infinite();
  std::unique_ptr<Launcher> launcher_;
  std::vector<LaunchedRank*> launched_;
  std::vector<std::unique_ptr<RunningRank>> ranks_;
  RunOutcome run_;
  // The run did not end by itself, and so ranks were asked for their stacks and
  // what their flight recorders hold.
  bool was_ended_ = false;
  std::set<int> asked_;
  FlightRequests flights_{""};
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

bool RankSupervisor::AllCameToTheEnd() const {
  return impl_->AllCameToTheEnd();
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
