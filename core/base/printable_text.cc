#include "sherd/core/base/printable_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "sherd/core/base/units.h"

namespace sherd {
namespace {

// The length of the sequence ESC [ … at the start of `text`; 0 if it does not
// start with one.
size_t TerminalSequence(absl::string_view text) {
  if (!absl::StartsWith(text, "\x1b[")) return 0;
  for (size_t i = 2; i < text.size(); ++i) {
    const char c = text[i];
    if (c >= 0x40 && c <= 0x7e) return i + 1;
    if (c < 0x20 || c > 0x3f) return 0;
  }
  return 0;
}

// The length of the character at the start of `text`; 0 if it is not valid in
// UTF-8 or in XML.
size_t Character(absl::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) {
    return first == '\t' || first == '\n' || (first >= 0x20 && first != 0x7f);
  }
  const size_t length = first >= 0xf5   ? 0
                        : first >= 0xf0 ? 4
                        : first >= 0xe0 ? 3
                        : first >= 0xc2 ? 2
                                        : 0;
  if (length == 0 || length > text.size()) return 0;
  uint32_t code = first & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    code = code << 6 | (next & 0x3fu);
  }
  // Longer than needed; surrogates; not for interchange; beyond Unicode.
  if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) ||
      (code >= 0xd800 && code <= 0xdfff) || (code & 0xfffe) == 0xfffe ||
      code > 0x10ffff || code < 0xa0) {
    return 0;
  }
  return length;
}

}  // namespace

std::string PrintableText(absl::string_view text) {
  constexpr absl::string_view kDigits = "0123456789abcdef";
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    if (const size_t sequence = TerminalSequence(text); sequence > 0) {
      text.remove_prefix(sequence);
    } else if (const size_t length = Character(text); length > 0) {
      printable.append(text.data(), length);
      text.remove_prefix(length);
    } else if (absl::StartsWith(text, "\r\n")) {
      text.remove_prefix(1);
    } else {
      const auto byte = static_cast<uint8_t>(text[0]);
      printable += "\\x";
      printable += kDigits[byte >> 4];
      printable += kDigits[byte & 15];
      text.remove_prefix(1);
    }
  }
  return printable;
}

std::string PrintableLine(absl::string_view text) {
  return absl::StrReplaceAll(PrintableText(text),
                             {{"\n", "\\n"}, {"\t", "\\t"}});
}

std::string Quoted(absl::string_view name) {
  constexpr int64_t kMaxCharacters = 200;
  return absl::StrCat("\"", Shorten(PrintableLine(name), kMaxCharacters), "\"");
}

}  // namespace sherd
