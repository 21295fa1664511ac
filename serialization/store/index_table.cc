#include "sherd/serialization/store/index_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/sealed_text.h"

namespace sherd {
namespace {

constexpr SealedText kText = {.magic = "sherd index ",
                              .version = kIndexVersion,
                              .max_bytes = kMaxIndexBytes,
                              .name = "an index",
                              .remedy = "use a later one"};
constexpr absl::string_view kNamePrefix = "index-";
constexpr absl::string_view kNameSuffix = ".sherd";
constexpr size_t kDigits = 20;

// The next line, without its end, from the front of `rest`.
absl::string_view TakeLine(absl::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  const absl::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

bool ParseNonce(absl::string_view text, uint64_t& nonce) {
  return text.size() == 16 && absl::SimpleHexAtoi(text, &nonce);
}

// A line of the body but the first; false if it is none.
bool ParseLine(absl::string_view line, IndexTable& table) {
  if (absl::ConsumePrefix(&line, "number ")) {
    return absl::SimpleAtoi(line, &table.number);
  }
  if (absl::ConsumePrefix(&line, "operation ")) {
    return ParseNonce(line, table.nonces.emplace_back());
  }
  if (absl::ConsumePrefix(&line, "name ")) {
    const size_t space = line.find(' ');
    if (space == absl::string_view::npos) return false;
    const absl::string_view object = line.substr(space + 1);
    return IsObjectName(line.substr(0, space)) && IsObjectName(object) &&
           table.names.emplace(line.substr(0, space), object).second;
  }
  return absl::ConsumePrefix(&line, "removed ") && IsObjectName(line) &&
         table.removed.emplace(line).second;
}

// What the lines alone do not say.
bool IsConsistent(const IndexTable& table) {
  if (table.number == 0 ||
      table.nonces.size() != std::min<uint64_t>(table.number, kIndexHistory)) {
    return false;
  }
  absl::flat_hash_set<std::string> objects;
  for (const auto& [name, object] : table.names) {
    if (NumberOfIndexObject(name).has_value() ||
        NumberOfIndexObject(object).has_value() ||
        table.removed.contains(object) || !objects.insert(object).second) {
      return false;
    }
  }
  return std::none_of(table.removed.begin(), table.removed.end(),
                      [](const std::string& object) {
                        return NumberOfIndexObject(object).has_value();
                      });
}

}  // namespace

std::optional<uint64_t> IndexTable::NonceOf(uint64_t operation) const {
  if (operation == 0 || operation > number ||
      number - operation >= nonces.size()) {
    return std::nullopt;
  }
  return nonces[nonces.size() - 1 - static_cast<size_t>(number - operation)];
}

bool IndexTable::IsNamed(absl::string_view object) const {
  return std::any_of(names.begin(), names.end(), [object](const auto& name) {
    return name.second == object;
  });
}

std::string IndexObjectName(uint64_t number) {
  return absl::StrFormat("%s%020d%s", kNamePrefix, number, kNameSuffix);
}

std::optional<uint64_t> NumberOfIndexObject(absl::string_view name) {
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&name, kNamePrefix) ||
      !absl::ConsumeSuffix(&name, kNameSuffix) || name.size() != kDigits ||
      !std::all_of(name.begin(), name.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(name, &number)) {
    return std::nullopt;
  }
  return number;
}

std::string EncodeIndexTable(const IndexTable& table) {
  std::string text =
      absl::StrCat(kText.magic, kIndexVersion, "\nnumber ", table.number, "\n");
  for (const uint64_t nonce : table.nonces) {
    absl::StrAppendFormat(&text, "operation %016x\n", nonce);
  }
  for (const auto& [name, object] : table.names) {
    absl::StrAppend(&text, "name ", name, " ", object, "\n");
  }
  for (const std::string& object : table.removed) {
    absl::StrAppend(&text, "removed ", object, "\n");
  }
  return SealedText::Seal(std::move(text));
}

absl::StatusOr<IndexTable> DecodeIndexTable(absl::string_view bytes,
                                            absl::string_view what) {
  SHERD_ASSIGN_OR_RETURN(absl::string_view rest, kText.Open(bytes, what));
  IndexTable table;
  while (!rest.empty()) {
    if (!ParseLine(TakeLine(rest), table)) {
      return kText.Damaged(what, "a line is none of an index");
    }
  }
  if (!IsConsistent(table)) {
    return kText.Damaged(what, "its values contradict one another");
  }
  // So each table has one encoding: each key in its place, once, and sorted.
  if (EncodeIndexTable(table) != bytes) {
    return kText.Damaged(what,
                         "its values are not in the form that is written");
  }
  return table;
}

}  // namespace sherd
