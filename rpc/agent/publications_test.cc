#include "sherd/rpc/agent/publications.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/call_context_control.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

TEST(PublicationsTest, AreThereUntilTheyAreWithdrawn) {
  Publications publications("worker1");
  const Tensor shard = *Tensor::Ones({2}, {});
  ASSERT_THAT(publications.Publish({{"g", 0}, 7, {shard}}), IsOk());
  EXPECT_THAT(publications.Publish({{"g", 0}, 7, {shard}}),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       "worker1 has published g #0 already"));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto found,
                             publications.Await({"g", 0}, Now()));
  EXPECT_EQ(found->fingerprint, 7);
  EXPECT_EQ(found->shards[0].data(), shard.data());
  ASSERT_THAT(publications.Withdraw({"g", 0}), IsOk());
  // A holder keeps it.
  EXPECT_EQ(found->shards[0].data(), shard.data());
  EXPECT_THAT(publications.Await({"g", 0}, Now()),
              StatusIs(absl::StatusCode::kNotFound,
                       "worker1 has withdrawn publication g #0"));
  EXPECT_THAT(publications.Withdraw({"g", 0}),
              StatusIs(absl::StatusCode::kNotFound, "g #0"));
}

TEST(PublicationsTest, FutureNumbersAreAwaitedAndSkippedOnesAreNot) {
  Publications publications("worker1");
  EXPECT_THAT(publications.Await({"g", 0}, Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "worker1 has not published g #0 in time"));
  RunRankThreads(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_THAT(publications.Await({"g", 3}, Deadline::Infinite()), IsOk());
      // Each scope has numbers of its own.
      EXPECT_THAT(publications.Await({"h", 0}, Now()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded));
      EXPECT_THAT(publications.Await({"g", 2}, Deadline::Infinite()),
                  StatusIs(absl::StatusCode::kNotFound));
    } else {
      EXPECT_THAT(publications.Publish({{"g", 3}, 0, {}}), IsOk());
    }
  });
}

TEST(PublicationsTest, NobodyWaitsForACallThatWasCancelled) {
  Publications publications("worker1");
  CallContext context(0, 1, "fetch", Deadline::Infinite());
  context.OnCancelled([&] { publications.Wake(); });
  RunRankThreads(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_THAT(publications.Await({"g", 0}, Deadline::Infinite(), &context),
                  StatusIs(absl::StatusCode::kCancelled, "publication g #0"));
    } else {
      CallContextControl::Cancel(context);
    }
  });
}

TEST(PublicationsTest, NothingIsFoundAfterClose) {
  Publications publications("worker1");
  ASSERT_THAT(publications.Publish({{"g", 0}, 0, {}}), IsOk());
  EXPECT_EQ(publications.size(), 1);
  RunRankThreads(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_THAT(publications.Await({"g", 1}, Deadline::Infinite()),
                  StatusIs(absl::StatusCode::kFailedPrecondition, "shut down"));
    } else {
      publications.Close();
    }
  });
  publications.Close();
  EXPECT_EQ(publications.size(), 0);
  EXPECT_THAT(publications.Await({"g", 0}, Now()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(publications.Publish({{"g", 1}, 0, {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(publications.Withdraw({"g", 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace sherd::internal
