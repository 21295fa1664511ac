#include "sherd/core/comm/hash_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

absl::Status HashStore::Set(absl::string_view key, absl::string_view value) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, value));
  absl::MutexLock lock(&mutex_);
  entries_.insert_or_assign(std::string(key), std::string(value));
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashStore::Get(absl::string_view key,
                                           Deadline deadline) {
  const std::string wanted[] = {std::string(key)};
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(WaitLocked(wanted, deadline));
  return entries_.find(key)->second;
}

absl::StatusOr<int64_t> HashStore::Add(absl::string_view key, int64_t amount) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, ""));
  absl::MutexLock lock(&mutex_);
  SHERD_ASSIGN_OR_RETURN(std::string sum,
                         internal::AddToEntry(entries_, key, amount));
  int64_t result = 0;
  (void)absl::SimpleAtoi(sum, &result);
  entries_.insert_or_assign(std::string(key), std::move(sum));
  changed_.SignalAll();
  return result;
}

absl::StatusOr<bool> HashStore::Delete(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return false;
  entries_.erase(it);
  return true;
}

absl::Status HashStore::Wait(absl::Span<const std::string> keys,
                             Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  return WaitLocked(keys, deadline);
}

absl::StatusOr<bool> HashStore::Contains(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  return entries_.count(key) != 0;
}

absl::Status HashStore::WaitLocked(absl::Span<const std::string> keys,
                                   Deadline deadline) {
  const auto started = Deadline::Clock::now();
  while (!internal::HasAll(entries_, keys)) {
    if (deadline.HasPassed()) {
      return internal::StoreTimeout(entries_, keys, started, "in this process");
    }
    changed_.WaitWithTimeout(&mutex_, deadline.Remaining());
  }
  return absl::OkStatus();
}

}  // namespace sherd
