// As many workers as a machine has cores, and more.

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/rpc/link/mailbox_fixture.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::testing::Each;
using ::testing::IsEmpty;

constexpr int kWorkers = 256;
// Of each: a loop's two, a listener, both ends of two connections.
constexpr rlim_t kDescriptors = 10 * kWorkers;

TEST(LinksScaleTest, ManyWorkersStartCallInARingAndStop) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kDescriptors) {
    GTEST_SKIP() << "the hard limit of descriptors is below " << kDescriptors;
  }
  limit.rlim_cur = std::max(limit.rlim_cur, kDescriptors);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<TestWorker> workers =
      StartWorkers(std::make_shared<HashStore>(), kWorkers);
  for (TestWorker& worker : workers) ASSERT_THAT(worker.links, IsOk());
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_THAT(workers[rank]->Send((rank + 1) % kWorkers,
                                    {.control = absl::StrCat(rank)}),
                IsOk());
  }
  for (int rank = 0; rank < kWorkers; ++rank) {
    const std::vector<LinkMailbox::Mail> mails =
        workers[rank].mailbox->WaitForMail(1);
    ASSERT_EQ(mails.size(), 1u) << rank;
    EXPECT_EQ(mails[0].control, absl::StrCat((rank + kWorkers - 1) % kWorkers));
  }
  EXPECT_THAT(GoodbyeToAll(workers, absl::Seconds(60)), Each(IsOk()));
  for (TestWorker& worker : workers) {
    EXPECT_THAT(worker.mailbox->losses(), IsEmpty());
  }
}

}  // namespace
}  // namespace sherd::internal
