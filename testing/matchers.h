#ifndef SHERD_TESTING_MATCHERS_H_
#define SHERD_TESTING_MATCHERS_H_

#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

namespace sherd::testing {
namespace internal {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// Text is looked for anywhere in the message; everything else is a matcher.
template <typename M>
::testing::Matcher<std::string> ToMessageMatcher(const M& message) {
  if constexpr (std::is_convertible_v<const M&, absl::string_view>) {
    return ::testing::HasSubstr(std::string(absl::string_view(message)));
  } else {
    return ::testing::SafeMatcherCast<std::string>(message);
  }
}

inline std::string DescribeCode(absl::StatusCode code, bool negation) {
  return (negation ? "does not have code " : "has code ") +
         absl::StatusCodeToString(code);
}

// The explanation behind a value that GoogleTest prints: of a StatusOr it only
// has the bytes.
inline std::string Explain(const absl::Status&) { return ""; }
template <typename T>
std::string Explain(const absl::StatusOr<T>& value) {
  return "which is " + value.status().ToString();
}

}  // namespace internal

// Matches an OK Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  const absl::Status& status = internal::StatusOf(arg);
  if (!status.ok()) *result_listener << internal::Explain(arg);
  return status.ok();
}

// Matches a StatusOr that holds a value which `value`, a value or a matcher,
// matches.
MATCHER_P(IsOkAndHolds, value,
          std::string(negation ? "is not OK or its value does not match: "
                               : "is OK and its value ") +
              ::testing::DescribeMatcher<
                  const typename std::decay_t<arg_type>::value_type&>(value)) {
  if (!arg.ok()) {
    *result_listener << internal::Explain(arg);
    return false;
  }
  ::testing::StringMatchResultListener reason;
  const bool matches = ::testing::ExplainMatchResult(value, *arg, &reason);
  *result_listener << "whose value is " << ::testing::PrintToString(*arg);
  if (!reason.str().empty()) *result_listener << ", " << reason.str();
  return matches;
}

// Matches a Status or StatusOr by its code.
MATCHER_P(StatusIs, code, internal::DescribeCode(code, negation)) {
  const absl::Status& status = internal::StatusOf(arg);
  *result_listener << internal::Explain(arg);
  return status.code() == code;
}

// The same, and its message contains `message`, if that is text, or matches
// it, if that is a matcher.
MATCHER_P2(StatusIs, code, message,
           internal::DescribeCode(code, negation) +
               (negation ? " or not a message that " : " and a message that ") +
               ::testing::DescribeMatcher<std::string>(
                   internal::ToMessageMatcher(message))) {
  const absl::Status& status = internal::StatusOf(arg);
  *result_listener << internal::Explain(arg);
  return status.code() == code && ::testing::Matches(internal::ToMessageMatcher(
                                      message))(std::string(status.message()));
}

}  // namespace sherd::testing

#endif  // SHERD_TESTING_MATCHERS_H_
