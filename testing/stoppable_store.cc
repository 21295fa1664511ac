#include "sherd/testing/stoppable_store.h"

#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {

void StoppableStore::Stop(absl::Status cause) {
  absl::MutexLock lock(&mutex_);
  if (cause_.ok()) cause_ = std::move(cause);
}

absl::Status StoppableStore::InSlices(
    Deadline deadline, absl::FunctionRef<absl::Status(Deadline)> wait) {
  for (;;) {
    const absl::Status status =
        wait(Deadline::Earlier(deadline, Deadline::After(kLatency)));
    if (!absl::IsDeadlineExceeded(status)) return status;
    {
      absl::MutexLock lock(&mutex_);
      SHERD_RETURN_IF_ERROR(cause_);
    }
    if (deadline.HasPassed()) return status;
  }
}

absl::Status StoppableStore::Set(absl::string_view key,
                                 absl::string_view value) {
  return base_->Set(key, value);
}

absl::StatusOr<std::string> StoppableStore::Get(absl::string_view key,
                                                Deadline deadline) {
  std::string value;
  SHERD_RETURN_IF_ERROR(InSlices(deadline, [&](Deadline slice) -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(value, base_->Get(key, slice));
    return absl::OkStatus();
  }));
  return value;
}

absl::StatusOr<int64_t> StoppableStore::Add(absl::string_view key,
                                            int64_t amount) {
  return base_->Add(key, amount);
}

absl::StatusOr<std::string> StoppableStore::CompareSet(
    absl::string_view key, absl::string_view expected,
    absl::string_view desired) {
  return base_->CompareSet(key, expected, desired);
}

absl::StatusOr<bool> StoppableStore::Delete(absl::string_view key) {
  return base_->Delete(key);
}

absl::StatusOr<int64_t> StoppableStore::DeletePrefix(absl::string_view prefix) {
  return base_->DeletePrefix(prefix);
}

absl::Status StoppableStore::Retire(absl::string_view prefix, int members) {
  return base_->Retire(prefix, members);
}

absl::Status StoppableStore::Wait(absl::Span<const std::string> keys,
                                  Deadline deadline) {
  return InSlices(deadline,
                  [&](Deadline slice) { return base_->Wait(keys, slice); });
}

absl::StatusOr<std::vector<std::string>> StoppableStore::MultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  std::vector<std::string> values;
  SHERD_RETURN_IF_ERROR(InSlices(deadline, [&](Deadline slice) -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(values, base_->MultiGet(keys, slice));
    return absl::OkStatus();
  }));
  return values;
}

absl::StatusOr<bool> StoppableStore::Contains(absl::string_view key) {
  return base_->Contains(key);
}

}  // namespace sherd::testing::internal
