#ifndef SHERD_CORE_BASE_FAULT_POINT_FILES_H_
#define SHERD_CORE_BASE_FAULT_POINT_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

// Wraps another file system; every operation passes its fault point first:
// "file/…" of fault_point.h. FileSystem::Posix() is wrapped; wrap another
// implementation of FileSystem to inject faults into it.
//
// Half of a write is done before the point is passed, so that a fault leaves it
// torn. Exists() and IsDirectory() pass no point: they cannot fail.
//
// Lifetime. `files` outlives this and every File from it.
//
// Cost. One more virtual call per operation; while no fault is armed a load and
// a branch besides.
class FaultPointFiles final : public FileSystem {
 public:
  explicit FaultPointFiles(FileSystem& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveAll(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  bool Exists(const std::string& path) override;
  bool IsDirectory(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

 private:
  FileSystem& files_;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_FAULT_POINT_FILES_H_
