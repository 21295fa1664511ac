#ifndef SHERD_CORE_COMM_FILE_STORE_H_
#define SHERD_CORE_COMM_FILE_STORE_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store_entries.h"

namespace sherd {

// A store in one file that all ranks can open, on a local or a shared file
// system with working flock.
//
// Format. 16 bytes "sherd store v1.\n", a random number of 8 bytes by which a
// file is told from its successor under the same name, then records
//
//     u32 key length, u32 value length, key, value          (little-endian)
//
// of which the last one for a key holds; value length 0xffffffff means that
// the key was removed. Writers append under an exclusive flock. A record that a
// killed writer left unfinished is ignored by readers and cut off by the next
// writer. Waiting reads only what was appended, and never writes.
//
// Errors. kDataLoss if the file is not such a file, kInternal or
// kPermissionDenied, with path, from the file system.
//
// Cost. A few microseconds per call; a waiter looks every 0.2 to 5 ms, since
// change notification does not work across hosts.
class FileStore final : public Store {
 public:
  // Opens or creates the file at the first operation.
  explicit FileStore(std::string path);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    Deadline deadline) override;
  absl::StatusOr<bool> Contains(absl::string_view key) override;

  // Counts the caller as done with all keys that begin with "`prefix`/". The
  // last of `members` callers removes these keys, and the file if it has no
  // others: so a run that ends well leaves nothing behind.
  absl::Status Retire(absl::string_view prefix, int members);

  const std::string& path() const { return path_; }

 private:
  enum class Access { kRead, kWrite };

  // Runs `body` with the file open, locked and read into entries_.
  absl::Status Locked(Access access,
                      absl::FunctionRef<absl::Status(int fd)> body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int> OpenAndLock(Access access)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadNewRecords(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadHeader(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(int fd, absl::string_view key, const std::string* value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> LookFor(absl::Span<const std::string> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  // The number of the file that entries_ was read from, and how far.
  uint64_t file_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t position_ ABSL_GUARDED_BY(mutex_) = 0;
  internal::StoreEntries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_FILE_STORE_H_
