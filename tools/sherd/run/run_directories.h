#ifndef SHERD_TOOLS_SHERD_RUN_RUN_DIRECTORIES_H_
#define SHERD_TOOLS_SHERD_RUN_RUN_DIRECTORIES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/flight/flight_analysis.h"

namespace sherd {

// A directory below TMPDIR that this user alone may enter.
class TemporaryDirectory {
 public:
  // "sherd-run-XXXXXX" from "sherd-run-"; `purpose` is for the error.
  static absl::StatusOr<TemporaryDirectory> Create(const std::string& prefix,
                                                   const std::string& purpose);
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  // Removes it with its contents.
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }
  // Leaves it where it is, if it has contents.
  void KeepUnlessEmpty();

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// How long a directory of dumps is kept if the user did not name it.
inline constexpr absl::Duration kFlightDirectoryLife = absl::Hours(24);

// Removes this user's sherd-flight-* directories below TMPDIR that have not
// changed for kFlightDirectoryLife.
void RemoveOldFlightDirectories();

// The report on the ranks' dumps in `directory` that were written since
// `start`. Empty if there are none.
FlightReport ReadFlightReport(const std::string& directory, absl::Time start);

// Whether each of `ranks` has a dump in `directory` that is not older than
// `since`.
bool HaveDumped(const std::string& directory, const std::vector<int>& ranks,
                absl::Time since);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RUN_RUN_DIRECTORIES_H_
