#ifndef SHERD_TESTING_HARNESS_SCOPED_DIRECTORY_H_
#define SHERD_TESTING_HARNESS_SCOPED_DIRECTORY_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace sherd::testing::internal {

// A new, empty directory below TEST_TMPDIR that is removed with this object. If
// that fails, the running test fails.
class ScopedDirectory {
 public:
  static absl::StatusOr<ScopedDirectory> Make();

  ScopedDirectory(ScopedDirectory&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  ScopedDirectory& operator=(ScopedDirectory&&) = delete;
  ~ScopedDirectory();

  // Absolute.
  const std::string& path() const { return path_; }

 private:
  explicit ScopedDirectory(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_SCOPED_DIRECTORY_H_
