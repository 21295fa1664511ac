#include "sherd/core/comm/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr absl::string_view kMagic = "sherd store v1.\n";
constexpr size_t kHeaderBytes = 16 + sizeof(uint64_t);
constexpr uint32_t kRemoved = 0xffffffff;
constexpr size_t kRecordHeader = 2 * sizeof(uint32_t);
// A store holds addresses and small records; far more than this is not ours.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

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

}  // namespace

FileStore::FileStore(std::string path) : path_(std::move(path)) {}

absl::Status FileStore::Set(absl::string_view key, absl::string_view value) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, value));
  const std::string owned(value);
  absl::MutexLock lock(&mutex_);
  return Locked(Access::kWrite, [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return Append(fd, key, &owned);
  });
}

absl::StatusOr<std::string> FileStore::Get(absl::string_view key,
                                           Deadline deadline) {
  const std::string wanted[] = {std::string(key)};
  // Another thread may remove the key between the wait and the look.
  for (;;) {
    SHERD_RETURN_IF_ERROR(Wait(wanted, deadline));
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(key);
    if (it != entries_.end()) return it->second;
  }
}

absl::StatusOr<int64_t> FileStore::Add(absl::string_view key, int64_t amount) {
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

absl::StatusOr<bool> FileStore::Delete(absl::string_view key) {
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

absl::Status FileStore::Wait(absl::Span<const std::string> keys,
                             Deadline deadline) {
  const auto started = Deadline::Clock::now();
  absl::Duration pause = kFirstPause;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      SHERD_ASSIGN_OR_RETURN(const bool all, LookFor(keys));
      if (all) return absl::OkStatus();
      if (deadline.HasPassed()) {
        return internal::StoreTimeout(entries_, keys, started, path_);
      }
    }
    absl::SleepFor(std::min(pause, deadline.Remaining()));
    pause = std::min(pause * 1.5, kLongestPause);
  }
}

absl::StatusOr<bool> FileStore::Contains(absl::string_view key) {
  const std::string wanted[] = {std::string(key)};
  absl::MutexLock lock(&mutex_);
  return LookFor(wanted);
}

absl::Status FileStore::Retire(absl::string_view prefix, int members) {
  const std::string counter = absl::StrCat(prefix, "/retired");
  const std::string below = absl::StrCat(prefix, "/");
  absl::MutexLock lock(&mutex_);
  return Locked(Access::kWrite,
                [&](int fd) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
                  SHERD_ASSIGN_OR_RETURN(
                      const std::string count,
                      internal::AddToEntry(entries_, counter, 1));
                  if (count != absl::StrCat(members))
                    return Append(fd, counter, &count);
                  std::vector<std::string> keys;
                  for (const auto& [key, value] : entries_) {
                    if (absl::StartsWith(key, below)) keys.push_back(key);
                  }
                  if (keys.size() == entries_.size()) {
                    if (unlink(path_.c_str()) != 0) {
                      return ErrnoStatus(errno, "removing store", path_);
                    }
                    return absl::OkStatus();
                  }
                  for (const std::string& key : keys) {
                    SHERD_RETURN_IF_ERROR(Append(fd, key, nullptr));
                  }
                  return absl::OkStatus();
                });
}

absl::StatusOr<bool> FileStore::LookFor(absl::Span<const std::string> keys) {
  SHERD_RETURN_IF_ERROR(
      Locked(Access::kRead, [](int) { return absl::OkStatus(); }));
  return internal::HasAll(entries_, keys);
}

absl::Status FileStore::Locked(Access access,
                               absl::FunctionRef<absl::Status(int fd)> body) {
  SHERD_ASSIGN_OR_RETURN(const int fd, OpenAndLock(access));
  absl::Status status = ReadNewRecords(fd);
  if (status.ok()) status = body(fd);
  close(fd);
  return status;
}

absl::StatusOr<int> FileStore::OpenAndLock(Access access) {
  for (;;) {
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return ErrnoStatus(errno, "opening store", path_);
    int locked;
    do {
      locked = flock(fd, access == Access::kWrite ? LOCK_EX : LOCK_SH);
    } while (locked != 0 && errno == EINTR);
    struct stat info;
    if (locked != 0 || fstat(fd, &info) != 0) {
      const absl::Status status = ErrnoStatus(errno, "locking store", path_);
      close(fd);
      return status;
    }
    if (info.st_nlink == 0) {
      // The last member of an earlier group removed it while we waited.
      close(fd);
      continue;
    }
    return fd;
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
  file_id_ = file_id;
  position_ = kHeaderBytes;
  entries_.clear();
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
    position_ = 0;
    entries_.clear();
    return absl::OkStatus();
  }
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
      entries_.erase(key);
    } else {
      entries_.insert_or_assign(
          std::move(key),
          data.substr(at + kRecordHeader + lengths[0], value_size));
    }
    at += kRecordHeader + lengths[0] + value_size;
  }
  position_ += at;
  return absl::OkStatus();
}

absl::Status FileStore::Append(int fd, absl::string_view key,
                               const std::string* value) {
  // Cuts off what a killed writer left.
  if (ftruncate(fd, position_) != 0) {
    return ErrnoStatus(errno, "truncating store", path_);
  }
  const uint32_t lengths[2] = {
      static_cast<uint32_t>(key.size()),
      value == nullptr ? kRemoved : static_cast<uint32_t>(value->size())};
  std::string record;
  if (position_ == 0) {
    file_id_ = absl::Uniform<uint64_t>(absl::BitGen());
    absl::StrAppend(&record, kMagic);
    record.append(reinterpret_cast<const char*>(&file_id_), sizeof(file_id_));
  }
  record.append(reinterpret_cast<const char*>(lengths), kRecordHeader);
  absl::StrAppend(&record, key);
  if (value != nullptr) record.append(*value);
  SHERD_RETURN_IF_ERROR(WriteFully(fd, position_, record, path_));
  position_ += static_cast<int64_t>(record.size());
  if (value == nullptr) {
    entries_.erase(std::string(key));
  } else {
    entries_.insert_or_assign(std::string(key), *value);
  }
  return absl::OkStatus();
}

}  // namespace sherd
