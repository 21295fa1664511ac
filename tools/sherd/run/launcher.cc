#include "sherd/tools/sherd/run/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
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
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/guardian.h"
#include "sherd/core/process/marked_processes.h"
#include "sherd/core/process/process_status.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/tools/sherd/run/line_prefixer.h"
#include "sherd/tools/sherd/run/output_queue.h"
#include "sherd/tools/sherd/run/run_directories.h"
#include "sherd/tools/sherd/run/run_outcome.h"

namespace sherd {
namespace {

// How long ranks that got SIGUSR1 have to write a dump, and how often the
// launcher looks for it.
constexpr absl::Duration kDumpTime = absl::Seconds(2);
constexpr absl::Duration kDumpLook = absl::Milliseconds(20);
// How long output may still come from a process that escaped.
constexpr absl::Duration kDrainTime = absl::Seconds(1);

// Receives this process's signals as readable bytes, and gives back the former
// handling at its end.
class SignalReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<SignalReceiver>> Create() {
    auto receiver = std::make_unique<SignalReceiver>();
    sigset_t signals;
    sigemptyset(&signals);
    for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP,
                  SIGCHLD}) {
      sigaddset(&signals, s);
    }
    // A shell without job control starts background programs with SIGINT
    // ignored; a launcher has to pass it on all the same. SIGHUP stays ignored
    // under nohup.
    for (int s : {SIGINT, SIGTERM, SIGCHLD}) signal(s, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &signals, &receiver->former_mask_);
    receiver->fd_ =
        UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!receiver->fd_.is_open()) {
      return ErrnoStatus(errno, "signalfd for", "run");
    }
    return receiver;
  }
  ~SignalReceiver() { sigprocmask(SIG_SETMASK, &former_mask_, nullptr); }

  int fd() const { return fd_.get(); }
  const sigset_t& former_mask() const { return former_mask_; }

  // The next signal, 0 if none waits.
  int Next() {
    signalfd_siginfo info;
    const ssize_t n = read(fd_.get(), &info, sizeof(info));
    return n == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  UniqueFd fd_;
  sigset_t former_mask_;
};

struct Stream {
  Stream(UniqueFd source, std::string prefix, OutputQueue* queue)
      : fd(std::move(source)), prefixer(std::move(prefix)), output(queue) {
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  }

  UniqueFd fd;
  LinePrefixer prefixer;
  OutputQueue* output;
  // Of the log directory.
  UniqueFd log;
};

struct Rank {
  Subprocess process;
  // It got SIGTERM or SIGKILL from here before.
  bool was_signalled = false;
};

template <typename T>
std::string Entry(Knob knob, const T& value) {
  return absl::StrCat(GetKnobInfo(knob).variable, "=", value);
}

// One start of all ranks.
struct Start {
  int ranks = 1;
  // The entry of the ranks' environment that says where they meet.
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
        guardian_(guardian),
        start_(std::move(start)),
        started_(absl::Now()) {}

  absl::Status StartRanks();
  RunEnd Wait();
  // Somebody asked for the end.
  bool WasStopped() const { return ending_signals_ > 0; }

 private:
  // How far the end of the run has come.
  enum class Phase { kRunning, kGrace, kDumping, kTerminated, kKilled };

  absl::Status StartRank(int rank);
  absl::Status OpenLogs(int rank);
  bool AllEnded() const;
  void PollOnce(absl::Duration at_most);
  bool OutputPending() const;
  bool OutputBroken() const {
    return outputs_[0].is_broken() || outputs_[1].is_broken();
  }
  void ReadStream(Stream& stream);
  void CheckOutputs();
  void CheckTimers();
  void HandleSignals();
  void HandleSignal(int signal);
  void StopAndContinue();
  void CollectEnded();
  void NoteFailures(const std::vector<int>& ended);
  bool OnlyFailedRanksRun() const;
  void Advance(Phase phase);
  void SignalRanks(int signal);
  void AskForDumps();
  void DrainOutput();
  RunEnd Result() const;

  const LaunchOptions& options_;
  SignalReceiver& signals_;
  Guardian& guardian_;
  const Start start_;
  const absl::Time started_;
  std::vector<Rank> ranks_;
  // Ranks that got SIGUSR1, and when.
  std::vector<int> asked_;
  absl::Time asked_at_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::array<OutputQueue, 2> outputs_ = {OutputQueue(STDOUT_FILENO),
                                         OutputQueue(STDERR_FILENO)};
  Phase phase_ = Phase::kRunning;
  Deadline phase_deadline_ = Deadline::Infinite();
  std::optional<int> first_failure_;
  absl::Duration failed_after_;
  bool timed_out_ = false;
  std::vector<int> late_ranks_;
  // The first signal that was passed on to end the ranks, and how many came.
  int passed_on_ = 0;
  int ending_signals_ = 0;
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
  Pipe output, errors;
  if (options_.prefix) {
    SHERD_ASSIGN_OR_RETURN(output, MakePipe());
    SHERD_ASSIGN_OR_RETURN(errors, MakePipe());
  }
  SHERD_ASSIGN_OR_RETURN(
      Subprocess process,
      Subprocess::Start({.program = options_.command[0],
                         .arguments = options_.command,
                         .environment = OwnEnvironment(environment),
                         .output_fd = output.write.get(),
                         .error_fd = errors.write.get(),
                         .blocked_signals = signals_.former_mask()}));
  guardian_.Watch(process.pid());
  ranks_.push_back({std::move(process)});
  if (options_.prefix) {
    const std::string prefix = absl::StrCat("[", rank, "] ");
    streams_.push_back(
        std::make_unique<Stream>(std::move(output.read), prefix, &outputs_[0]));
    streams_.push_back(
        std::make_unique<Stream>(std::move(errors.read), prefix, &outputs_[1]));
  }
  return start_.log_directory.empty() ? absl::OkStatus() : OpenLogs(rank);
}

absl::Status Run::OpenLogs(int rank) {
  const std::string stem =
      JoinPath(start_.log_directory, absl::StrCat("rank-", rank));
  for (const auto& [suffix, stream] :
       {std::pair(".out", streams_.end()[-2].get()),
        {".err", streams_.end()[-1].get()}}) {
    const std::string path = stem + suffix;
    stream->log = UniqueFd(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!stream->log.is_open()) return ErrnoStatus(errno, "create", path);
  }
  return absl::OkStatus();
}

absl::Status Run::StartRanks() {
  for (int rank = 0; rank < start_.ranks; ++rank) {
    absl::Status status = StartRank(rank);
    if (status.ok()) continue;
    SignalRanks(SIGKILL);
    while (!AllEnded()) PollOnce(absl::InfiniteDuration());
    return status;
  }
  return absl::OkStatus();
}

RunEnd Run::Wait() {
  while (!AllEnded()) {
    CheckTimers();
    const absl::Duration left =
        (phase_ == Phase::kRunning ? start_.deadline : phase_deadline_)
            .Remaining();
    PollOnce(phase_ == Phase::kDumping ? std::min(left, kDumpLook) : left);
  }
  KillMarkedProcesses(start_.mark);
  DrainOutput();
  return Result();
}

bool Run::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.process.status(); });
}

void Run::PollOnce(absl::Duration at_most) {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (OutputQueue& output : outputs_) {
    fds.push_back({output.wants_write() ? output.fd() : -1, POLLOUT, 0});
  }
  for (const auto& stream : streams_) {
    const bool wait = stream->output->is_full() && !stream->output->is_broken();
    fds.push_back({wait ? -1 : stream->fd.get(), POLLIN, 0});
  }
  // Rounded up, so that a deadline has passed when the wait for it ends.
  const int64_t milliseconds =
      std::min<int64_t>(absl::ToInt64Milliseconds(at_most), 1 << 30) + 1;
  const bool forever = at_most == absl::InfiniteDuration();
  if (poll(fds.data(), fds.size(),
           forever ? -1 : static_cast<int>(milliseconds)) <= 0) {
    return;
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (fds[3 + i].revents != 0) ReadStream(*streams_[i]);
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (fds[1 + i].revents != 0) outputs_[i].Write();
  }
  CheckOutputs();
  if (fds[0].revents != 0) HandleSignals();
}

// What a full disk does not take is still on the terminal.
void WriteLog(Stream& stream, absl::string_view piece) {
  while (stream.log.is_open() && !piece.empty()) {
    const ssize_t n = write(stream.log.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      std::fprintf(stderr, "sherd run: a log ends here: %s\n", strerror(errno));
      stream.log.Reset();
      return;
    }
    piece.remove_prefix(static_cast<size_t>(n));
  }
}

void Run::ReadStream(Stream& stream) {
  static thread_local std::array<char, 1 << 16> buffer;
  const ssize_t n = read(stream.fd.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  std::string& tail = stream.output->tail();
  if (n > 0) {
    WriteLog(stream, {buffer.data(), static_cast<size_t>(n)});
    stream.prefixer.Feed({buffer.data(), static_cast<size_t>(n)}, tail);
  } else {
    stream.prefixer.Finish(tail);
    stream.fd.Reset();
  }
  if (stream.output->is_broken()) tail.clear();
}

// Ranks would be killed by SIGPIPE if they wrote to the closed output
// themselves.
void Run::CheckOutputs() {
  if (!OutputBroken()) return;
  if (phase_ == Phase::kRunning || phase_ == Phase::kGrace) {
    Advance(Phase::kTerminated);
  }
}

void Run::CheckTimers() {
  if (phase_ == Phase::kRunning && start_.deadline.HasPassed()) {
    timed_out_ = true;
    for (int r = 0; r < start_.ranks; ++r) {
      if (!ranks_[r].process.status()) late_ranks_.push_back(r);
    }
    Advance(Phase::kDumping);
  }
  if (phase_ == Phase::kDumping &&
      HaveDumped(start_.flight_directory, asked_, asked_at_)) {
    Advance(Phase::kTerminated);
  }
  if (!phase_deadline_.HasPassed()) return;
  if (phase_ == Phase::kGrace && passed_on_ != SIGTERM) {
    Advance(Phase::kDumping);
  } else if (phase_ == Phase::kDumping) {
    Advance(Phase::kTerminated);
  } else if (phase_ != Phase::kKilled) {
    Advance(Phase::kKilled);
  }
}

void Run::Advance(Phase phase) {
  phase_ = phase;
  phase_deadline_ = Deadline::After(options_.grace);
  if (phase == Phase::kDumping) {
    phase_deadline_ = Deadline::After(std::min(options_.grace, kDumpTime));
    AskForDumps();
  }
  if (phase == Phase::kTerminated) {
    SignalRanks(SIGTERM);
    SignalRanks(SIGCONT);  // A stopped process does not see SIGTERM.
  }
  if (phase == Phase::kKilled) {
    phase_deadline_ = Deadline::Infinite();
    SignalRanks(SIGKILL);
  }
}

void Run::SignalRanks(int signal) {
  for (Rank& rank : ranks_) {
    if (rank.process.status()) continue;
    rank.process.SignalGroup(signal);
    rank.was_signalled |= signal == SIGTERM || signal == SIGKILL;
  }
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
      if (ranks_[r].process.pid() == group) asked.insert(r);
    }
  }
  asked_.assign(asked.begin(), asked.end());
  SignalRanks(SIGCONT);  // A stopped process does not see it.
}

void Run::HandleSignals() {
  while (const int signal = signals_.Next()) HandleSignal(signal);
}

void Run::HandleSignal(int signal) {
  switch (signal) {
    case SIGCHLD:
      CollectEnded();
      return;
    case SIGUSR1:
    case SIGUSR2:
      SignalRanks(signal);
      return;
    case SIGTSTP:
      StopAndContinue();
      return;
    default:
      if (++ending_signals_ > 1) {
        Advance(Phase::kKilled);
        return;
      }
      passed_on_ = signal;
      SignalRanks(signal);
      SignalRanks(SIGCONT);
      if (phase_ == Phase::kRunning) Advance(Phase::kGrace);
  }
}

void Run::StopAndContinue() {
  SignalRanks(SIGSTOP);
  raise(SIGSTOP);
  SignalRanks(SIGCONT);
}

void Run::CollectEnded() {
  std::vector<int> ended;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    Subprocess& process = ranks_[r].process;
    if (process.status() || !process.Poll()) continue;
    guardian_.Forget(process.pid());
    ended.push_back(r);
  }
  NoteFailures(ended);
}

void Run::NoteFailures(const std::vector<int>& ended) {
  if (timed_out_ || OutputBroken()) return;
  if (!first_failure_) {
    for (int r : ended) {
      const ExitStatus& status = *ranks_[r].process.status();
      if (status.ok()) continue;
      // Of several that are found at once, one that a signal killed is more
      // likely the cause than one that gave up in order.
      if (!first_failure_ ||
          (status.signal() &&
           ranks_[*first_failure_].process.status()->code())) {
        first_failure_ = r;
      }
    }
    if (first_failure_) failed_after_ = absl::Now() - started_;
  }
  if (phase_ != Phase::kRunning) return;
  if (options_.goes_on ? OnlyFailedRanksRun() : first_failure_.has_value()) {
    Advance(Phase::kGrace);
  }
}

// Such as one that is stopped: nobody else would end it.
bool Run::OnlyFailedRanksRun() const {
  if (AllEnded()) return false;
  const FlightReport flight =
      ReadFlightReport(start_.flight_directory, started_);
  for (int r = 0; r < start_.ranks; ++r) {
    const bool failed =
        std::any_of(flight.failed.begin(), flight.failed.end(),
                    [r](const FlightFailedRank& one) { return one.rank == r; });
    if (!ranks_[r].process.status() && !failed) return false;
  }
  return true;
}

bool Run::OutputPending() const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [](const OutputQueue& o) { return o.wants_write(); });
}

void Run::DrainOutput() {
  const Deadline deadline = Deadline::After(kDrainTime);
  const auto open = [](const auto& stream) { return stream->fd.is_open(); };
  // What a slow reader has not taken yet is waited for, until somebody sends
  // another signal.
  const int signals_before = ending_signals_;
  while (ending_signals_ == signals_before) {
    const bool reading = std::any_of(streams_.begin(), streams_.end(), open) &&
                         !deadline.HasPassed();
    if (!reading && !OutputPending()) break;
    PollOnce(reading ? deadline.Remaining() : absl::InfiniteDuration());
    if (reading) continue;
    for (const auto& stream : streams_) stream->fd.Reset();
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
  for (const Rank& rank : ranks_) {
    end.ranks.push_back({*rank.process.status(), rank.was_signalled});
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

// With how many ranks the run begins again; 0 if it does not.
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
                         SignalReceiver::Create());
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
