#include "sherd/core/comm/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

constexpr absl::string_view kMagic = "sherd store v1.\n";
constexpr size_t kHeaderBytes = 16 + sizeof(uint64_t);
constexpr uint32_t kRemoved = 0xffffffff;
constexpr size_t kRecordHeader = 2 * sizeof(uint32_t);
// A store holds addresses and small records; far more than this is not ours.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Smaller files are not worth a compaction, nor are those in which at least
// one byte of four still counts.
constexpr int64_t kCompactFrom = int64_t{64} << 10;
constexpr int64_t kCompactRatio = 4;

constexpr absl::Duration kFirstPause = absl::Microseconds(200);
constexpr absl::Duration kLongestPause = absl::Milliseconds(5);

absl::Status ReadFully(int fd, int64_t offset, char* data, size_t size,
                       const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd, data + done, size - done, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading store", path);
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat("store ", path, " shrank while it was read"));
    }
    done += n;
  }
  return absl::OkStatus();
}

absl::Status WriteFully(int fd, int64_t offset, const std::string& data,
                        const std::string& path) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n =
        pwrite(fd, data.data() + done, data.size() - done, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "writing store", path);
    done += n;
  }
  return absl::OkStatus();
}

int64_t RecordBytes(absl::string_view key, absl::string_view value) {
  return static_cast<int64_t>(kRecordHeader + key.size() + value.size());
}

void AppendRecord(std::string& out, absl::string_view key,
                  const std::string* value) {
  const uint32_t lengths[2] = {
      static_cast<uint32_t>(key.size()),
      value == nullptr ? kRemoved : static_cast<uint32_t>(value->size())};
  out.append(reinterpret_cast<const char*>(lengths), kRecordHeader);
  absl::StrAppend(&out, key);
  if (value != nullptr) out.append(*value);
}

// From the system: a generator of our own would give the children of a fork the
// same numbers.
absl::StatusOr<uint64_t> NewFileId(const std::string& path) {
  uint64_t id;
  ssize_t n;
  do {
    n = getrandom(&id, sizeof(id), 0);
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(id)) return ErrnoStatus(errno, "a number for store", path);
  return id;
}

std::string NewHeader(uint64_t file_id) {
  std::string header(kMagic);
  header.append(reinterpret_cast<const char*>(&file_id), sizeof(file_id));
  return header;
}

// Where a compacted file is written before it takes its place.
std::string NextPath(const std::string& path) {
  return absl::StrCat(path, ".new");
}

}  // namespace

FileStore::FileStore(std::string path) : path_(std::move(path)) {}

absl::Status FileStore::DoSet(absl::string_view key, absl::string_view value) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, value));
  const std::string owned(value);
  absl::MutexLock lock(&mutex_);
  return Locked(Access::kWrite, [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return Append(fd, key, &owned);
  });
}

absl::StatusOr<std::string> FileStore::DoGet(absl::string_view key,
                                             Deadline deadline) {
  const std::string wanted[] = {std::string(key)};
  std::string value;
  SHERD_RETURN_IF_ERROR(
      WaitThen("Get", wanted, deadline, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        value = entries_.find(key)->second;
        return absl::OkStatus();
      }));
  return value;
}

absl::StatusOr<int64_t> FileStore::DoAdd(absl::string_view key,
                                         int64_t amount) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, ""));
  int64_t result = 0;
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(Locked(
      Access::kWrite,
      [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
        SHERD_ASSIGN_OR_RETURN(const std::string sum,
                               internal::AddToEntry(entries_, key, amount));
        (void)absl::SimpleAtoi(sum, &result);
        return Append(fd, key, &sum);
      }));
  return result;
}

absl::StatusOr<std::string> FileStore::DoCompareSet(absl::string_view key,
                                                    absl::string_view expected,
                                                    absl::string_view desired) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, desired));
  internal::ComparedEntry compared;
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(Locked(
      Access::kWrite,
      [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
        compared = internal::CompareEntry(entries_, key, expected, desired);
        return compared.write ? Append(fd, key, &compared.value)
                              : absl::OkStatus();
      }));
  return std::move(compared.value);
}

absl::StatusOr<bool> FileStore::DoDelete(absl::string_view key) {
  bool found = false;
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(
      Locked(Access::kWrite,
             [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
               found = entries_.count(key) != 0;
               return found ? Append(fd, key, nullptr) : absl::OkStatus();
             }));
  return found;
}

absl::StatusOr<int64_t> FileStore::DoDeletePrefix(absl::string_view prefix) {
  int64_t count = 0;
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(
      Locked(Access::kWrite,
             [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
               const std::vector<std::string> keys =
                   internal::KeysBelow(entries_, prefix);
               count = static_cast<int64_t>(keys.size());
               return RemoveAll(fd, keys);
             }));
  return count;
}

absl::Status FileStore::DoRetire(absl::string_view prefix, int members) {
  absl::MutexLock lock(&mutex_);
  return Locked(Access::kWrite,
                [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
                  SHERD_ASSIGN_OR_RETURN(
                      const internal::Retirement retirement,
                      internal::CountRetired(entries_, prefix, members));
                  if (!retirement.is_last) {
                    return Append(fd, retirement.counter_key,
                                  &retirement.count);
                  }
                  const std::vector<std::string> keys =
                      internal::KeysBelow(entries_, prefix);
                  if (keys.size() < entries_.size()) return RemoveAll(fd, keys);
                  // Also remove a file that a killed writer left beside it.
                  unlink(NextPath(path_).c_str());
                  if (unlink(path_.c_str()) != 0) {
                    return ErrnoStatus(errno, "removing store", path_);
                  }
                  Forget();
                  return absl::OkStatus();
                });
}

absl::Status FileStore::DoWait(absl::Span<const std::string> keys,
                               Deadline deadline) {
  return WaitThen("Wait", keys, deadline, [] { return absl::OkStatus(); });
}

absl::StatusOr<std::vector<std::string>> FileStore::DoMultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  absl::StatusOr<std::vector<std::string>> values;
  SHERD_RETURN_IF_ERROR(WaitThen("MultiGet", keys, deadline,
                                 [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                   values = internal::ValuesOf(entries_, keys);
                                   return values.status();
                                 }));
  return values;
}

absl::StatusOr<bool> FileStore::DoContains(absl::string_view key) {
  const std::string wanted[] = {std::string(key)};
  absl::MutexLock lock(&mutex_);
  return LookFor(wanted);
}

absl::Status FileStore::WaitThen(absl::string_view operation,
                                 absl::Span<const std::string> keys,
                                 Deadline deadline,
                                 absl::FunctionRef<absl::Status()> found) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreKeys(keys));
  const auto started = Deadline::Clock::now();
  absl::Duration pause = kFirstPause;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      // Read before the check, so that a key which is set in time is never
      // late.
      const bool passed = deadline.HasPassed();
      SHERD_ASSIGN_OR_RETURN(const bool all, LookFor(keys));
      if (all) return found();
      if (passed) {
        return internal::StoreTimeout(operation, entries_, keys, started,
                                      path_);
      }
    }
    absl::SleepFor(std::min(pause, deadline.Remaining()));
    pause = std::min(pause * 1.5, kLongestPause);
  }
}

absl::StatusOr<bool> FileStore::LookFor(absl::Span<const std::string> keys) {
  SHERD_RETURN_IF_ERROR(
      Locked(Access::kRead, [](int) { return absl::OkStatus(); }));
  return internal::HasAll(entries_, keys);
}

absl::Status FileStore::Locked(Access access,
                               absl::FunctionRef<absl::Status(int fd)> body) {
  SHERD_ASSIGN_OR_RETURN(const UniqueFd file, OpenAndLock(access));
  SHERD_RETURN_IF_ERROR(ReadNewRecords(file.get()));
  SHERD_RETURN_IF_ERROR(body(file.get()));
  if (access == Access::kWrite) CompactIfWorthIt();
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> FileStore::OpenAndLock(Access access) {
  for (;;) {
    SHERD_ASSIGN_OR_RETURN(
        UniqueFd file,
        OpenRegularFile(path_, O_RDWR | O_CREAT, 0600, "opening store"));
    const int fd = file.get();
    int locked;
    do {
      locked = flock(fd, access == Access::kWrite ? LOCK_EX : LOCK_SH);
    } while (locked != 0 && errno == EINTR);
    struct stat info;
    if (locked != 0 || fstat(fd, &info) != 0) {
      return ErrnoStatus(errno, "locking store", path_);
    }
    // If the last member of an earlier group removed it while we waited, there
    // is a new one to open.
    if (info.st_nlink != 0) return file;
  }
}

absl::Status FileStore::ReadHeader(int fd) {
  char header[kHeaderBytes];
  SHERD_RETURN_IF_ERROR(ReadFully(fd, 0, header, sizeof(header), path_));
  if (absl::string_view(header, kMagic.size()) != kMagic) {
    return absl::DataLossError(absl::StrCat(
        path_, " is not a sherd store; name a file that does not exist"));
  }
  uint64_t file_id;
  std::memcpy(&file_id, header + kMagic.size(), sizeof(file_id));
  if (file_id == file_id_ && position_ > 0) return absl::OkStatus();
  Forget();
  file_id_ = file_id;
  position_ = kHeaderBytes;
  return absl::OkStatus();
}

absl::Status FileStore::ReadNewRecords(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "reading store", path_);
  if (info.st_size > kMaxFileBytes) {
    return absl::DataLossError(
        absl::StrCat("store ", path_, " has ", info.st_size, " bytes"));
  }
  if (info.st_size < static_cast<int64_t>(kHeaderBytes)) {
    // New, or its first writer was killed: the next one starts from scratch.
    Forget();
    return absl::OkStatus();
  }
  // A program other than a store truncated the file: the remaining records are
  // valid.
  if (info.st_size < position_) Forget();
  SHERD_RETURN_IF_ERROR(ReadHeader(fd));
  std::string data(info.st_size - position_, '\0');
  SHERD_RETURN_IF_ERROR(
      ReadFully(fd, position_, data.data(), data.size(), path_));
  size_t at = 0;
  while (data.size() - at >= kRecordHeader) {
    uint32_t lengths[2];
    std::memcpy(lengths, data.data() + at, kRecordHeader);
    const size_t value_size = lengths[1] == kRemoved ? 0 : lengths[1];
    if (lengths[0] == 0 || lengths[0] > internal::kMaxStoreKeyBytes ||
        value_size > internal::kMaxStoreValueBytes) {
      return absl::DataLossError(absl::StrCat(
          "store ", path_, " has a bad record at offset ", position_ + at));
    }
    if (data.size() - at - kRecordHeader < lengths[0] + value_size) break;
    std::string key = data.substr(at + kRecordHeader, lengths[0]);
    if (lengths[1] == kRemoved) {
      Apply(std::move(key), nullptr);
    } else {
      const std::string value =
          data.substr(at + kRecordHeader + lengths[0], value_size);
      Apply(std::move(key), &value);
    }
    at += kRecordHeader + lengths[0] + value_size;
  }
  position_ += at;
  return absl::OkStatus();
}

absl::Status FileStore::Append(int fd, absl::string_view key,
                               const std::string* value) {
  // Cuts off the unfinished record of a killed writer.
  if (ftruncate(fd, position_) != 0) {
    return ErrnoStatus(errno, "truncating store", path_);
  }
  std::string record;
  if (position_ == 0) {
    SHERD_ASSIGN_OR_RETURN(file_id_, NewFileId(path_));
    record = NewHeader(file_id_);
  }
  AppendRecord(record, key, value);
  SHERD_RETURN_IF_ERROR(WriteFully(fd, position_, record, path_));
  position_ += static_cast<int64_t>(record.size());
  Apply(std::string(key), value);
  return absl::OkStatus();
}

absl::Status FileStore::RemoveAll(int fd, absl::Span<const std::string> keys) {
  for (const std::string& key : keys) {
    SHERD_RETURN_IF_ERROR(Append(fd, key, nullptr));
  }
  return absl::OkStatus();
}

void FileStore::Apply(std::string key, const std::string* value) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) {
    live_bytes_ -= RecordBytes(it->first, it->second);
    if (value == nullptr) {
      entries_.erase(it);
      return;
    }
    it->second = *value;
  } else if (value != nullptr) {
    entries_.emplace(key, *value);
  } else {
    return;
  }
  live_bytes_ += RecordBytes(key, *value);
}

void FileStore::Forget() {
  position_ = 0;
  entries_.clear();
  live_bytes_ = 0;
  compact_from_ = 0;
}

void FileStore::CompactIfWorthIt() {
  if (position_ < std::max(kCompactFrom, compact_from_) ||
      position_ / kCompactRatio < live_bytes_) {
    return;
  }
  if (!Compact().ok()) {
    // A growing store is better than none: without space or permission for a
    // second file, the existing one stays in use.
    unlink(NextPath(path_).c_str());
    compact_from_ = 2 * position_;
  }
}

absl::Status FileStore::Compact() {
  SHERD_ASSIGN_OR_RETURN(const uint64_t file_id, NewFileId(path_));
  std::string data = NewHeader(file_id);
  for (const auto& [key, value] : entries_) AppendRecord(data, key, &value);
  const std::string next = NextPath(path_);
  SHERD_ASSIGN_OR_RETURN(
      const UniqueFd fd,
      OpenRegularFile(next, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600,
                      "compacting store"));
  SHERD_RETURN_IF_ERROR(WriteFully(fd.get(), 0, data, next));
  // Others wait for the lock on the old file, find it without a name once they
  // have it, and open this one.
  if (rename(next.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, "replacing store", path_);
  }
  file_id_ = file_id;
  position_ = static_cast<int64_t>(data.size());
  compact_from_ = 0;
  return absl::OkStatus();
}

}  // namespace sherd
