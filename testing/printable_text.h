#ifndef SHERD_TESTING_PRINTABLE_TEXT_H_
#define SHERD_TESTING_PRINTABLE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// `text`, which a program may have filled with anything, as UTF-8 that XML can
// hold and a terminal shows: sequences that colour a terminal are left out, and
// each other byte that is no such text is written as "\x1b". Tabs and newlines
// stay.
std::string PrintableText(absl::string_view text);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_PRINTABLE_TEXT_H_
