#ifndef SHERD_CORE_BASE_PRINTABLE_TEXT_H_
#define SHERD_CORE_BASE_PRINTABLE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace sherd {

// Returns `text`, which may contain any bytes, as UTF-8 that XML can hold and a
// terminal can show: sequences that colour a terminal are left out, and each
// other byte that is not printable is written as "\x1b". Tabs and newlines
// stay.
std::string PrintableText(absl::string_view text);

// As PrintableText, as one line: tabs and newlines are written as "\t" and
// "\n".
std::string PrintableLine(absl::string_view text);

// A name that may come from a file or another program, for messages: as one
// line, in double quotes, and in the middle of a long one "…".
std::string Quoted(absl::string_view name);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_PRINTABLE_TEXT_H_
