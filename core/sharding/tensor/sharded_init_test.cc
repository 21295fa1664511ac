#include "sherd/core/sharding/sharded_init.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr double kInf = std::numeric_limits<double>::infinity();

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

using Init = std::function<absl::Status(ShardedTensor&, const RandomOptions&)>;
using Fill = std::function<absl::Status(Tensor&, Generator&)>;

// Each initialisation, and what it does to a plain tensor of size [12, 6, 2].
struct Case {
  const char* name;
  Init init;
  Fill fill;
};
std::vector<Case> Cases() {
  const double in = 6 * 2;
  const double out = 12 * 2;
  const auto uniform = [](double bound) -> Fill {
    return [bound](Tensor& t, Generator& g) {
      return FillUniform(t, -bound, bound, g);
    };
  };
  return {
      {"uniform",
       [](ShardedTensor& t, const RandomOptions& o) {
         return InitUniform(t, -2, 3, o);
       },
       [](Tensor& t, Generator& g) { return FillUniform(t, -2, 3, g); }},
      {"normal",
       [](ShardedTensor& t, const RandomOptions& o) {
         return InitNormal(t, 1, 0.5, o);
       },
       [](Tensor& t, Generator& g) { return FillNormal(t, 1, 0.5, g); }},
      {"kaiming_uniform",
       [](ShardedTensor& t, const RandomOptions& o) {
         return InitKaimingUniform(t, {}, o);
       },
       uniform(std::sqrt(2.0) * std::sqrt(3 / in))},
      {"kaiming_uniform fan_out relu",
       [](ShardedTensor& t, const RandomOptions& o) {
         return InitKaimingUniform(
             t, {.mode = FanMode::kFanOut, .nonlinearity = Nonlinearity::kRelu},
             o);
       },
       uniform(std::sqrt(2.0) * std::sqrt(3 / out))},
      {"kaiming_normal leaky",
       [](ShardedTensor& t, const RandomOptions& o) {
         return InitKaimingNormal(t, {.negative_slope = 3}, o);
       },
       [=](Tensor& t, Generator& g) {
         return FillNormal(t, 0, std::sqrt(2.0 / 10) / std::sqrt(in), g);
       }},
  };
}

TEST(ShardedInitTest, DrawsEachShardFromTheGeneratorOfItsRankOnRequest) {
  for (const int ranks : {1, 2, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      for (const Case& c : Cases()) {
        for (const int dim : {0, 1}) {
          ManualSeed(1234);
          SHERD_ASSERT_OK_AND_ASSIGN(
              ShardedTensor tensor,
              ShardedTensor::Zeros(Chunks(dim, ranks), {12, 6, 2}));
          ASSERT_THAT(c.init(tensor, {.stream = RandomStream::kPerRank}),
                      IsOk());
          Generator generator(1234);
          for (const Shard& shard : tensor.local_shards()) {
            Tensor plain = *Tensor::Zeros(shard.metadata.sizes);
            ASSERT_THAT(c.fill(plain, generator), IsOk());
            // Parameters may be rounded in another order.
            EXPECT_THAT(shard.tensor,
                        testing::TensorNear(plain, {.rtol = 1e-5}))
                << c.name;
          }
          EXPECT_EQ(DefaultGenerator().GetState(), generator.GetState());
        }
      }
    });
  }
}

TEST(ShardedInitTest, DrawsTheSameTensorInEveryLayout) {
  const Dims size = {12, 6, 2};
  for (const Case& c : Cases()) {
    Generator model(77);
    Tensor whole = Tensor::Zeros(size).value();
    ASSERT_THAT(c.fill(whole, model), IsOk());
    for (const int ranks : {1, 3, 5}) {
      RunLocalRanks(ranks, [&](ProcessGroup&) {
        const ShardingSpecPtr one =
            ChunkShardingSpec::Create(0, {"rank:0"}).value();
        for (const ShardingSpecPtr& spec :
             {Chunks(0, ranks), Chunks(1, ranks), Chunks(2, ranks), one}) {
          Generator generator(77);
          SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                                     ShardedTensor::Zeros(spec, size));
          ASSERT_THAT(c.init(tensor, {.generator = &generator}), IsOk());
          for (const Shard& shard : tensor.local_shards()) {
            EXPECT_THAT(shard.tensor,
                        testing::TensorNear(whole.Narrow(shard.metadata.offsets,
                                                         shard.metadata.sizes),
                                            {.rtol = 1e-5}))
                << c.name;
          }
          EXPECT_EQ(generator.GetState(), model.GetState());
        }
      });
    }
  }
}

TEST(ShardedInitTest, SetsAConstantOfAnyDType) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0, 2), {5}, {.dtype = kInt16}));
    ASSERT_THAT(InitConstant(tensor, 7), IsOk());
    EXPECT_THAT(
        tensor.local_tensor(),
        IsOkAndHolds(TensorEq(Tensor::Full(
            tensor.local_shards()[0].metadata.sizes, 7, {.dtype = kInt16}))));
    EXPECT_THAT(InitConstant(tensor, 70000), StatusIs(kInvalid, "70000"));
  });
}

// The reference takes the fans of the shard.
TEST(ShardedInitTest, FansAreThoseOfTheWholeTensor) {
  RunLocalRanks(4, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Zeros(Chunks(1, 4), {8, 400}));
    ASSERT_THAT(InitKaimingUniform(tensor), IsOk());
    const double bound = std::sqrt(2.0) * std::sqrt(3.0 / 400);
    double largest = 0;
    const Tensor shard = *tensor.local_tensor();
    for (int64_t i = 0; i < shard.numel(); ++i) {
      largest = std::max<double>(largest, std::fabs(shard.data_as<float>()[i]));
    }
    EXPECT_LT(largest, bound * 1.0001);
    EXPECT_GT(largest, bound * 0.9);
  });
}

TEST(ShardedInitTest, ComputesFansAndGains) {
  EXPECT_THAT(FansOf({3, 5}), IsOkAndHolds(Fans{.in = 5, .out = 3}));
  EXPECT_THAT(FansOf({3, 5, 2, 4}), IsOkAndHolds(Fans{.in = 40, .out = 24}));
  EXPECT_THAT(FansOf({0, 5}), IsOkAndHolds(Fans{.in = 5, .out = 0}));
  for (const Dims& size : std::vector<Dims>{{}, {3}}) {
    EXPECT_THAT(FansOf(size),
                StatusIs(kInvalid,
                         "Fan in and fan out can not be computed for tensor "
                         "with fewer than 2 dimensions"));
  }
  EXPECT_THAT(FansOf({3, -5}), StatusIs(kInvalid));
  EXPECT_EQ(GainOf(Nonlinearity::kLinear), 1);
  EXPECT_EQ(GainOf(Nonlinearity::kSigmoid), 1);
  EXPECT_DOUBLE_EQ(GainOf(Nonlinearity::kTanh), 5.0 / 3);
  EXPECT_DOUBLE_EQ(GainOf(Nonlinearity::kRelu), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(GainOf(Nonlinearity::kLeakyRelu), std::sqrt(2 / 1.0001));
  EXPECT_DOUBLE_EQ(GainOf(Nonlinearity::kLeakyRelu, 1), 1);
  EXPECT_DOUBLE_EQ(GainOf(Nonlinearity::kSelu), 0.75);
  EXPECT_EQ(Name(Nonlinearity::kLeakyRelu), "leaky_relu");
}

TEST(ShardedInitTest, LeavesATensorWithoutElementsAlone) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Zeros(Chunks(0, 2), {4, 0}));
    EXPECT_THAT(InitKaimingUniform(tensor), IsOk());
    EXPECT_THAT(InitKaimingNormal(tensor), IsOk());
    EXPECT_THAT(InitUniform(tensor), IsOk());
  });
}

TEST(ShardedInitTest, RefusesBadParametersAlsoWithoutShards) {
  RunLocalRanks(3, [](ProcessGroup&) {
    const ShardingSpecPtr spec =
        ChunkShardingSpec::Create(0, {"rank:1"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Ones(spec, {4, 2}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor integers,
        ShardedTensor::Ones(spec, {4, 2}, {.dtype = kInt32}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor line,
                               ShardedTensor::Ones(spec, {4}));
    const Generator::State before = DefaultGenerator().GetState();
    EXPECT_THAT(InitUniform(tensor, 2, 1), StatusIs(kInvalid, "[2, 1)"));
    EXPECT_THAT(InitUniform(tensor, 0, kInf), StatusIs(kInvalid));
    EXPECT_THAT(InitNormal(tensor, 0, -1), StatusIs(kInvalid, "-1"));
    EXPECT_THAT(InitKaimingUniform(tensor, {.negative_slope = kInf}),
                StatusIs(kInvalid, "negative_slope"));
    EXPECT_THAT(InitKaimingUniform(line),
                StatusIs(kInvalid, "fewer than 2 dimensions"));
    EXPECT_THAT(InitUniform(integers),
                StatusIs(absl::StatusCode::kUnimplemented, "int32"));
    ShardedTensor missing;
    for (const absl::Status& status :
         {InitUniform(missing), InitNormal(missing), InitConstant(missing, 1),
          InitKaimingUniform(missing), InitKaimingNormal(missing)}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "not created"));
    }
    for (const Shard& shard : tensor.local_shards()) {
      EXPECT_THAT(shard.tensor, TensorBitwiseEq(Tensor::Ones({4, 2})));
    }
    EXPECT_EQ(DefaultGenerator().GetState(), before);
  });
}

}  // namespace
}  // namespace sherd
