#ifndef SHERD_TESTING_RANK_MATCHERS_H_
#define SHERD_TESTING_RANK_MATCHERS_H_

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"

namespace sherd::testing {

// Matchers that compare on all ranks.
//
//   ASSERT_THAT(tensor.Reshard(spec), AllRanksSucceeded(group()));
//   ASSERT_THAT(sum, OnAllRanks(group(), TensorEq(expected)));
//   ASSERT_THAT(tensor, OnAllRanks(group(), ShardedTensorEq(expected)));
//
// An ASSERT_THAT on one rank ends the body of that rank alone; the others
// continue and wait for it until they are notified that it left. These matchers
// end all ranks at the same line, and each reports which ranks failed and why:
//
//   Actual: OK, where 2 of 4 ranks failed
//   ranks 1, 3: UNAVAILABLE: connection reset, naming rank 2
//
// Collective. All ranks of `group` call it, in the order of their other
// collectives; the group outlives the matcher. If the expectation fails, it
// fails on all ranks, and all of them evaluate it once more for the text.
// Therefore such a matcher must be outermost: inside AllOf, some ranks might
// never reach it. OnAllRanks(group(), Not(m)) is the negation that also fails
// if the ranks could not be reached.
//
// Errors. If this rank cannot reach the others, because the group is poisoned
// or a rank does not arrive, the expectation fails with this rank's own result
// and the error of the group, after its timeout at the latest.
//
// Cost. Two small rounds, in which every rank sends at most 4 KiB.

namespace internal {

// The result of one rank.
struct RankVerdict {
  bool matches = false;
  // Why it does not match.
  std::string text;
};

// Returns "where 2 of 4 ranks `what`" and a line for each text, with its ranks;
// empty if all match.
std::string ExplainVerdicts(absl::Span<const RankVerdict> verdicts,
                            const std::string& what);

// The same for this and all other ranks. Collective.
std::string ExchangeVerdicts(ProcessGroup& group, const RankVerdict& own,
                             const std::string& what);

// "OK", "UNAVAILABLE: connection reset, naming rank 2".
std::string FormatError(const absl::Status& status);

RankVerdict VerdictOf(const absl::Status& status);
template <typename T>
RankVerdict VerdictOf(const absl::StatusOr<T>& value) {
  return VerdictOf(value.status());
}

MATCHER_P2(OnAllRanksMatcher, group, matcher,
           (negation ? "not on all ranks " : "on all ranks ") +
               ::testing::DescribeMatcher<arg_type>(matcher)) {
  ::testing::StringMatchResultListener reason;
  RankVerdict own;
  own.matches = ::testing::ExplainMatchResult(matcher, arg, &reason);
  if (!own.matches) {
    own.text = ::testing::PrintToString(arg);
    if (!reason.str().empty()) own.text += ", " + reason.str();
  }
  const std::string text = ExchangeVerdicts(*group, own, "do not match");
  *result_listener << text;
  return text.empty();
}

MATCHER_P(AllRanksSucceededMatcher, group,
          negation ? "is not OK on all ranks" : "is OK on all ranks") {
  const std::string text = ExchangeVerdicts(*group, VerdictOf(arg), "failed");
  *result_listener << text;
  return text.empty();
}

}  // namespace internal

// On each rank, its value matches `matcher`, a value or a matcher.
template <typename M>
auto OnAllRanks(ProcessGroup& group, M matcher) {
  return internal::OnAllRanksMatcher(&group, std::move(matcher));
}

// On each rank, the Status or StatusOr is OK.
inline auto AllRanksSucceeded(ProcessGroup& group) {
  return internal::AllRanksSucceededMatcher(&group);
}

// The same for a container whose element r is the Status or StatusOr of rank r.
// Not collective. A container without ranks does not match.
MATCHER(AllRanksSucceeded,
        negation ? "has a rank that failed" : "has ranks that all succeeded") {
  std::vector<internal::RankVerdict> verdicts;
  for (const auto& value : arg) {
    verdicts.push_back(internal::VerdictOf(value));
  }
  const std::string text = internal::ExplainVerdicts(verdicts, "failed");
  *result_listener << text;
  return text.empty();
}

}  // namespace sherd::testing

#endif  // SHERD_TESTING_RANK_MATCHERS_H_
