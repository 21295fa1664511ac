#include "sherd/serialization/store/directory_store.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/process/process_status.h"

namespace sherd {
namespace {

constexpr absl::string_view kUploadPrefix = ".upload.";
// How long one of a process that cannot be seen stays.
constexpr absl::Duration kMaxUploadAge = absl::Hours(24);

// Those that this process is writing: it may outlive one that failed.
struct OwnUploads {
  absl::Mutex mutex;
  absl::flat_hash_set<std::string> names ABSL_GUARDED_BY(mutex);
};

OwnUploads& GetOwnUploads() {
  static OwnUploads* const uploads = new OwnUploads;
  return *uploads;
}

// ".upload.PROCESS.MILLISECONDS.COUNT", where PROCESS is that of
// ProcessDescription with '_' for each space.
std::string NewUploadName() {
  static std::atomic<uint64_t> count = 0;
  return absl::StrCat(
      kUploadPrefix,
      absl::StrReplaceAll(DescribeOwnProcess(), {{" ", "_"}, {"/", ":"}}), ".",
      absl::ToUnixMillis(absl::Now()), ".", count.fetch_add(1));
}

// Whether the process that began an upload cannot finish it any more, or will
// not.
bool UploadIsOver(const std::string& name, absl::Time now) {
  {
    OwnUploads& own = GetOwnUploads();
    absl::MutexLock lock(&own.mutex);
    if (own.names.contains(name)) return false;
  }
  const std::string rest = name.substr(kUploadPrefix.size());
  const size_t count = rest.rfind('.');
  if (count == std::string::npos || count == 0) return false;
  const size_t time = rest.rfind('.', count - 1);
  int64_t begun = 0;
  if (time == std::string::npos ||
      !absl::SimpleAtoi(rest.substr(time + 1, count - time - 1), &begun)) {
    return false;
  }
  const std::string process =
      absl::StrReplaceAll(rest.substr(0, time), {{"_", " "}});
  switch (StateOf(process)) {
    case ProcessState::kEnded:
      return true;
    case ProcessState::kRunning:
    case ProcessState::kTraced:
      // One of this process that failed and could not be removed.
      return process == DescribeOwnProcess();
    case ProcessState::kStopped:
      return false;
    case ProcessState::kUnknown:
      break;
  }
  return now - absl::FromUnixMillis(begun) >= kMaxUploadAge;
}

absl::Status CheckName(const std::string& name) {
  if (IsObjectName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(name),
                   " is not a name of an object: expected 1 to 200 letters, "
                   "digits, '.', '_' "
                   "and '-', the first not '.'"));
}

}  // namespace

class DirectoryStore::Upload final : public ObjectWriter {
 public:
  // `name` is in OwnUploads already.
  Upload(DirectoryStore& store, std::string name, const std::string& object)
      : files_(store.files_),
        name_(std::move(name)),
        path_(JoinPath(store.directory_, name_)),
        object_(JoinPath(store.directory_, object)) {}

  ~Upload() override {
    file_.reset();
    if (created_) files_.Remove(path_).IgnoreError();
    OwnUploads& own = GetOwnUploads();
    absl::MutexLock lock(&own.mutex);
    own.names.erase(name_);
  }

  absl::Status Create() {
    created_ = true;
    absl::StatusOr<std::unique_ptr<File>> file = files_.Create(path_);
    if (absl::IsNotFound(file.status())) created_ = false;
    SHERD_RETURN_IF_ERROR(file.status());
    file_ = *std::move(file);
    return absl::OkStatus();
  }

  absl::Status WriteAt(int64_t offset,
                       absl::Span<const std::byte> data) override {
    return file_->WriteAt(offset, data);
  }
  absl::Status Reserve(int64_t size) override { return file_->Reserve(size); }
  absl::Status StartWriteback(int64_t offset, int64_t bytes) override {
    return file_->StartWriteback(offset, bytes);
  }
  absl::Status Sync() override { return file_->Sync(); }
  absl::Status Finish() override { return FinishAs(/*if_absent=*/false); }
  absl::Status FinishUnsynced() override { return Appear(/*if_absent=*/false); }

  absl::Status FinishAs(bool if_absent) {
    SHERD_RETURN_IF_ERROR(file_->Sync());
    SHERD_RETURN_IF_ERROR(Appear(if_absent));
    return SyncRenamed(files_, object_);
  }

 private:
  absl::Status Appear(bool if_absent) {
    SHERD_RETURN_IF_ERROR(file_->Close());
    file_.reset();
    SHERD_RETURN_IF_ERROR(if_absent ? files_.RenameNew(path_, object_)
                                    : files_.Rename(path_, object_));
    created_ = false;
    return absl::OkStatus();
  }

  FileSystem& files_;
  const std::string name_;
  const std::string path_;
  const std::string object_;
  std::unique_ptr<File> file_;
  // Whether there may be a file of the upload's name.
  bool created_ = false;
};

DirectoryStore::DirectoryStore(FileSystem& files, std::string directory)
    : files_(files), directory_(std::move(directory)) {}

absl::StatusOr<std::vector<std::string>> DirectoryStore::List(
    absl::string_view prefix) {
  const absl::StatusOr<std::vector<std::string>> names =
      files_.List(directory_);
  if (absl::IsNotFound(names.status())) {
    // Also said of a file.
    SHERD_ASSIGN_OR_RETURN(const FileKind kind, files_.KindOf(directory_));
    if (kind == FileKind::kNone) return std::vector<std::string>();
    return absl::FailedPreconditionError(absl::StrCat(
        directory_, " is not a directory, expected one of objects"));
  }
  SHERD_RETURN_IF_ERROR(names.status());
  std::vector<std::string> objects;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, prefix) || !IsObjectName(name)) continue;
    SHERD_ASSIGN_OR_RETURN(const FileKind kind,
                           files_.KindOf(JoinPath(directory_, name)));
    if (kind == FileKind::kRegular) objects.push_back(name);
  }
  return objects;
}

absl::StatusOr<int64_t> DirectoryStore::Stat(const std::string& name) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenForRead(name));
  return file->Size();
}

absl::StatusOr<std::unique_ptr<File>> DirectoryStore::OpenForRead(
    const std::string& name) {
  SHERD_RETURN_IF_ERROR(CheckName(name));
  const std::string path = JoinPath(directory_, name);
  absl::StatusOr<std::unique_ptr<File>> file = files_.OpenForRead(path);
  if (!absl::IsInvalidArgument(file.status())) return file;
  return absl::NotFoundError(
      absl::StrCat(path, " is not an object: ", file.status().message()));
}

absl::StatusOr<std::unique_ptr<ObjectWriter>> DirectoryStore::BeginPut(
    const std::string& name) {
  return BeginUpload(name);
}

absl::Status DirectoryStore::Put(const std::string& name,
                                 absl::Span<const std::byte> data) {
  return PutWhole(name, data, /*if_absent=*/false);
}

absl::Status DirectoryStore::PutIfAbsent(const std::string& name,
                                         absl::Span<const std::byte> data) {
  return PutWhole(name, data, /*if_absent=*/true);
}

absl::Status DirectoryStore::Remove(const std::string& name) {
  SHERD_RETURN_IF_ERROR(CheckName(name));
  return files_.Remove(JoinPath(directory_, name));
}

absl::Status DirectoryStore::RemoveUnfinished() {
  const absl::StatusOr<std::vector<std::string>> names =
      files_.List(directory_);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(names.status());
  absl::Status result;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kUploadPrefix) ||
        !UploadIsOver(name, absl::Now())) {
      continue;
    }
    const absl::Status removed = files_.Remove(JoinPath(directory_, name));
    if (!absl::IsNotFound(removed)) result.Update(removed);
  }
  return result;
}

absl::StatusOr<int64_t> DirectoryStore::FreeBytes() {
  SHERD_RETURN_IF_ERROR(CreateDirectory());
  return files_.FreeBytes(directory_);
}

absl::StatusOr<std::unique_ptr<DirectoryStore::Upload>>
DirectoryStore::BeginUpload(const std::string& name) {
  SHERD_RETURN_IF_ERROR(CheckName(name));
  SHERD_RETURN_IF_ERROR(CreateDirectory());
  std::string upload_name = NewUploadName();
  {
    OwnUploads& own = GetOwnUploads();
    absl::MutexLock lock(&own.mutex);
    own.names.insert(upload_name);
  }
  auto upload = std::make_unique<Upload>(*this, std::move(upload_name), name);
  absl::Status created = upload->Create();
  if (absl::IsNotFound(created)) {
    // Removed since.
    {
      absl::MutexLock lock(&mutex_);
      created_ = false;
    }
    SHERD_RETURN_IF_ERROR(CreateDirectory());
    created = upload->Create();
  }
  SHERD_RETURN_IF_ERROR(created);
  return upload;
}

absl::Status DirectoryStore::PutWhole(const std::string& name,
                                      absl::Span<const std::byte> data,
                                      bool if_absent) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<Upload> upload,
                         BeginUpload(name));
  SHERD_RETURN_IF_ERROR(upload->WriteAt(0, data));
  return upload->FinishAs(if_absent);
}

absl::Status DirectoryStore::CreateDirectory() {
  absl::MutexLock lock(&mutex_);
  if (created_) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(CreateDurableDirectories(files_, directory_));
  created_ = true;
  return absl::OkStatus();
}

}  // namespace sherd
