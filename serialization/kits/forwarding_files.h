#ifndef SHERD_SERIALIZATION_KITS_FORWARDING_FILES_H_
#define SHERD_SERIALIZATION_KITS_FORWARDING_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

// The machine's files or others, which outlive it, for tests that override some
// of the operations.
class ForwardingFiles : public FileSystem {
 public:
  ForwardingFiles() : ForwardingFiles(Posix()) {}
  explicit ForwardingFiles(FileSystem& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override {
    return files_.OpenForRead(path);
  }
  absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) override {
    return files_.Create(path);
  }
  absl::Status CreateDirectories(const std::string& path) override {
    return files_.CreateDirectories(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_.Rename(from, to);
  }
  absl::Status RenameNew(const std::string& from,
                         const std::string& to) override {
    return files_.RenameNew(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    return files_.Remove(path);
  }
  absl::Status RemoveAll(const std::string& path) override {
    return files_.RemoveAll(path);
  }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    return files_.List(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return files_.SyncDirectory(path);
  }
  absl::StatusOr<FileKind> KindOf(const std::string& path) override {
    return files_.KindOf(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return files_.FreeBytes(path);
  }

 private:
  FileSystem& files_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_FORWARDING_FILES_H_
