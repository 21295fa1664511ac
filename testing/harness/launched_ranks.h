#ifndef SHERD_TESTING_HARNESS_LAUNCHED_RANKS_H_
#define SHERD_TESTING_HARNESS_LAUNCHED_RANKS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/guardian.h"
#include "sherd/core/process/subprocess.h"

namespace sherd::testing::internal {

// How ranks are started by mpirun and its kin, once for all of them.
struct LauncherOptions {
  // Path of the launcher.
  std::string program;
  // How it is called. By its path, mpirun would search for its parts relative
  // to that, in vain where /bin is /usr/bin.
  std::string name;
  // Of the harness, for the pipes of the run.
  std::string directory;
};

// The path of `launcher`, which may be a name to look for in PATH.
//   kNotFound  There is no such program.
absl::StatusOr<std::string> FindLauncher(const std::string& launcher);

// One rank that a launcher started, as reported by its shim.
class LaunchedRank {
 public:
  // Makes the pipes.
  static absl::StatusOr<std::unique_ptr<LaunchedRank>> Prepare(
      const std::string& directory, int rank);

  // The ends to read from, taken once. Before the rank has started they show
  // no end.
  UniqueFd TakeResults() { return std::move(results_); }
  UniqueFd TakeOutput() { return std::move(output_); }

  int control_fd() const { return control_.get(); }

  // How the rank ended, or nothing while it runs or has not started.
  const std::optional<ExitStatus>& Poll();

  // The launcher has ended: so has the rank, whether or not its shim could
  // report it.
  void LauncherEnded();

  bool has_started() const { return process_ > 0; }
  pid_t process() const { return process_; }
  // It ended because the launcher ended all ranks.
  bool ended_by_launcher() const { return ended_by_launcher_; }

  // Does nothing before the start and after the end.
  void Signal(int signal);

 private:
  LaunchedRank() = default;
  void Take(absl::string_view line);
  void End(ExitStatus status, bool by_launcher);

  UniqueFd results_, output_, control_;
  // Ends to write to: without them the pipes would be at their end before the
  // rank has opened them.
  std::vector<UniqueFd> writers_;
  std::string pending_;
  pid_t process_ = -1;
  std::optional<ExitStatus> exit_;
  bool ended_by_launcher_ = false;
};

// The launcher while it runs.
class Launcher {
 public:
  // Starts `arguments` as the program of `world_size` ranks, with
  // `environment`, whose pipes are in options.directory.
  static absl::StatusOr<std::unique_ptr<Launcher>> Start(
      const LauncherOptions& options, int world_size,
      const std::string& program, const std::vector<std::string>& arguments,
      std::vector<std::string> environment);
  ~Launcher();

  int exit_fd() const { return process_.exit_fd(); }
  int output_fd() const { return output_fd_.get(); }
  const std::optional<ExitStatus>& Poll();
  void DrainOutput();
  const std::string& output() const { return output_; }

  // Releases the shims, and so the launcher; waits for its end for at most
  // `at_most`, then ends it. Kills processes that the ranks have left behind.
  void Finish(absl::Duration at_most);

 private:
  Launcher(std::unique_ptr<Guardian> guardian, Subprocess process,
           UniqueFd output, UniqueFd release, std::string session)
      : guardian_(std::move(guardian)),
        process_(std::move(process)),
        output_fd_(std::move(output)),
        release_(std::move(release)),
        session_(std::move(session)) {}

  // The launcher starts sessions and groups as it likes: all that descends from
  // it is known by its environment.
  std::string Mark() const;

  const std::unique_ptr<Guardian> guardian_;
  Subprocess process_;
  UniqueFd output_fd_;
  UniqueFd release_;
  // A directory with a short name, for the sockets of Open MPI.
  const std::string session_;
  std::string output_;
  bool finished_ = false;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_LAUNCHED_RANKS_H_
