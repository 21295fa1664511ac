#ifndef SHERD_CORE_COMM_STORE_HASH_STORE_H_
#define SHERD_CORE_COMM_STORE_HASH_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/store/base_store.h"
#include "sherd/core/comm/store/store_entries.h"

namespace sherd {

// A store in the memory of this process, for ranks that are threads of it.
class HashStore final : public internal::BaseStore {
 public:
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
  absl::Status DoRetire(absl::string_view prefix, int members) override;
  absl::Status DoWait(absl::Span<const std::string> keys,
                      Deadline deadline) override;
  absl::StatusOr<std::vector<std::string>> DoMultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<bool> DoContains(absl::string_view key) override;

  absl::Status WaitLocked(absl::string_view operation,
                          absl::Span<const std::string> keys, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  internal::StoreEntries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_STORE_HASH_STORE_H_
