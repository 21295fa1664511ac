#include "sherd/testing/matchers.h"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"

namespace sherd::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Matcher;
using ::testing::Not;
using ::testing::Pointee;
using ::testing::StringMatchResultListener;

constexpr auto kNotFound = absl::StatusCode::kNotFound;

// The text that a failed expectation prints after the value.
template <typename T>
std::string Explain(const Matcher<const T&>& matcher, const T& value) {
  StringMatchResultListener listener;
  matcher.MatchAndExplain(value, &listener);
  return listener.str();
}

template <typename T>
std::string Describe(const Matcher<const T&>& matcher) {
  std::ostringstream text;
  matcher.DescribeTo(&text);
  return text.str();
}

TEST(MatchersTest, IsOkDistinguishesSuccessFromFailure) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::StatusOr<int>(3), IsOk());
  EXPECT_THAT(absl::NotFoundError("gone"), Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("gone")), Not(IsOk()));
  EXPECT_THAT((std::vector<absl::Status>(2)), Each(IsOk()));
}

TEST(MatchersTest, IsOkAndHoldsLooksAtTheValue) {
  const absl::StatusOr<std::vector<int>> list = std::vector<int>{1, 2};
  EXPECT_THAT(list, IsOkAndHolds(ElementsAre(1, 2)));
  EXPECT_THAT(list, Not(IsOkAndHolds(ElementsAre(1))));
  EXPECT_THAT(absl::StatusOr<std::string>("x"), IsOkAndHolds("x"));
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("gone")),
              Not(IsOkAndHolds(0)));
  EXPECT_THAT(absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(4)),
              IsOkAndHolds(Pointee(4)));
}

TEST(MatchersTest, StatusIsLooksAtCodeAndMessage) {
  const absl::Status status = absl::NotFoundError("no such file: a.txt");
  EXPECT_THAT(status, StatusIs(kNotFound));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kInternal)));
  EXPECT_THAT(status, StatusIs(kNotFound, "such file"));
  EXPECT_THAT(status, StatusIs(kNotFound, std::string("a.txt")));
  EXPECT_THAT(status, Not(StatusIs(kNotFound, "b.txt")));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kOk, "such file")));
  EXPECT_THAT(status, StatusIs(kNotFound, Not(HasSubstr("b.txt"))));
  EXPECT_THAT(status, Not(StatusIs(kNotFound, Eq("such file"))));
  EXPECT_THAT(absl::StatusOr<int>(status), StatusIs(kNotFound, "a.txt"));
}

TEST(MatchersTest, StatusIsTakesAMatcherOfTheCode) {
  using Code = absl::StatusCode;
  const absl::Status status = absl::NotFoundError("no such file: a.txt");
  const auto lost = AnyOf(Code::kNotFound, Code::kDataLoss);
  EXPECT_THAT(status, StatusIs(lost));
  EXPECT_THAT(absl::StatusOr<int>(status), StatusIs(lost, "a.txt"));
  EXPECT_THAT(status, Not(StatusIs(lost, "b.txt")));
  EXPECT_THAT(absl::InternalError("a.txt"), Not(StatusIs(lost, "a.txt")));
  EXPECT_THAT(absl::OkStatus(), Not(StatusIs(Not(Code::kOk))));
  EXPECT_EQ(Describe<absl::Status>(StatusIs(lost)),
            "has a code that (is equal to NOT_FOUND) or (is equal to "
            "DATA_LOSS)");
  EXPECT_EQ(
      Describe<absl::Status>(Not(StatusIs(Not(kNotFound), "x"))),
      "has a code that is equal to NOT_FOUND or has a message that has no "
      "substring \"x\"");
}

TEST(MatchersTest, HasErrorRankLooksAtTheErrorInfo) {
  const absl::Status status = WithRank(absl::UnavailableError("lost"), 2);
  EXPECT_THAT(status, HasErrorRank(2));
  EXPECT_THAT(status, Not(HasErrorRank(1)));
  EXPECT_THAT(WithRank(absl::UnavailableError("lost"), 0), HasErrorRank(0));
  EXPECT_THAT(status, HasErrorRank(AnyOf(1, 2)));
  EXPECT_THAT(status, Not(HasErrorRank(Gt(2))));
  EXPECT_THAT(absl::StatusOr<int>(status), HasErrorRank(2));
  EXPECT_THAT(absl::UnavailableError("rank 2"), Not(HasErrorRank(2)));
  EXPECT_THAT(absl::UnavailableError("rank 2"), Not(HasErrorRank(Not(2))));
  EXPECT_THAT(absl::OkStatus(), Not(HasErrorRank(0)));
  EXPECT_THAT(absl::StatusOr<int>(3), Not(HasErrorRank(0)));
}

TEST(MatchersTest, HasErrorRankExplainsWhichRankIsNamed) {
  const absl::Status status = WithRank(absl::UnavailableError("lost"), 2);
  EXPECT_EQ(Explain<absl::Status>(HasErrorRank(1), status),
            "which names rank 2");
  EXPECT_EQ(Explain<absl::Status>(HasErrorRank(1), absl::OkStatus()),
            "which names no rank");
  EXPECT_EQ(Explain<absl::StatusOr<int>>(HasErrorRank(1), status),
            "which names rank 2");
  EXPECT_EQ(Describe<absl::Status>(HasErrorRank(1)), "names rank 1");
  EXPECT_EQ(Describe<absl::Status>(Not(HasErrorRank(1))),
            "does not name rank 1");
  EXPECT_EQ(Describe<absl::Status>(HasErrorRank(Gt(2))),
            "names a rank that is > 2");
  EXPECT_EQ(Describe<absl::Status>(Not(HasErrorRank(Gt(2)))),
            "names no rank or one that isn't > 2");
}

TEST(MatchersTest, GoogleTestPrintsAStatusOrAsStatusOrValue) {
  using List = absl::StatusOr<std::vector<int>>;
  EXPECT_EQ(::testing::PrintToString(List({1, 2})), "OK: { 1, 2 }");
  EXPECT_EQ(::testing::PrintToString(List(absl::NotFoundError("gone"))),
            "NOT_FOUND: gone");
  EXPECT_EQ(
      ::testing::PrintToString(std::vector<absl::StatusOr<std::string>>{"a"}),
      "{ OK: \"a\" }");
  const absl::StatusOr<int> gone = absl::NotFoundError("it is gone");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(gone, IsOk()),
                          "Actual: NOT_FOUND: it is gone");
}

TEST(MatchersTest, GoogleTestPrintsTheTextOfAStatus) {
  EXPECT_EQ(::testing::PrintToString(absl::NotFoundError("gone")),
            "NOT_FOUND: gone");
  EXPECT_NONFATAL_FAILURE(
      EXPECT_EQ(absl::NotFoundError("gone"), absl::OkStatus()),
      "NOT_FOUND: gone");
}

TEST(MatchersTest, FailuresShowTheStatusAndWhatWasExpected) {
  const absl::StatusOr<int> gone = absl::NotFoundError("it is gone");
  // GoogleTest prints the status or value before it.
  EXPECT_EQ(Explain<absl::StatusOr<int>>(IsOk(), gone), "");
  EXPECT_EQ(Explain<absl::StatusOr<int>>(IsOkAndHolds(3), gone), "");
  EXPECT_EQ(Explain<absl::StatusOr<int>>(IsOkAndHolds(3), 5), "");
  EXPECT_EQ(Describe<absl::StatusOr<int>>(StatusIs(kNotFound, "x")),
            "has code NOT_FOUND and a message that has substring \"x\"");
  EXPECT_EQ(Describe<absl::StatusOr<int>>(IsOkAndHolds(3)),
            "is OK and its value is equal to 3");
}

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

TEST(MatchersTest, AssertOkAndAssignTakesTheValue) {
  SHERD_ASSERT_OK_AND_ASSIGN(std::unique_ptr<int> value, Make(7));
  EXPECT_EQ(*value, 7);
  SHERD_ASSERT_OK_AND_ASSIGN(value, Make(8));
  EXPECT_EQ(*value, 8);
}

TEST(MatchersTest, AssertOkAndAssignFailsWithTheStatus) {
  static bool went_on = false;
  EXPECT_FATAL_FAILURE(
      {
        SHERD_ASSERT_OK_AND_ASSIGN(const auto value, Make(-1));
        went_on = value != nullptr;
      },
      "Make(-1) is OUT_OF_RANGE: negative");
  EXPECT_FALSE(went_on);
}

}  // namespace
}  // namespace sherd::testing
