#ifndef SHERD_SERIALIZATION_STORE_STORE_FILES_H_
#define SHERD_SERIALIZATION_STORE_STORE_FILES_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/directory_index.h"

namespace sherd {

// A directory of a checkpoint in an object store, as a FileSystem of which it
// is the only directory: what saves, leases and series need of one (lease.h:
// operations on a directory have one order, and RenameNew replaces nothing).
//
// Names are of three kinds.
//   *.sherd  Given by Rename and RenameNew alone, and taken by Remove: each is
//            one operation of the DirectoryIndex, whose table says which object
//            a name has. A name without an entry is that of an object, if there
//            is one, as after a checkpoint's files were copied to the store by
//            other means.
//   *.tmp    Files that may be renamed. Each Create begins an object of its
//   own,
//            the name, '-' and 16 random digits, so that no removal, however
//            late, hits what was created after it.
//   others   Data files and pins: objects of their names, which are never
//            renamed.
//
// A rename puts a table in which `to` has the object of `from`. It is refused
// (kNotFound) if by the table before the object is removed, or has a name
// already, or if it is not in the store; a removal of `from` first puts a table
// that marks the object as removed, and only then removes it. So of a rename
// and a removal of one file the earlier one by the index succeeds, and the
// other finds that the file is not there: what SaveDirectory::RemoveStaged
// relies on. An object that has lost its name is marked by the same table.
// Marks are dropped by the operation after the removal, since an object's name
// never comes back. After a crash, marked objects are removed by the next
// operation, and objects that are neither marked nor named are files that end
// in ".tmp", which a save removes as leftovers.
//
// Writing. A file appears when it is closed, or renamed, whole, and durable if
// Sync was called after the last write; one that is only destroyed never does.
// A file of up to kMaxRewritten bytes may be written, or synced the first time,
// after it has appeared: each WriteAt, and such a Sync, replaces its object, if
// that is there still, durably; of a longer one they are kFailedPrecondition.
// The index is durable always.
//
// Paths are the root, or the root, '/' and a name; others, and renames and
// creations of names of the wrong kind, are kInvalidArgument. The root always
// exists; CreateDirectories removes what dead processes have left unfinished,
// SyncDirectory has nothing to do.
//
// Errors. From the store, beside those of FileSystem. kDataLoss: the index is
// damaged, or names an object that is not there. kUnknown as in DirectoryIndex.
//
// Threads. Any, as FileSystem.
class StoreFiles final : public FileSystem {
 public:
  static constexpr size_t kMaxRewritten = size_t{64} << 10;

  // `store` is borrowed, and outlives this and its files. `root` is the path of
  // the directory, without a slash at its end.
  StoreFiles(CheckpointStore& store, std::string root);

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

  // Whether a name is of one of the kinds that files of a checkpoint have, and
  // not that of a directory.
  static bool IsFileName(absl::string_view name);

 private:
  class Contents;
  class WrittenFile;

  // "" is the root.
  absl::StatusOr<std::string> NameOf(const std::string& path) const;
  absl::StatusOr<std::string> FileNameOf(const std::string& path) const;
  absl::Status NoSuchFile(absl::string_view name) const;
  absl::Status Place(const std::string& from, const std::string& to,
                     bool if_absent);
  absl::Status Publish(const std::string& name);
  // The object of a name by the table, if there is one.
  absl::StatusOr<std::optional<std::string>> ObjectOf(const std::string& name,
                                                      const IndexTable& table);
  absl::StatusOr<bool> IsThere(const std::string& object);
  absl::Status RemoveIndexed(const std::string& name);

  CheckpointStore& store_;
  const std::string root_;
  DirectoryIndex index_;
  absl::Mutex mutex_;
  // Temporary files that are open, by name.
  std::map<std::string, std::weak_ptr<Contents>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_STORE_FILES_H_
