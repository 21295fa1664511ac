#include "sherd/core/sharding/state/state_name.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd::internal {
namespace {

bool NeedsEscape(char c) { return c == '.' || c == '[' || c == '\\'; }

// Takes a key from the front of `rest`, up to a dot, a bracket or the end.
absl::StatusOr<std::string> TakeKey(absl::string_view& rest) {
  std::string key;
  while (!rest.empty() && rest[0] != '.' && rest[0] != '[') {
    const bool escaped = rest[0] == '\\';
    if (escaped && (rest.size() == 1 || !NeedsEscape(rest[1]))) {
      return absl::InvalidArgumentError(
          R"(expected "\.", "\[" or "\\" at a backslash)");
    }
    if (escaped) rest.remove_prefix(1);
    key += rest[0];
    rest.remove_prefix(1);
  }
  if (key.empty()) {
    return absl::InvalidArgumentError(
        "expected a key that is not empty at the beginning and after each dot");
  }
  return key;
}

// Takes "12]" from the front of `rest`.
absl::StatusOr<int64_t> TakePosition(absl::string_view& rest) {
  const size_t length = std::min(rest.find(']'), rest.size());
  const absl::string_view digits = rest.substr(0, length);
  int64_t position = 0;
  if (length == rest.size() || digits.empty() ||
      !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      (digits.size() > 1 && digits[0] == '0') ||
      !absl::SimpleAtoi(digits, &position)) {
    return absl::InvalidArgumentError(
        R"(expected a position such as "[0]" at a bracket; a bracket in a key is written "\[")");
  }
  rest.remove_prefix(length + 1);
  return position;
}

absl::StatusOr<NamePart> TakePart(absl::string_view& rest, bool first) {
  NamePart part;
  if (!first && absl::ConsumePrefix(&rest, "[")) {
    SHERD_ASSIGN_OR_RETURN(part.position, TakePosition(rest));
    return part;
  }
  if (!first && !absl::ConsumePrefix(&rest, ".")) {
    return absl::InvalidArgumentError(
        "expected a dot, a bracket or the end after a position");
  }
  SHERD_ASSIGN_OR_RETURN(part.key, TakeKey(rest));
  return part;
}

}  // namespace

absl::StatusOr<std::vector<NamePart>> ParseStateName(absl::string_view name) {
  std::vector<NamePart> parts;
  absl::string_view rest = name;
  do {
    absl::StatusOr<NamePart> part = TakePart(rest, parts.empty());
    if (!part.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(name), ": ", part.status().message()));
    }
    if (parts.size() == StateDict::kMaxDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(name), ": expected at most ",
                       StateDict::kMaxDepth, " keys and positions"));
    }
    parts.push_back(*std::move(part));
  } while (!rest.empty());
  return parts;
}

std::string JoinStateName(absl::Span<const NamePart> parts) {
  std::string name;
  for (const NamePart& part : parts) {
    if (part.is_key()) {
      AppendKey(part.key, name);
    } else {
      AppendPosition(part.position, name);
    }
  }
  return name.empty() ? "the state" : Quoted(name);
}

void AppendKey(absl::string_view key, std::string& name) {
  if (!name.empty()) name += '.';
  for (const char c : key) {
    if (NeedsEscape(c)) name += '\\';
    name += c;
  }
}

void AppendPosition(int64_t position, std::string& name) {
  absl::StrAppend(&name, "[", position, "]");
}

}  // namespace sherd::internal
