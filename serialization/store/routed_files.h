#ifndef SHERD_SERIALIZATION_STORE_ROUTED_FILES_H_
#define SHERD_SERIALIZATION_STORE_ROUTED_FILES_H_

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/store/store_registry.h"

namespace sherd {

// What CheckpointFiles() is, over any file system in place of
// FileSystem::Posix(): see there for paths. Stores are opened when a path first
// leads to them, and stay open.
//
// A path of a store is that of a file in it, or, for operations on directories,
// the store itself. KindOf and RemoveAll, which take both, go by
// StoreFiles::IsFileName.
//
// Threads. Any, as FileSystem.
class RoutedFiles final : public FileSystem {
 public:
  // `base` is borrowed, and outlives this.
  explicit RoutedFiles(FileSystem& base);
  ~RoutedFiles() override;

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
  struct OpenStore;

  // Where a path leads, and what it is called there.
  struct Route {
    FileSystem* files;
    std::string path;
  };

  absl::StatusOr<Route> RouteOf(const std::string& path, bool is_file);
  absl::StatusOr<Route> RouteOfEither(const std::string& path);
  // The files of the store of the directory `root`, which live as long as this.
  // Opens it the first time, and again after an error; the factory of a store
  // may use paths of others, so no lock is held while it runs.
  //   kFailedPrecondition  The factory of this store asks, on its thread or by
  //                        that of another, for which it would wait for ever.
  absl::StatusOr<FileSystem*> FilesOf(const StoreAddress& address,
                                      const std::string& root);
  // Whether a store is being opened by `thread`, or by one that waits for it.
  bool NeedsThread(const OpenStore& store, std::thread::id thread) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Place(const std::string& from, const std::string& to,
                     bool if_absent);

  FileSystem& base_;
  absl::Mutex mutex_;
  // By the path of their directory.
  std::map<std::string, std::unique_ptr<OpenStore>> stores_
      ABSL_GUARDED_BY(mutex_);
  // Threads that wait until a store has been opened.
  std::map<std::thread::id, const OpenStore*> waits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_ROUTED_FILES_H_
