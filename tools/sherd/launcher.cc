#include "sherd/tools/sherd/launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/guardian.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/marked_processes.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/tools/sherd/line_prefixer.h"
#include "sherd/tools/sherd/output_queue.h"
#include "sherd/tools/sherd/rank_process.h"

namespace sherd {
namespace {

constexpr int kTimeoutExitCode = 124;
constexpr int kOutputClosedExitCode = 128 + SIGPIPE;
// How long output may still come from a process that escaped.
constexpr absl::Duration kDrainTime = absl::Seconds(1);

// A directory that exists as long as this object.
class TemporaryDirectory {
 public:
  static absl::StatusOr<TemporaryDirectory> Create() {
    std::error_code error;
    const std::filesystem::path parent =
        std::filesystem::absolute(GetKnobOr(Knob::kTmpDir, "/tmp"), error);
    std::string path = (parent / "sherd-run-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot make the directory ", path, " in which ranks meet: ",
          strerror(errno), " (TMPDIR chooses the place)"));
    }
    return TemporaryDirectory(std::move(path));
  }
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    if (!path_.empty()) FileSystem::Posix().RemoveAll(path_).IgnoreError();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

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
      : fd(std::move(source)), prefixer(std::move(prefix)), output(queue) {}

  UniqueFd fd;
  LinePrefixer prefixer;
  OutputQueue* output;
};

struct Rank {
  pid_t pid = -1;
  // As from waitpid(), once it has ended.
  std::optional<int> wait_status;
};

template <typename T>
std::string Entry(Knob knob, const T& value) {
  return absl::StrCat(GetKnobInfo(knob).variable, "=", value);
}

bool Failed(int wait_status) {
  return !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0;
}

int ExitCodeOf(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
                                : 128 + WTERMSIG(wait_status);
}

std::string HowItEnded(int wait_status) {
  if (WIFEXITED(wait_status)) {
    return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
  }
  const int signal = WTERMSIG(wait_status);
  return absl::StrCat("killed by signal ", signal, " (", strsignal(signal),
                      WCOREDUMP(wait_status) ? ", core dumped)" : ")");
}

class Run {
 public:
  // `mark` is the entry of the ranks' environment that says where they meet.
  Run(const LaunchOptions& options, SignalReceiver& signals, Guardian& guardian,
      const std::string& mark)
      : options_(options),
        signals_(signals),
        guardian_(guardian),
        mark_(mark),
        start_(absl::Now()),
        run_deadline_(Deadline::After(options.timeout)) {}

  absl::Status StartRanks();
  LaunchResult Wait();

 private:
  // How far the end of the run has come.
  enum class Phase { kRunning, kGrace, kTerminated, kKilled };

  absl::Status StartRank(int rank);
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
  void EndOf(Rank& rank, int wait_status);
  void NoteFailures(const std::vector<int>& ended);
  void Advance(Phase phase);
  void SignalRanks(int signal);
  void DrainOutput();
  LaunchResult Result() const;
  std::string OthersSummary() const;

  const LaunchOptions& options_;
  SignalReceiver& signals_;
  Guardian& guardian_;
  const std::string mark_;
  const absl::Time start_;
  const Deadline run_deadline_;
  std::vector<Rank> ranks_;
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
  SHERD_ASSIGN_OR_RETURN(
      RankProcess process,
      StartRankProcess({.command = options_.command,
                        .environment = {Entry(Knob::kRank, rank),
                                        Entry(Knob::kWorldSize, options_.ranks),
                                        Entry(Knob::kLocalRank, rank), mark_},
                        .pipes = options_.prefix,
                        .signal_mask = signals_.former_mask()}));
  guardian_.Watch(process.pid);
  ranks_.push_back({process.pid});
  if (options_.prefix) {
    const std::string prefix = absl::StrCat("[", rank, "] ");
    streams_.push_back(std::make_unique<Stream>(
        std::move(process.standard_output), prefix, &outputs_[0]));
    streams_.push_back(std::make_unique<Stream>(
        std::move(process.standard_error), prefix, &outputs_[1]));
  }
  return absl::OkStatus();
}

absl::Status Run::StartRanks() {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    absl::Status status = StartRank(rank);
    if (status.ok()) continue;
    SignalRanks(SIGKILL);
    while (!AllEnded()) PollOnce(absl::InfiniteDuration());
    return status;
  }
  return absl::OkStatus();
}

LaunchResult Run::Wait() {
  while (!AllEnded()) {
    CheckTimers();
    PollOnce((phase_ == Phase::kRunning ? run_deadline_ : phase_deadline_)
                 .Remaining());
  }
  KillMarkedProcesses(mark_);
  DrainOutput();
  return Result();
}

bool Run::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.wait_status; });
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

void Run::ReadStream(Stream& stream) {
  static thread_local std::array<char, 1 << 16> buffer;
  const ssize_t n = read(stream.fd.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  std::string& tail = stream.output->tail();
  if (n > 0) {
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
  if (phase_ == Phase::kRunning && run_deadline_.HasPassed()) {
    timed_out_ = true;
    for (int r = 0; r < options_.ranks; ++r) {
      if (!ranks_[r].wait_status) late_ranks_.push_back(r);
    }
    Advance(Phase::kTerminated);
  }
  if (!phase_deadline_.HasPassed()) return;
  if (phase_ == Phase::kGrace && passed_on_ != SIGTERM) {
    Advance(Phase::kTerminated);
  } else if (phase_ != Phase::kKilled) {
    Advance(Phase::kKilled);
  }
}

void Run::Advance(Phase phase) {
  phase_ = phase;
  phase_deadline_ = Deadline::After(options_.grace);
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
  for (const Rank& rank : ranks_) {
    if (!rank.wait_status) kill(-rank.pid, signal);
  }
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

// The group is killed while its leader is still a zombie, so that its number
// cannot mean anybody else yet.
void Run::CollectEnded() {
  std::vector<int> ended;
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0) {
    const auto rank = std::find_if(
        ranks_.begin(), ranks_.end(),
        [&](const Rank& r) { return r.pid == info.si_pid && !r.wait_status; });
    if (rank != ranks_.end()) kill(-info.si_pid, SIGKILL);
    int wait_status = 0;
    if (waitpid(info.si_pid, &wait_status, 0) != info.si_pid) return;
    if (rank != ranks_.end()) {
      EndOf(*rank, wait_status);
      ended.push_back(static_cast<int>(rank - ranks_.begin()));
    }
    info = {};
  }
  NoteFailures(ended);
}

void Run::EndOf(Rank& rank, int wait_status) {
  rank.wait_status = wait_status;
  guardian_.Forget(rank.pid);
}

void Run::NoteFailures(const std::vector<int>& ended) {
  if (first_failure_ || timed_out_ || OutputBroken()) return;
  for (int r : ended) {
    const int status = *ranks_[r].wait_status;
    if (!Failed(status)) continue;
    // Of several that are found at once, one that a signal killed is more
    // likely the cause than one that gave up in order.
    if (!first_failure_ || (WIFSIGNALED(status) &&
                            WIFEXITED(*ranks_[*first_failure_].wait_status))) {
      first_failure_ = r;
    }
  }
  if (!first_failure_) return;
  failed_after_ = absl::Now() - start_;
  if (phase_ == Phase::kRunning) Advance(Phase::kGrace);
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

std::string RankList(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "));
}

std::string Run::OthersSummary() const {
  std::vector<std::pair<std::string, std::vector<int>>> ways;
  for (int r = 0; r < options_.ranks; ++r) {
    if (first_failure_ == r) continue;
    const std::string how = HowItEnded(*ranks_[r].wait_status);
    const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) {
      return w.first == how;
    });
    if (way == ways.end()) {
      ways.push_back({how, {r}});
    } else {
      way->second.push_back(r);
    }
  }
  std::string text;
  for (const auto& [how, ranks] : ways) {
    absl::StrAppend(&text, "; ", RankList(ranks), ": ", how);
  }
  return text;
}

LaunchResult Run::Result() const {
  const std::string of = absl::StrCat(" of ", options_.ranks);
  if (timed_out_) {
    return {kTimeoutExitCode,
            absl::StrCat(
                "timeout: ", RankList(late_ranks_), of, " had not ended after ",
                absl::FormatDuration(options_.timeout), OthersSummary())};
  }
  if (OutputBroken()) {
    return {
        kOutputClosedExitCode,
        absl::StrCat("the reader of the output went away", OthersSummary())};
  }
  if (!first_failure_) return {};
  const int status = *ranks_[*first_failure_].wait_status;
  const std::string because =
      passed_on_ == 0 ? ""
                      : absl::StrCat(" (signal ", passed_on_, " passed on)");
  return {ExitCodeOf(status),
          absl::StrFormat("rank %d%s failed first: %s after %.1f s%s%s",
                          *first_failure_, of, HowItEnded(status),
                          absl::ToDoubleSeconds(failed_after_), because,
                          OthersSummary())};
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckOptions(options));
  SHERD_ASSIGN_OR_RETURN(const TemporaryDirectory directory,
                         TemporaryDirectory::Create());
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<SignalReceiver> signals,
                         SignalReceiver::Create());
  const std::string mark =
      Entry(Knob::kInitMethod,
            absl::StrCat("file://", JoinPath(directory.path(), "init")));
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<Guardian> guardian,
                         Guardian::Start(directory.path(), mark));
  Run run(options, *signals, *guardian, mark);
  SHERD_RETURN_IF_ERROR(run.StartRanks());
  return run.Wait();
}

}  // namespace sherd
