#include "sherd/core/comm/store/store_entries.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"

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

absl::Status CheckStoreKeys(absl::Span<const std::string> keys) {
  for (const std::string& key : keys) {
    SHERD_RETURN_IF_ERROR(CheckStoreEntry(key, ""));
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

ComparedEntry CompareEntry(const StoreEntries& entries, absl::string_view key,
                           absl::string_view expected,
                           absl::string_view desired) {
  const auto it = entries.find(key);
  if (it == entries.end() && !expected.empty()) {
    return {std::string(expected), false};
  }
  if (it != entries.end() && absl::string_view(it->second) != expected) {
    return {it->second, false};
  }
  return {std::string(desired), true};
}

std::vector<std::string> KeysBelow(const StoreEntries& entries,
                                   absl::string_view prefix) {
  const std::string below = absl::StrCat(prefix, "/");
  std::vector<std::string> keys;
  for (auto it = entries.lower_bound(below);
       it != entries.end() && absl::StartsWith(it->first, below); ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

absl::StatusOr<Retirement> CountRetired(const StoreEntries& entries,
                                        absl::string_view prefix, int members) {
  if (members < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("retiring the store keys below \"", prefix, "\" with ",
                     members, " members, expected at least 1"));
  }
  Retirement retirement;
  retirement.counter_key = absl::StrCat(prefix, "/retired");
  SHERD_RETURN_IF_ERROR(CheckStoreEntry(retirement.counter_key, ""));
  SHERD_ASSIGN_OR_RETURN(retirement.count,
                         AddToEntry(entries, retirement.counter_key, 1));
  int64_t count = 0;
  (void)absl::SimpleAtoi(retirement.count, &count);
  retirement.is_last = count >= members;
  return retirement;
}

absl::StatusOr<std::vector<std::string>> ValuesOf(
    const StoreEntries& entries, absl::Span<const std::string> keys) {
  size_t total = 0;
  for (const std::string& key : keys) {
    // Including its length, which is sent to the client of a server.
    total += entries.find(key)->second.size() + sizeof(uint32_t);
  }
  if (total > kMaxMultiGetBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the values of ", keys.size(), " store keys have ", total,
                     " bytes together, more than ", kMaxMultiGetBytes,
                     ": get fewer at a time"));
  }
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) {
    values.push_back(entries.find(key)->second);
  }
  return values;
}

absl::Status StoreTimeout(absl::string_view operation,
                          const StoreEntries& entries,
                          absl::Span<const std::string> wanted,
                          Deadline::Clock::time_point started,
                          absl::string_view where) {
  std::vector<std::string> missing;
  for (const std::string& key : wanted) {
    if (entries.find(key) == entries.end()) missing.push_back(key);
  }
  return StoreTimeout(operation, missing, started, where);
}

absl::Status StoreTimeout(absl::string_view operation,
                          absl::Span<const std::string> missing,
                          Deadline::Clock::time_point started,
                          absl::string_view where) {
  constexpr size_t kNamed = 16;
  std::string more;
  if (missing.size() > kNamed) {
    more = absl::StrCat(" and ", missing.size() - kNamed, " more");
    missing = missing.subspan(0, kNamed);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      operation, " waited ",
      absl::FormatDuration(
          absl::Trunc(absl::FromChrono(Deadline::Clock::now() - started),
                      absl::Milliseconds(1))),
      " for store keys that no rank set: ", absl::StrJoin(missing, ", "), more,
      " (", where, ")"));
}

bool HasAll(const StoreEntries& entries, absl::Span<const std::string> wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& key) {
    return entries.count(key) != 0;
  });
}

}  // namespace sherd::internal
