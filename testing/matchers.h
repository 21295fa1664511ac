#ifndef SHERD_TESTING_MATCHERS_H_
#define SHERD_TESTING_MATCHERS_H_

#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::testing {
namespace internal {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

}  // namespace internal

// Matches an OK Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << internal::StatusOf(arg).ToString();
  return internal::StatusOf(arg).ok();
}

// Matches a StatusOr that holds a value which `value` matches.
MATCHER_P(IsOkAndHolds, value, "") {
  if (!arg.ok()) {
    *result_listener << arg.status().ToString();
    return false;
  }
  return ::testing::ExplainMatchResult(value, *arg, result_listener);
}

// Matches a Status or StatusOr by its code.
MATCHER_P(StatusIs, code,
          std::string("has code ") + absl::StatusCodeToString(code)) {
  *result_listener << internal::StatusOf(arg).ToString();
  return internal::StatusOf(arg).code() == code;
}

// The same, and `message` matches the message.
MATCHER_P2(StatusIs, code, message,
           std::string("has code ") + absl::StatusCodeToString(code) +
               " and a message that " +
               ::testing::DescribeMatcher<std::string>(message)) {
  const absl::Status& status = internal::StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::Matches(message)(std::string(status.message()));
}

}  // namespace sherd::testing

#endif  // SHERD_TESTING_MATCHERS_H_
