#include "sherd/core/comm/store_entries.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "sherd/core/base/checked_math.h"

namespace sherd::internal {

absl::Status CheckStoreEntry(absl::string_view key, absl::string_view value) {
  if (key.empty() || key.size() > kMaxStoreKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a store key has ", key.size(), " bytes, expected 1 to ",
                     kMaxStoreKeyBytes));
  }
  if (value.size() > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the value for store key \"", key, "\" has ", value.size(),
                     " bytes, expected at most ", kMaxStoreValueBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> AddToEntry(const StoreEntries& entries,
                                       absl::string_view key, int64_t amount) {
  int64_t current = 0;
  const auto it = entries.find(key);
  if (it != entries.end() && !absl::SimpleAtoi(it->second, &current)) {
    return absl::FailedPreconditionError(
        absl::StrCat("store key \"", key,
                     "\" cannot be added to: its value is not a number"));
  }
  const std::optional<int64_t> sum = CheckedAdd(current, amount);
  if (!sum) {
    return absl::FailedPreconditionError(
        absl::StrCat("store key \"", key, "\" cannot be added to: ", current,
                     " + ", amount, " overflows"));
  }
  return absl::StrCat(*sum);
}

absl::Status StoreTimeout(const StoreEntries& entries,
                          absl::Span<const std::string> wanted,
                          Deadline::Clock::time_point started,
                          absl::string_view where) {
  std::vector<std::string> missing;
  for (const std::string& key : wanted) {
    if (entries.find(key) == entries.end()) missing.push_back(key);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ",
      absl::FormatDuration(
          absl::Trunc(absl::FromChrono(Deadline::Clock::now() - started),
                      absl::Milliseconds(1))),
      " for store keys that nobody set: ", absl::StrJoin(missing, ", "), " (",
      where, ")"));
}

bool HasAll(const StoreEntries& entries, absl::Span<const std::string> wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& key) {
    return entries.count(key) != 0;
  });
}

}  // namespace sherd::internal
