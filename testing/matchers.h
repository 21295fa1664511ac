#ifndef SHERD_TESTING_MATCHERS_H_
#define SHERD_TESTING_MATCHERS_H_

#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"

// Assigns the value of the absl::StatusOr `expr` to `lhs`, which may declare a
// variable; otherwise fails the test with the status and returns from the
// enclosing function, which returns void.
#define SHERD_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  SHERD_ASSERT_OK_AND_ASSIGN_IMPL_(           \
      SHERD_TESTING_CONCAT_(sherd_status_or_, __LINE__), lhs, expr)

#define SHERD_TESTING_CONCAT_INNER_(a, b) a##b
#define SHERD_TESTING_CONCAT_(a, b) SHERD_TESTING_CONCAT_INNER_(a, b)
#define SHERD_ASSERT_OK_AND_ASSIGN_IMPL_(var, lhs, expr)    \
  auto var = (expr);                                        \
  ASSERT_TRUE(var.ok()) << #expr << " is " << var.status(); \
  lhs = *std::move(var)

namespace absl {

// How GoogleTest, which looks for it in the type's namespace, prints a StatusOr
// wherever this header is included: as its status or its value, and not as the
// bytes of the object.
template <typename T>
void PrintTo(const StatusOr<T>& result, std::ostream* out) {
  if (result.ok()) {
    *out << "OK: " << ::testing::PrintToString(*result);
  } else {
    *out << result.status();
  }
}

}  // namespace absl

namespace sherd::testing {
namespace internal {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// Text matches as a substring of the message; everything else is a matcher.
template <typename M>
::testing::Matcher<std::string> ToMessageMatcher(const M& message) {
  if constexpr (std::is_convertible_v<const M&, absl::string_view>) {
    return ::testing::HasSubstr(std::string(absl::string_view(message)));
  } else {
    return ::testing::SafeMatcherCast<std::string>(message);
  }
}

template <typename C>
std::string DescribeCode(const C& code, bool negation) {
  if constexpr (std::is_convertible_v<const C&, absl::StatusCode>) {
    return (negation ? "does not have code " : "has code ") +
           absl::StatusCodeToString(code);
  } else {
    return "has a code that " +
           ::testing::DescribeMatcher<absl::StatusCode>(code, negation);
  }
}

template <typename C>
bool MatchesCode(const C& code, const absl::Status& status) {
  return ::testing::SafeMatcherCast<absl::StatusCode>(code).Matches(
      status.code());
}

template <typename R>
std::string DescribeRank(const R& rank, bool negation) {
  if constexpr (std::is_convertible_v<const R&, int>) {
    return (negation ? "does not name rank " : "names rank ") +
           std::to_string(rank);
  } else {
    return (negation ? "names no rank or one that " : "names a rank that ") +
           ::testing::DescribeMatcher<int>(rank, negation);
  }
}

inline std::string ExplainErrorRank(std::optional<int> rank) {
  return rank ? "which names rank " + std::to_string(*rank)
              : "which names no rank";
}

}  // namespace internal

// Matches an OK Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  return internal::StatusOf(arg).ok();
}

// Matches a StatusOr that holds a value which `value`, a value or a matcher,
// matches.
MATCHER_P(IsOkAndHolds, value,
          std::string(negation ? "is not OK or its value does not match: "
                               : "is OK and its value ") +
              ::testing::DescribeMatcher<
                  const typename std::decay_t<arg_type>::value_type&>(value)) {
  if (!arg.ok()) return false;
  ::testing::StringMatchResultListener reason;
  const bool matches = ::testing::ExplainMatchResult(value, *arg, &reason);
  *result_listener << reason.str();
  return matches;
}

// Matches a Status or StatusOr by its code, a value or a matcher:
//
//   StatusIs(AnyOf(StatusCode::kUnavailable, StatusCode::kDeadlineExceeded))
MATCHER_P(StatusIs, code, internal::DescribeCode(code, negation)) {
  return internal::MatchesCode(code, internal::StatusOf(arg));
}

// Also requires that the message contains `message`, if that is text, or
// matches it, if that is a matcher.
MATCHER_P2(StatusIs, code, message,
           internal::DescribeCode(code, negation) +
               (negation ? " or has a message that " : " and a message that ") +
               ::testing::DescribeMatcher<std::string>(
                   internal::ToMessageMatcher(message), negation)) {
  const absl::Status& status = internal::StatusOf(arg);
  return internal::MatchesCode(code, status) &&
         internal::ToMessageMatcher(message).Matches(
             std::string(status.message()));
}

// Matches a Status or StatusOr whose ErrorInfo::rank, where the error happened,
// is `rank`, a number or a matcher:
//
//   AllOf(StatusIs(StatusCode::kUnavailable), HasErrorRank(2))
MATCHER_P(HasErrorRank, rank, internal::DescribeRank(rank, negation)) {
  const std::optional<int> named = ErrorRank(internal::StatusOf(arg));
  *result_listener << internal::ExplainErrorRank(named);
  return named.has_value() &&
         ::testing::SafeMatcherCast<int>(rank).Matches(*named);
}

}  // namespace sherd::testing

#endif  // SHERD_TESTING_MATCHERS_H_
