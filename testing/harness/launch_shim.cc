#include "sherd/testing/harness/launch_shim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/subprocess.h"

namespace sherd::testing::internal {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";
constexpr int kMaxRank = 1 << 20;

absl::StatusOr<int> FirstOf(std::initializer_list<Knob> knobs) {
  for (const Knob knob : knobs) {
    SHERD_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                           GetIntKnob(knob, 0, kMaxRank));
    if (value) return static_cast<int>(*value);
  }
  return absl::NotFoundError(
      "the launcher does not say which rank this process is");
}

absl::StatusOr<UniqueFd> Open(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags));
  if (!fd.is_open()) return ErrnoStatus(errno, "opening", path);
  return fd;
}

void Tell(const UniqueFd& control, char what, int number) {
  const std::string line =
      absl::StrCat(absl::string_view(&what, 1), number, "\n");
  // Shorter than PIPE_BUF, so written as a whole. Without a reader it is
  // ignored.
  [[maybe_unused]] const ssize_t written =
      write(control.get(), line.data(), line.size());
}

void SetVariable(Knob knob, int value) {
  setenv(GetKnobInfo(knob).variable, absl::StrCat(value).c_str(), 1);
}

class LaunchShim {
 public:
  explicit LaunchShim(std::string directory)
      : directory_(std::move(directory)) {}

  absl::Status Start() {
    // Ends with the launcher, however that ends.
    if (!DieWithParent(getppid())) {
      return ErrnoStatus(errno, "watching", "the launcher");
    }
    SHERD_ASSIGN_OR_RETURN(rank_, FirstOf({Knob::kOmpiRank, Knob::kPmiRank}));
    const auto pipe = [this](absl::string_view name) {
      return LaunchPipe(directory_, name, rank_);
    };
    SHERD_ASSIGN_OR_RETURN(release_,
                           Open(pipe(kReleasePipe), O_RDONLY | O_CLOEXEC));
    SHERD_ASSIGN_OR_RETURN(control_,
                           Open(pipe(kControlPipe), O_WRONLY | O_CLOEXEC));
    SHERD_ASSIGN_OR_RETURN(output_,
                           Open(pipe(kOutputPipe), O_WRONLY | O_CLOEXEC));
    SHERD_ASSIGN_OR_RETURN(results_,
                           Open(pipe(kResultsPipe), O_WRONLY | O_CLOEXEC));
    SetRankVariables();
    return StartRank();
  }

  // Of the rank.
  ExitStatus AwaitEnd() {
    const ExitStatus status = rank_process_->Wait();
    Tell(control_, 'E', status.wait_status());
    return status;
  }

  void AwaitRelease() {
    char byte;
    ssize_t size;
    do {
      size = read(release_.get(), &byte, 1);
    } while (size > 0 || (size < 0 && errno == EINTR));
  }

 private:
  void SetRankVariables() {
    const absl::StatusOr<int> local_rank =
        FirstOf({Knob::kOmpiLocalRank, Knob::kMpiLocalRank});
    SetVariable(Knob::kRank, rank_);
    SetVariable(Knob::kLocalRank, local_rank.ok() ? *local_rank : rank_);
    SetVariable(Knob::kTestRankFd, results_.get());
    unsetenv(GetKnobInfo(Knob::kTestRankDir).variable);
  }

  absl::Status StartRank() {
    // Signals of the launcher to its process group are for the rank; the shim
    // must survive to report its end.
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    SHERD_ASSIGN_OR_RETURN(Subprocess rank,
                           Subprocess::Start({.program = kOwnProgram,
                                              .arguments = OwnArguments(),
                                              .environment = OwnEnvironment(),
                                              .output_fd = output_.get(),
                                              .inherited_fds = {results_.get()},
                                              .blocked_signals = before,
                                              .own_group = false}));
    rank_process_.emplace(std::move(rank));
    Tell(control_, 'P', rank_process_->pid());
    // Only the rank holds them from now on, so that their end is seen.
    output_.Reset();
    results_.Reset();
    return absl::OkStatus();
  }

  const std::string directory_;
  int rank_ = -1;
  UniqueFd release_, control_, output_, results_;
  std::optional<Subprocess> rank_process_;
};

[[noreturn]] void EndLike(const ExitStatus& status) {
  if (status.signal()) {
    const int signal_number = *status.signal();
    // The rank has dumped its core, if any process.
    prctl(PR_SET_DUMPABLE, 0);
    signal(signal_number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    raise(signal_number);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }
  _exit(0);
}

}  // namespace

std::string LaunchPipe(absl::string_view directory, absl::string_view name,
                       int rank) {
  const std::string file =
      name == kReleasePipe ? std::string(name) : absl::StrCat(name, ".", rank);
  return JoinPath(std::string(directory), file);
}

void MaybeRunAsLaunchShim() {
  const std::string directory = GetKnobOr(Knob::kTestRankDir, "");
  if (directory.empty()) return;
  LaunchShim shim(directory);
  const absl::Status started = shim.Start();
  if (!started.ok()) {
    std::fprintf(stderr, "shim of a rank: %s\n", started.ToString().c_str());
    _exit(1);
  }
  const ExitStatus status = shim.AwaitEnd();
  if (status.signal()) EndLike(status);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  shim.AwaitRelease();
  EndLike(status);
}

}  // namespace sherd::testing::internal
