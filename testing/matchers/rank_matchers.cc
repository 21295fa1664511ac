#include "sherd/testing/rank_matchers.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/collective/agreement.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kMaxTextBytes = 4096;

// "rank 1", "ranks 0, 2-5, 7". `ranks` are ascending.
std::string FormatRanks(absl::Span<const size_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i]);
    if (end > i + 1) absl::StrAppend(&text, "-", ranks[end - 1]);
    i = end;
  }
  return text;
}

// "1", or "0" and the text.
std::string Encode(const RankVerdict& verdict) {
  if (verdict.matches) return "1";
  if (verdict.text.size() <= kMaxTextBytes) {
    return absl::StrCat("0", verdict.text);
  }
  return absl::StrCat("0", verdict.text.substr(0, kMaxTextBytes), "…");
}

RankVerdict Decode(absl::string_view bytes) {
  return {bytes == "1",
          std::string(bytes.substr(std::min<size_t>(1, bytes.size())))};
}

}  // namespace

std::string ExplainVerdicts(absl::Span<const RankVerdict> verdicts,
                            const std::string& what) {
  if (verdicts.empty()) return "which has no ranks";
  struct Finding {
    const std::string* text;
    std::vector<size_t> ranks;
  };
  std::vector<Finding> findings;
  size_t count = 0;
  for (size_t rank = 0; rank < verdicts.size(); ++rank) {
    if (verdicts[rank].matches) continue;
    ++count;
    const std::string& text = verdicts[rank].text;
    auto finding =
        std::find_if(findings.begin(), findings.end(),
                     [&](const Finding& f) { return *f.text == text; });
    if (finding == findings.end()) {
      finding = findings.insert(finding, {&text, {}});
    }
    finding->ranks.push_back(rank);
  }
  if (count == 0) return "";
  std::string text =
      absl::StrCat("where ", count, " of ", verdicts.size(), " ranks ", what);
  for (const Finding& finding : findings) {
    absl::StrAppend(&text, "\n", FormatRanks(finding.ranks), ": ",
                    *finding.text);
  }
  return text;
}

std::string ExchangeVerdicts(ProcessGroup& group, const RankVerdict& own,
                             const std::string& what) {
  const absl::StatusOr<std::vector<std::string>> texts =
      AllGatherStrings(group, Encode(own));
  if (!texts.ok()) {
    return absl::StrCat("where the other ranks could not be asked: ",
                        FormatError(texts.status()), "\nrank ", group.rank(),
                        ": ", own.matches ? "nothing is wrong here" : own.text);
  }
  std::vector<RankVerdict> verdicts;
  for (const std::string& text : *texts) verdicts.push_back(Decode(text));
  return ExplainVerdicts(verdicts, what);
}

std::string FormatError(const absl::Status& status) {
  std::string text =
      status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  if (const std::optional<int> rank = ErrorRank(status)) {
    absl::StrAppend(&text, ", naming rank ", *rank);
  }
  return text;
}

RankVerdict VerdictOf(const absl::Status& status) {
  return {status.ok(), status.ok() ? "" : FormatError(status)};
}

}  // namespace sherd::testing::internal
