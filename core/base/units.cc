#include "sherd/core/base/units.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sherd {
namespace {

bool BeginsCharacter(char c) { return (c & 0xC0) != 0x80; }

// Byte position of character `index`, or the end.
size_t PositionOf(absl::string_view text, int64_t index) {
  size_t position = 0;
  while (position < text.size()) {
    if (BeginsCharacter(text[position]) && index-- == 0) break;
    ++position;
  }
  return position;
}

std::string ThreeDigits(double value) {
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f", digits, value);
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"kB", "MB", "GB",
                                                 "TB", "PB", "EB"};
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(value), " ", kUnits[unit]);
}

std::string FormatCount(int64_t count) {
  std::string text = absl::StrCat(count);
  const int64_t first_digit = count < 0 ? 1 : 0;
  for (int64_t i = static_cast<int64_t>(text.size()) - 3; i > first_digit;
       i -= 3) {
    text.insert(text.begin() + i, ',');
  }
  return text;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1000);
  return absl::StrFormat("%.2f s", seconds);
}

std::optional<absl::Duration> ParseDuration(absl::string_view text) {
  double seconds;
  if (absl::SimpleAtod(text, &seconds)) {
    if (std::isnan(seconds)) return std::nullopt;
    return absl::Seconds(seconds);
  }
  absl::Duration value;
  if (!absl::ParseDuration(text, &value)) return std::nullopt;
  return value;
}

std::string FormatRanks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> ranges;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    ranges.push_back(end == i + 1
                         ? absl::StrCat(ranks[i])
                         : absl::StrCat(ranks[i], end == i + 2 ? ", " : "-",
                                        ranks[end - 1]));
    i = end;
  }
  return absl::StrJoin(ranges, ", ");
}

int64_t DisplayWidth(absl::string_view text) {
  int64_t width = 0;
  for (char c : text) width += BeginsCharacter(c);
  return width;
}

std::string Shorten(absl::string_view text, int64_t width) {
  const int64_t length = DisplayWidth(text);
  if (length <= width || width < 3) return std::string(text);
  const int64_t tail = (width - 1) / 2;
  const int64_t head = width - 1 - tail;
  return absl::StrCat(text.substr(0, PositionOf(text, head)), "…",
                      text.substr(PositionOf(text, length - tail)));
}

}  // namespace sherd
