#include "sherd/core/nn/linear.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::Chunks;
using ::sherd::testing::IsOk;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RandomSpec;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kRanks = 3;

Tensor Random(absl::Span<const int64_t> size, DType dtype, uint64_t seed) {
  Generator generator(seed);
  Tensor tensor = Tensor::Empty(size, {.dtype = dtype}).value();
  EXPECT_THAT(FillUniform(tensor, -1, 1, generator), IsOk());
  return tensor;
}

// x w^T + b in float64, of rows [m, k].
Tensor Model(const Tensor& x, const Tensor& w, const Tensor* bias) {
  const Tensor left = x.To(kFloat64)->Contiguous().value();
  const Tensor right = w.To(kFloat64).value();
  const int64_t k = w.sizes()[1];
  const int64_t n = w.sizes()[0];
  int64_t m = 1;
  Dims size(x.sizes().begin(), x.sizes().end());
  for (size_t d = 0; d + 1 < size.size(); ++d) m *= size[d];
  size.back() = n;
  std::vector<double> y(static_cast<size_t>(m * n), 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double& sum = y[static_cast<size_t>(i * n + j)];
      if (bias != nullptr) sum = bias->To(kFloat64)->At<double>({j}).value();
      for (int64_t l = 0; l < k; ++l) {
        sum += left.data_as<double>()[i * k + l] *
               right.data_as<double>()[j * k + l];
      }
    }
  }
  return Tensor::FromSpan<double>(y, size).value();
}

::testing::AssertionResult IsNear(const Tensor& y, const Tensor& expected,
                                  DType dtype) {
  const double tolerance = dtype == kFloat64   ? 1e-12
                           : dtype == kFloat32 ? 1e-4
                           : dtype == kFloat16 ? 1e-2
                                               : 8e-2;
  if (y.dtype() == dtype &&
      y.To(kFloat64)->AllClose(expected, tolerance, tolerance)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << y << ", expected " << expected;
}

// The whole of what a Linear returns.
Tensor WholeOf(const Value& y) {
  if (const auto* sharded = y.get_if<ShardedTensor>()) {
    return sharded->AllGather().value();
  }
  if (const auto* partial = y.get_if<PartialTensor>()) {
    return partial->AllReduce().value();
  }
  return *y.get_if<Tensor>();
}

TEST(LinearTest, HasTheValuesOfTheFormula) {
  for (const DType dtype : {kFloat64, kFloat32, kFloat16, kBFloat16}) {
    for (const Dims& size : {Dims{5}, Dims{3, 5}, Dims{2, 3, 5}, Dims{0, 5}}) {
      SCOPED_TRACE(absl::StrCat(Name(dtype), " ", FormatDims(size)));
      const Tensor w = Random({4, 5}, dtype, 1);
      const Tensor b = Random({4}, dtype, 2);
      const Tensor x = Random(size, dtype, 3);
      Linear with_bias(w, b);
      Linear without(w);
      SHERD_ASSERT_OK_AND_ASSIGN(const Value y, with_bias.Call({x}));
      EXPECT_TRUE(IsNear(*y.get_if<Tensor>(), Model(x, w, &b), dtype));
      SHERD_ASSERT_OK_AND_ASSIGN(const Value z, without.Call({x}));
      EXPECT_TRUE(IsNear(*z.get_if<Tensor>(), Model(x, w, nullptr), dtype));
    }
  }
}

TEST(LinearTest, ThreadsThatMultiplyAtOnceGetTheirOwnProducts) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const Tensor w = Random({16, 16}, kFloat64, 2 * t);
      const Tensor x = Random({16, 16}, kFloat64, 2 * t + 1);
      const Tensor expected = Model(x, w, nullptr);
      Linear linear(w);
      for (int i = 0; i < 1500; ++i) {
        const auto y = linear.Call({x});
        ASSERT_THAT(y, IsOk());
        ASSERT_TRUE(IsNear(*y->get_if<Tensor>(), expected, kFloat64));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LinearTest, TakesAnyStrides) {
  const Tensor w = Random({5, 4}, kFloat32, 1).Transpose(0, 1).value();
  const Tensor x = Random({5, 3}, kFloat32, 3).Transpose(0, 1).value();
  Linear linear(w);
  SHERD_ASSERT_OK_AND_ASSIGN(const Value y, linear.Call({x}));
  EXPECT_TRUE(IsNear(*y.get_if<Tensor>(),
                     Model(x, w.Contiguous().value(), nullptr), kFloat32));
}

TEST(LinearTest, CreateDrawsWithinTheBound) {
  ManualSeed(4);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto linear,
                             Linear::Create(16, 100, {.dtype = kFloat64}));
  const Value weight = *Get(*linear, "weight");
  EXPECT_THAT(weight.get_if<Tensor>()->sizes(), ElementsAre(100, 16));
  EXPECT_THAT(Get(*linear, "bias")->get_if<Tensor>()->sizes(),
              ElementsAre(100));
  const double* values = weight.get_if<Tensor>()->data_as<double>();
  const auto [least, most] = std::minmax_element(values, values + 1600);
  EXPECT_GE(*least, -0.25);
  EXPECT_LT(*most, 0.25);
  EXPECT_LT(*least, -0.2);
  EXPECT_GT(*most, 0.2);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto no_bias,
                             Linear::Create(2, 2, {.bias = false}));
  EXPECT_TRUE(Get(*no_bias, "bias")->is_none());
  EXPECT_THAT(Linear::Create(2, 2, {.dtype = kInt32}),
              StatusIs(kInvalid, "but found int32"));
  EXPECT_THAT(Linear::Create(-1, 2), StatusIs(kInvalid, "-1"));
}

TEST(LinearTest, AWeightByRowsGivesColumnsOfTheOutput) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const Tensor w = Random({7, 5}, kFloat32, 1);
    const Tensor b = Random({7}, kFloat32, 2);
    const auto linear = std::make_shared<Linear>(w, b);
    ASSERT_THAT(ShardParameter(*linear, "weight", Chunks(0, kRanks)), IsOk());
    // 1, 2 and 3 rows.
    const Tensor x = Random({6, 5}, kFloat32, 3);
    const int64_t first = group.rank() * (group.rank() + 1) / 2;
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Value y,
        linear->Call({x.Narrow(0, first, group.rank() + 1).value()}));
    ASSERT_EQ(y.kind(), ValueKind::kShardedTensor);
    const auto& sharded = *y.get_if<ShardedTensor>();
    EXPECT_THAT(sharded.size(), ElementsAre(6, 7));
    EXPECT_EQ(*sharded.spec(), *Chunks(-1, kRanks));
    EXPECT_TRUE(IsNear(WholeOf(y), Model(x, w, &b), kFloat32));
  });
}

TEST(LinearTest, AWeightByColumnsGivesAPartialTensor) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const Tensor w = Random({4, 7}, kFloat64, 1);
    const Tensor b = Random({4}, kFloat64, 2);
    const auto linear = std::make_shared<Linear>(w, b);
    ASSERT_THAT(ShardParameter(*linear, "weight", Chunks(1, kRanks)), IsOk());
    ASSERT_THAT(ShardParameter(*linear, "bias", Chunks(0, kRanks)), IsOk());
    const Tensor x = Random({kRanks, 2, 7}, kFloat64, 3);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Value y, linear->Call({x.Narrow(0, group.rank(), 1).value()}));
    ASSERT_EQ(y.kind(), ValueKind::kPartialTensor);
    EXPECT_TRUE(IsNear(WholeOf(y), Model(x, w, &b), kFloat64));
  });
}

// Two layers, the first by rows and the second by columns: each rank gets the
// rows of its own input.
TEST(LinearTest, ColumnParallelAndRowParallelLayersMakeAModel) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const Tensor up = Random({6, 5}, kFloat64, 1);
    const Tensor down = Random({4, 6}, kFloat64, 2);
    Linear first(up);
    Linear second(down);
    ASSERT_THAT(ShardParameter(first, "weight", Chunks(0, kRanks)), IsOk());
    ASSERT_THAT(ShardModule(second, {.plan = {{"weight", Chunks(1, kRanks)}},
                                     .output_plan = {{"", Chunks(0, kRanks)}},
                                     .return_local_tensor = {""}}),
                IsOk());
    const Tensor x = Random({2, 5}, kFloat64, 10 + group.rank());
    SHERD_ASSERT_OK_AND_ASSIGN(const Value hidden, first.Call({x}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Value y, second.Call({hidden}));
    EXPECT_TRUE(IsNear(*y.get_if<Tensor>(),
                       Model(Model(x, up, nullptr), down, nullptr), kFloat64));
  });
}

TEST(LinearTest, AnyLayoutGivesTheValuesOfThePlainWeight) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(60);
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i, " of the seed ", seed));
    const int ranks = std::uniform_int_distribution<int>(1, 4)(random);
    const auto size = [&] {
      return std::uniform_int_distribution<int64_t>(1, 9)(random);
    };
    const Dims shape = {size(), size()};
    const uint64_t salt = random();
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      std::mt19937_64 mine(salt);
      const ShardingSpecPtr spec = RandomSpec(shape, ranks, mine);
      const bool has_bias = mine() % 2 == 0;
      const Tensor w = Random(shape, kFloat64, salt + 1);
      const Tensor b = Random({shape[0]}, kFloat64, salt + 2);
      Linear linear(w, has_bias ? Value(b) : Value());
      ASSERT_THAT(ShardParameter(linear, "weight", spec), IsOk());
      std::vector<int64_t> rows;
      int64_t all = 0;
      for (int r = 0; r < ranks; ++r) {
        rows.push_back(static_cast<int64_t>(mine() % 4));
        all += rows.back();
      }
      if (all == 0) return;
      const Tensor x = Random({all, shape[1]}, kFloat64, salt + 3);
      int64_t first = 0;
      for (int r = 0; r < group.rank(); ++r) {
        first += rows[static_cast<size_t>(r)];
      }
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Value y,
          linear.Call(
              {x.Narrow(0, first, rows[static_cast<size_t>(group.rank())])
                   .value()}));
      EXPECT_TRUE(
          IsNear(WholeOf(y), Model(x, w, has_bias ? &b : nullptr), kFloat64))
          << spec->ToString();
    });
  }
}

TEST(LinearTest, RefusesArgumentsThatDoNotFit) {
  const Tensor w = Random({4, 5}, kFloat32, 1);
  const Tensor b = Random({4}, kFloat32, 1);
  const Tensor x = Random({2, 5}, kFloat32, 1);
  const struct {
    Value weight;
    Value bias;
    std::vector<Value> inputs;
    absl::StatusCode code;
    std::string phrase;
  } kCases[] = {
      {w, b, {}, kInvalid, "Expected one input, but found 0"},
      {w, b, {x, x}, kInvalid, "Expected one input, but found 2"},
      {w, b, {Value(ValueList{x})}, kInvalid, "but found list"},
      {w, b, {Random({2, 4}, kFloat32, 1)}, kInvalid, "whose last size is 5"},
      {w, b, {Random({}, kFloat32, 1)}, kInvalid, "whose last size is 5"},
      {w, b, {Random({2, 5}, kFloat64, 1)}, kInvalid, "found float64 [2, 5]"},
      {w, Random({5}, kFloat32, 1), {x}, kInvalid, "bias of size [4]"},
      {w, Random({4}, kFloat64, 1), {x}, kInvalid, "bias of size [4]"},
      {Value(), b, {x}, kInvalid, "the weight to be a tensor"},
      {b, b, {x}, kInvalid, "a weight of two dimensions"},
      {Tensor::Zeros({4, 5}, {.dtype = kInt32}).value(),
       Value(),
       {x},
       kInvalid,
       "but found int32"},
      {Tensor::Empty({4, 5}, {.device = DeviceType::kMeta}).value(),
       Value(),
       {x},
       absl::StatusCode::kUnimplemented,
       "host memory only"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.phrase);
    Linear linear(c.weight, c.bias);
    EXPECT_THAT(linear.Call(c.inputs), StatusIs(c.code, c.phrase));
  }
}

TEST(LinearTest, AWeightWithReplicasIsRefusedWhateverItsSpec) {
  RunLocalRanks(8, [](ProcessGroup&) {
    // By columns, and by both dimensions; all else makes replicas.
    for (const std::vector<std::vector<int>>& cuts :
         std::vector<std::vector<std::vector<int>>>{{{}, {0}}, {{0}, {1}}}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardingSpecPtr mesh,
          MeshShardingSpec::Create(
              {.shape = {2, 2, 2}, .placements = PlacementsOnRanks(8)}, cuts));
      Linear linear(Random({4, 4}, kFloat32, 1));
      ASSERT_THAT(ShardParameter(linear, "weight", mesh), IsOk());
      EXPECT_THAT(linear.Call({Random({2, 4}, kFloat32, 3)}),
                  StatusIs(absl::StatusCode::kUnimplemented, "replicas"));
    }
  });
}

TEST(LinearTest, NoRankHasARowOfTheInput) {
  RunLocalRanks(kRanks, [](ProcessGroup&) {
    for (const int dim : {0, 1}) {
      Linear linear(Random({4, 5}, kFloat32, 1), Random({4}, kFloat32, 2));
      ASSERT_THAT(ShardParameter(linear, "weight", Chunks(dim, kRanks)),
                  IsOk());
      SHERD_ASSERT_OK_AND_ASSIGN(const Value y,
                                 linear.Call({Random({0, 5}, kFloat32, 3)}));
      EXPECT_THAT(WholeOf(y).sizes(), ElementsAre(0, 4));
    }
  });
}

TEST(LinearTest, RanksWithOtherKindsOfInputsGetOneError) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    Linear linear(Random({4, 5}, kFloat32, 1));
    ASSERT_THAT(ShardParameter(linear, "weight", Chunks(0, kRanks)), IsOk());
    const Tensor x = Random({3, 5}, kFloat32, 1);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor sharded,
                               ShardTensor(x, Chunks(0, kRanks)));
    EXPECT_THAT(linear.Call({group.rank() == 1 ? Value(sharded) : Value(x)}),
                StatusIs(kInvalid, "rank 1"));
    EXPECT_THAT(linear.Call({sharded}).status(), IsOk());
  });
}

TEST(LinearTest, AnErrorOfOneRankIsThatOfAll) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    Linear linear(Random({4, 5}, kFloat32, 1));
    ASSERT_THAT(ShardParameter(linear, "weight", Chunks(0, kRanks)), IsOk());
    const int64_t columns = group.rank() == 1 ? 4 : 5;
    EXPECT_THAT(linear.Call({Random({2, columns}, kFloat32, 1)}),
                StatusIs(kInvalid, "rank 1: Expected a float32 input"));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor sharded,
        ShardTensor(Random({2, 5}, kFloat32, 1), Chunks(0, kRanks)));
    Linear plain(Random({4, 5}, kFloat32, 1));
    EXPECT_THAT(plain.Call({sharded}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "a sharded input or bias needs a weight"));
    EXPECT_THAT(linear.Call({Random({2, 5}, kFloat32, 1)}).status(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
