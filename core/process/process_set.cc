#include "sherd/core/process/process_set.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// Read from one pipe before the others have their turn.
constexpr size_t kMostAtOnce = size_t{256} << 10;
// So many times, once a rank has ended: a pipe holds 1 MiB at most.
constexpr int kLastReads = 5;
// How often one looks for dumps, which have no descriptor to wait for.
constexpr absl::Duration kDumpPeriod = absl::Milliseconds(10);
// The same for processes that have none.
constexpr absl::Duration kAskPeriod = absl::Milliseconds(5);

class Child final : public ProcessSet::Process {
 public:
  explicit Child(Subprocess process) : process_(std::move(process)) {}

  pid_t pid() const override { return process_.pid(); }
  int exit_fd() const override { return process_.exit_fd(); }
  const std::optional<ExitStatus>& Poll() override { return process_.Poll(); }
  void Signal(int signal) override { process_.Signal(signal); }
  void SignalGroup(int signal) override { process_.SignalGroup(signal); }

 private:
  Subprocess process_;
};

// For poll(): rounded up, so that a deadline has passed when the wait for it
// ends.
int PollTimeout(absl::Duration wait) {
  if (wait == absl::InfiniteDuration()) return -1;
  constexpr int64_t kMost = int64_t{1} << 30;
  return static_cast<int>(std::min(absl::ToInt64Milliseconds(wait), kMost)) + 1;
}

}  // namespace

ProcessSet::~ProcessSet() {
  for (Rank& rank : ranks_) {
    if (!rank.status) rank.process->SignalGroup(SIGKILL);
  }
  for (Rank& rank : ranks_) {
    if (rank.status || !rank.is_child) continue;
    const pid_t pid = rank.process->pid();
    rank.process.reset();  // Waits for it.
    if (options_.guardian != nullptr) options_.guardian->Forget(pid);
  }
}

absl::Status ProcessSet::Start(Launch launch) {
  absl::Status status = StartChild(std::move(launch));
  if (!status.ok()) KillAll();
  return status;
}

absl::Status ProcessSet::StartChild(Launch launch) {
  std::vector<Stream> streams = std::move(launch.streams);
  UniqueFd write_ends[2];
  const std::pair<std::optional<Reader>*, int*> pipes[] = {
      {&launch.output, &launch.process.output_fd},
      {&launch.errors, &launch.process.error_fd}};
  for (int i = 0; i < 2; ++i) {
    const auto& [reader, fd] = pipes[i];
    if (!*reader) continue;
    SHERD_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    write_ends[i] = std::move(pipe.write);
    *fd = write_ends[i].get();
    streams.push_back({std::move(pipe.read), *std::move(*reader)});
  }
  return AddChild(Subprocess::Start(launch.process), std::move(streams));
}

absl::Status ProcessSet::Fork(absl::FunctionRef<int()> body) {
  absl::Status status = AddChild(Subprocess::Fork(body), {});
  if (!status.ok()) KillAll();
  return status;
}

absl::Status ProcessSet::AddChild(absl::StatusOr<Subprocess> child,
                                  std::vector<Stream> streams) {
  SHERD_RETURN_IF_ERROR(child.status());
  if (options_.guardian != nullptr) options_.guardian->Watch(child->pid());
  return AddRank({.process = std::make_unique<Child>(*std::move(child)),
                  .is_child = true,
                  .streams = std::move(streams)});
}

absl::Status ProcessSet::Add(std::unique_ptr<Process> process,
                             std::vector<Stream> streams) {
  return AddRank(
      {.process = std::move(process), .streams = std::move(streams)});
}

absl::Status ProcessSet::AddRank(Rank rank) {
  ranks_.push_back(std::move(rank));
  for (const Stream& stream : ranks_.back().streams) {
    if (fcntl(stream.fd.get(), F_SETFL, O_NONBLOCK) != 0) {
      return ErrnoStatus(errno, "setting up", "a pipe");
    }
  }
  return absl::OkStatus();
}

void ProcessSet::BeginRun(Limits limits) {
  limits_ = std::move(limits);
  for (Rank& rank : ranks_) rank.is_released = false;
  Enter(Stage::kRunning);
}

bool ProcessSet::AnyRuns() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (Runs(rank)) return true;
  }
  return false;
}

bool ProcessSet::CanRead(const Rank& rank, const Stream& stream) const {
  return stream.fd.is_open() && !rank.is_released &&
         (stream.reader.has_room == nullptr || stream.reader.has_room());
}

bool ProcessSet::IsWatched(const Rank& rank) const {
  return !rank.status && !rank.is_released && !options_.caller_receives_sigchld;
}

absl::Duration ProcessSet::LongestWait(absl::Duration at_most) const {
  if (!AnyRuns()) return at_most;
  at_most = std::min(at_most, stage_end_.Remaining());
  if (stage_ == Stage::kDump) at_most = std::min(at_most, kDumpPeriod);
  for (const Rank& rank : ranks_) {
    if (IsWatched(rank) && rank.process->exit_fd() < 0) {
      return std::min(at_most, kAskPeriod);
    }
  }
  return at_most;
}

absl::Span<const int> ProcessSet::Await(absl::Span<pollfd> others,
                                        absl::Duration at_most) {
  // The exit of a rank, or one of its streams.
  struct Source {
    int rank;
    bool is_stream;
  };
  std::vector<Source> sources;
  // Open descriptors alone: poll() takes no more than a process may have open.
  std::vector<pollfd> fds(others.begin(), others.end());
  const auto add = [&](int fd, Source source) {
    fds.push_back({fd, POLLIN, 0});
    sources.push_back(source);
  };
  for (int r = 0; r < size(); ++r) {
    Rank& rank = ranks_[r];
    if (IsWatched(rank) && rank.process->exit_fd() >= 0) {
      add(rank.process->exit_fd(), {r, false});
    }
    for (Stream& stream : rank.streams) {
      if (CanRead(rank, stream)) add(stream.fd.get(), {r, true});
    }
  }
  if (poll(fds.data(), fds.size(), PollTimeout(LongestWait(at_most))) < 0) {
    for (pollfd& fd : fds) fd.revents = 0;
  }
  std::copy_n(fds.begin(), others.size(), others.begin());
  const size_t begin = ended_.size();
  int last_read = -1;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (fds[others.size() + i].revents == 0) continue;
    const auto [r, is_stream] = sources[i];
    if (!is_stream) {
      Ask(r);
    } else if (r != last_read) {
      // All of them: what poll() did not see of one may have come before what
      // is read from the next.
      ReadStreams(ranks_[r]);
      last_read = r;
    }
  }
  for (int r = 0; r < size(); ++r) {
    if (IsWatched(ranks_[r]) && ranks_[r].process->exit_fd() < 0) Ask(r);
  }
  const absl::Span<const int> ended = TakeEnds(begin);
  stage_is_over_ = stage_end_.HasPassed();
  return ended;
}

absl::Span<const int> ProcessSet::CollectEnds() {
  const size_t begin = ended_.size();
  for (int r = 0; r < size(); ++r) {
    if (!ranks_[r].status) Ask(r);
  }
  return TakeEnds(begin);
}

void ProcessSet::Ask(int r) {
  Rank& rank = ranks_[r];
  rank.status = rank.process->Poll();
  if (!rank.status) return;
  if (options_.guardian != nullptr && rank.is_child) {
    options_.guardian->Forget(rank.process->pid());
  }
  ended_.push_back(r);
}

absl::Span<const int> ProcessSet::TakeEnds(size_t begin) {
  std::stable_partition(ended_.begin() + begin, ended_.end(), [this](int r) {
    return ranks_[r].status->signal().has_value();
  });
  const absl::Span<const int> ended =
      absl::MakeConstSpan(ended_).subspan(begin);
  // After their ends were seen, so that nothing comes later.
  for (const int r : ended) ReadRest(r);
  return ended;
}

bool ProcessSet::Read(const Rank& rank, Stream& stream) {
  char buffer[64 << 10];
  for (size_t total = 0; CanRead(rank, stream);) {
    if (total >= kMostAtOnce) return true;
    const ssize_t size = read(stream.fd.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) break;
    if (size == 0) stream.fd.Reset();
    stream.reader.take({buffer, static_cast<size_t>(size)});
    total += static_cast<size_t>(size);
  }
  return false;
}

bool ProcessSet::ReadStreams(Rank& rank) {
  bool has_more = false;
  for (Stream& stream : rank.streams) {
    has_more = Read(rank, stream) || has_more;
  }
  return has_more;
}

void ProcessSet::ReadRest(int r) {
  for (int reads = 0; reads < kLastReads; ++reads) {
    if (!ReadStreams(ranks_[r])) return;
  }
}

bool ProcessSet::HasOpenStreams() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (HasOpenStreams(rank)) return true;
  }
  return false;
}

bool ProcessSet::HasOpenStreams(int rank) const {
  const std::vector<Stream>& streams = ranks_[rank].streams;
  return std::any_of(streams.begin(), streams.end(),
                     [](const Stream& stream) { return stream.fd.is_open(); });
}

void ProcessSet::CloseStreams() {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) stream.fd.Reset();
  }
}

void ProcessSet::Enter(Stage stage) {
  stage_ = stage;
  stage_is_over_ = false;
  switch (stage) {
    case Stage::kRunning:
      stage_end_ = limits_.deadline;
      return;
    case Stage::kGrace:
      stage_end_ = Deadline::After(limits_.grace);
      return;
    case Stage::kDump:
      stage_end_ = Deadline::After(limits_.dump);
      if (limits_.ask_for_dumps) limits_.ask_for_dumps();
      return;
    case Stage::kTerminate:
      stage_end_ = Deadline::After(limits_.terminate);
      SignalAll(SIGTERM);
      SignalAll(SIGCONT);  // A stopped process does not see SIGTERM.
      return;
    case Stage::kKill:
      stage_end_ = Deadline::Infinite();
      SignalAll(SIGKILL);
      return;
  }
}

void ProcessSet::Advance() {
  const bool is_over =
      StageIsOver() || (stage_ == Stage::kDump &&
                        (!limits_.have_dumped || limits_.have_dumped()));
  if (!is_over || !AnyRuns()) return;
  switch (stage_) {
    case Stage::kRunning:
    case Stage::kGrace:
      return Enter(Stage::kDump);
    case Stage::kDump:
      return Enter(Stage::kTerminate);
    case Stage::kTerminate:
    case Stage::kKill:
      return Enter(Stage::kKill);
  }
}

void ProcessSet::SignalAll(int signal) {
  for (int r = 0; r < size(); ++r) {
    if (!Runs(r)) continue;
    ranks_[r].process->SignalGroup(signal);
    ranks_[r].was_signalled |= signal == SIGTERM || signal == SIGKILL;
  }
}

bool ProcessSet::AnyChildRuns() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.is_child && !rank.status;
  });
}

void ProcessSet::KillAll() {
  for (Rank& rank : ranks_) rank.is_released = false;
  Enter(Stage::kKill);
  while (AnyChildRuns()) {
    Await({}, options_.caller_receives_sigchld ? kAskPeriod
                                               : absl::InfiniteDuration());
    if (options_.caller_receives_sigchld) CollectEnds();
  }
}

}  // namespace sherd
