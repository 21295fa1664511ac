#ifndef SHERD_SERIALIZATION_STORE_DIRECTORY_STORE_H_
#define SHERD_SERIALIZATION_STORE_DIRECTORY_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/store.h"

namespace sherd {

// The store of "file:" and "objects:": a regular file per object, in one
// directory. CheckpointStore has neither renames nor writes in place, so one
// body serves both.
//
// An object is written under a name that no object can have, ".upload." with
// the process that writes, synced, and then renamed: over an object of its
// name, or to a name that must be free (RenameNew). It is in the same
// directory, and not in one below, since that is all that FileSystem promises
// for RenameNew, and so that one sync makes a name durable.
//
// The directory is created, durably, by the first put. Directories, pipes and
// devices in it, and files whose names are not those of objects, are not seen.
//
// RemoveUnfinished removes uploads of processes of this host that have ended;
// those of processes that cannot be seen after a day.
class DirectoryStore final : public CheckpointStore {
 public:
  // `files` is borrowed.
  DirectoryStore(FileSystem& files, std::string directory);

  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view prefix) override;
  absl::StatusOr<int64_t> Stat(const std::string& name) override;
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& name) override;
  absl::StatusOr<std::unique_ptr<ObjectWriter>> BeginPut(
      const std::string& name) override;
  absl::Status Put(const std::string& name,
                   absl::Span<const std::byte> data) override;
  absl::Status PutIfAbsent(const std::string& name,
                           absl::Span<const std::byte> data) override;
  absl::Status Remove(const std::string& name) override;
  absl::Status RemoveUnfinished() override;
  absl::StatusOr<int64_t> FreeBytes() override;

 private:
  class Upload;

  absl::StatusOr<std::unique_ptr<Upload>> BeginUpload(const std::string& name);
  absl::Status PutWhole(const std::string& name,
                        absl::Span<const std::byte> data, bool if_absent);
  absl::Status CreateDirectory();

  FileSystem& files_;
  const std::string directory_;
  absl::Mutex mutex_;
  bool created_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_DIRECTORY_STORE_H_
