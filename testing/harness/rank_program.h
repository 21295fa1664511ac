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

// The own program, started again as a rank: what it is given.
namespace sherd::testing::internal {

// The files of a set of ranks, removed with this object.
class RankDirectory {
 public:
  static absl::StatusOr<RankDirectory> Make();

  const std::string& path() const { return directory_.path(); }
  // What tests call temp_dir().
  std::string files() const;
  // Where Init finds the other ranks.
  std::string init_method() const;

  // What is kept of a test that fails; see SupervisorOptions.
  RunFiles run_files() const;

  // An entry of the environment of the ranks, and of nobody else.
  std::string mark() const;

  // Removes what a test has left in files() and in its store.
  absl::Status Empty() const;

 private:
  explicit RankDirectory(ScopedDirectory directory)
      : directory_(std::move(directory)) {}

  ScopedDirectory directory_;
  // Null if there can be no more processes: then there will be no ranks either.
  std::unique_ptr<Guardian> guardian_;
};

// The file of the store that belongs to the test whose temp_dir() this is.
std::string StoreFile(const std::string& files);

// How the own program is started.
struct RankProgram {
  int world_size = 1;
  // By GoogleTest's full names; the only ones that the ranks see.
  std::vector<std::string> tests;
  // The ranks run those of them that they are told to; see RankSupervisor.
  bool persistent = false;
  // After the last of them comes the first.
  bool again = false;
  // CUDA_VISIBLE_DEVICES, if set.
  std::optional<std::string> visible_gpus;
  // There are fewer of them than ranks.
  bool shares_gpus = false;
  // Path and name; empty: the harness starts the ranks itself.
  std::string launcher;
  std::string launcher_name;
  // Until Bazel ends the test.
  absl::Duration time_left;
};

// For a RankSupervisor. The ranks get this process's command line and
// environment, but for what concerns GoogleTest and Bazel. `directory` must
// outlive the supervisor.
absl::StatusOr<SupervisorOptions> RankOptions(const RankProgram& program,
                                              const RankDirectory& directory);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RANK_PROGRAM_H_
