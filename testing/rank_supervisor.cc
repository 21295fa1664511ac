#include "sherd/testing/rank_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/launched_ranks.h"
#include "sherd/testing/stack_dump.h"
#include "sherd/testing/subprocess.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kMaxFailures = 200;
constexpr size_t kOutputBegin = size_t{32} << 10;
constexpr size_t kOutputEnd = size_t{128} << 10;
// Read from one pipe before the others have their turn.
constexpr size_t kMaxDrain = size_t{256} << 10;
constexpr absl::Duration kDumpTime = absl::Seconds(3);
constexpr absl::Duration kTerminateTime = absl::Seconds(1);
// For a launcher to end once all ranks have.
constexpr absl::Duration kLauncherTime = absl::Seconds(10);

// Beginning and end of a text of any length.
class BoundedText {
 public:
  void Append(absl::string_view text) {
    const size_t head = std::min(text.size(), kOutputBegin - begin_.size());
    absl::StrAppend(&begin_, text.substr(0, head));
    absl::StrAppend(&end_, text.substr(head));
    // Cut in large steps, so that each byte is moved once.
    if (end_.size() > 2 * kOutputEnd) {
      const size_t cut = end_.size() - kOutputEnd;
      end_.erase(0, cut);
      dropped_ += cut;
    }
  }

  bool EndHas(absl::string_view text) const {
    return absl::StrContains(end_.empty() ? begin_ : end_, text);
  }

  std::string ToString() const {
    if (dropped_ == 0) return begin_ + end_;
    return absl::StrCat(begin_, "\n… (", dropped_, " bytes left out) …\n",
                        end_);
  }

 private:
  std::string begin_;
  std::string end_;
  size_t dropped_ = 0;
};

// The process of a rank, whoever started it.
class RankProcess {
 public:
  virtual ~RankProcess() = default;
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

// One rank while it runs.
class RunningRank {
 public:
  static absl::StatusOr<std::unique_ptr<RunningRank>> Spawn(
      const SupervisorOptions& options, int rank) {
    SHERD_ASSIGN_OR_RETURN(Pipe results, MakePipe());
    SHERD_ASSIGN_OR_RETURN(Pipe output, MakePipe());
    SHERD_ASSIGN_OR_RETURN(
        Subprocess process,
        Subprocess::Start(
            {.program = options.program,
             .arguments = options.arguments,
             .environment = options.environment(rank, results.write.get()),
             .output_fd = output.write.get(),
             .inherited_fd = results.write.get()}));
    for (const UniqueFd* fd : {&results.read, &output.read}) {
      if (fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0) {
        return ErrnoStatus(errno, "setting up", "a pipe");
      }
    }
    return std::make_unique<RunningRank>(
        std::make_unique<SpawnedProcess>(std::move(process)),
        std::move(results.read), std::move(output.read));
  }

  RunningRank(std::unique_ptr<RankProcess> process, UniqueFd results,
              UniqueFd output)
      : process_(std::move(process)),
        results_(std::move(results)),
        output_fd_(std::move(output)) {}

  RankProcess& process() { return *process_; }
  bool has_dumped() const { return output_.EndHas(kStackDumpEnd); }
  bool results_closed() const { return !results_.is_open(); }

  void AddTo(std::vector<pollfd>& fds) const {
    for (int fd : {results_.get(), output_fd_.get(), process_->exit_fd()}) {
      // Negative ones are ignored by poll().
      fds.push_back({fd, POLLIN, 0});
    }
  }

  // Takes what has arrived. True if there may be more.
  bool Drain(absl::Duration now, RunOutcome& run, RankOutcome& rank) {
    const bool more_output = DrainFd(
        output_fd_, [this](absl::string_view bytes) { output_.Append(bytes); });
    const bool more_results = DrainFd(results_, [&](absl::string_view bytes) {
      absl::Status status = decoder_.Feed(bytes, [&](ResultFrame frame) {
        Take(now, std::move(frame), run, rank);
      });
      if (rank.pipe.ok()) rank.pipe = std::move(status);
    });
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

  static void Take(absl::Duration now, ResultFrame frame, RunOutcome& run,
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
      case ResultFrame::Type::kDone:
        rank.done = std::move(frame);
        return;
    }
  }

  const std::unique_ptr<RankProcess> process_;
  UniqueFd results_;
  UniqueFd output_fd_;
  FrameDecoder decoder_;
  BoundedText output_;
};

class Supervisor {
 public:
  explicit Supervisor(const SupervisorOptions& options) : options_(options) {
    run_.timeout = options.timeout;
    run_.ranks.resize(options.world_size);
  }

  RunOutcome Run() {
    run_.start = StartAll();
    if (!run_.start.ok()) return std::move(run_);
    Enter(Stage::kRunning, options_.timeout);
    while (CountRunning() > 0) {
      AwaitEvents();
      for (int r = 0; r < options_.world_size; ++r) Look(r);
      Decide();
    }
    for (int r = 0; r < options_.world_size; ++r) {
      run_.ranks[r].output = ranks_[r]->output();
    }
    if (launcher_ != nullptr) FinishLauncher();
    return std::move(run_);
  }

 private:
  // kGrace: somebody ended abnormally, the others may report. Then those that
  // still run dump their stacks, are terminated, are killed.
  enum class Stage { kRunning, kGrace, kDump, kTerminate, kKill };

  absl::Status StartAll() {
    if (options_.launcher) return LaunchAll();
    for (int r = 0; r < options_.world_size; ++r) {
      SHERD_ASSIGN_OR_RETURN(std::unique_ptr<RunningRank> rank,
                             RunningRank::Spawn(options_, r));
      ranks_.push_back(std::move(rank));
    }
    return absl::OkStatus();
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
                        options_.environment(/*rank=*/-1, /*fd=*/-1)));
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

  void FinishLauncher() {
    const bool all_started = std::all_of(
        launched_.begin(), launched_.end(),
        [](const LaunchedRank* rank) { return rank->has_started(); });
    launcher_->Finish(kLauncherTime);
    run_.launcher_output = launcher_->output();
    if (all_started) return;
    const std::optional<ExitStatus>& exit = launcher_->Poll();
    run_.start = absl::InternalError(
        absl::StrCat(options_.launcher->program, " ",
                     exit ? exit->ToString() : std::string("does not end"),
                     "\n", run_.launcher_output));
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
    const absl::Duration longest =
        has_exit_fds ? absl::Seconds(1) : absl::Milliseconds(5);
    const absl::Duration wait = std::min(longest, stage_end_.Remaining());
    poll(fds.data(), fds.size(),
         static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
  }

  void Look(int r) {
    RankOutcome& rank = run_.ranks[r];
    if (rank.exit) return;
    // Asked first, so that what the rank wrote before its end is read.
    const std::optional<ExitStatus> exit = ranks_[r]->process().Poll();
    while (ranks_[r]->Drain(Now(), run_, rank) && exit) {
    }
    if (!exit) return;
    rank.exit = exit;
    rank.ended = Now();
    rank.stopped = stage_ >= Stage::kTerminate;
    rank.ended_by_launcher =
        !rank.stopped && ranks_[r]->process().ended_by_launcher();
  }

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
          Enter(Stage::kGrace, options_.grace);
        } else if (stage_end_.HasPassed()) {
          run_.timed_out = CountRunning() > 0;
          AskForStacks();
        }
        return;
      case Stage::kGrace:
        // The rank's death may have been announced by another rank meanwhile.
        if (!SomebodyEndedAbnormally()) {
          Enter(Stage::kRunning, options_.timeout - Now());
        } else if (stage_end_.HasPassed()) {
          BlameClosedPipes();
          AskForStacks();
        }
        return;
      case Stage::kDump:
        if (AllHaveDumped() || stage_end_.HasPassed()) {
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
    for (int r = 0; r < options_.world_size; ++r) {
      if (run_.ranks[r].exit) continue;
      // Before its greeting a rank has no handler and would die.
      if (run_.ranks[r].phase == "start") continue;
      ranks_[r]->process().Signal(StackDumpSignal());
    }
    Enter(Stage::kDump, kDumpTime);
  }

  bool AllHaveDumped() const {
    for (int r = 0; r < options_.world_size; ++r) {
      const RankOutcome& rank = run_.ranks[r];
      if (!rank.exit && rank.phase != "start" && !ranks_[r]->has_dumped()) {
        return false;
      }
    }
    return true;
  }

  void SignalAll(int signal) {
    for (int r = 0; r < options_.world_size; ++r) {
      if (!run_.ranks[r].exit) ranks_[r]->process().SignalAll(signal);
    }
  }

  const SupervisorOptions& options_;
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
  Stage stage_ = Stage::kRunning;
  Deadline stage_end_ = Deadline::Infinite();
  std::unique_ptr<Launcher> launcher_;
  std::vector<LaunchedRank*> launched_;
  std::vector<std::unique_ptr<RunningRank>> ranks_;
  RunOutcome run_;
};

}  // namespace

RunOutcome SuperviseRanks(const SupervisorOptions& options) {
  return Supervisor(options).Run();
}

}  // namespace sherd::testing::internal
