#ifndef SHERD_CORE_PROCESS_PROCESS_SET_H_
#define SHERD_CORE_PROCESS_PROCESS_SET_H_

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/exit_status.h"
#include "sherd/core/process/guardian.h"
#include "sherd/core/process/subprocess.h"

namespace sherd {

// Processes that work together, the ranks of a program: starts them, takes
// their output, detects their ends, and ends those that do not end by
// themselves. The caller interprets each end, decides when the others must end
// too, and runs a loop:
//
//   set.BeginRun(limits);
//   while (set.AnyRuns()) {
//     for (const int rank : set.Await()) ...   // It ended: set.status(rank).
//     set.Advance();
//   }
//
// The end. A run has stages with a duration each; when a stage is over, the
// next one begins (Advance), and the caller may Enter any stage sooner:
//   kRunning    until the run's deadline;
//   kGrace      the caller saw a failure: the others may end by themselves, or
//               report what they see;
//   kDump       processes that still run write dumps;
//   kTerminate  they got SIGTERM, and SIGCONT in case they were stopped;
//   kKill       they got SIGKILL.
//
// Orphans. What holds for Subprocess holds for each child: it dies with the
// thread that started it, and, while this process exists, so does the rest of
// its process group. A process that left the group is identified by the mark:
// the caller ends it (KillMarkedProcesses), or, if this process was killed, the
// guardian does.
//
// Ownership. The set owns its processes and the ends that it reads from.
// Readers and the functions of limits are called by Await, CollectEnds,
// ReadRest, Start, Fork, Enter, Advance and KillAll alone, and live as long as
// the set; those of limits until the next run. Readers call none of these, nor
// Add.
//
// Threads. Not thread-safe. All calls come from one thread, which outlives the
// set: the kernel takes its end for that of the parent.
class ProcessSet {
 public:
  // A process of the set: a child of this one, or one that another program
  // started and reports on.
  class Process {
   public:
    virtual ~Process() = default;
    // -1 if not known yet.
    virtual pid_t pid() const = 0;
    // Readable once the process may have ended; -1 if there is no such
    // descriptor.
    virtual int exit_fd() const = 0;
    // How it ended; nullopt while it runs. Never blocks.
    virtual const std::optional<ExitStatus>& Poll() = 0;
    // Both do nothing once Poll has seen the end.
    virtual void Signal(int signal) = 0;
    virtual void SignalGroup(int signal) = 0;
  };

  struct Options {
    // Is notified of the start and the end of each child. Borrowed.
    Guardian* guardian = nullptr;
    // The caller receives SIGCHLD and then calls CollectEnds. Otherwise each
    // process that runs takes a descriptor here, too many for thousands.
    bool caller_receives_sigchld = false;
  };

  // Takes the data that arrives through a pipe.
  struct Reader {
    // Gets the next piece; an empty one is the end of the pipe.
    std::function<void(absl::string_view piece)> take;
    // While it returns false the pipe is not read, and its writer may have to
    // wait. Unset: there is always room.
    std::function<bool()> has_room;
  };

  // The end of a pipe to read from.
  struct Stream {
    UniqueFd fd;
    Reader reader;
  };

  struct Launch {
    // Without output_fd and error_fd where the set is to make a pipe.
    SubprocessOptions process;
    // Gets standard output, and standard error unless `errors` is set. Unset:
    // they go to the descriptors of `process`.
    std::optional<Reader> output;
    std::optional<Reader> errors;
    // Other pipes that the process writes into. They are read first: output
    // that it wrote before it wrote to them has then arrived.
    std::vector<Stream> streams;
  };

  enum class Stage { kRunning, kGrace, kDump, kTerminate, kKill };

  struct Limits {
    Deadline deadline = Deadline::Infinite();
    // Of the stages of the same names. The last one takes as long as it takes.
    absl::Duration grace = absl::ZeroDuration();
    absl::Duration dump = absl::ZeroDuration();
    absl::Duration terminate = absl::ZeroDuration();
    // Begins kDump; unset: there are no dumps to write.
    std::function<void()> ask_for_dumps;
    // Polled every few milliseconds; true ends kDump early.
    std::function<bool()> have_dumped;
  };

  ProcessSet() : options_() {}
  explicit ProcessSet(Options options) : options_(options) {}
  // Kills what still runs, and waits for children.
  ~ProcessSet();
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  // Starts a process, which becomes the set's next rank, counted from 0. If
  // that fails the others are killed: a set never has only a part of its ranks.
  //   as Subprocess::Start  The program cannot be executed.
  //   other                 There is no descriptor for a pipe.
  absl::Status Start(Launch launch);

  // The same with a copy of this process; see Subprocess::Fork.
  absl::Status Fork(absl::FunctionRef<int()> body);

  // Adds a process that another program started.
  absl::Status Add(std::unique_ptr<Process> process,
                   std::vector<Stream> streams);

  int size() const { return static_cast<int>(ranks_.size()); }
  Process& process(int rank) { return *ranks_[rank].process; }

  // How the rank ended, as seen by Await or CollectEnds.
  const std::optional<ExitStatus>& status(int rank) const {
    return ranks_[rank].status;
  }
  // The set sent it SIGTERM or SIGKILL before its end was seen.
  bool was_signalled(int rank) const { return ranks_[rank].was_signalled; }
  // The ranks that ended, in the order in which that was seen. Of several found
  // at once, one that a signal killed comes first: it is more likely the cause
  // of the others' ends than one that exited.
  const std::vector<int>& ended() const { return ended_; }

  // Begins stage kRunning of a run, in which all ranks take part.
  void BeginRun(Limits limits);

  // The rank's part of the run is over: the process gets no more signals from
  // stages and SignalAll, and its streams are not read, until the next run.
  void Release(int rank) { ranks_[rank].is_released = true; }

  // Whether the rank has neither ended nor been released.
  bool Runs(int rank) const {
    return !ranks_[rank].status && !ranks_[rank].is_released;
  }
  bool AnyRuns() const;

  // Waits until a process ended, a stream has data, the stage may be over, or
  // one of `others` is ready, whose revents are set; at most that long. Reads
  // the data that has arrived, also of ranks that have ended. Returns the ranks
  // that ended meanwhile, whose streams have been read as by ReadRest; the span
  // is valid until the next call.
  absl::Span<const int> Await(
      absl::Span<pollfd> others = {},
      absl::Duration at_most = absl::InfiniteDuration());

  // The same without waiting or reading streams of running processes: checks
  // for each process whether it has ended.
  absl::Span<const int> CollectEnds();

  // Reads the data that the rank's streams hold now. Bounded, since another
  // process may hold the other end and write forever.
  void ReadRest(int rank);

  // Whether another process may still hold the other end of any stream.
  bool HasOpenStreams() const;
  bool HasOpenStreams(int rank) const;
  void CloseStreams();

  Stage stage() const { return stage_; }
  // As of the last Await, if that was in this stage: all calls between two
  // Awaits, Advance included, see the same value.
  bool StageIsOver() const { return stage_is_over_; }
  void Enter(Stage stage);
  // Enters the next stage if this one is over.
  void Advance();

  // Sends the signal to all ranks that run, and to their process groups.
  void SignalAll(int signal);

  // Kills all processes, also the released ones, and waits for the ends of
  // children; a process from Add that never starts has no end.
  void KillAll();

 private:
  struct Rank {
    std::unique_ptr<Process> process;
    bool is_child = false;
    std::vector<Stream> streams;
    std::optional<ExitStatus> status;
    bool was_signalled = false;
    bool is_released = false;
  };

  absl::Status AddChild(absl::StatusOr<Subprocess> child,
                        std::vector<Stream> streams);
  absl::Status AddRank(Rank rank);
  absl::Status StartChild(Launch launch);
  bool AnyChildRuns() const;
  bool CanRead(const Rank& rank, const Stream& stream) const;
  bool IsWatched(const Rank& rank) const;
  absl::Duration LongestWait(absl::Duration at_most) const;
  // Records its end if it has ended.
  void Ask(int rank);
  // True if there may be more.
  bool Read(const Rank& rank, Stream& stream);
  // The same for all streams of the rank, in their order.
  bool ReadStreams(Rank& rank);
  // The ranks that ended since ended_ had that size; puts them in order.
  absl::Span<const int> TakeEnds(size_t begin);

  const Options options_;
  std::vector<Rank> ranks_;
  std::vector<int> ended_;
  Limits limits_;
  Stage stage_ = Stage::kRunning;
  Deadline stage_end_ = Deadline::Infinite();
  bool stage_is_over_ = false;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_PROCESS_SET_H_
