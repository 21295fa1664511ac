#ifndef SHERD_CORE_BASE_FILE_H_
#define SHERD_CORE_BASE_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

// One of several reads; see File::ReadMany.
struct FileRead {
  int64_t offset = 0;
  absl::Span<std::byte> buffer;
};

// An open file. Reads and writes name their position, so one File may be used
// by several threads. Every error names the path, the call and the offset.
class File {
 public:
  virtual ~File() = default;

  // Fills all of `buffer` from `offset` on.
  //   kDataLoss  The file ends before that.
  virtual absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) = 0;

  // Fills all buffers, each from its offset on, and calls `done` with the index
  // of each read that has ended well, in any order, on the calling thread. What
  // the page cache has is copied from there; of the rest several parts are in
  // flight at once, where the system can (io_engine.h), also while `done` runs.
  // Reads may overlap in the file, their buffers may not.
  //
  // Completion. No read is in flight once it returns, after an error too.
  // Errors. As ReadAt, or the error of `done`: the first of them. After it no
  //   read begins. A buffer for which `done` was not called is unspecified.
  virtual absl::Status ReadMany(absl::Span<const FileRead> reads,
                                absl::FunctionRef<absl::Status(size_t)> done);

  // Writes all of `data` at `offset`, beyond the end too.
  //   kResourceExhausted  There is no space, or a quota is exceeded. Part may
  //                       be written.
  virtual absl::Status WriteAt(int64_t offset,
                               absl::Span<const std::byte> data) = 0;

  virtual absl::StatusOr<int64_t> Size() = 0;

  // Reserves space so that writing [0, size) cannot run out of it, where the
  // file system can; otherwise does nothing.
  //   kResourceExhausted  There is not that much space.
  virtual absl::Status Reserve(int64_t size) = 0;

  // Begins to write [offset, offset + bytes), which was written before, to the
  // medium, and returns without waiting for it, unless the medium has more to
  // do than it takes: then a later Sync finds little left. A hint: does nothing
  // where the system has no such call, and makes nothing durable.
  // Errors. An error of the medium, which Sync reports as well.
  virtual absl::Status StartWriteback(int64_t offset, int64_t bytes);

  // Returns once contents and size would survive a loss of power.
  virtual absl::Status Sync() = 0;

  // Closes the file, after which it is only destroyed. A file system may report
  // here, and not before, that it could not keep what was written. The
  // destructor closes a file that is open, and drops that error.
  virtual absl::Status Close() = 0;

  const std::string& path() const { return path_; }

 protected:
  explicit File(std::string path) : path_(std::move(path)) {}

 private:
  const std::string path_;
};

// What a path names.
enum class FileKind {
  kNone,
  kRegular,
  kDirectory,
  // A device, pipe or socket.
  kOther,
};

// The file operations that Sherd uses, as an interface, so that tests can fail
// or kill at a counted call. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The machine's files, with fault points (fault_point_files.h). Lives
  // forever.
  static FileSystem& Posix();

  // Opens a regular file. Never waits for the writer of a pipe.
  //   kNotFound          There is no such file.
  //   kInvalidArgument   It is a directory, device, pipe or socket.
  //   kPermissionDenied  It may not be read.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) = 0;

  // Creates the file, or truncates an existing one.
  //   kInvalidArgument  There is a directory, device, pipe or socket.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) = 0;

  // Creates the directory and its parents. An existing directory is not an
  // error.
  virtual absl::Status CreateDirectories(const std::string& path) = 0;

  // Replaces `to` atomically: a reader finds the old file or the new one.
  //   kInvalidArgument    `to` is a device, pipe or socket, which would be
  //                       replaced.
  //   kResourceExhausted  There is no space, or a quota is exceeded; nothing
  //                       was changed, and will not be.
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;

  // Gives `from` the name `to` unless a file has it, in one step: of all that
  // try at the same time one succeeds, and a reader finds the whole file or
  // none. Both are in one directory.
  //   kAlreadyExists       `to` exists; nothing was changed.
  //   kFailedPrecondition  The file system cannot do this (it has neither
  //                        renames that replace nothing nor hard links).
  //   kResourceExhausted   As of Rename.
  //   kUnknown             `to` is there, and `from` may be, too.
  virtual absl::Status RenameNew(const std::string& from,
                                 const std::string& to) = 0;

  //   kNotFound  There is no such file.
  virtual absl::Status Remove(const std::string& path) = 0;

  // Removes a directory and its contents; a missing directory is not an error.
  virtual absl::Status RemoveAll(const std::string& path) = 0;

  // Names in the directory without "." and "..", sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) = 0;

  // Makes creations, renames and removals in the directory survive a loss of
  // power.
  //   kUnimplemented  The file system has no sync of directories.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;

  // What `path` names; links are followed. kNone is an answer of the file
  // system: no such name, or a part of the path that is not a directory. If it
  // gives none, because of an input/output error, a stale handle or missing
  // permission, the result is that error: the file may well exist.
  virtual absl::StatusOr<FileKind> KindOf(const std::string& path) = 0;

  // By KindOf: whether it is not kNone, and whether it is kDirectory.
  absl::StatusOr<bool> Exists(const std::string& path);
  absl::StatusOr<bool> IsDirectory(const std::string& path);

  // Bytes that an unprivileged process may still write below `path`, which
  // must exist.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
};

// Creates the directory and its parents, and makes their names survive a loss
// of power. An existing directory is not an error; its name is made durable
// too, since its creator may have been interrupted, unless this process may not
// read the directory around it, or that cannot be synced, as at the mount point
// of another file system.
absl::Status CreateDurableDirectories(FileSystem& files,
                                      const std::string& path);

// "a/b" from "a" and "b"; an absolute `name` is returned as it is.
std::string JoinPath(const std::string& directory, const std::string& name);

// The whole file as bytes.
//   kResourceExhausted  The file is larger than `max_bytes` (a LimitError);
//                       nothing was allocated.
absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path,
                                     int64_t max_bytes);

// "a" from "a/b" or "a/b/", "." from "b".
std::string ParentDirectory(const std::string& path);

// Writes `data` to `path` so that after a crash at any moment the file holds
// either its former contents or all of `data`: temporary name in the same
// directory, sync, rename, sync of the directory.
// Errors. The former contents remain, except after an error of SyncRenamed.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 absl::Span<const std::byte> data);

// Makes a rename to `path` survive a loss of power.
//   kUnknown  The directory could not be synced. `path` has its new contents,
//             but after a loss of power it may have the former ones.
absl::Status SyncRenamed(FileSystem& files, const std::string& path);

// Opens a regular file by open(2), with `flags` and O_CLOEXEC, and `mode` if it
// is created. Anything else is refused at once, where open() or a later read
// would wait for the other end of a pipe.
//   kInvalidArgument  `path` is a directory, device, pipe or socket.
//   others            ErrnoStatus, with `what`.
absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path, int flags,
                                         mode_t mode, const char* what);

// A status from errno: "`what` `path`: No such file or directory", with the
// code that callers act on (kNotFound, kPermissionDenied, kResourceExhausted,
// kAlreadyExists, otherwise kInternal).
absl::Status ErrnoStatus(int error, const char* what, const std::string& path);

// Bytes that file systems have read from their medium for the calling thread so
// far, as far as they count them: what the page cache had is not among them.
int64_t MediumBytesRead();

}  // namespace sherd

#endif  // SHERD_CORE_BASE_FILE_H_
