#ifndef SHERD_CORE_COMM_HASH_STORE_H_
#define SHERD_CORE_COMM_HASH_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store_entries.h"

namespace sherd {

// A store in the memory of this process, for ranks that are threads of it.
class HashStore final : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key,
                                         absl::string_view expected,
                                         absl::string_view desired) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<int64_t> DeletePrefix(absl::string_view prefix) override;
  absl::Status Retire(absl::string_view prefix, int members) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    Deadline deadline) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<bool> Contains(absl::string_view key) override;

 private:
  absl::Status WaitLocked(absl::string_view operation,
                          absl::Span<const std::string> keys, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar changed_;
  internal::StoreEntries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_HASH_STORE_H_
