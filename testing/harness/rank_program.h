#ifndef SHERD_TESTING_HARNESS_RANK_PROGRAM_H_
#define SHERD_TESTING_HARNESS_RANK_PROGRAM_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/process/guardian.h"
#include "sherd/testing/harness/kept_outputs.h"
#include "sherd/testing/harness/rank_supervisor.h"
#include "sherd/testing/harness/scoped_directory.h"

// Arguments and files of the own program, started again as a rank.
namespace sherd::testing::internal {

// The files of a set of ranks, removed with this object.
class RankDirectory {
 public:
  static absl::StatusOr<RankDirectory> Make();

  const std::string& path() const { return directory_.path(); }
  // The directory that tests get from temp_dir().
  std::string files() const;
  // Where Init finds the other ranks.
  std::string init_method() const;

  // The files that are kept of a test that fails; see SupervisorOptions.
  RunFiles run_files() const;

  // An entry of the environment that only the ranks have.
  std::string mark() const;

  // Removes what a test has left in files() and in its store.
  absl::Status Empty() const;

 private:
  explicit RankDirectory(ScopedDirectory directory)
      : directory_(std::move(directory)) {}

  ScopedDirectory directory_;
  // Null if no process can be created: then there are no ranks either.
  std::unique_ptr<Guardian> guardian_;
};

// The file of the store that belongs to the test whose temp_dir() this is.
std::string StoreFile(const std::string& files);

// How the own program is started.
struct RankProgram {
  int world_size = 1;
  // GoogleTest's full names of the only tests that the ranks see.
  std::vector<std::string> tests;
  // The ranks run the tests that RankSupervisor selects.
  bool persistent = false;
  // The last test is followed by the first.
  bool again = false;
  // CUDA_VISIBLE_DEVICES, if set.
  std::optional<std::string> visible_gpus;
  // There are fewer GPUs than ranks.
  bool shares_gpus = false;
  // Path and name; empty: the harness starts the ranks itself.
  std::string launcher;
  std::string launcher_name;
  // The time until Bazel ends the test.
  absl::Duration time_left;
};

// Options for a RankSupervisor. The ranks get this process's command line and
// environment, except for GoogleTest's and Bazel's parts. `directory` must
// outlive the supervisor.
absl::StatusOr<SupervisorOptions> RankOptions(const RankProgram& program,
                                              const RankDirectory& directory);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RANK_PROGRAM_H_
