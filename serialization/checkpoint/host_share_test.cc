#include "sherd/serialization/checkpoint/host_share.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/process/cores.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/local_ranks.h"

namespace sherd {
namespace {

TEST(HostShareTest, RanksDivideTheCoresThatAllMayUse) {
  for (const int ranks : {1, 2, 3}) {
    testing::RunLocalRanks(ranks, [&](ProcessGroup& group) {
      EXPECT_EQ(MostRanksOnHost(group), ranks);
      EXPECT_EQ(ThreadsPerRank(group), std::max(CountCores() / ranks, 1));
      ASSERT_EQ(static_cast<int>(group.processes().size()), ranks);
      for (const auto& process : group.processes()) {
        const auto parsed = ProcessDescription::Parse(process);
        ASSERT_TRUE(parsed.has_value());
        EXPECT_EQ(parsed->process, ProcessIdentity::Own());
      }
    });
  }
}

}  // namespace
}  // namespace sherd
