#ifndef SHERD_CORE_COMM_STORE_STORE_ENTRIES_H_
#define SHERD_CORE_COMM_STORE_STORE_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"

namespace sherd::internal {

// The common part of the stores: limits, the meaning of a counter, and the
// wording of their errors.

inline constexpr size_t kMaxStoreKeyBytes = 4096;
inline constexpr size_t kMaxStoreValueBytes = size_t{16} << 20;
inline constexpr size_t kMaxMultiGetBytes = size_t{64} << 20;

using StoreEntries = std::map<std::string, std::string, std::less<>>;

// kInvalidArgument if the key is empty or a length is over its limit.
absl::Status CheckStoreEntry(absl::string_view key, absl::string_view value);

// As CheckStoreEntry, for keys that are waited for.
absl::Status CheckStoreKeys(absl::Span<const std::string> keys);

// The text of the number at `key` after adding `amount`.
//   kFailedPrecondition  The value is not a number, or the sum overflows.
absl::StatusOr<std::string> AddToEntry(const StoreEntries& entries,
                                       absl::string_view key, int64_t amount);

// The result of CompareSet, and whether it has to be written to `key`.
struct ComparedEntry {
  std::string value;
  bool write = false;
};
ComparedEntry CompareEntry(const StoreEntries& entries, absl::string_view key,
                           absl::string_view expected,
                           absl::string_view desired);

// All keys that begin with "`prefix`/".
std::vector<std::string> KeysBelow(const StoreEntries& entries,
                                   absl::string_view prefix);

// The action of Retire.
struct Retirement {
  // The last caller removes KeysBelow(prefix); the others write `count`.
  bool is_last = false;
  std::string counter_key;
  std::string count;
};
//   kInvalidArgument     `members` is less than 1.
//   kFailedPrecondition  The counter is not a number.
absl::StatusOr<Retirement> CountRetired(const StoreEntries& entries,
                                        absl::string_view prefix, int members);

// The values of `keys`, all of which exist.
//   kResourceExhausted  The values have more than kMaxMultiGetBytes in total.
absl::StatusOr<std::vector<std::string>> ValuesOf(
    const StoreEntries& entries, absl::Span<const std::string> keys);

// Names the operation, the missing ones among `wanted`, the elapsed time and
// the place, e.g. "at 10.0.0.1:29500".
absl::Status StoreTimeout(absl::string_view operation,
                          const StoreEntries& entries,
                          absl::Span<const std::string> wanted,
                          Deadline::Clock::time_point started,
                          absl::string_view where);
absl::Status StoreTimeout(absl::string_view operation,
                          absl::Span<const std::string> missing,
                          Deadline::Clock::time_point started,
                          absl::string_view where);

bool HasAll(const StoreEntries& entries, absl::Span<const std::string> wanted);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_STORE_ENTRIES_H_
