#include "sherd/testing/kits/contract_cards.h"

#include <cstddef>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

// "kInvalidArgument" for INVALID_ARGUMENT.
std::string NameOf(absl::StatusCode code) {
  std::string name = "k";
  const std::string upper = absl::StatusCodeToString(code);
  for (const absl::string_view word : absl::StrSplit(upper, '_')) {
    absl::StrAppend(&name, word.substr(0, 1),
                    absl::AsciiStrToLower(word.substr(1)));
  }
  return name;
}

bool IsCode(absl::string_view word) {
  for (int i = 1; i <= 16; ++i) {
    if (word == NameOf(static_cast<absl::StatusCode>(i))) return true;
  }
  return false;
}

// The codes with which a line begins, separated by commas.
void AddCodes(absl::string_view line, std::set<std::string>& codes) {
  for (absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar("/ "), absl::SkipEmpty())) {
    const bool more = absl::ConsumeSuffix(&word, ",");
    if (!IsCode(word)) return;
    codes.emplace(word);
    if (!more) return;
  }
}

bool IsComment(absl::string_view line) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "//");
}

// Adds the codes that the comment around `phrase` documents.
void ReadCard(const std::string& comment, std::set<std::string>& codes) {
  const std::pair<std::string, std::string> place =
      absl::StrSplit(comment, absl::MaxSplits(": ", 1));
  std::ifstream file(place.first);
  ASSERT_TRUE(file.good()) << place.first;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::vector<size_t> found;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (IsComment(lines[i]) && absl::StrContains(lines[i], place.second)) {
      found.push_back(i);
    }
  }
  ASSERT_THAT(found, ::testing::SizeIs(1)) << comment;
  size_t begin = found[0];
  while (begin > 0 && IsComment(lines[begin - 1])) --begin;
  for (size_t i = begin; i < lines.size() && IsComment(lines[i]); ++i) {
    AddCodes(lines[i], codes);
  }
}

}  // namespace

void ExpectCardsHold(const std::vector<CardOfErrors>& cards) {
  for (const CardOfErrors& card : cards) {
    SCOPED_TRACE(card.function);
    std::set<std::string> documented;
    for (const std::string& comment : card.comments) {
      ReadCard(comment, documented);
    }
    std::set<std::string> shown;
    for (const DocumentedError& error : card.errors) {
      if (error.call) {
        EXPECT_THAT(error.call(), StatusIs(error.code)) << error.what;
      }
      shown.insert(NameOf(error.code));
    }
    EXPECT_EQ(documented, shown);
  }
}

}  // namespace sherd::testing
