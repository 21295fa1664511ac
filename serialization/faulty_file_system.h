#ifndef SHERD_SERIALIZATION_FAULTY_FILE_SYSTEM_H_
#define SHERD_SERIALIZATION_FAULTY_FILE_SYSTEM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

// For tests: a file system that does what another one does, until a counted
// call. Syncs are counted, but not passed on: no test cuts the power, and they
// take most of the time of a save. Thread-safe.
class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& real = FileSystem::Posix())
      : real_(real) {}

  // The `nth` call (from 1) of `operation` ("WriteAt", "Rename", …; "" for any)
  // does not happen: `fault` runs instead, and its status is the call's. A
  // write is torn: its first half happens.
  void SetFault(std::string operation, int64_t nth,
                std::function<absl::Status()> fault) {
    absl::MutexLock lock(&mutex_);
    operation_ = std::move(operation);
    nth_ = nth;
    fault_ = std::move(fault);
    counts_.clear();
    hit_ = false;
  }

  // Whether the fault has happened.
  bool hit() const {
    absl::MutexLock lock(&mutex_);
    return hit_;
  }

  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("OpenForRead"));
    return Wrap(path, real_.OpenForRead(path));
  }
  absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("Create"));
    return Wrap(path, real_.Create(path));
  }
  absl::Status CreateDirectories(const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("CreateDirectories"));
    return real_.CreateDirectories(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    SHERD_RETURN_IF_ERROR(Count("Rename"));
    return real_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("Remove"));
    return real_.Remove(path);
  }
  absl::Status RemoveAll(const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("RemoveAll"));
    return real_.RemoveAll(path);
  }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("List"));
    return real_.List(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("SyncDirectory"));
    return real_.IsDirectory(path)
               ? absl::OkStatus()
               : absl::NotFoundError(path + " is not a directory");
  }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  bool IsDirectory(const std::string& path) override {
    return real_.IsDirectory(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    SHERD_RETURN_IF_ERROR(Count("FreeBytes"));
    return real_.FreeBytes(path);
  }

 private:
  class FaultyFile final : public File {
   public:
    FaultyFile(std::string path, std::unique_ptr<File> real,
               FaultyFileSystem& files)
        : File(std::move(path)), real_(std::move(real)), files_(files) {}

    absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
      SHERD_RETURN_IF_ERROR(files_.Count("ReadAt"));
      files_.bytes_read_ += static_cast<int64_t>(buffer.size());
      return real_->ReadAt(offset, buffer);
    }
    absl::Status WriteAt(int64_t offset,
                         absl::Span<const std::byte> data) override {
      const absl::Status status = files_.Count("WriteAt", [&] {
        real_->WriteAt(offset, data.first(data.size() / 2)).IgnoreError();
      });
      SHERD_RETURN_IF_ERROR(status);
      files_.bytes_written_ += static_cast<int64_t>(data.size());
      return real_->WriteAt(offset, data);
    }
    absl::StatusOr<int64_t> Size() override {
      SHERD_RETURN_IF_ERROR(files_.Count("Size"));
      return real_->Size();
    }
    absl::Status Reserve(int64_t size) override {
      SHERD_RETURN_IF_ERROR(files_.Count("Reserve"));
      return real_->Reserve(size);
    }
    absl::Status Sync() override { return files_.Count("Sync"); }

   private:
    const std::unique_ptr<File> real_;
    FaultyFileSystem& files_;
  };

  absl::StatusOr<std::unique_ptr<File>> Wrap(
      const std::string& path, absl::StatusOr<std::unique_ptr<File>> file) {
    if (!file.ok()) return file;
    return std::unique_ptr<File>(
        std::make_unique<FaultyFile>(path, *std::move(file), *this));
  }

  absl::Status Count(absl::string_view operation,
                     const std::function<void()>& before_fault = nullptr) {
    std::function<absl::Status()> fault;
    {
      absl::MutexLock lock(&mutex_);
      ++counts_[""];
      ++counts_[std::string(operation)];
      if (fault_ == nullptr || hit_ || counts_[operation_] != nth_ ||
          (!operation_.empty() && operation_ != operation)) {
        return absl::OkStatus();
      }
      hit_ = true;
      fault = fault_;
    }
    if (before_fault != nullptr) before_fault();
    return fault();
  }

  FileSystem& real_;
  std::atomic<int64_t> bytes_read_ = 0;
  std::atomic<int64_t> bytes_written_ = 0;
  mutable absl::Mutex mutex_;
  std::string operation_ ABSL_GUARDED_BY(mutex_);
  int64_t nth_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<absl::Status()> fault_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
  bool hit_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_FAULTY_FILE_SYSTEM_H_
