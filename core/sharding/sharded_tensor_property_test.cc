#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/random_layouts.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor_pattern.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

// Every way that data takes through sharded tensors, on random layouts, against
// a model in one process: contents that are a function of their place.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RandomSize;
using ::sherd::testing::RandomSpec;
using ::sherd::testing::RunLocalRanks;

// A tensor whose dimensions lie in memory in the opposite order, with gaps.
Tensor StridedTensor(absl::Span<const int64_t> size, DType dtype) {
  Dims reversed(size.rbegin(), size.rend());
  if (!reversed.empty()) reversed.back() += 1;
  Tensor tensor = Tensor::Zeros(reversed, {.dtype = dtype}).value();
  Dims order;
  for (size_t d = size.size(); d-- > 0;) {
    order.push_back(static_cast<int64_t>(d));
  }
  return tensor.Permute(order)
      .value()
      .Narrow(Dims(size.size(), 0), size)
      .value();
}

// One case: all ranks draw the same.
struct Case {
  Case(int ranks, std::mt19937_64& random)
      : size(RandomSize(4, 700, random)),
        dtype(static_cast<DType>(random() % kNumDTypes)),
        first(RandomSpec(size, ranks, random)),
        second(RandomSpec(size, ranks, random)),
        third(RandomSpec(size, ranks, random)),
        rank(static_cast<int>(random() % static_cast<uint64_t>(ranks))),
        scattered(random() % 2 == 0),
        strided(random() % 2 == 0) {
    const int64_t least =
        4 * static_cast<int64_t>(SizeOf(dtype)) * std::max(ranks - 1, 1);
    options.max_staging_bytes =
        random() % 2 == 0 ? least + static_cast<int64_t>(random() % 500)
                          : 1 << 20;
  }

  std::string Describe() const {
    return absl::StrCat(Name(dtype), FormatDims(size), " ", first->ToString(),
                        " ", second->ToString(), " ", third->ToString(),
                        " rank ", rank, " scattered ", scattered, " strided ",
                        strided, " staging ", options.max_staging_bytes);
  }

  Dims size;
  DType dtype;
  ShardingSpecPtr first, second, third;
  int rank;
  bool scattered, strided;
  ReshardOptions options;
};

void ExpectTheMinimum(const ReshardStats& stats) {
  EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
}

void RunCase(ProcessGroup& group, const Case& c) {
  SCOPED_TRACE(c.Describe());
  ShardedTensor tensor;
  if (c.scattered) {
    Tensor whole;
    if (group.rank() == c.rank) whole = PatternTensor(c.size, c.dtype);
    SHERD_ASSERT_OK_AND_ASSIGN(
        tensor, ShardTensor(whole, c.first, c.rank, nullptr, c.options));
  } else {
    SHERD_ASSERT_OK_AND_ASSIGN(
        tensor, ShardedTensor::Empty(c.first, c.size, {.dtype = c.dtype}));
    FillPattern(tensor);
  }
  EXPECT_EQ(tensor.dtype(), c.dtype);
  EXPECT_TRUE(HasPattern(tensor));

  ReshardStats stats;
  ReshardOptions options = c.options;
  options.stats = &stats;
  const ShardedTensor before = tensor;
  ASSERT_THAT(tensor.Reshard(c.second, options), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
  EXPECT_TRUE(HasPattern(before));
  EXPECT_EQ(*tensor.spec(), *c.second);
  EXPECT_EQ(
      tensor.metadata(),
      c.second->BuildMetadata(c.size, before.metadata().properties).value());
  ExpectTheMinimum(stats);

  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor into,
      ShardedTensor::Zeros(c.third, c.size, {.dtype = c.dtype}));
  ASSERT_THAT(tensor.ReshardInto(into, options), IsOk());
  EXPECT_TRUE(HasPattern(into));
  ExpectTheMinimum(stats);

  Tensor out;
  if (group.rank() == c.rank && c.strided) {
    out = StridedTensor(c.size, c.dtype);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered,
                             into.Gather(c.rank, out, options));
  ExpectTheMinimum(stats);
  EXPECT_EQ(gathered.defined(), group.rank() == c.rank);
  if (!gathered.defined()) return;
  EXPECT_EQ(gathered.dtype(), c.dtype);
  EXPECT_TRUE(HasPattern(gathered, Dims(c.size.size(), 0), c.size));
  if (out.defined()) {
    EXPECT_EQ(gathered.data(), out.data());
  }
}

class AnyLayoutTest : public ::testing::TestWithParam<int> {};

TEST_P(AnyLayoutTest, HoldsTheSameElementsAfterEveryMove) {
  const uint64_t seed = sherd::testing::RandomSeed();
  RunLocalRanks(GetParam(), [&](ProcessGroup& group) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(GetParam()));
    for (int i = 0; i < 100; ++i) {
      RunCase(group, Case(group.size(), random));
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, AnyLayoutTest,
                         ::testing::Values(1, 2, 3, 4, 5),
                         ::testing::PrintToStringParamName());

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
  std::vector<Placement> placements;
  for (const int rank : order) placements.push_back(Placement::OnRank(rank));
  return ChunkShardingSpec::Create(dim, placements).value();
}

class AllOrdersTest : public ::testing::TestWithParam<std::pair<int, int>> {};

// 576 pairs of orders. The size makes the last chunk of each dimension short,
// so that orders differ in sizes too.
TEST_P(AllOrdersTest, EveryOrderOfRanksBecomesEveryOther) {
  const auto [from_dim, to_dim] = GetParam();
  RunLocalRanks(4, [&, from_dim = from_dim,
                    to_dim = to_dim](ProcessGroup& group) {
    const std::vector<Order> orders = AllOrders();
    for (const Order& from : orders) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor tensor,
          ShardedTensor::Empty(ChunksInOrder(from_dim, from), {10, 7},
                               {.dtype = kInt16}));
      FillPattern(tensor);
      for (const Order& to : orders) {
        ShardedTensor moved = tensor;
        const ShardingSpecPtr target = ChunksInOrder(to_dim, to);
        ASSERT_THAT(moved.Reshard(target), IsOk());
        ASSERT_TRUE(HasPattern(moved)) << *tensor.spec() << " to " << *target;
        ASSERT_EQ(moved.local_shards().size(), 1u);
        EXPECT_EQ(moved.metadata(),
                  target->BuildMetadata({10, 7}, tensor.metadata().properties)
                      .value());
      }
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

INSTANTIATE_TEST_SUITE_P(Dims, AllOrdersTest,
                         ::testing::Values(std::pair(0, 0), std::pair(0, 1),
                                           std::pair(1, 0), std::pair(-1, 1),
                                           std::pair(-2, -1)));

}  // namespace
}  // namespace sherd
