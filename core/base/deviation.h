#ifndef SHERD_CORE_BASE_DEVIATION_H_
#define SHERD_CORE_BASE_DEVIATION_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Finds the ranks that deviate where all ranks should have passed the same
// value: the one rule of the host and of the plugins, hence based on the
// standard library alone.

namespace sherd::internal {

// "rank 3", or "ranks 0, 1, 5".
inline std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

struct Deviation {
  // Ranks, ascending, grouped by the value that they passed: the largest party
  // first, of equally large ones that of the lowest rank. Ranks whose value is
  // unknown are in no party.
  std::vector<std::vector<int>> parties;

  bool Exists() const { return parties.size() > 1; }

  // The minority: the ranks outside of the largest party, ascending. Empty if
  // no rank deviates, and in a draw: if no party is larger than every other, no
  // value counts as right.
  std::vector<int> Ranks() const {
    std::vector<int> ranks;
    if (!Exists() || parties[0].size() == parties[1].size()) return ranks;
    for (size_t p = 1; p < parties.size(); ++p) {
      ranks.insert(ranks.end(), parties[p].begin(), parties[p].end());
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  // The rank that an error names: the lowest of Ranks().
  std::optional<int> Rank() const {
    const std::vector<int> ranks = Ranks();
    return ranks.empty() ? std::nullopt : std::optional<int>(ranks.front());
  }

  // "rank 1 called barrier; ranks 0, 2 called broadcast": the smallest party
  // first, with `verb` and the value_of(rank) common to its ranks.
  template <typename ValueOf>
  std::string ToText(std::string_view verb, ValueOf value_of) const {
    std::string text;
    for (auto party = parties.rbegin(); party != parties.rend(); ++party) {
      if (!text.empty()) text += "; ";
      text += RankList(*party);
      text += " ";
      text += verb;
      text += " ";
      text += value_of(party->front());
    }
    return text;
  }
};

// values[r] is the value that rank r passed, unset if unknown; T has == and <.
//
// Cost. O(P log D) for P ranks and D different values.
template <typename T>
Deviation FindDeviation(const std::vector<std::optional<T>>& values) {
  std::map<T, std::vector<int>> ranks_of;
  for (size_t r = 0; r < values.size(); ++r) {
    if (values[r]) ranks_of[*values[r]].push_back(static_cast<int>(r));
  }
  Deviation deviation;
  for (auto& [value, ranks] : ranks_of) {
    deviation.parties.push_back(std::move(ranks));
  }
  std::sort(deviation.parties.begin(), deviation.parties.end(),
            [](const std::vector<int>& a, const std::vector<int>& b) {
              return a.size() != b.size() ? a.size() > b.size()
                                          : a.front() < b.front();
            });
  return deviation;
}

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_DEVIATION_H_
