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
// torn. While a fault is armed, ReadMany reads one after another, in order, and
// each passes the point of a read. A file that is only destroyed passes no
// point when it is closed.
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
  absl::Status RenameNew(const std::string& from,
                         const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveAll(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<FileKind> KindOf(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

 private:
  FileSystem& files_;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_FAULT_POINT_FILES_H_
