#include "sherd/core/sharding/sharded_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/tensor_collectives.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_init.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
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
constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

ShardingSpecPtr Replicated(int ranks) {
  return MeshShardingSpec::FromPlacements(
             {.shape = {ranks}, .placements = PlacementsOnRanks(ranks)},
             {MeshPlacement::Replicate()})
      .value();
}

// The shards of `whole`, on every rank from its own copy.
ShardedTensor Sharded(const ShardingSpecPtr& spec, const Tensor& whole,
                      std::shared_ptr<ProcessGroup> group = nullptr) {
  ShardedTensor tensor =
      ShardedTensor::Empty(spec, whole.sizes(),
                           {.dtype = whole.dtype(), .group = group})
          .value();
  for (const Shard& shard : tensor.local_shards()) {
    Tensor to = shard.tensor;
    EXPECT_THAT(to.CopyFrom(*whole.Narrow(shard.metadata.offsets,
                                          shard.metadata.sizes)),
                IsOk());
  }
  return tensor;
}

// Numbers of very different magnitude, whose sum depends on the order if it is
// rounded in between.
Tensor Uneven(const Dims& size, DType dtype) {
  std::mt19937_64 random(3);
  Tensor tensor = Tensor::Empty(size, {.dtype = kFloat64}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<double>()[i] =
        std::ldexp(std::normal_distribution<double>()(random),
                   static_cast<int>(random() % 20) - 10);
  }
  return tensor.To(dtype).value();
}

struct Numbers {
  uint64_t sum;
  uint64_t mean;
  uint64_t norms[5];
  Tensor min;
  Tensor max;
};
constexpr double kPowers[] = {0, 1, 2, 2.5, kInf};

Numbers NumbersOf(const ShardedTensor& tensor) {
  const auto bits = [](const absl::StatusOr<Tensor>& value) {
    return std::bit_cast<uint64_t>(value.value().data_as<double>()[0]);
  };
  Numbers numbers = {.sum = bits(Sum(tensor)),
                     .mean = bits(Mean(tensor)),
                     .min = Min(tensor).value(),
                     .max = Max(tensor).value()};
  for (int i = 0; i < 5; ++i) {
    numbers.norms[i] = std::bit_cast<uint64_t>(*Norm(tensor, kPowers[i]));
  }
  return numbers;
}

TEST(ShardedStatisticsTest, HaveTheSameBitsInEveryLayoutAndWorldSize) {
  for (const DType dtype : {kFloat64, kFloat32, kFloat16, kBFloat16}) {
    const Tensor whole = Uneven({37, 11}, dtype);
    Numbers expected;
    RunLocalRanks(1, [&](ProcessGroup&) {
      expected = NumbersOf(Sharded(Chunks(0, 1), whole));
    });
    for (const int ranks : {2, 3, 4, 5}) {
      RunLocalRanks(ranks, [&](ProcessGroup&) {
        std::vector<Placement> several = PlacementsOnRanks(ranks);
        several.push_back(Placement::OnRank(0));
        for (const ShardingSpecPtr& spec : std::vector<ShardingSpecPtr>{
                 Chunks(0, ranks), Chunks(1, ranks), Replicated(ranks),
                 ChunkShardingSpec::Create(0, several).value(),
                 ChunkShardingSpec::Create(1, {"rank:1"}).value()}) {
          const Numbers got = NumbersOf(Sharded(spec, whole));
          EXPECT_EQ(got.sum, expected.sum) << *spec;
          EXPECT_EQ(got.mean, expected.mean) << *spec;
          for (int i = 0; i < 5; ++i) {
            EXPECT_EQ(got.norms[i], expected.norms[i]) << *spec << i;
          }
          EXPECT_THAT(got.min, TensorBitwiseEq(expected.min)) << *spec;
          EXPECT_THAT(got.max, TensorBitwiseEq(expected.max)) << *spec;
        }
      });
    }
  }
}

TEST(ShardedStatisticsTest, AreThoseOfTheElements) {
  RunLocalRanks(3, [](ProcessGroup&) {
    const std::vector<double> values = {3, -1.5, 4, 0, -8, 2.5, 1};
    const Tensor whole = Tensor::FromSpan<double>(values, {7}).value();
    for (const DType dtype : {kFloat64, kFloat32, kFloat16, kBFloat16}) {
      const ShardedTensor t = Sharded(Chunks(0, 3), *whole.To(dtype));
      EXPECT_THAT(Sum(t), IsOkAndHolds(TensorEq(Tensor::Scalar(1.0))));
      EXPECT_THAT(Mean(t), IsOkAndHolds(TensorEq(Tensor::Scalar(1.0 / 7))));
      EXPECT_THAT(Min(t),
                  IsOkAndHolds(TensorEq(Tensor::Scalar(-8.0)->To(dtype))));
      EXPECT_THAT(Max(t),
                  IsOkAndHolds(TensorEq(Tensor::Scalar(4.0)->To(dtype))));
      EXPECT_THAT(Norm(t), IsOkAndHolds(std::sqrt(98.5)));
      EXPECT_THAT(Norm(t, 1), IsOkAndHolds(20.0));
      EXPECT_THAT(Norm(t, 0), IsOkAndHolds(6.0));
      EXPECT_THAT(Norm(t, kInf), IsOkAndHolds(8.0));
      EXPECT_NEAR(*Norm(t, 3), std::cbrt(27 + 3.375 + 64 + 512 + 15.625 + 1),
                  1e-13);
    }
    // A view is a tensor.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               Sharded(Chunks(0, 3), whole).Narrow(0, 1, 4));
    EXPECT_THAT(Sum(view), IsOkAndHolds(TensorEq(Tensor::Scalar(-5.5))));
  });
}

TEST(ShardedStatisticsTest, IntegersAddUpWithoutWrapping) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto filled = [](DType dtype, auto value) {
      return ShardedTensor::Full(Chunks(0, 2), {5}, value, {.dtype = dtype})
          .value();
    };
    constexpr int64_t kHigh = std::numeric_limits<int64_t>::max();
    const auto int64 = [](int64_t x) { return Tensor::Scalar(x); };
    EXPECT_THAT(Sum(filled(kInt8, 127)),
                IsOkAndHolds(TensorEq(int64(5 * 127))));
    EXPECT_THAT(Sum(filled(kUInt8, 255)),
                IsOkAndHolds(TensorEq(int64(5 * 255))));
    EXPECT_THAT(Sum(filled(kBool, true)), IsOkAndHolds(TensorEq(int64(5))));
    EXPECT_THAT(Sum(filled(kInt64, -(kHigh / 5))),
                IsOkAndHolds(TensorEq(int64(-(kHigh / 5) * 5))));
    EXPECT_THAT(Sum(filled(kInt64, kHigh)),
                StatusIs(absl::StatusCode::kOutOfRange, "does not fit"));
    EXPECT_THAT(Sum(filled(kUInt64, uint64_t{1} << 61)),
                IsOkAndHolds(TensorEq(Tensor::Scalar(uint64_t{5} << 61))));
    EXPECT_THAT(Sum(filled(kUInt64, std::numeric_limits<uint64_t>::max())),
                StatusIs(absl::StatusCode::kOutOfRange, "uint64"));
    const int16_t values[] = {5, -32768, 7, 32767};
    const ShardedTensor some =
        Sharded(Chunks(0, 2), *Tensor::FromSpan<int16_t>(values, {4}));
    EXPECT_THAT(Min(some),
                IsOkAndHolds(TensorEq(Tensor::Scalar(int16_t{-32768}))));
    EXPECT_THAT(Max(some),
                IsOkAndHolds(TensorEq(Tensor::Scalar(int16_t{32767}))));
    EXPECT_THAT(Mean(some), StatusIs(kInvalid, "mean of a tensor of int16"));
    EXPECT_THAT(Norm(some), StatusIs(kInvalid, "norm of a tensor of int16"));
  });
}

TEST(ShardedStatisticsTest, TakeComplexNumbersWhereTheyMakeSense) {
  using C = std::complex<float>;
  RunLocalRanks(2, [](ProcessGroup&) {
    const std::vector<C> values = {{3, 4}, {-1, 2}, {0, -12}};
    const ShardedTensor t =
        Sharded(Chunks(0, 2), *Tensor::FromSpan<C>(values, {3}));
    const auto scalar = [](double re, double im) {
      return Tensor::Scalar(std::complex<double>(re, im));
    };
    EXPECT_THAT(Sum(t), IsOkAndHolds(TensorEq(scalar(2, -6))));
    EXPECT_THAT(Mean(t), IsOkAndHolds(TensorEq(scalar(2.0 / 3, -2))));
    EXPECT_THAT(Norm(t), IsOkAndHolds(std::sqrt(174.0)));
    EXPECT_THAT(Norm(t, kInf), IsOkAndHolds(12.0));
    EXPECT_THAT(Min(t), StatusIs(kInvalid, "no order"));
  });
}

TEST(ShardedStatisticsTest, HaveRulesForNanInfinityAndNothing) {
  RunLocalRanks(3, [](ProcessGroup&) {
    const auto of = [](std::vector<double> values) {
      const Tensor whole = Tensor::FromSpan<double>(
                               values, {static_cast<int64_t>(values.size())})
                               .value();
      return Sharded(Chunks(0, 3), whole);
    };
    const auto value = [](const absl::StatusOr<Tensor>& t) {
      return t.value().data_as<double>()[0];
    };
    const ShardedTensor nan = of({1, kInf, 2, kNan});
    EXPECT_TRUE(std::isnan(value(Sum(nan))));
    EXPECT_TRUE(std::isnan(value(Mean(nan))));
    EXPECT_TRUE(std::isnan(value(Min(nan))));
    EXPECT_TRUE(std::isnan(value(Max(nan))));
    for (const double p : {1.0, 2.0, 3.0, kInf}) {
      EXPECT_TRUE(std::isnan(*Norm(nan, p))) << p;
    }
    EXPECT_EQ(*Norm(nan, 0), 4);
    const ShardedTensor infinite = of({1, -kInf, 2, 3});
    EXPECT_EQ(value(Sum(infinite)), -kInf);
    EXPECT_TRUE(std::isnan(value(Sum(of({kInf, 0, 0, -kInf})))));
    for (const double p : {1.0, 2.0, 3.0, kInf}) {
      EXPECT_EQ(*Norm(infinite, p), kInf) << p;
    }
    EXPECT_TRUE(std::signbit(value(Min(of({0.0, -0.0, 0.0})))));
    EXPECT_FALSE(std::signbit(value(Max(of({0.0, -0.0, -0.0})))));
    EXPECT_FALSE(std::signbit(value(Sum(of({-0.0, -0.0})))));

    const ShardedTensor nothing = of({});
    EXPECT_EQ(value(Sum(nothing)), 0);
    EXPECT_TRUE(std::isnan(value(Mean(nothing))));
    for (const double p : {0.0, 1.0, 2.0, 3.0, kInf}) {
      EXPECT_EQ(*Norm(nothing, p), 0) << p;
    }
    EXPECT_THAT(Min(nothing), StatusIs(kInvalid, "without elements"));
    EXPECT_THAT(Max(nothing), StatusIs(kInvalid, "without elements"));
  });
}

TEST(ShardedStatisticsTest, NormsStayInRange) {
  RunLocalRanks(2, [](ProcessGroup&) {
    for (const double scale : {1e-320, 1e-200, 1.0, 1e200, 1e307}) {
      const double values[] = {3 * scale, 0, -4 * scale};
      const ShardedTensor t =
          Sharded(Chunks(0, 2), *Tensor::FromSpan<double>(values, {3}));
      // Subnormal numbers have few digits.
      const double tolerance = scale < 1e-300 ? 1e-3 : 1e-14;
      for (const auto& [p, expected] : {std::pair<double, double>{1, 7},
                                        {2, 5},
                                        {3, std::cbrt(91.0)},
                                        {0.5, 7 + 2 * std::sqrt(12.0)},
                                        {1000, 4},
                                        {kInf, 4}}) {
        SHERD_ASSERT_OK_AND_ASSIGN(const double norm, Norm(t, p));
        EXPECT_NEAR(norm / scale, expected, expected * tolerance)
            << p << " of " << scale;
      }
    }
  });
}

TEST(ShardedStatisticsTest, AnErrorOnOneRankIsTheSameErrorOnAll) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const bool here = group.rank() == 1;
    const Tensor whole = Uneven({6, 4}, kFloat32);
    const ShardedTensor a = Sharded(Chunks(0, 3), whole);
    const ShardedTensor b = Sharded(Chunks(1, 3), whole);
    constexpr char kOther[] = "rank 1 was called with other arguments";
    EXPECT_THAT(Sum(here ? b : a), StatusIs(kInvalid, kOther));
    EXPECT_THAT(Max(here ? b : a), StatusIs(kInvalid, kOther));
    EXPECT_THAT(Norm(a, here ? 1 : 2), StatusIs(kInvalid, kOther));
    EXPECT_THAT(here ? Sum(a) : Mean(a), StatusIs(kInvalid, "other arguments"));
    EXPECT_THAT(Norm(a, here ? -1 : 2),
                StatusIs(kInvalid, "rank 1: norm: p is -1"));
    EXPECT_THAT(Norm(a, kNan), StatusIs(kInvalid, "p is nan"));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor meta,
        ShardedTensor::Empty(
            ChunkShardingSpec::Create(0, {"rank:0", "rank:1/meta", "rank:2"})
                .value(),
            {6}));
    EXPECT_THAT(Sum(meta), StatusIs(kState, "rank 1"));
    EXPECT_THAT(Min(meta), StatusIs(kState, "host memory"));
    EXPECT_THAT(Norm(meta), StatusIs(kState, "host memory"));
    EXPECT_THAT(Sum(a), IsOk());
    EXPECT_THAT(Sum(ShardedTensor()), StatusIs(kState, "not created"));
  });
}

TEST(ShardedStatisticsTest, KeepToTheRanksOfASubgroup) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    const std::vector<int> some = {0, 1, 3};
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> three,
                               group.NewGroup(some));
    if (!three->is_member()) return;
    const double values[] = {1, 2, 3, 4};
    const ShardedTensor t =
        Sharded(ChunkShardingSpec::Create(0, PlacementsOn({3, 0})).value(),
                *Tensor::FromSpan<double>(values, {4}), three);
    EXPECT_THAT(Sum(t), IsOkAndHolds(TensorEq(Tensor::Scalar(10.0))));
    EXPECT_THAT(Norm(t, 1), IsOkAndHolds(10.0));
  });
}

TEST(ShardedStatisticsTest, NeedNoGroupIfAllShardsAreHere) {
  const ShardedTensorMetadata metadata = {
      .shards = {{{0}, {2}, Placement("rank:0/cpu")},
                 {{2}, {1}, Placement("rank:1/cpu")}},
      .size = {3},
      .properties = {}};
  const Shard first = {Tensor::Full({2}, 1.5).value(), metadata.shards[0]};
  const Shard second = {Tensor::Full({1}, -4.0).value(), metadata.shards[1]};
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor t,
      ShardedTensor::WithoutGroup({first, second}, metadata));
  EXPECT_THAT(Sum(t), IsOkAndHolds(TensorEq(Tensor::Scalar(-1.0))));
  EXPECT_THAT(Max(t), IsOkAndHolds(TensorEq(Tensor::Scalar(1.5f))));
  EXPECT_THAT(Norm(t, 1), IsOkAndHolds(7.0));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor part,
                             ShardedTensor::WithoutGroup({first}, metadata));
  EXPECT_THAT(Sum(part), StatusIs(kState, "1 of 2 shards"));
}

// Every function of sharded tensors that computes, with those of other headers.
TEST(ShardedStatisticsTest, CarriedElementsAreNotComputedWith) {
  for (int32_t number = kNumComputedDTypes; number < kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    // Rank 2 has no shard.
    RunLocalRanks(3, [&](ProcessGroup& group) {
      const auto refused =
          StatusIs(absl::StatusCode::kUnimplemented,
                   absl::StrCat(Name(dtype), " is carried, not computed with"));
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor t,
          ShardedTensor::Zeros(Chunks(0, 2), {4, 3}, {.dtype = dtype}));
      EXPECT_THAT(Sum(t), refused);
      EXPECT_THAT(Mean(t), refused);
      EXPECT_THAT(Min(t), refused);
      EXPECT_THAT(Max(t), refused);
      EXPECT_THAT(Norm(t), refused);
      EXPECT_THAT(Norm(t, kInf), refused);
      EXPECT_THAT(Apply(UnaryOp::kNeg, t), refused);
      EXPECT_THAT(Apply(BinaryOp::kAdd, t, t), refused);
      EXPECT_THAT(Apply(BinaryOp::kMul, t, 2), refused);
      EXPECT_THAT(InitUniform(t), refused);
      EXPECT_THAT(InitNormal(t),
                  StatusIs(absl::StatusCode::kUnimplemented, Name(dtype)));
      EXPECT_THAT(InitConstant(t, 1), refused);
      EXPECT_THAT(t.Fill(1), refused);
      EXPECT_THAT(ShardedTensor::Ones(Chunks(0, 2), {4, 3}, {.dtype = dtype}),
                  refused);
      EXPECT_THAT(FullLike(t, 0.5), refused);
      EXPECT_THAT(t.To(kFloat32), refused);
      EXPECT_THAT(PartialTensor::Create(*Tensor::Zeros({2}, {.dtype = dtype})),
                  refused);
      Tensor plain = Tensor::Zeros({2}, {.dtype = dtype}).value();
      EXPECT_THAT(AllReduce(group, plain, ReduceOp::kSum), refused);
      ASSERT_THAT(group.Barrier(), IsOk());
    });
  }
}

}  // namespace
}  // namespace sherd
