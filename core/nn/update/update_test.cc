#include "sherd/core/nn/update.h"

#include <algorithm>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/update/update_cases.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

// Updates on one to five ranks, on both paths, against updates of whole tables
// on one rank.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::CheckRandomUpdate;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;

TEST(UpdateTest, RandomTablesAndBagsHaveTheBitsOfTheModel) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(1000);
  constexpr int64_t kCasesPerGroup = 50;
  for (int64_t first = 0; first < cases; first += kCasesPerGroup) {
    const int ranks = 1 + static_cast<int>((first / kCasesPerGroup) % 5);
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (int64_t i = first; i < std::min(first + kCasesPerGroup, cases);
           ++i) {
        CheckRandomUpdate(group, seed + static_cast<uint64_t>(i));
        if (HasFailure()) return;
      }
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd
