#include "sherd/core/comm/store/hash_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

absl::Status HashStore::DoSet(absl::string_view key, absl::string_view value) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, value));
  absl::MutexLock lock(&mutex_);
  entries_.insert_or_assign(std::string(key), std::string(value));
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashStore::DoGet(absl::string_view key,
                                             Deadline deadline) {
  const std::string wanted[] = {std::string(key)};
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(WaitLocked("Get", wanted, deadline));
  return entries_.find(key)->second;
}

absl::StatusOr<int64_t> HashStore::DoAdd(absl::string_view key,
                                         int64_t amount) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, ""));
  absl::MutexLock lock(&mutex_);
  SHERD_ASSIGN_OR_RETURN(std::string sum,
                         internal::AddToEntry(entries_, key, amount));
  int64_t result = 0;
  (void)absl::SimpleAtoi(sum, &result);
  entries_.insert_or_assign(std::string(key), std::move(sum));
  return result;
}

absl::StatusOr<std::string> HashStore::DoCompareSet(absl::string_view key,
                                                    absl::string_view expected,
                                                    absl::string_view desired) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, desired));
  absl::MutexLock lock(&mutex_);
  internal::ComparedEntry compared =
      internal::CompareEntry(entries_, key, expected, desired);
  if (compared.write) {
    entries_.insert_or_assign(std::string(key), compared.value);
  }
  return std::move(compared.value);
}

absl::StatusOr<bool> HashStore::DoDelete(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return false;
  entries_.erase(it);
  return true;
}

absl::StatusOr<int64_t> HashStore::DoDeletePrefix(absl::string_view prefix) {
  absl::MutexLock lock(&mutex_);
  const std::vector<std::string> keys = internal::KeysBelow(entries_, prefix);
  for (const std::string& key : keys) entries_.erase(key);
  return static_cast<int64_t>(keys.size());
}

absl::Status HashStore::DoRetire(absl::string_view prefix, int members) {
  absl::MutexLock lock(&mutex_);
  SHERD_ASSIGN_OR_RETURN(internal::Retirement retirement,
                         internal::CountRetired(entries_, prefix, members));
  if (retirement.is_last) {
    for (const std::string& key : internal::KeysBelow(entries_, prefix)) {
      entries_.erase(key);
    }
    return absl::OkStatus();
  }
  entries_.insert_or_assign(std::move(retirement.counter_key),
                            std::move(retirement.count));
  return absl::OkStatus();
}

absl::Status HashStore::DoWait(absl::Span<const std::string> keys,
                               Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  return WaitLocked("Wait", keys, deadline);
}

absl::StatusOr<std::vector<std::string>> HashStore::DoMultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(WaitLocked("MultiGet", keys, deadline));
  return internal::ValuesOf(entries_, keys);
}

absl::StatusOr<bool> HashStore::DoContains(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  return entries_.count(key) != 0;
}

absl::Status HashStore::WaitLocked(absl::string_view operation,
                                   absl::Span<const std::string> keys,
                                   Deadline deadline) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreKeys(keys));
  const auto started = Deadline::Clock::now();
  const auto has_all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return internal::HasAll(entries_, keys);
  };
  // Wakes only threads whose keys exist. Abseil waits by the wall clock: short
  // waits keep it harmless if that is set back.
  while (!mutex_.AwaitWithTimeout(
      absl::Condition(&has_all),
      std::min(deadline.Remaining(), absl::Seconds(1)))) {
    if (deadline.HasPassed()) {
      return internal::StoreTimeout(operation, entries_, keys, started,
                                    "in this process");
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
