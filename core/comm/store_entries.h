#ifndef SHERD_CORE_COMM_STORE_ENTRIES_H_
#define SHERD_CORE_COMM_STORE_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"

namespace sherd::internal {

// What the stores have in common: limits, the meaning of a counter, and the
// wording of their errors.

inline constexpr size_t kMaxStoreKeyBytes = 4096;
inline constexpr size_t kMaxStoreValueBytes = size_t{16} << 20;

using StoreEntries = std::map<std::string, std::string, std::less<>>;

// kInvalidArgument if the key is empty or a length is over its limit.
absl::Status CheckStoreEntry(absl::string_view key, absl::string_view value);

// The text of the number at `key` after adding `amount`.
//   kFailedPrecondition  The value is no number, or the sum overflows.
absl::StatusOr<std::string> AddToEntry(const StoreEntries& entries,
                                       absl::string_view key, int64_t amount);

// Where the wait started, for the elapsed time in the message.
absl::Status StoreTimeout(const StoreEntries& entries,
                          absl::Span<const std::string> wanted,
                          Deadline::Clock::time_point started,
                          absl::string_view where);

bool HasAll(const StoreEntries& entries, absl::Span<const std::string> wanted);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_ENTRIES_H_
