#include "sherd/core/base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point_files.h"
#include "sherd/core/base/io_engine.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// One system call moves at most this much: the kernel's own limit is just
// below 2 GiB, and smaller pieces let a signal in.
constexpr size_t kMaxTransfer = size_t{1} << 30;

class PosixFile final : public File {
 public:
  PosixFile(std::string path, UniqueFd fd)
      : File(std::move(path)), fd_(std::move(fd)) {}

  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
    size_t done = 0;
    while (done < buffer.size()) {
      const ssize_t n =
          pread(fd_.get(), buffer.data() + done,
                std::min(buffer.size() - done, kMaxTransfer), offset + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("reading", offset + done);
      if (n == 0) {
        return absl::DataLossError(
            absl::StrCat(path(), " ends at offset ", offset + done,
                         ", expected ", buffer.size() - done, " more bytes"));
      }
      done += n;
    }
    return absl::OkStatus();
  }

  absl::Status ReadMany(absl::Span<const FileRead> reads,
                        absl::FunctionRef<absl::Status(size_t)> done) override {
    return IoEngine::Global().ReadMany(path(), fd_.get(), reads, done);
  }

  absl::Status WriteAt(int64_t offset,
                       absl::Span<const std::byte> data) override {
    size_t done = 0;
    while (done < data.size()) {
      const ssize_t n =
          pwrite(fd_.get(), data.data() + done,
                 std::min(data.size() - done, kMaxTransfer), offset + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("writing", offset + done);
      done += n;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Size() override {
    struct stat info;
    if (fstat(fd_.get(), &info) != 0) {
      return Failed("asking for the size of", 0);
    }
    return info.st_size;
  }

  absl::Status Reserve(int64_t size) override {
    if (size <= 0) return absl::OkStatus();
    int result;
    do {
      result = fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, size);
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) {
      return absl::OkStatus();
    }
    return ErrnoStatus(
        errno, absl::StrCat("reserving ", size, " bytes for").c_str(), path());
  }

  absl::Status StartWriteback(int64_t offset, int64_t bytes) override {
    if (bytes <= 0) return absl::OkStatus();
    // 0 bytes would be the rest of the file.
    if (sync_file_range(fd_.get(), offset, bytes, SYNC_FILE_RANGE_WRITE) == 0 ||
        errno == ENOSYS || errno == EINVAL || errno == ESPIPE) {
      return absl::OkStatus();
    }
    return Failed("starting to write back", offset);
  }

  absl::Status Sync() override {
    if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, "syncing", path());
    return absl::OkStatus();
  }

  absl::Status Close() override {
    const int fd = fd_.Release();
    if (fd >= 0 && close(fd) != 0) return ErrnoStatus(errno, "closing", path());
    return absl::OkStatus();
  }

 private:
  absl::Status Failed(const char* what, int64_t offset) const {
    const int error = errno;
    return Annotate(ErrnoStatus(error, what, path()),
                    absl::StrCat("at offset ", offset));
  }

  UniqueFd fd_;
};

absl::Status FromErrorCode(const std::error_code& error, const char* what,
                           const std::string& path) {
  return error ? ErrnoStatus(error.value(), what, path) : absl::OkStatus();
}

FileKind KindOfMode(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kRegular;
  return S_ISDIR(mode) ? FileKind::kDirectory : FileKind::kOther;
}

absl::Status NotARegularFile(const std::string& path, mode_t mode,
                             const char* what) {
  const char* kind = S_ISDIR(mode)    ? "a directory"
                     : S_ISFIFO(mode) ? "a pipe"
                     : S_ISSOCK(mode) ? "a socket"
                                      : "a device";
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", path, ": it is ", kind, ", expected a regular file"));
}

class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override {
    return Open(path, O_RDONLY, "opening");
  }

  absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) override {
    return Open(path, O_RDWR | O_CREAT | O_TRUNC, "creating");
  }

  absl::Status CreateDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    return FromErrorCode(error, "creating directory", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    struct stat target;
    if (stat(to.c_str(), &target) == 0 && !S_ISREG(target.st_mode) &&
        !S_ISDIR(target.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(
          to, " is not a regular file: a device or pipe would be replaced"));
    }
    if (rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(errno, "renaming", absl::StrCat(from, " to ", to));
    }
    return absl::OkStatus();
  }

  absl::Status RenameNew(const std::string& from,
                         const std::string& to) override {
    const std::string both = absl::StrCat(from, " to ", to);
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                  RENAME_NOREPLACE) == 0) {
      return absl::OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) {
      return ErrnoStatus(errno, "renaming", both);
    }
    // NFS has no such rename, but links that replace nothing.
    if (link(from.c_str(), to.c_str()) != 0) {
      if (errno != EPERM && errno != EOPNOTSUPP) {
        return ErrnoStatus(errno, "linking", both);
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "renaming ", both,
          ": the file system has no hard links, so files cannot be created "
          "exclusively; use a directory of another one"));
    }
    const absl::Status removed = Remove(from);
    if (removed.ok() || absl::IsNotFound(removed)) return removed;
    return absl::UnknownError(absl::StrCat(
        to, " is there, and so is its former name: ", removed.message()));
  }

  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, "removing", path);
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return FromErrorCode(error, "removing", path);
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator it(path, error), end;
    while (!error && it != end) {
      names.push_back(it->path().filename().string());
      it.increment(error);
    }
    SHERD_RETURN_IF_ERROR(FromErrorCode(error, "listing", path));
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "opening directory", path);
    const int result = fsync(fd);
    const int error = errno;
    close(fd);
    if (result == 0) return absl::OkStatus();
    absl::Status status = ErrnoStatus(error, "syncing directory", path);
    if (error != EINVAL) return status;
    return absl::UnimplementedError(status.message());
  }

  absl::StatusOr<FileKind> KindOf(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) == 0) return KindOfMode(info.st_mode);
    if (errno == ENOENT || errno == ENOTDIR) return FileKind::kNone;
    return ErrnoStatus(errno, "looking for", path);
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs info;
    if (statvfs(path.c_str(), &info) != 0) {
      return ErrnoStatus(errno, "asking for the free space of", path);
    }
    return static_cast<int64_t>(info.f_bavail) *
           static_cast<int64_t>(info.f_frsize);
  }

 private:
  static absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                                    int flags,
                                                    const char* what) {
    SHERD_ASSIGN_OR_RETURN(UniqueFd fd,
                           OpenRegularFile(path, flags, 0644, what));
    return std::make_unique<PosixFile>(path, std::move(fd));
  }
};

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status File::ReadMany(absl::Span<const FileRead> reads,
                            absl::FunctionRef<absl::Status(size_t)> done) {
  for (size_t i = 0; i < reads.size(); ++i) {
    SHERD_RETURN_IF_ERROR(ReadAt(reads[i].offset, reads[i].buffer));
    SHERD_RETURN_IF_ERROR(done(i));
  }
  return absl::OkStatus();
}

absl::Status File::StartWriteback(int64_t /*offset*/, int64_t /*bytes*/) {
  return absl::OkStatus();
}

FileSystem& FileSystem::Posix() {
  static FaultPointFiles* const files =
      new FaultPointFiles(*new PosixFileSystem);
  return *files;
}

absl::StatusOr<bool> FileSystem::Exists(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const FileKind kind, KindOf(path));
  return kind != FileKind::kNone;
}

absl::StatusOr<bool> FileSystem::IsDirectory(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const FileKind kind, KindOf(path));
  return kind == FileKind::kDirectory;
}

std::string JoinPath(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

std::string ParentDirectory(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const std::string parent = std::filesystem::path(name).parent_path().string();
  return parent.empty() ? "." : parent;
}

absl::Status CreateDurableDirectories(FileSystem& files,
                                      const std::string& path) {
  // ".." and not the parent by name: where `path` is a link, the name to keep
  // is that of the directory it leads to.
  const auto sync_name = [&files](const std::string& directory) {
    return files.SyncDirectory(JoinPath(directory, ".."));
  };
  std::vector<std::string> missing;
  for (std::string at = path; missing.empty() || at != missing.back();
       at = ParentDirectory(at)) {
    SHERD_ASSIGN_OR_RETURN(const bool exists, files.Exists(at));
    if (exists) break;
    missing.push_back(at);
  }
  if (missing.empty()) {
    SHERD_RETURN_IF_ERROR(files.CreateDirectories(path));
    const absl::Status synced = sync_name(path);
    const bool impossible =
        absl::IsPermissionDenied(synced) || absl::IsUnimplemented(synced);
    return impossible ? absl::OkStatus() : synced;
  }
  // From the top, and each name is durable before anything is created below it:
  // the parents of a directory that exists need no sync.
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    SHERD_RETURN_IF_ERROR(files.CreateDirectories(*it));
    SHERD_RETURN_IF_ERROR(sync_name(*it));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path,
                                     int64_t max_bytes) {
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.OpenForRead(path));
  SHERD_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size > max_bytes) {
    return LimitError(absl::StrCat(path, " has ", size,
                                   " bytes, expected at most ", max_bytes));
  }
  std::string data(size, '\0');
  SHERD_RETURN_IF_ERROR(file->ReadAt(
      0, absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), size)));
  return data;
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 absl::Span<const std::byte> data) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const auto write = [&]() -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(temporary));
    SHERD_RETURN_IF_ERROR(file->WriteAt(0, data));
    SHERD_RETURN_IF_ERROR(file->Sync());
    SHERD_RETURN_IF_ERROR(file->Close());
    return files.Rename(temporary, path);
  };
  if (absl::Status status = write(); !status.ok()) {
    files.Remove(temporary).IgnoreError();
    return status;
  }
  return SyncRenamed(files, path);
}

absl::Status SyncRenamed(FileSystem& files, const std::string& path) {
  const absl::Status status = files.SyncDirectory(ParentDirectory(path));
  if (status.ok()) return status;
  return absl::UnknownError(absl::StrCat(
      path,
      " has its new contents, but after a loss of power it may have the "
      "former ones: ",
      status.message()));
}

absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path, int flags,
                                         mode_t mode, const char* what) {
  int fd;
  do {
    // A pipe opens without its other end, and a terminal does not become the
    // controlling one.
    fd = open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
  } while (fd < 0 && errno == EINTR);
  const int error = errno;
  UniqueFd file(fd);
  struct stat info;
  if (file.is_open()) {
    if (fstat(fd, &info) != 0) return ErrnoStatus(errno, what, path);
    if (S_ISREG(info.st_mode)) return file;
    return NotARegularFile(path, info.st_mode, what);
  }
  // A socket, the unread end of a pipe and a directory may not even open.
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) &&
      (error == ENXIO || error == ENODEV || error == EISDIR)) {
    return NotARegularFile(path, info.st_mode, what);
  }
  return ErrnoStatus(error, what, path);
}

absl::Status ErrnoStatus(int error, const char* what, const std::string& path) {
  return absl::Status(
      CodeOf(error), absl::StrCat(what, " ", path, ": ", std::strerror(error)));
}

int64_t MediumBytesRead() {
  // The unit in which getrusage(2) counts on Linux.
  constexpr int64_t kBlockBytes = 512;
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_inblock * kBlockBytes;
}

}  // namespace sherd
