#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Chunks on four ranks in each of the 24 orders become chunks in each of the 24
// orders, of the same dimension and of another: 576 pairs.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;

using Order = std::array<int, 4>;

std::vector<Order> AllOrders() {
  std::vector<Order> orders;
  Order order = {0, 1, 2, 3};
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

ShardingSpecPtr ChunksInOrder(int dim, const Order& order) {
  return ChunkShardingSpec::Create(dim, PlacementsOn(order)).value();
}

// From which dimension to which, and whether ranks may reach each other's
// memory.
using Parameters = std::tuple<std::pair<int, int>, bool>;

class AllOrdersTest : public ::testing::TestWithParam<Parameters> {
 protected:
  // From chunks in the order `from` to all 24.
  static void ExpectEveryOrder(const Order& from, const Dims& size) {
    const auto [dims, direct] = GetParam();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(ChunksInOrder(dims.first, from), size,
                             {.dtype = kInt16}));
    FillPattern(tensor);
    for (const Order& to : AllOrders()) {
      ShardedTensor moved = tensor;
      const ShardingSpecPtr target = ChunksInOrder(dims.second, to);
      ASSERT_THAT(moved.Reshard(target, {.direct = direct}), IsOk());
      ASSERT_TRUE(HasPattern(moved)) << *tensor.spec() << " to " << *target;
      ASSERT_EQ(moved.local_shards().size(), 1u);
      EXPECT_EQ(
          moved.metadata(),
          target->BuildMetadata(size, tensor.metadata().properties).value());
    }
    ASSERT_TRUE(HasPattern(tensor));
  }
};

TEST_P(AllOrdersTest, EveryOrderOfRanksBecomesEveryOther) {
  RunLocalRanks(4, [&](ProcessGroup&) {
    // The last chunk of each dimension is short, so that orders differ in
    // sizes too.
    for (const Order& from : AllOrders()) {
      ASSERT_NO_FATAL_FAILURE(ExpectEveryOrder(from, {10, 7}));
    }
  });
}

// The sizes of the documents' test, from an order that is not its own inverse.
TEST_P(AllOrdersTest, SizesMayBeUneven) {
  RunLocalRanks(4, [&](ProcessGroup&) {
    for (const Dims& size : {Dims{13, 21}, {14, 23}, {15, 26}, {12, 24}}) {
      ASSERT_NO_FATAL_FAILURE(ExpectEveryOrder({1, 2, 3, 0}, size));
    }
  });
}

// Some ranks have an empty chunk, past the end of the tensor.
TEST_P(AllOrdersTest, ChunksMayBeEmpty) {
  RunLocalRanks(4, [&](ProcessGroup&) {
    for (const Dims& size : {Dims{5, 2}, {1, 9}, {2, 1}, {0, 3}}) {
      ASSERT_NO_FATAL_FAILURE(ExpectEveryOrder({2, 0, 3, 1}, size));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Direct, AllOrdersTest,
    ::testing::Combine(::testing::Values(std::pair(0, 0), std::pair(0, 1),
                                         std::pair(1, 0), std::pair(1, 1),
                                         std::pair(-1, 1), std::pair(-1, 0),
                                         std::pair(0, -1), std::pair(-2, -1)),
                       ::testing::Values(true)));
INSTANTIATE_TEST_SUITE_P(
    ByMessages, AllOrdersTest,
    ::testing::Combine(::testing::Values(std::pair(0, 0), std::pair(0, 1),
                                         std::pair(1, 0), std::pair(-1, 1)),
                       ::testing::Values(false)));

}  // namespace
}  // namespace sherd
