#include "sherd/core/comm/store/base_store.h"

#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

absl::Status Pass(FaultPoint point, absl::string_view key) {
  return MaybeInjectFault({.point = point, .subject = key});
}

absl::Status Pass(FaultPoint point, absl::Span<const std::string> keys) {
  return Pass(point, keys.empty() ? absl::string_view() : keys.front());
}

}  // namespace

absl::Status BaseStore::Set(absl::string_view key, absl::string_view value) {
  bool lost = false;
  SHERD_RETURN_IF_ERROR(MaybeInjectFault({.point = FaultPoint::kStoreSet,
                                          .subject = key,
                                          .bytes = value.size(),
                                          .lost = &lost}));
  return lost ? absl::OkStatus() : DoSet(key, value);
}

absl::StatusOr<std::string> BaseStore::Get(absl::string_view key,
                                           Deadline deadline) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreGet, key));
  return DoGet(key, deadline);
}

absl::StatusOr<int64_t> BaseStore::Add(absl::string_view key, int64_t amount) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreAdd, key));
  return DoAdd(key, amount);
}

absl::StatusOr<std::string> BaseStore::CompareSet(absl::string_view key,
                                                  absl::string_view expected,
                                                  absl::string_view desired) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreCompareSet, key));
  return DoCompareSet(key, expected, desired);
}

absl::StatusOr<bool> BaseStore::Delete(absl::string_view key) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreDelete, key));
  return DoDelete(key);
}

absl::StatusOr<int64_t> BaseStore::DeletePrefix(absl::string_view prefix) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreDeletePrefix, prefix));
  return DoDeletePrefix(prefix);
}

absl::Status BaseStore::Retire(absl::string_view prefix, int members) {
  bool lost = false;
  SHERD_RETURN_IF_ERROR(MaybeInjectFault(
      {.point = FaultPoint::kStoreRetire, .subject = prefix, .lost = &lost}));
  return lost ? absl::OkStatus() : DoRetire(prefix, members);
}

absl::Status BaseStore::Wait(absl::Span<const std::string> keys,
                             Deadline deadline) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreWait, keys));
  return DoWait(keys, deadline);
}

absl::StatusOr<std::vector<std::string>> BaseStore::MultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreMultiGet, keys));
  return DoMultiGet(keys, deadline);
}

absl::StatusOr<bool> BaseStore::Contains(absl::string_view key) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kStoreContains, key));
  return DoContains(key);
}

}  // namespace sherd::internal
