// Mistakes of programs that other libraries let pass, by default: as silent
// garbage, as a wait of all ranks for the whole timeout, or as an address where
// a rank is meant.

#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MistakesTest : public sherd::testing::DistributedTest {
 protected:
  static constexpr int kFailedRank = 2;

  bool errs() const { return rank() == kFailedRank; }

  void SetUp() override { start_ = std::chrono::steady_clock::now(); }

  // `status` names the deviating rank and its call, and was returned long
  // before the group's timeout.
  void ExpectNamed(const absl::Status& status, absl::StatusCode code,
                   const std::string& operation) {
    EXPECT_THAT(
        status,
        StatusIs(code, AllOf(HasSubstr(absl::StrCat("rank ", kFailedRank)),
                             HasSubstr(operation))));
    EXPECT_EQ(ErrorRank(status), kFailedRank);
    EXPECT_EQ(GetErrorInfo(status).group, group().name());
    EXPECT_LT(absl::FromChrono(std::chrono::steady_clock::now() - start_),
              group().timeout() / 2);
    EXPECT_THAT(group().Barrier(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }

 private:
  std::chrono::steady_clock::time_point start_;
};

SHERD_DIST_TEST_F(MistakesTest, AnotherTypeIsAnErrorAndNotGarbage) {
  std::vector<float> floats(12, 1.5f);
  std::vector<int32_t> integers(12, 7);
  const absl::Status status =
      errs()
          ? group().AllReduce<int32_t>(absl::MakeSpan(integers), ReduceOp::kSum)
          : group().AllReduce<float>(absl::MakeSpan(floats), ReduceOp::kSum);
  ExpectNamed(status, absl::StatusCode::kInvalidArgument, "all_reduce");
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("int32"), HasSubstr("float32")));
}

SHERD_DIST_TEST_F(MistakesTest, AnotherSizeIsAnErrorAndNotGarbage) {
  std::vector<double> values(errs() ? 6 : 5, 0.5);
  const absl::Status status =
      group().AllReduce<double>(absl::MakeSpan(values), ReduceOp::kSum);
  ExpectNamed(status, absl::StatusCode::kInvalidArgument, "all_reduce");
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("48 bytes"), HasSubstr("40 bytes")));
}

// One rank brings no element to the second of three equal calls.
SHERD_DIST_TEST_F(MistakesTest, ARankWithoutElementsIsAnErrorAndNotAWrongSum) {
  for (int step = 1; step <= 3; ++step) {
    std::vector<float> values(errs() && step == 2 ? 0 : 4, step);
    const absl::Status status =
        group().AllReduce<float>(absl::MakeSpan(values), ReduceOp::kSum);
    if (step == 1) {
      ASSERT_THAT(status, IsOk());
      EXPECT_THAT(values, ::testing::Each(group().size()));
    } else if (step == 2) {
      ExpectNamed(status, absl::StatusCode::kInvalidArgument, "all_reduce");
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("0 bytes"), HasSubstr("16 bytes")));
    }
  }
}

SHERD_DIST_TEST_F(MistakesTest, AnotherOperationIsNamedAtOnce) {
  std::vector<float> values(12, 1.5f);
  std::vector<std::byte> bytes(48);
  const absl::Status status =
      errs() ? group().Broadcast(absl::MakeSpan(bytes), 0)
             : group().AllReduce<float>(absl::MakeSpan(values), ReduceOp::kSum);
  ExpectNamed(status, absl::StatusCode::kInvalidArgument, "all_reduce");
  EXPECT_THAT(status.message(), HasSubstr("broadcast"));
}

SHERD_DIST_TEST_F(MistakesTest, ADeadRankIsNamedByItsRankAndNotItsAddress) {
  ExpectRankDies(kFailedRank, SIGKILL);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (errs()) raise(SIGKILL);
  std::vector<float> values(12, 1.5f);
  const absl::Status status =
      group().AllReduce<float>(absl::MakeSpan(values), ReduceOp::kSum);
  ExpectNamed(status, absl::StatusCode::kUnavailable, "all_reduce");
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("died"), Not(HasSubstr("127.0.0.1"))));
}

}  // namespace
}  // namespace sherd
