#include "sherd/testing/harness/launched_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/marked_processes.h"
#include "sherd/testing/harness/launch_shim.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kMaxOutput = size_t{64} << 10;
constexpr absl::Duration kTerminateTime = absl::Seconds(2);
// Whose value no other run has.
constexpr absl::string_view kMarkVariable = "TMPDIR";

std::string MarkOf(absl::string_view session) {
  return absl::StrCat(kMarkVariable, "=", session);
}

// A named pipe that stays open: an end to read from, and one to write to.
absl::StatusOr<Pipe> MakeNamedPipe(const std::string& path) {
  if (mkfifo(path.c_str(), 0600) != 0) {
    return ErrnoStatus(errno, "making pipe", path);
  }
  // Opening it for both never waits.
  UniqueFd write(open(path.c_str(), O_RDWR | O_CLOEXEC));
  UniqueFd read(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!write.is_open() || !read.is_open()) {
    return ErrnoStatus(errno, "opening pipe", path);
  }
  return Pipe{std::move(read), std::move(write)};
}

absl::string_view NameOf(absl::string_view variable) {
  return variable.substr(0, variable.find('='));
}

bool Has(const std::vector<std::string>& environment, absl::string_view name) {
  return std::any_of(
      environment.begin(), environment.end(),
      [name](const std::string& variable) { return NameOf(variable) == name; });
}

void Set(std::vector<std::string>& environment, absl::string_view name,
         absl::string_view value) {
  environment.erase(std::remove_if(environment.begin(), environment.end(),
                                   [name](const std::string& variable) {
                                     return NameOf(variable) == name;
                                   }),
                    environment.end());
  environment.push_back(absl::StrCat(name, "=", value));
}

// Settings that Open MPI needs in a sandbox of Bazel, in containers, and with
// more ranks than cores. Other launchers ignore them. The user's settings are
// kept.
void AddLauncherVariables(std::vector<std::string>& environment,
                          const std::string& session) {
  const std::pair<absl::string_view, absl::string_view> defaults[] = {
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
      // Neither ssh nor UCX are looked for: all ranks are on this host.
      {"OMPI_MCA_plm", "isolated"},
      {"OMPI_MCA_pml", "ob1"},
      {"OMPI_MCA_btl", "self,vader"},
      {"OMPI_MCA_hwloc_base_binding_policy", "none"},
      // In /dev/shm the files of a run are named by host, user and the process
      // number of mpirun, which two sandboxes of Bazel may have in common.
      {"OMPI_MCA_btl_vader_backing_directory", session},
      // The same for version 5 and later.
      {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
      {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
      {"HOME", session},
  };
  for (const auto& [name, value] : defaults) {
    if (!Has(environment, name)) Set(environment, name, value);
  }
  Set(environment, kMarkVariable, session);
  // Open MPI leaks in modules that it has unloaded before the check.
  AddSanitizerOptions(environment, "detect_leaks=0");
}

}  // namespace

absl::StatusOr<std::string> FindLauncher(const std::string& launcher) {
  std::vector<std::string> places;
  if (absl::StrContains(launcher, "/")) {
    places.push_back(launcher);
  } else {
    for (absl::string_view variable : OwnEnvironment()) {
      if (!absl::ConsumePrefix(&variable, "PATH=")) continue;
      for (absl::string_view directory : absl::StrSplit(variable, ':')) {
        places.push_back(JoinPath(std::string(directory), launcher));
      }
    }
  }
  for (const std::string& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place;
  }
  return absl::NotFoundError(absl::StrCat(
      launcher, " is not installed: the ranks of this test are started by it"));
}

absl::StatusOr<std::unique_ptr<LaunchedRank>> LaunchedRank::Prepare(
    const std::string& directory, int rank) {
  std::unique_ptr<LaunchedRank> launched(new LaunchedRank);
  const std::pair<absl::string_view, UniqueFd*> pipes[] = {
      {kResultsPipe, &launched->results_},
      {kOutputPipe, &launched->output_},
      {kControlPipe, &launched->control_}};
  for (const auto& [name, end] : pipes) {
    SHERD_ASSIGN_OR_RETURN(Pipe pipe,
                           MakeNamedPipe(LaunchPipe(directory, name, rank)));
    *end = std::move(pipe.read);
    launched->writers_.push_back(std::move(pipe.write));
  }
  return launched;
}

const std::optional<ExitStatus>& LaunchedRank::Poll() {
  while (!exit_) {
    char buffer[256];
    const ssize_t size = read(control_.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) break;
    if (size == 0) {
      // The shim was killed before it could report.
      End(ExitStatus::OfSignal(SIGTERM), /*by_launcher=*/true);
      break;
    }
    pending_.append(buffer, size);
    for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      Take(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
  }
  return exit_;
}

void LaunchedRank::Take(absl::string_view line) {
  int number = 0;
  if (line.size() < 2 || !absl::SimpleAtoi(line.substr(1), &number)) return;
  if (line[0] == 'P') {
    process_ = number;
    writers_.clear();
  } else if (line[0] == 'E') {
    const ExitStatus status(number);
    End(status, status.KilledBy(SIGTERM));
  }
}

void LaunchedRank::End(ExitStatus status, bool by_launcher) {
  exit_ = status;
  ended_by_launcher_ = by_launcher;
}

void LaunchedRank::LauncherEnded() {
  if (!Poll()) End(ExitStatus::OfSignal(SIGTERM), /*by_launcher=*/true);
}

void LaunchedRank::Signal(int signal) {
  if (has_started() && !exit_) kill(process_, signal);
}

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Start(
    const LauncherOptions& options, int world_size, const std::string& program,
    const std::vector<std::string>& arguments,
    std::vector<std::string> environment) {
  SHERD_ASSIGN_OR_RETURN(
      Pipe release,
      MakeNamedPipe(LaunchPipe(options.directory, kReleasePipe, 0)));
  SHERD_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  if (fcntl(output.read.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "setting up", "a pipe");
  }
  std::string session = "/tmp/sherd_XXXXXX";
  if (mkdtemp(session.data()) == nullptr) {
    return ErrnoStatus(errno, "making directory", session);
  }
  AddLauncherVariables(environment, session);
  Set(environment, GetKnobInfo(Knob::kTestRankDir).variable, options.directory);
  std::vector<std::string> line = {options.name, "-n", absl::StrCat(world_size),
                                   program};
  if (!arguments.empty()) {
    line.insert(line.end(), arguments.begin() + 1, arguments.end());
  }
  absl::StatusOr<std::unique_ptr<Guardian>> guardian =
      Guardian::Start(session, MarkOf(session));
  if (!guardian.ok()) {
    FileSystem::Posix().RemoveAll(session).IgnoreError();
    return guardian.status();
  }
  absl::StatusOr<Subprocess> process =
      Subprocess::Start({.program = options.program,
                         .arguments = line,
                         .environment = environment,
                         .output_fd = output.write.get()});
  if (!process.ok()) {
    FileSystem::Posix().RemoveAll(session).IgnoreError();
    return process.status();
  }
  return std::unique_ptr<Launcher>(new Launcher(
      *std::move(guardian), *std::move(process), std::move(output.read),
      std::move(release.write), std::move(session)));
}

Launcher::~Launcher() {
  Finish(absl::ZeroDuration());
  FileSystem::Posix().RemoveAll(session_).IgnoreError();
}

std::string Launcher::Mark() const { return MarkOf(session_); }

const std::optional<ExitStatus>& Launcher::Poll() { return process_.Poll(); }

void Launcher::DrainOutput() {
  char buffer[4096];
  while (output_fd_.is_open()) {
    const ssize_t size = read(output_fd_.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return;
    if (size == 0) output_fd_.Reset();
    output_.append(buffer, std::min<size_t>(size, kMaxOutput - output_.size()));
  }
}

void Launcher::Finish(absl::Duration at_most) {
  if (std::exchange(finished_, true)) return;
  release_.Reset();
  for (const int signal : {0, SIGTERM, SIGKILL}) {
    if (signal != 0 && !Poll()) process_.SignalGroup(signal);
    const Deadline deadline =
        Deadline::After(signal == 0 ? at_most : kTerminateTime);
    while (!Poll() && !deadline.HasPassed()) {
      DrainOutput();
      pollfd fds[] = {{output_fd_.get(), POLLIN, 0},
                      {process_.exit_fd(), POLLIN, 0}};
      poll(fds, 2, 20);
    }
  }
  KillMarkedProcesses(Mark());
  DrainOutput();
}

}  // namespace sherd::testing::internal
