#include "sherd/core/base/fault_point_files.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

absl::Status Pass(FaultPoint point, const std::string& path,
                  uint64_t bytes = 0) {
  return MaybeInjectFault({.point = point, .subject = path, .bytes = bytes});
}

// Of a sync, which tests can leave out: `sync` is called unless they do.
template <typename Sync>
absl::Status PassSync(FaultPoint point, const std::string& path,
                      const Sync& sync) {
  bool lost = false;
  SHERD_RETURN_IF_ERROR(
      MaybeInjectFault({.point = point, .subject = path, .lost = &lost}));
  return lost ? absl::OkStatus() : sync();
}

class FaultPointFile final : public File {
 public:
  explicit FaultPointFile(std::unique_ptr<File> file)
      : File(file->path()), file_(std::move(file)) {}

  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileRead, path(), buffer.size()));
    return file_->ReadAt(offset, buffer);
  }

  absl::Status ReadMany(absl::Span<const FileRead> reads,
                        absl::FunctionRef<absl::Status(size_t)> done) override {
    // One by one while a fault is armed, so that each read passes its point in
    // an order that tests can count.
    return FaultPointsAreArmed() ? File::ReadMany(reads, done)
                                 : file_->ReadMany(reads, done);
  }

  absl::Status WriteAt(int64_t offset,
                       absl::Span<const std::byte> data) override {
    if (!FaultPointsAreArmed()) [[likely]] {
      return file_->WriteAt(offset, data);
    }
    const size_t half = data.size() / 2;
    SHERD_RETURN_IF_ERROR(file_->WriteAt(offset, data.first(half)));
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileWrite, path(), data.size()));
    return file_->WriteAt(offset + half, data.subspan(half));
  }

  absl::StatusOr<int64_t> Size() override {
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileSize, path()));
    return file_->Size();
  }

  absl::Status Reserve(int64_t size) override {
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileReserve, path()));
    return file_->Reserve(size);
  }

  absl::Status StartWriteback(int64_t offset, int64_t bytes) override {
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileStartWriteback, path(),
                               static_cast<uint64_t>(bytes)));
    return file_->StartWriteback(offset, bytes);
  }

  absl::Status Sync() override {
    return PassSync(FaultPoint::kFileSync, path(),
                    [this] { return file_->Sync(); });
  }

  absl::Status Close() override {
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileClose, path()));
    return file_->Close();
  }

 private:
  const std::unique_ptr<File> file_;
};

absl::StatusOr<std::unique_ptr<File>> Wrap(
    absl::StatusOr<std::unique_ptr<File>> file) {
  SHERD_RETURN_IF_ERROR(file.status());
  return std::make_unique<FaultPointFile>(*std::move(file));
}

}  // namespace

absl::StatusOr<std::unique_ptr<File>> FaultPointFiles::OpenForRead(
    const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileOpenForRead, path));
  return Wrap(files_.OpenForRead(path));
}

absl::StatusOr<std::unique_ptr<File>> FaultPointFiles::Create(
    const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileCreate, path));
  return Wrap(files_.Create(path));
}

absl::Status FaultPointFiles::CreateDirectories(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileCreateDirectories, path));
  return files_.CreateDirectories(path);
}

absl::Status FaultPointFiles::Rename(const std::string& from,
                                     const std::string& to) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileRename, to));
  return files_.Rename(from, to);
}

absl::Status FaultPointFiles::RenameNew(const std::string& from,
                                        const std::string& to) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileRenameNew, to));
  return files_.RenameNew(from, to);
}

absl::Status FaultPointFiles::Remove(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileRemove, path));
  return files_.Remove(path);
}

absl::Status FaultPointFiles::RemoveAll(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileRemoveAll, path));
  return files_.RemoveAll(path);
}

absl::StatusOr<std::vector<std::string>> FaultPointFiles::List(
    const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileList, path));
  return files_.List(path);
}

absl::Status FaultPointFiles::SyncDirectory(const std::string& path) {
  return PassSync(FaultPoint::kFileSyncDirectory, path,
                  [&] { return files_.SyncDirectory(path); });
}

absl::StatusOr<FileKind> FaultPointFiles::KindOf(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileKind, path));
  return files_.KindOf(path);
}

absl::StatusOr<int64_t> FaultPointFiles::FreeBytes(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kFileFreeBytes, path));
  return files_.FreeBytes(path);
}

}  // namespace sherd
