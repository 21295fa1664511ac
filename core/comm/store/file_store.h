#ifndef SHERD_CORE_COMM_STORE_FILE_STORE_H_
#define SHERD_CORE_COMM_STORE_FILE_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/base_store.h"
#include "sherd/core/comm/store/store_entries.h"

namespace sherd {

// A store in one file that all ranks can open, on a local or a shared file
// system with working flock.
//
// Format. 16 bytes "sherd store v1.\n", a random number of 8 bytes that
// distinguishes a file from its successor under the same name, then records
//
//     u32 key length, u32 value length, key, value          (little-endian)
//
// of which the last one for a key is valid; value length 0xffffffff means that
// the key was removed. Writers append under an exclusive flock. A record that a
// killed writer left unfinished is ignored by readers and cut off by the next
// writer. Waiting reads only what was appended, and never writes.
//
// Growth. Once most of the file consists of obsolete records, a writer replaces
// it by a new file with the valid ones: writes "<path>.new" and renames it, so
// that a writer killed at any moment leaves either file complete.
//
// Errors. Returns kDataLoss if the file does not have this format, kInternal or
// kPermissionDenied, with the path, from the file system.
//
// Cost. A few microseconds per call; a waiter polls every 0.2 to 5 ms, since
// change notification does not work across hosts.
class FileStore final : public internal::BaseStore {
 public:
  // Opens or creates the file at the first operation.
  explicit FileStore(std::string path);

  const std::string& path() const { return path_; }

 private:
  absl::Status DoSet(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> DoGet(absl::string_view key,
                                    Deadline deadline) override;
  absl::StatusOr<int64_t> DoAdd(absl::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> DoCompareSet(absl::string_view key,
                                           absl::string_view expected,
                                           absl::string_view desired) override;
  absl::StatusOr<bool> DoDelete(absl::string_view key) override;
  absl::StatusOr<int64_t> DoDeletePrefix(absl::string_view prefix) override;
  // The last member also removes the file if it holds no other keys, so that a
  // successful run leaves nothing behind.
  absl::Status DoRetire(absl::string_view prefix, int members) override;
  absl::Status DoWait(absl::Span<const std::string> keys,
                      Deadline deadline) override;
  absl::StatusOr<std::vector<std::string>> DoMultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<bool> DoContains(absl::string_view key) override;

  enum class Access { kRead, kWrite };

  // Runs `body` with the file open, locked and read into entries_.
  absl::Status Locked(Access access,
                      absl::FunctionRef<absl::Status(int fd)> body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<UniqueFd> OpenAndLock(Access access)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadNewRecords(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadHeader(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(int fd, absl::string_view key, const std::string* value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemoveAll(int fd, absl::Span<const std::string> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies a record to entries_ and live_bytes_; a null value removes the key.
  void Apply(std::string key, const std::string* value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompactIfWorthIt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Compact() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> LookFor(absl::Span<const std::string> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs `found` with mutex_ held once all keys are in entries_.
  absl::Status WaitThen(absl::string_view operation,
                        absl::Span<const std::string> keys, Deadline deadline,
                        absl::FunctionRef<absl::Status()> found)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  // The number of the file that entries_ was read from, and how far.
  uint64_t file_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t position_ ABSL_GUARDED_BY(mutex_) = 0;
  internal::StoreEntries entries_ ABSL_GUARDED_BY(mutex_);
  // Bytes of the records of entries_.
  int64_t live_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // A failed compaction is tried again when the file has grown to this.
  int64_t compact_from_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_STORE_FILE_STORE_H_
