#include "sherd/serialization/store/store_files.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr absl::string_view kPlacedSuffix = ".sherd";
constexpr absl::string_view kTemporarySuffix = ".tmp";
constexpr size_t kNonceDigits = 16;
// Each time the directory has changed.
constexpr int kAttempts = 1000;

bool IsPlacedName(absl::string_view name) {
  return absl::EndsWith(name, kPlacedSuffix);
}

bool IsTemporaryName(absl::string_view name) {
  return absl::EndsWith(name, kTemporarySuffix);
}

std::string NewObjectOf(absl::string_view temporary_name) {
  std::random_device random;
  return absl::StrFormat("%s-%016x", temporary_name,
                         (uint64_t{random()} << 32) | random());
}

// The name of the temporary file whose object has this name.
std::optional<std::string> TemporaryNameOf(absl::string_view object) {
  if (object.size() <= kNonceDigits) return std::nullopt;
  const absl::string_view digits = object.substr(object.size() - kNonceDigits);
  object.remove_suffix(kNonceDigits);
  if (!std::all_of(digits.begin(), digits.end(),
                   [](unsigned char c) {
                     return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
                   }) ||
      !absl::ConsumeSuffix(&object, "-") || !IsTemporaryName(object)) {
    return std::nullopt;
  }
  return std::string(object);
}

// Of the listed objects those of a temporary file that has been neither renamed
// nor removed.
std::vector<std::string> ObjectsOf(const std::string& temporary_name,
                                   const std::vector<std::string>& listed,
                                   const IndexTable& table) {
  std::vector<std::string> objects;
  for (const std::string& object : listed) {
    if (TemporaryNameOf(object) == temporary_name &&
        !table.removed.contains(object) && !table.IsNamed(object)) {
      objects.push_back(object);
    }
  }
  return objects;
}

}  // namespace

// What is written to one file, before and after it has appeared.
class StoreFiles::Contents {
 public:
  Contents(CheckpointStore& store, std::string object,
           std::unique_ptr<ObjectWriter> writer)
      : store_(store), object_(std::move(object)), writer_(std::move(writer)) {}

  absl::Status WriteAt(int64_t offset, absl::Span<const std::byte> data) {
    ObjectWriter* writer;
    {
      absl::MutexLock lock(&mutex_);
      is_synced_ = false;
      Note(offset, data);
      if (is_published_) return Replace();
      writer = writer_.get();
    }
    return writer->WriteAt(offset, data);
  }

  int64_t size() {
    absl::MutexLock lock(&mutex_);
    return size_;
  }

  // Null once it has appeared, or could not.
  ObjectWriter* writer() {
    absl::MutexLock lock(&mutex_);
    return writer_.get();
  }

  // All that was written before will be durable when it has appeared; of one
  // that has, it is.
  absl::Status Sync() {
    ObjectWriter* writer;
    {
      absl::MutexLock lock(&mutex_);
      if (is_published_) return is_synced_ ? published_ : Replace();
      is_synced_ = true;
      writer = writer_.get();
    }
    return writer->Sync();
  }

  // Makes it appear, the first time.
  absl::Status Publish() {
    absl::MutexLock lock(&mutex_);
    if (is_published_) return published_;
    is_published_ = true;
    published_ = is_synced_ ? writer_->Finish() : writer_->FinishUnsynced();
    writer_.reset();
    return published_;
  }

 private:
  void Note(int64_t offset, absl::Span<const std::byte> data)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t end = offset + static_cast<int64_t>(data.size());
    size_ = std::max(size_, end);
    is_short_ = is_short_ && end <= static_cast<int64_t>(kMaxRewritten);
    if (!is_short_) {
      bytes_ = {};
      return;
    }
    bytes_.resize(static_cast<size_t>(size_));
    std::copy(data.begin(), data.end(), bytes_.begin() + offset);
  }

  absl::Status Replace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SHERD_RETURN_IF_ERROR(published_);
    if (!is_short_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "writing the object ", object_,
          ", which is whole already: expected at most ", kMaxRewritten,
          " bytes, or all writes and a sync before the file is closed"));
    }
    // As a file whose name is gone: what is written to it is lost.
    const absl::Status there = store_.Stat(object_).status();
    if (absl::IsNotFound(there)) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(there);
    SHERD_RETURN_IF_ERROR(store_.Put(object_, bytes_));
    is_synced_ = true;
    return absl::OkStatus();
  }

  CheckpointStore& store_;
  const std::string object_;
  absl::Mutex mutex_;
  std::unique_ptr<ObjectWriter> writer_ ABSL_GUARDED_BY(mutex_);
  // Whether Sync was called after the last write, or that was a Replace.
  bool is_synced_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_published_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status published_ ABSL_GUARDED_BY(mutex_);
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;
  // All of it, as long as that is short.
  bool is_short_ ABSL_GUARDED_BY(mutex_) = true;
  std::vector<std::byte> bytes_ ABSL_GUARDED_BY(mutex_);
};

class StoreFiles::WrittenFile final : public File {
 public:
  WrittenFile(std::string path, std::shared_ptr<Contents> contents)
      : File(std::move(path)), contents_(std::move(contents)) {}

  absl::Status ReadAt(int64_t /*offset*/,
                      absl::Span<std::byte> /*buffer*/) override {
    return absl::UnimplementedError(absl::StrCat(
        "reading ", path(), ", which was opened to write an object"));
  }
  absl::Status WriteAt(int64_t offset,
                       absl::Span<const std::byte> data) override {
    return contents_->WriteAt(offset, data);
  }
  absl::StatusOr<int64_t> Size() override { return contents_->size(); }
  absl::Status Reserve(int64_t size) override {
    ObjectWriter* const writer = contents_->writer();
    return writer == nullptr ? absl::OkStatus() : writer->Reserve(size);
  }
  absl::Status StartWriteback(int64_t offset, int64_t bytes) override {
    ObjectWriter* const writer = contents_->writer();
    return writer == nullptr ? absl::OkStatus()
                             : writer->StartWriteback(offset, bytes);
  }
  absl::Status Sync() override { return contents_->Sync(); }
  absl::Status Close() override { return contents_->Publish(); }

 private:
  const std::shared_ptr<Contents> contents_;
};

StoreFiles::StoreFiles(CheckpointStore& store, std::string root)
    : store_(store), root_(std::move(root)), index_(store, root_) {}

bool StoreFiles::IsFileName(absl::string_view name) {
  return IsPlacedName(name) || IsTemporaryName(name) ||
         absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".pin");
}

absl::StatusOr<std::string> StoreFiles::NameOf(const std::string& path) const {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, root_) ||
      (!rest.empty() && !absl::ConsumePrefix(&rest, "/"))) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(path), " is not in ", root_));
  }
  if (rest.empty() || IsObjectName(rest)) return std::string(rest);
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(path),
                   ": expected a name of 1 to 200 letters, digits, '.', '_' "
                   "and '-' in ",
                   root_, ", which has no directories"));
}

// Of a path that is not the root, nor an object of the index.
absl::StatusOr<std::string> StoreFiles::FileNameOf(
    const std::string& path) const {
  SHERD_ASSIGN_OR_RETURN(std::string name, NameOf(path));
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a directory, expected a file"));
  }
  if (NumberOfIndexObject(name).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " belongs to the index of ", root_,
                     " and is not a file of a checkpoint"));
  }
  return name;
}

absl::Status StoreFiles::NoSuchFile(absl::string_view name) const {
  return absl::NotFoundError(
      absl::StrCat(root_, "/", name, ": there is no such file"));
}

absl::StatusOr<bool> StoreFiles::IsThere(const std::string& object) {
  const absl::Status status = store_.Stat(object).status();
  if (absl::IsNotFound(status)) return false;
  SHERD_RETURN_IF_ERROR(status);
  return true;
}

absl::StatusOr<std::optional<std::string>> StoreFiles::ObjectOf(
    const std::string& name, const IndexTable& table) {
  if (IsTemporaryName(name)) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> listed,
                           store_.List(name + "-"));
    const std::vector<std::string> objects = ObjectsOf(name, listed, table);
    if (objects.empty()) return std::nullopt;
    return objects.back();
  }
  const auto it = table.names.find(name);
  if (it != table.names.end()) return it->second;
  if (table.removed.contains(name)) return std::nullopt;
  SHERD_ASSIGN_OR_RETURN(const bool is_there, IsThere(name));
  if (!is_there) return std::nullopt;
  return name;
}

absl::StatusOr<std::unique_ptr<File>> StoreFiles::OpenForRead(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::string name, FileNameOf(path));
  if (!IsPlacedName(name) && !IsTemporaryName(name)) {
    return store_.OpenForRead(name);
  }
  std::optional<std::string> missing;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SHERD_ASSIGN_OR_RETURN(const IndexTable table, index_.Read());
    SHERD_ASSIGN_OR_RETURN(const std::optional<std::string> object,
                           ObjectOf(name, table));
    if (!object.has_value()) return NoSuchFile(name);
    absl::StatusOr<std::unique_ptr<File>> file = store_.OpenForRead(*object);
    if (!absl::IsNotFound(file.status())) return file;
    // It has lost its name since, or this one has.
    if (missing == object) {
      return absl::DataLossError(absl::StrCat(path,
                                              ": the index names the object ",
                                              *object, ", which is not there"));
    }
    missing = object;
  }
  return absl::AbortedError(
      absl::StrCat(path, " is replaced faster than it can be opened"));
}

absl::StatusOr<std::unique_ptr<File>> StoreFiles::Create(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::string name, FileNameOf(path));
  if (IsPlacedName(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "creating ", path, ": expected a name that ends in ", kTemporarySuffix,
        ", which is renamed; ", kPlacedSuffix, " is for those"));
  }
  std::string object = name;
  if (IsTemporaryName(name)) {
    // What a former one left.
    const absl::Status removed = RemoveIndexed(name);
    if (!absl::IsNotFound(removed)) SHERD_RETURN_IF_ERROR(removed);
    object = NewObjectOf(name);
  }
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> writer,
                         store_.BeginPut(object));
  auto contents =
      std::make_shared<Contents>(store_, std::move(object), std::move(writer));
  if (IsTemporaryName(name)) {
    absl::MutexLock lock(&mutex_);
    std::erase_if(open_,
                  [](const auto& file) { return file.second.expired(); });
    open_[name] = contents;
  }
  return std::make_unique<WrittenFile>(path, std::move(contents));
}

absl::Status StoreFiles::CreateDirectories(const std::string& path) {
  SHERD_RETURN_IF_ERROR(NameOf(path).status());
  // What cannot be removed now is left to the next save.
  store_.RemoveUnfinished().IgnoreError();
  return absl::OkStatus();
}

absl::Status StoreFiles::Rename(const std::string& from,
                                const std::string& to) {
  return Place(from, to, /*if_absent=*/false);
}

absl::Status StoreFiles::RenameNew(const std::string& from,
                                   const std::string& to) {
  return Place(from, to, /*if_absent=*/true);
}

// Makes a temporary file appear that this process has open.
absl::Status StoreFiles::Publish(const std::string& name) {
  std::shared_ptr<Contents> contents;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(name);
    if (it == open_.end()) return absl::OkStatus();
    contents = it->second.lock();
    open_.erase(it);
  }
  return contents == nullptr ? absl::OkStatus() : contents->Publish();
}

absl::Status StoreFiles::Place(const std::string& from, const std::string& to,
                               bool if_absent) {
  SHERD_ASSIGN_OR_RETURN(const std::string from_name, FileNameOf(from));
  SHERD_ASSIGN_OR_RETURN(const std::string to_name, FileNameOf(to));
  if (!IsTemporaryName(from_name) || !IsPlacedName(to_name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "renaming ", from, " to ", to_name, ": expected a name that ends in ",
        kTemporarySuffix, ", and a new one that ends in ", kPlacedSuffix));
  }
  SHERD_RETURN_IF_ERROR(Publish(from_name));
  std::optional<std::string> former;
  SHERD_RETURN_IF_ERROR(index_.Update([&](IndexTable& table) -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(const std::optional<std::string> object,
                           ObjectOf(from_name, table));
    if (!object.has_value()) return NoSuchFile(from_name);
    SHERD_ASSIGN_OR_RETURN(former, ObjectOf(to_name, table));
    if (former.has_value() && if_absent) {
      return absl::AlreadyExistsError(
          absl::StrCat("renaming ", from, " to ", to, ": it exists"));
    }
    if (former.has_value()) table.removed.insert(*former);
    table.names[to_name] = *object;
    return absl::OkStatus();
  }));
  // If not now, then by the next operation.
  if (former.has_value()) store_.Remove(*former).IgnoreError();
  return absl::OkStatus();
}

absl::Status StoreFiles::Remove(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::string name, FileNameOf(path));
  return IsPlacedName(name) || IsTemporaryName(name) ? RemoveIndexed(name)
                                                     : store_.Remove(name);
}

absl::Status StoreFiles::RemoveIndexed(const std::string& name) {
  std::vector<std::string> objects;
  SHERD_RETURN_IF_ERROR(index_.Update([&](IndexTable& table) -> absl::Status {
    objects.clear();
    if (IsTemporaryName(name)) {
      SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> listed,
                             store_.List(name + "-"));
      objects = ObjectsOf(name, listed, table);
    } else {
      SHERD_ASSIGN_OR_RETURN(const std::optional<std::string> object,
                             ObjectOf(name, table));
      if (object.has_value()) objects.push_back(*object);
    }
    if (objects.empty()) return NoSuchFile(name);
    table.names.erase(name);
    table.removed.insert(objects.begin(), objects.end());
    return absl::OkStatus();
  }));
  for (const std::string& object : objects) store_.Remove(object).IgnoreError();
  return absl::OkStatus();
}

absl::Status StoreFiles::RemoveAll(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::string name, NameOf(path));
  if (!name.empty()) {
    const absl::Status removed = Remove(path);
    return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
  }
  SHERD_ASSIGN_OR_RETURN(std::vector<std::string> objects, store_.List(""));
  // The index last, the newest table at the very end.
  std::stable_partition(objects.begin(), objects.end(),
                        [](const std::string& object) {
                          return !NumberOfIndexObject(object).has_value();
                        });
  for (const std::string& object : objects) {
    const absl::Status removed = store_.Remove(object);
    if (!absl::IsNotFound(removed)) SHERD_RETURN_IF_ERROR(removed);
  }
  return store_.RemoveUnfinished();
}

absl::StatusOr<std::vector<std::string>> StoreFiles::List(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::string name, NameOf(path));
  if (!name.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " is not a directory: ", root_, " has none"));
  }
  std::vector<std::string> objects;
  SHERD_ASSIGN_OR_RETURN(const IndexTable table, index_.Read(&objects));
  std::set<std::string> hidden = table.removed;
  std::set<std::string> names;
  for (const auto& [placed, object] : table.names) {
    hidden.insert(object);
    names.insert(placed);
  }
  for (const std::string& object : objects) {
    if (NumberOfIndexObject(object).has_value() || hidden.contains(object)) {
      continue;
    }
    names.insert(TemporaryNameOf(object).value_or(object));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

absl::Status StoreFiles::SyncDirectory(const std::string& /*path*/) {
  return absl::OkStatus();
}

absl::StatusOr<FileKind> StoreFiles::KindOf(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::string name, NameOf(path));
  if (name.empty()) return FileKind::kDirectory;
  if (NumberOfIndexObject(name).has_value()) return FileKind::kNone;
  IndexTable table;
  if (IsPlacedName(name) || IsTemporaryName(name)) {
    SHERD_ASSIGN_OR_RETURN(table, index_.Read());
  }
  SHERD_ASSIGN_OR_RETURN(const std::optional<std::string> object,
                         ObjectOf(name, table));
  return object.has_value() ? FileKind::kRegular : FileKind::kNone;
}

absl::StatusOr<int64_t> StoreFiles::FreeBytes(const std::string& path) {
  SHERD_RETURN_IF_ERROR(NameOf(path).status());
  return store_.FreeBytes();
}

}  // namespace sherd
