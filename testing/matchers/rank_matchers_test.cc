#include "sherd/testing/rank_matchers.h"

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Matcher;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The text that a failed expectation prints after the value; "" if it holds.
template <typename T>
std::string Explain(const Matcher<const T&>& matcher, const T& value) {
  ::testing::StringMatchResultListener listener;
  const bool matches = matcher.MatchAndExplain(value, &listener);
  EXPECT_EQ(matches, listener.str().empty());
  return listener.str();
}

std::string ExplainList(const std::vector<absl::Status>& statuses) {
  return Explain<std::vector<absl::Status>>(AllRanksSucceeded(), statuses);
}

TEST(AllRanksSucceededTest, ListsOfSuccessesMatch) {
  EXPECT_THAT((std::vector<absl::Status>(3)), AllRanksSucceeded());
  EXPECT_THAT((std::vector<absl::StatusOr<int>>{1, 2}), AllRanksSucceeded());
  EXPECT_THAT((std::vector<absl::StatusOr<int>>{1, absl::AbortedError("")}),
              Not(AllRanksSucceeded()));
}

TEST(AllRanksSucceededTest, ReportsTheFailedRankAndEachErrorOnce) {
  const absl::Status ok;
  const absl::Status lost = WithRank(absl::UnavailableError("reset"), 2);
  EXPECT_EQ(ExplainList({ok, lost, absl::DataLossError("torn"), lost}),
            "where 3 of 4 ranks failed\n"
            "ranks 1, 3: UNAVAILABLE: reset, naming rank 2\n"
            "rank 2: DATA_LOSS: torn");
}

TEST(AllRanksSucceededTest, DistinguishesErrorsByCodeTextAndFailedRank) {
  EXPECT_EQ(ExplainList({absl::UnavailableError("x"), absl::AbortedError("x"),
                         absl::UnavailableError("y"),
                         WithRank(absl::UnavailableError("x"), 0),
                         WithRank(absl::UnavailableError("x"), 1)}),
            "where 5 of 5 ranks failed\n"
            "rank 0: UNAVAILABLE: x\n"
            "rank 1: ABORTED: x\n"
            "rank 2: UNAVAILABLE: y\n"
            "rank 3: UNAVAILABLE: x, naming rank 0\n"
            "rank 4: UNAVAILABLE: x, naming rank 1");
}

TEST(AllRanksSucceededTest, NeighboursAreNamedAsARange) {
  std::vector<absl::Status> statuses(12, absl::AbortedError("x"));
  statuses[1] = statuses[5] = statuses[6] = statuses[9] = absl::OkStatus();
  EXPECT_THAT(ExplainList(statuses),
              EndsWith("\nranks 0, 2-4, 7, 8, 10, 11: ABORTED: x"));
}

TEST(AllRanksSucceededTest, NoRanksAreNotASuccess) {
  EXPECT_EQ(ExplainList({}), "which has no ranks");
}

class RankMatchersTest : public DistributedTest {
 protected:
  int last() const { return world_size() - 1; }

  // OK on all ranks but the last, which is rank 0 if it is alone.
  absl::Status StatusWhereTheLastFails() const {
    if (rank() != last()) return absl::OkStatus();
    return WithRank(absl::UnavailableError("reset"), 0);
  }
};

SHERD_DIST_TEST_F(RankMatchersTest, SuccessOnAllRanksMatchesOnAll) {
  EXPECT_THAT(absl::OkStatus(), AllRanksSucceeded(group()));
  EXPECT_THAT(absl::StatusOr<int>(rank()), AllRanksSucceeded(group()));
  EXPECT_THAT(rank(), OnAllRanks(group(), Lt(world_size())));
  EXPECT_THAT(rank(), OnAllRanks(group(), rank()));
}

SHERD_DIST_TEST_F(RankMatchersTest, AFailureOfOneRankIsSeenOnAll) {
  const std::string expected =
      absl::StrCat("where 1 of ", world_size(), " ranks failed\nrank ", last(),
                   ": UNAVAILABLE: reset, naming rank 0");
  EXPECT_EQ(Explain<absl::Status>(AllRanksSucceeded(group()),
                                  StatusWhereTheLastFails()),
            expected);
  absl::StatusOr<int> value = 3;
  if (rank() == last()) value = StatusWhereTheLastFails();
  EXPECT_EQ(Explain<absl::StatusOr<int>>(AllRanksSucceeded(group()), value),
            expected);
  EXPECT_THAT(group().Barrier(), IsOk()) << "the group stays usable";
}

SHERD_DIST_TEST_F(RankMatchersTest, AnAssertionEndsAllRanksTogether) {
  bool went_on = false;
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::
            INTERCEPT_ONLY_CURRENT_THREAD,
        &failures);
    const auto body = [&] {
      ASSERT_THAT(StatusWhereTheLastFails(), AllRanksSucceeded(group()));
      went_on = true;
    };
    body();
  }
  EXPECT_FALSE(went_on);
  ASSERT_EQ(failures.size(), 1);
  EXPECT_TRUE(failures.GetTestPartResult(0).fatally_failed());
  const std::string text = failures.GetTestPartResult(0).message();
  EXPECT_THAT(text, HasSubstr("Expected: is OK on all ranks"));
  EXPECT_THAT(
      text, HasSubstr(absl::StrCat("\nrank ", last(), ": UNAVAILABLE: reset")));
  EXPECT_THAT(group().Barrier(), IsOk()) << "the ranks are still in step";
}

SHERD_DIST_TEST_F(RankMatchersTest, EveryRankReportsWhatItSaw) {
  // All but rank 0 expect in vain.
  const std::string text =
      Explain<int>(OnAllRanks(group(), Not(Eq(7))), rank() == 0 ? 0 : 7);
  if (world_size() == 1) {
    EXPECT_EQ(text, "");
  } else {
    EXPECT_EQ(text, "where 3 of 4 ranks do not match\nranks 1-3: 7");
  }
  EXPECT_THAT(Explain<std::vector<int>>(OnAllRanks(group(), SizeIs(9)),
                                        std::vector<int>(rank())),
              AllOf(StartsWith(absl::StrCat("where ", world_size(), " of ",
                                            world_size(), " ranks")),
                    HasSubstr("\nrank 0: {}, whose size 0 doesn't match"),
                    HasSubstr(absl::StrCat(", whose size ", last(),
                                           " doesn't match"))));
}

SHERD_DIST_TEST_F(RankMatchersTest, DescribesTheInnerMatcher) {
  const Matcher<const int&> matcher = OnAllRanks(group(), Lt(3));
  std::ostringstream text;
  matcher.DescribeTo(&text);
  text << "; ";
  matcher.DescribeNegationTo(&text);
  EXPECT_EQ(text.str(), "on all ranks is < 3; not on all ranks is < 3");
}

SHERD_DIST_TEST_F(RankMatchersTest, LongTextsAreCut) {
  const absl::Status status = absl::AbortedError(std::string(100'000, 'x'));
  const std::string text =
      Explain<absl::Status>(AllRanksSucceeded(group()), status);
  EXPECT_THAT(text, EndsWith("xxx…"));
  EXPECT_LT(text.size(), 5000u);
}

SHERD_DIST_TEST_F(RankMatchersTest, ARankThatLeavesEndsTheOthers) {
  SkipFinalBarrier();
  if (rank() == last()) return;
  const std::string text =
      Explain<absl::Status>(AllRanksSucceeded(group()), absl::OkStatus());
  EXPECT_THAT(text,
              StartsWith("where the other ranks could not be asked: UNAVAIL"));
  EXPECT_THAT(text, EndsWith(absl::StrCat("\nrank ", rank(),
                                          ": nothing is wrong here")));
}

SHERD_DIST_TEST_F(RankMatchersTest, ABrokenGroupDoesNotHideTheError) {
  SkipFinalBarrier();
  group().Abort(absl::CancelledError("given up"));
  EXPECT_THAT(
      Explain<absl::Status>(AllRanksSucceeded(group()),
                            absl::DataLossError("torn")),
      AllOf(HasSubstr("could not be asked: FAILED_PRECONDITION"),
            HasSubstr("given up"),
            EndsWith(absl::StrCat("\nrank ", rank(), ": DATA_LOSS: torn"))));
}

TEST(RankMatchersOnThreadsTest, VerdictsAreSharedAmongThreadsToo) {
  absl::Mutex mutex;
  std::multiset<std::string> texts;
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const std::string text = Explain<absl::Status>(
        AllRanksSucceeded(group),
        group.rank() == 1 ? absl::OkStatus() : absl::AbortedError("x"));
    absl::MutexLock lock(&mutex);
    texts.insert(text);
  });
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(texts.count("where 2 of 3 ranks failed\nranks 0, 2: ABORTED: x"),
            3u);
}

}  // namespace
}  // namespace sherd::testing
