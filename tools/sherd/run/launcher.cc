#include "sherd/tools/sherd/run/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/guardian.h"
#include "sherd/core/process/marked_processes.h"
#include "sherd/core/process/process_set.h"
#include "sherd/core/process/process_status.h"
#include "sherd/core/process/signal_receiver.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/tools/sherd/run/line_prefixer.h"
#include "sherd/tools/sherd/run/output_queue.h"
#include "sherd/tools/sherd/run/run_directories.h"
#include "sherd/tools/sherd/run/run_outcome.h"

namespace sherd {
namespace {

// How long ranks that got SIGUSR1 have to write a dump.
constexpr absl::Duration kDumpTime = absl::Seconds(2);
// How long output of an escaped process is still accepted.
constexpr absl::Duration kDrainTime = absl::Seconds(1);

absl::StatusOr<std::unique_ptr<SignalReceiver>> ReceiveSignals() {
  // A shell without job control starts background programs with SIGINT
  // ignored; a launcher has to pass it on all the same. SIGHUP stays ignored
  // under nohup.
  for (int s : {SIGINT, SIGTERM, SIGCHLD}) signal(s, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  return SignalReceiver::Create(
      {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD});
}

// The destinations of one output stream of a rank.
struct Copy {
  LinePrefixer prefixer;
  OutputQueue& output;
  // Of the log directory.
  UniqueFd log;
};

template <typename T>
std::string Entry(Knob knob, const T& value) {
  return absl::StrCat(GetKnobInfo(knob).variable, "=", value);
}

// One start of all ranks.
struct Start {
  int ranks = 1;
  // The entry of the ranks' environment that names their rendezvous.
  std::string mark;
  // Empty: none.
  std::string log_directory;
  std::string flight_directory;
  Deadline deadline = Deadline::Infinite();
};

class Run {
 public:
  Run(const LaunchOptions& options, SignalReceiver& signals, Guardian& guardian,
      Start start)
      : options_(options),
        signals_(signals),
        start_(std::move(start)),
        started_(absl::Now()),
        ranks_({.guardian = &guardian, .caller_receives_sigchld = true}) {}

  absl::Status StartRanks();
  RunEnd Wait();
  // The end was requested.
  bool WasStopped() const { return ending_signals_ > 0; }

 private:
  using Stage = ProcessSet::Stage;

  absl::Status StartRank(int rank);
  ProcessSet::Reader CopyTo(OutputQueue& output, int rank);
  absl::Status OpenLogs(int rank);
  void Await(absl::Duration at_most = absl::InfiniteDuration());
  bool OutputPending() const;
  bool OutputBroken() const {
    return outputs_[0].is_broken() || outputs_[1].is_broken();
  }
  void CheckOutputs();
  void CheckTimers();
  void HandleSignals();
  void HandleSignal(int signal);
  void StopAndContinue();
  void NoteFailures(absl::Span<const int> ended);
  bool OnlyFailedRanksRun() const;
  void AskForDumps();
  void DrainOutput(Deadline written_by);
  RunEnd Result() const;

  const LaunchOptions& options_;
  SignalReceiver& signals_;
  const Start start_;
  const absl::Time started_;
  // Ranks that got SIGUSR1, and when.
  std::vector<int> asked_;
  absl::Time asked_at_;
  // Of each rank: output and errors.
  std::vector<std::unique_ptr<Copy>> copies_;
  std::array<OutputQueue, 2> outputs_ = {OutputQueue(STDOUT_FILENO),
                                         OutputQueue(STDERR_FILENO)};
  std::optional<int> first_failure_;
  absl::Duration failed_after_;
  bool timed_out_ = false;
  std::vector<int> late_ranks_;
  // The first signal that was passed on to end the ranks, and their number.
  int passed_on_ = 0;
  int ending_signals_ = 0;
  // After all that its readers use.
  ProcessSet ranks_;
};

absl::Status Run::StartRank(int rank) {
  std::vector<std::string> environment = options_.environment;
  environment.insert(
      environment.end(),
      {Entry(Knob::kRank, rank), Entry(Knob::kWorldSize, start_.ranks),
       Entry(Knob::kLocalRank, rank), start_.mark});
  if (!start_.flight_directory.empty()) {
    environment.push_back(Entry(Knob::kFlightDir, start_.flight_directory));
  }
  ProcessSet::Launch launch = {
      .process = {.program = options_.command[0],
                  .arguments = options_.command,
                  .environment = OwnEnvironment(environment),
                  .blocked_signals = signals_.former_mask()}};
  if (options_.prefix) {
    launch.output = CopyTo(outputs_[0], rank);
    launch.errors = CopyTo(outputs_[1], rank);
  }
  SHERD_RETURN_IF_ERROR(ranks_.Start(std::move(launch)));
  return start_.log_directory.empty() ? absl::OkStatus() : OpenLogs(rank);
}

// Output that a full disk does not take is still on the terminal.
void WriteLog(Copy& copy, absl::string_view piece) {
  while (copy.log.is_open() && !piece.empty()) {
    const ssize_t n = write(copy.log.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      std::fprintf(stderr, "sherd run: a log ends here: %s\n", strerror(errno));
      copy.log.Reset();
      return;
    }
    piece.remove_prefix(static_cast<size_t>(n));
  }
}

ProcessSet::Reader Run::CopyTo(OutputQueue& output, int rank) {
  copies_.push_back(std::make_unique<Copy>(
      Copy{LinePrefixer(absl::StrCat("[", rank, "] ")), output, UniqueFd()}));
  Copy& copy = *copies_.back();
  return {.take =
              [&copy](absl::string_view piece) {
                std::string& tail = copy.output.tail();
                if (piece.empty()) {
                  copy.prefixer.Finish(tail);
                } else {
                  WriteLog(copy, piece);
                  copy.prefixer.Feed(piece, tail);
                }
                if (copy.output.is_broken()) tail.clear();
              },
          .has_room =
              [&copy] {
                return !copy.output.is_full() || copy.output.is_broken();
              }};
}

absl::Status Run::OpenLogs(int rank) {
  const std::string stem =
      JoinPath(start_.log_directory, absl::StrCat("rank-", rank));
  for (const auto& [suffix, copy] : {std::pair(".out", copies_.end()[-2].get()),
                                     {".err", copies_.end()[-1].get()}}) {
    const std::string path = stem + suffix;
    copy->log = UniqueFd(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!copy->log.is_open()) return ErrnoStatus(errno, "create", path);
  }
  return absl::OkStatus();
}

absl::Status Run::StartRanks() {
  for (int rank = 0; rank < start_.ranks; ++rank) {
    absl::Status status = StartRank(rank);
    if (status.ok()) continue;
    // Its log cannot be written, but the rank runs.
    ranks_.KillAll();
    KillMarkedProcesses(start_.mark);
    // The others' output may show the reason.
    DrainOutput(Deadline::After(kDrainTime));
    return status;
  }
  return absl::OkStatus();
}

RunEnd Run::Wait() {
  ranks_.BeginRun({.deadline = start_.deadline,
                   .grace = options_.grace,
                   .dump = std::min(options_.grace, kDumpTime),
                   .terminate = options_.grace,
                   .ask_for_dumps = [this] { AskForDumps(); },
                   .have_dumped =
                       [this] {
                         return HaveDumped(start_.flight_directory, asked_,
                                           asked_at_);
                       }});
  while (ranks_.AnyRuns()) {
    CheckTimers();
    Await();
  }
  KillMarkedProcesses(start_.mark);
  DrainOutput(Deadline::Infinite());
  return Result();
}

void Run::Await(absl::Duration at_most) {
  std::array<pollfd, 3> others = {{{signals_.fd(), POLLIN, 0}}};
  for (size_t i = 0; i < outputs_.size(); ++i) {
    others[1 + i] = {outputs_[i].wants_write() ? outputs_[i].fd() : -1, POLLOUT,
                     0};
  }
  ranks_.Await(absl::MakeSpan(others), at_most);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (others[1 + i].revents != 0) outputs_[i].Write();
  }
  CheckOutputs();
  if (others[0].revents != 0) HandleSignals();
}

// Ranks would be killed by SIGPIPE if they wrote to the closed output
// themselves.
void Run::CheckOutputs() {
  if (!OutputBroken()) return;
  if (ranks_.stage() < Stage::kDump) ranks_.Enter(Stage::kTerminate);
}

void Run::CheckTimers() {
  if (ranks_.StageIsOver()) {
    if (ranks_.stage() == Stage::kRunning) {
      timed_out_ = true;
      for (int r = 0; r < start_.ranks; ++r) {
        if (!ranks_.status(r)) late_ranks_.push_back(r);
      }
    } else if (ranks_.stage() == Stage::kGrace && passed_on_ == SIGTERM) {
      // The ranks had it already.
      return ranks_.Enter(Stage::kKill);
    }
  }
  ranks_.Advance();
}

// SIGUSR1 ends a program that does not expect it.
void Run::AskForDumps() {
  asked_at_ = absl::Now();
  std::set<int> asked;
  std::vector<pid_t> processes;
  if (!start_.flight_directory.empty()) {
    processes = FindMarkedProcesses(start_.mark);
  }
  for (const pid_t pid : processes) {
    // Without a handler the process would die of it.
    const std::optional<ProcessStatus> status = ReadProcessStatus(pid);
    if (!status || !status->Catches(SIGUSR1)) continue;
    if (kill(pid, SIGUSR1) != 0) continue;
    const pid_t group = getpgid(pid);
    for (int r = 0; r < start_.ranks; ++r) {
      if (ranks_.process(r).pid() == group) asked.insert(r);
    }
  }
  asked_.assign(asked.begin(), asked.end());
  ranks_.SignalAll(SIGCONT);  // A stopped process does not see it.
}

void Run::HandleSignals() {
  while (const int signal = signals_.Next()) HandleSignal(signal);
}

void Run::HandleSignal(int signal) {
  switch (signal) {
    case SIGCHLD:
      NoteFailures(ranks_.CollectEnds());
      return;
    case SIGUSR1:
    case SIGUSR2:
      ranks_.SignalAll(signal);
      return;
    case SIGTSTP:
      StopAndContinue();
      return;
    default:
      if (++ending_signals_ > 1) {
        ranks_.Enter(Stage::kKill);
        return;
      }
      passed_on_ = signal;
      ranks_.SignalAll(signal);
      ranks_.SignalAll(SIGCONT);
      if (ranks_.stage() == Stage::kRunning) ranks_.Enter(Stage::kGrace);
  }
}

void Run::StopAndContinue() {
  ranks_.SignalAll(SIGSTOP);
  raise(SIGSTOP);
  ranks_.SignalAll(SIGCONT);
}

void Run::NoteFailures(absl::Span<const int> ended) {
  if (timed_out_ || OutputBroken()) return;
  if (!first_failure_) {
    for (const int r : ended) {
      if (ranks_.status(r)->ok()) continue;
      first_failure_ = r;
      failed_after_ = absl::Now() - started_;
      break;
    }
  }
  if (ranks_.stage() != Stage::kRunning) return;
  if (options_.goes_on ? OnlyFailedRanksRun() : first_failure_.has_value()) {
    ranks_.Enter(Stage::kGrace);
  }
}

// Such as one that is stopped: nothing else would end it.
bool Run::OnlyFailedRanksRun() const {
  if (!ranks_.AnyRuns()) return false;
  const FlightReport flight =
      ReadFlightReport(start_.flight_directory, started_);
  for (int r = 0; r < start_.ranks; ++r) {
    const bool failed =
        std::any_of(flight.failed.begin(), flight.failed.end(),
                    [r](const FlightFailedRank& one) { return one.rank == r; });
    if (!ranks_.status(r) && !failed) return false;
  }
  return true;
}

bool Run::OutputPending() const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [](const OutputQueue& o) { return o.wants_write(); });
}

void Run::DrainOutput(Deadline written_by) {
  const Deadline deadline = Deadline::After(kDrainTime);
  // Wait for output that a slow reader has not taken yet, until then or until
  // another signal arrives.
  const int signals_before = ending_signals_;
  while (ending_signals_ == signals_before) {
    const bool reading = ranks_.HasOpenStreams() && !deadline.HasPassed();
    if (!reading && (!OutputPending() || written_by.HasPassed())) break;
    Await(reading ? deadline.Remaining() : written_by.Remaining());
    if (!reading) ranks_.CloseStreams();
  }
}

RunEnd Run::Result() const {
  RunEnd end = {.first_failure = first_failure_,
                .failed_after = failed_after_,
                .late_ranks = late_ranks_,
                .output_broken = OutputBroken(),
                .passed_on = passed_on_,
                .goes_on = options_.goes_on,
                .flight = ReadFlightReport(start_.flight_directory, started_),
                .flight_directory = start_.flight_directory};
  if (timed_out_) end.timeout = options_.timeout;
  for (int r = 0; r < start_.ranks; ++r) {
    end.ranks.push_back({*ranks_.status(r), ranks_.was_signalled(r)});
  }
  return end;
}

absl::Status CheckOptions(const LaunchOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxLocalRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of ranks is ", options.ranks, ", expected 1 to ",
                     kMaxLocalRanks));
  }
  if (options.command.empty() || options.command[0].empty()) {
    return absl::InvalidArgumentError("no program to run");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("timeout must be above zero");
  }
  if (options.min_ranks > options.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the least number of ranks is ", options.min_ranks,
                     ", expected at most ", options.ranks));
  }
  return options.prefix || options.log_directory.empty()
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "ranks that write themselves leave nothing for a log");
}

// Where the ranks of all starts leave their dumps.
class FlightPlace {
 public:
  static absl::StatusOr<FlightPlace> Find(const LaunchOptions& options) {
    FlightPlace place;
    place.path_ = GetKnobOr(Knob::kFlightDir, "");
    for (absl::string_view entry : options.environment) {
      if (absl::ConsumePrefix(&entry, Entry(Knob::kFlightDir, ""))) {
        place.path_ = std::string(entry);
      }
    }
    place.is_given_ = !place.path_.empty();
    if (place.path_ == "none") place.path_.clear();
    if (place.is_given_ || !options.log_directory.empty()) return place;
    RemoveOldFlightDirectories();
    SHERD_ASSIGN_OR_RETURN(
        TemporaryDirectory made,
        TemporaryDirectory::Create("sherd-flight-", "for the ranks' dumps"));
    place.path_ = made.path();
    place.made_.emplace(std::move(made));
    return place;
  }
  FlightPlace(FlightPlace&&) = default;
  FlightPlace& operator=(FlightPlace&&) = delete;
  ~FlightPlace() {
    if (made_) made_->KeepUnlessEmpty();
  }

  std::string ForStart(int restart, const std::string& log_directory) const {
    if (is_given_) return path_;
    if (!log_directory.empty()) return log_directory;
    return BelowRestart(path_, restart);
  }

  static std::string BelowRestart(const std::string& path, int restart) {
    return restart == 0 ? path
                        : JoinPath(path, absl::StrCat("restart-", restart));
  }

 private:
  FlightPlace() = default;

  std::string path_;
  bool is_given_ = false;
  std::optional<TemporaryDirectory> made_;
};

// The number of ranks of the next run; 0 if there is none.
int RanksOfRestart(const LaunchOptions& options, const RunEnd& end,
                   const RunOutcome& outcome) {
  if (outcome.exit_code == 0 || end.timeout || end.output_broken) return 0;
  const int ranks = static_cast<int>(end.ranks.size());
  if (options.min_ranks == 0) return ranks;
  const int left = ranks - static_cast<int>(outcome.failed.size());
  return left >= options.min_ranks ? left : 0;
}

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckOptions(options));
  const Deadline deadline = Deadline::After(options.timeout);
  SHERD_ASSIGN_OR_RETURN(const FlightPlace flight, FlightPlace::Find(options));
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<SignalReceiver> signals,
                         ReceiveSignals());
  int ranks = options.ranks;
  for (int restart = 0;; ++restart) {
    SHERD_ASSIGN_OR_RETURN(
        const TemporaryDirectory directory,
        TemporaryDirectory::Create("sherd-run-", "in which ranks meet"));
    Start start = {
        .ranks = ranks,
        .mark =
            Entry(Knob::kInitMethod,
                  absl::StrCat("file://", JoinPath(directory.path(), "init"))),
        .deadline = deadline};
    if (!options.log_directory.empty()) {
      start.log_directory = FlightPlace::BelowRestart(
          std::filesystem::absolute(options.log_directory).string(), restart);
      SHERD_RETURN_IF_ERROR(
          FileSystem::Posix().CreateDirectories(start.log_directory));
    }
    start.flight_directory = flight.ForStart(restart, start.log_directory);
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<Guardian> guardian,
                           Guardian::Start(directory.path(), start.mark));
    Run run(options, *signals, *guardian, std::move(start));
    SHERD_RETURN_IF_ERROR(run.StartRanks());
    const RunEnd end = run.Wait();
    const RunOutcome outcome = JudgeRun(end);
    ranks = run.WasStopped() || restart >= options.max_restarts
                ? 0
                : RanksOfRestart(options, end, outcome);
    if (ranks == 0) return LaunchResult{outcome.exit_code, outcome.summary};
    if (options.notify) {
      options.notify(absl::StrCat(outcome.summary, "; starting ", ranks,
                                  ranks == 1 ? " rank" : " ranks",
                                  " again (restart ", restart + 1, " of ",
                                  options.max_restarts, ")"));
    }
  }
}

}  // namespace sherd
