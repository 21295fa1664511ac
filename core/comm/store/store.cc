#include "sherd/core/comm/store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/store/store_entries.h"

namespace sherd {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> base)
    : prefix_(std::move(prefix)), base_(std::move(base)) {}

absl::Status PrefixStore::Set(absl::string_view key, absl::string_view value) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, value));
  return base_->Set(Prefixed(key), value);
}

absl::StatusOr<std::string> PrefixStore::Get(absl::string_view key,
                                             Deadline deadline) {
  return base_->Get(Prefixed(key), deadline);
}

absl::StatusOr<int64_t> PrefixStore::Add(absl::string_view key,
                                         int64_t amount) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, ""));
  return base_->Add(Prefixed(key), amount);
}

absl::StatusOr<std::string> PrefixStore::CompareSet(absl::string_view key,
                                                    absl::string_view expected,
                                                    absl::string_view desired) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, desired));
  return base_->CompareSet(Prefixed(key), expected, desired);
}

absl::StatusOr<bool> PrefixStore::Delete(absl::string_view key) {
  return base_->Delete(Prefixed(key));
}

absl::StatusOr<int64_t> PrefixStore::DeletePrefix(absl::string_view prefix) {
  return base_->DeletePrefix(Prefixed(prefix));
}

absl::Status PrefixStore::Retire(absl::string_view prefix, int members) {
  return base_->Retire(Prefixed(prefix), members);
}

absl::Status PrefixStore::Wait(absl::Span<const std::string> keys,
                               Deadline deadline) {
  return base_->Wait(Prefixed(keys), deadline);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::MultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  return base_->MultiGet(Prefixed(keys), deadline);
}

absl::StatusOr<bool> PrefixStore::Contains(absl::string_view key) {
  return base_->Contains(Prefixed(key));
}

std::string PrefixStore::Prefixed(absl::string_view key) const {
  return absl::StrCat(prefix_, "/", key);
}

std::vector<std::string> PrefixStore::Prefixed(
    absl::Span<const std::string> keys) const {
  std::vector<std::string> prefixed;
  prefixed.reserve(keys.size());
  for (const std::string& key : keys) {
    prefixed.push_back(Prefixed(absl::string_view(key)));
  }
  return prefixed;
}

}  // namespace sherd
