#include "sherd/testing/harness/scoped_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"

namespace sherd::testing::internal {

absl::StatusOr<ScopedDirectory> ScopedDirectory::Make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::absolute(
      GetKnobOr(Knob::kTestTmpDir, GetKnobInfo(Knob::kTestTmpDir).default_text),
      error);
  std::string path = (parent / "sherd_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(errno, "making directory", path);
  }
  return ScopedDirectory(std::move(path));
}

ScopedDirectory::~ScopedDirectory() {
  if (path_.empty()) return;
  const absl::Status removed = FileSystem::Posix().RemoveAll(path_);
  EXPECT_TRUE(removed.ok()) << removed;
}

}  // namespace sherd::testing::internal
