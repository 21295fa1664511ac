#include "sherd/core/comm/store/watched_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {
namespace {

const absl::Status& StatusOf(const absl::Status& status) { return status; }

template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& answer) {
  return answer.status();
}

}  // namespace

WatchedStore::WatchedStore(Store& base,
                           std::function<std::optional<int>()> find_failed_rank)
    : base_(base), find_failed_rank_(std::move(find_failed_rank)) {}

std::optional<int> WatchedStore::failed_rank() const {
  const int failed_rank = failed_rank_.load(std::memory_order_relaxed);
  return failed_rank < 0 ? std::nullopt : std::optional<int>(failed_rank);
}

template <typename Answer>
Answer WatchedStore::Watch(Deadline deadline,
                           const std::function<Answer(Deadline)>& ask) {
  for (absl::Duration look = kFirstLook;;
       look = std::min(2 * look, kLastLook)) {
    Answer answer = ask(Deadline::Earlier(deadline, Deadline::After(look)));
    if (!absl::IsDeadlineExceeded(StatusOf(answer)) || deadline.HasPassed()) {
      return answer;
    }
    const std::optional<int> failed_rank = find_failed_rank_();
    if (!failed_rank) continue;
    // A value that the rank wrote before its end is read once more.
    answer = ask(Deadline::After(absl::ZeroDuration()));
    if (!absl::IsDeadlineExceeded(StatusOf(answer))) return answer;
    failed_rank_.store(*failed_rank, std::memory_order_relaxed);
    return WithFailedRank(
        absl::UnavailableError(absl::StrCat(
            "rank ", *failed_rank, " failed: ", StatusOf(answer).message())),
        *failed_rank);
  }
}

absl::StatusOr<std::string> WatchedStore::Get(absl::string_view key,
                                              Deadline deadline) {
  return Watch<absl::StatusOr<std::string>>(
      deadline, [&](Deadline until) { return base_.Get(key, until); });
}

absl::Status WatchedStore::Wait(absl::Span<const std::string> keys,
                                Deadline deadline) {
  return Watch<absl::Status>(
      deadline, [&](Deadline until) { return base_.Wait(keys, until); });
}

absl::StatusOr<std::vector<std::string>> WatchedStore::MultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  return Watch<absl::StatusOr<std::vector<std::string>>>(
      deadline, [&](Deadline until) { return base_.MultiGet(keys, until); });
}

absl::Status WatchedStore::Set(absl::string_view key, absl::string_view value) {
  return base_.Set(key, value);
}

absl::StatusOr<int64_t> WatchedStore::Add(absl::string_view key,
                                          int64_t amount) {
  return base_.Add(key, amount);
}

absl::StatusOr<std::string> WatchedStore::CompareSet(
    absl::string_view key, absl::string_view expected,
    absl::string_view desired) {
  return base_.CompareSet(key, expected, desired);
}

absl::StatusOr<bool> WatchedStore::Delete(absl::string_view key) {
  return base_.Delete(key);
}

absl::StatusOr<int64_t> WatchedStore::DeletePrefix(absl::string_view prefix) {
  return base_.DeletePrefix(prefix);
}

absl::Status WatchedStore::Retire(absl::string_view prefix, int members) {
  return base_.Retire(prefix, members);
}

absl::StatusOr<bool> WatchedStore::Contains(absl::string_view key) {
  return base_.Contains(key);
}

}  // namespace sherd::internal
