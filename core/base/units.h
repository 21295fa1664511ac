#ifndef SHERD_CORE_BASE_UNITS_H_
#define SHERD_CORE_BASE_UNITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sherd {

// "0 B", "999 B", "1.50 kB", "548 MB": three significant digits, powers of
// 1000.
std::string FormatBytes(int64_t bytes);

// "12,345,678".
std::string FormatCount(int64_t count);

// "0.8 ms", "12.3 ms", "4.56 s".
std::string FormatSeconds(double seconds);

// Parses a duration as a user writes it: "30" and "0.5" are seconds, "8s",
// "1m30s", "250ms" have units. Nullopt if it is neither.
std::optional<absl::Duration> ParseDuration(absl::string_view text);

// Numbers of ranks in ascending order: "0-3, 7".
std::string FormatRanks(std::vector<int> ranks);

// Characters of UTF-8 text, each of which a terminal shows in one column.
int64_t DisplayWidth(absl::string_view text);

// `text` cut to `width` characters, its middle replaced by "…".
std::string Shorten(absl::string_view text, int64_t width);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_UNITS_H_
