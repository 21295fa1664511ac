#include <cstdint>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/kits/random_moves.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/random_layouts.h"

// Random layouts on ranks that are threads: 2,400 cases, or as many as
// SHERD_TEST_CASES sets, for each number of ranks and strategy.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::RandomMovesOptions;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::RunRandomMoves;

// How many ranks, and whether they may reach each other's memory.
class AnyLayoutTest : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(AnyLayoutTest, HoldsTheSameElementsAfterEveryMove) {
  const auto [ranks, direct] = GetParam();
  const RandomMovesOptions options = {
      .seed = RandomSeed(), .cases = CaseCount(150), .messages_only = !direct};
  RunLocalRanks(ranks, [&](ProcessGroup&) {
    RunRandomMoves(DefaultGroup().value(), options);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, AnyLayoutTest,
    ::testing::Combine(::testing::Range(1, 9), ::testing::Bool()),
    [](const ::testing::TestParamInfo<std::tuple<int, bool>>& info) {
      return absl::StrCat(std::get<0>(info.param), "Ranks",
                          std::get<1>(info.param) ? "" : "ByMessages");
    });

}  // namespace
}  // namespace sherd
