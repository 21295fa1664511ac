#include "sherd/core/tensor/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr DType kRandomDTypes[] = {kFloat8E4M3, kFloat8E5M2, kFloat16,
                                   kBFloat16,   kFloat32,    kFloat64,
                                   kComplex64,  kComplex128};

// Vectors of "kat_vectors" in the Random123 distribution (D. E. Shaw Research),
// lines "philox4x32 10".
TEST(PhiloxTest, ReproducesThePublishedVectors) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  const uint32_t ones = 0xffffffff;
  EXPECT_THAT(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(GeneratorTest, TakingBlocksMovesThePosition) {
  Generator generator(5);
  EXPECT_EQ(generator.Take(3), (Generator::State{5, 0}));
  EXPECT_EQ(generator.Take(1), (Generator::State{5, 3}));
  EXPECT_EQ(generator.GetState(), (Generator::State{5, 4}));
  generator.Seed(6);
  EXPECT_EQ(generator.GetState(), (Generator::State{6, 0}));
  generator.SetState({7, 100});
  EXPECT_EQ(generator.Take(0), (Generator::State{7, 100}));
}

TEST(DefaultGeneratorTest, AThreadMayHaveOneOfItsOwn) {
  Generator* const of_process = &DefaultGenerator();
  Generator mine(1);
  Generator inner(2);
  {
    ScopedDefaultGenerator outer_scope(mine);
    EXPECT_EQ(&DefaultGenerator(), &mine);
    {
      ScopedDefaultGenerator inner_scope(inner);
      EXPECT_EQ(&DefaultGenerator(), &inner);
    }
    EXPECT_EQ(&DefaultGenerator(), &mine);
    std::thread([&] { EXPECT_EQ(&DefaultGenerator(), of_process); }).join();
    ManualSeed(77);
  }
  EXPECT_EQ(&DefaultGenerator(), of_process);
  EXPECT_EQ(mine.GetState().seed, 77u);
  EXPECT_NE(of_process->GetState().seed, 77u);
}

TEST(RandTest, TheSameSeedDrawsTheSameTensorAndTheNextDrawAnother) {
  for (DType dtype : kRandomDTypes) {
    Generator a(42);
    Generator b(42);
    const Tensor first = Rand({50}, {.dtype = dtype}, a).value();
    const Tensor second = Rand({50}, {.dtype = dtype}, a).value();
    EXPECT_TRUE(first.BitwiseEqual(Rand({50}, {.dtype = dtype}, b).value()));
    EXPECT_TRUE(second.BitwiseEqual(Rand({50}, {.dtype = dtype}, b).value()));
    EXPECT_FALSE(first.BitwiseEqual(second)) << dtype;
    b.Seed(43);
    EXPECT_FALSE(first.BitwiseEqual(Rand({50}, {.dtype = dtype}, b).value()));
  }
}

// Pins the mapping from the stream to numbers: saved seeds must keep their
// meaning.
TEST(RandTest, NumbersComeFromTheTopBitsOfTheWordsInOrder) {
  Generator generator(0);
  const std::array<uint32_t, 4> words = Philox4x32({0, 0, 0, 0}, {0, 0});
  const Tensor floats = Rand({4}, {}, generator).value();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(floats.data_as<float>()[i],
              static_cast<float>(words[i] >> 8) * 0x1p-24f);
  }
  generator.Seed(0);
  const Tensor doubles = Rand({2}, {.dtype = kFloat64}, generator).value();
  for (int i = 0; i < 2; ++i) {
    const uint64_t joined = (uint64_t{words[2 * i + 1]} << 32) | words[2 * i];
    EXPECT_EQ(doubles.data_as<double>()[i],
              static_cast<double>(joined >> 11) * 0x1p-53);
  }
}

TEST(RandTest, ConsecutiveTensorsNeverShareABlockOfTheStream) {
  Generator generator(9);
  for (int64_t n : {0, 1, 3, 4, 5, 7}) {
    generator.Seed(9);
    ASSERT_THAT(Rand({n}, {}, generator), IsOk());
    EXPECT_EQ(generator.GetState().position,
              static_cast<uint64_t>((n + 3) / 4));
    generator.Seed(9);
    ASSERT_THAT(Rand({n}, {.dtype = kComplex128}, generator), IsOk());
    EXPECT_EQ(generator.GetState().position, static_cast<uint64_t>(n));
    generator.Seed(9);
    ASSERT_THAT(SkipRegion({n}, kFloat64, generator), IsOk());
    EXPECT_EQ(generator.GetState().position,
              static_cast<uint64_t>((n + 1) / 2));
  }
}

// Whole, then cut into shards in several ways: the contents are the same.
TEST(RandTest, ShardsOfEqualGeneratorsMakeUpOneTensorInEveryLayout) {
  const Dims global = {5, 6, 7};
  const std::vector<Box> kBoxes = {
      {{0, 0, 0}, {5, 6, 7}}, {{0, 0, 0}, {2, 6, 7}}, {{2, 0, 0}, {3, 6, 7}},
      {{0, 1, 3}, {5, 2, 3}}, {{4, 5, 6}, {1, 1, 1}}, {{0, 0, 5}, {5, 6, 2}},
      {{1, 3, 0}, {0, 3, 7}}, {{9, 0, 0}, {0, 6, 7}},
  };
  for (DType dtype : kRandomDTypes) {
    for (bool normal : {false, true}) {
      const auto fill = [normal](Tensor& tensor, Generator& generator,
                                 const RandomRegion* region) {
        return normal ? FillNormal(tensor, -1, 2, generator, region)
                      : FillUniform(tensor, -1, 2, generator, region);
      };
      Generator whole_generator(11);
      whole_generator.Take(3);
      Tensor whole = Tensor::Empty(global, {.dtype = dtype}).value();
      ASSERT_THAT(fill(whole, whole_generator, nullptr), IsOk());
      for (const Box& box : kBoxes) {
        Generator generator(11);
        generator.Take(3);
        Tensor shard = Tensor::Empty(box.sizes, {.dtype = dtype}).value();
        const RandomRegion region = {global, box.offsets};
        ASSERT_THAT(fill(shard, generator, &region), IsOk());
        EXPECT_TRUE(
            shard.BitwiseEqual(whole.Narrow(box.offsets, box.sizes).value()))
            << dtype << " at " << FormatDims(box.offsets);
        EXPECT_EQ(generator.GetState(), whole_generator.GetState());
      }
    }
  }
}

TEST(FillUniformTest, StridedTensorsGetTheSameNumbersAsContiguousOnes) {
  Generator a(4);
  Generator b(4);
  Tensor contiguous = Tensor::Empty({6, 9}).value();
  Tensor base = Tensor::Zeros({9, 8}).value();
  Tensor strided = base.Transpose(0, 1).value().Narrow(0, 1, 6).value();
  ASSERT_THAT(FillUniform(contiguous, 0, 1, a), IsOk());
  ASSERT_THAT(FillUniform(strided, 0, 1, b), IsOk());
  EXPECT_TRUE(strided.BitwiseEqual(contiguous));
  EXPECT_TRUE(base.Narrow(1, 0, 1)->Equal(Tensor::Zeros({9, 1}).value()));
  EXPECT_TRUE(base.Narrow(1, 7, 1)->Equal(Tensor::Zeros({9, 1}).value()));
}

TEST(FillUniformTest, StaysInsideTheHalfOpenRangeForEveryDType) {
  for (DType dtype : kRandomDTypes) {
    Generator generator(1);
    Tensor tensor = Tensor::Empty({20000}, {.dtype = dtype}).value();
    ASSERT_THAT(FillUniform(tensor, -0.75, 1.5, generator), IsOk());
    const Tensor real = IsComplex(dtype) ? tensor.ViewAsReal().value() : tensor;
    const Tensor numbers = real.To(kFloat64).value();
    const absl::Span<const double> values(numbers.data_as<double>(),
                                          static_cast<size_t>(numbers.numel()));
    EXPECT_GE(*std::min_element(values.begin(), values.end()), -0.75) << dtype;
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 1.5) << dtype;
    double sum = 0;
    for (double value : values) sum += value;
    // Three and a half sigma of the mean is 0.017; float8 has coarse steps.
    EXPECT_NEAR(sum / static_cast<double>(values.size()), 0.375,
                SizeOf(dtype) == 1 ? 0.15 : 0.017)
        << dtype;
  }
}

TEST(FillUniformTest, EveryTenthOfTheRangeGetsItsShare) {
  Generator generator(2);
  const Tensor tensor = Rand({100000}, {}, generator).value();
  std::array<int, 10> counts = {};
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    ++counts[static_cast<size_t>(tensor.data_as<float>()[i] * 10)];
  }
  // Chi-squared with nine degrees of freedom: 33.7 is exceeded once in 10^4
  // seeds, and this seed is fixed.
  double chi_squared = 0;
  for (int count : counts) chi_squared += std::pow(count - 1e4, 2) / 1e4;
  EXPECT_LT(chi_squared, 33.7);
}

TEST(FillUniformTest, AnEmptyRangeIsItsOnlyNumber) {
  Tensor tensor = Tensor::Zeros({5}).value();
  ASSERT_THAT(FillUniform(tensor, 2.5, 2.5), IsOk());
  EXPECT_TRUE(tensor.Equal(Tensor::Full({5}, 2.5).value()));
}

TEST(FillNormalTest, HasTheMomentsAndTailsOfTheDistribution) {
  for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    Generator generator(3);
    Tensor tensor = Tensor::Empty({100000}, {.dtype = dtype}).value();
    ASSERT_THAT(FillNormal(tensor, 10, 2, generator), IsOk());
    const Tensor numbers = tensor.To(kFloat64).value();
    const double* const values = numbers.data_as<double>();
    double sum = 0;
    double squares = 0;
    double fourths = 0;
    int beyond_two_sigma = 0;
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      const double z = (values[i] - 10) / 2;
      sum += z;
      squares += z * z;
      fourths += z * z * z * z;
      if (std::abs(z) > 2) ++beyond_two_sigma;
    }
    EXPECT_NEAR(sum / 1e5, 0, 0.015) << dtype;
    EXPECT_NEAR(squares / 1e5, 1, 0.02) << dtype;
    EXPECT_NEAR(fourths / 1e5, 3, 0.15) << dtype;
    EXPECT_NEAR(beyond_two_sigma / 1e5, 0.0455, 0.006) << dtype;
  }
}

TEST(FillNormalTest, ComplexNumbersShareTheVarianceBetweenTheirParts) {
  Generator generator(8);
  const Tensor tensor =
      Randn({50000}, {.dtype = kComplex64}, generator).value();
  double real = 0;
  double imaginary = 0;
  double product = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const std::complex<float> z = tensor.data_as<std::complex<float>>()[i];
    real += z.real() * z.real();
    imaginary += z.imag() * z.imag();
    product += z.real() * z.imag();
  }
  EXPECT_NEAR(real / 50000, 0.5, 0.02);
  EXPECT_NEAR(imaginary / 50000, 0.5, 0.02);
  EXPECT_NEAR(product / 50000, 0, 0.02);
}

TEST(RandTest, MetaTensorsDrawNothing) {
  Generator generator(1);
  const TensorOptions options = {.device = {DeviceType::kMeta}};
  EXPECT_EQ(Rand({3, 4}, options, generator)->numel(), 12);
  EXPECT_EQ(Randn({3, 4}, options, generator)->numel(), 12);
  EXPECT_EQ(generator.GetState().position, 0u);
}

TEST(FillErrorsTest, EveryRefusalLeavesGeneratorAndTensorAlone) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Generator generator(1);
  const auto unmoved = [&] { return generator.GetState().position == 0; };
  Tensor tensor = Tensor::Zeros({4}).value();
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, text);
  };
  EXPECT_THAT(FillUniform(tensor, 1, 0, generator), invalid("[1, 0)"));
  EXPECT_THAT(FillUniform(tensor, 0, kInfinity, generator), invalid("finite"));
  EXPECT_THAT(FillUniform(tensor, std::nan(""), 1, generator),
              invalid("finite"));
  EXPECT_THAT(FillUniform(tensor, -3e38, 3e38, generator),
              invalid("does not fit in float32"));
  EXPECT_THAT(FillUniform(tensor, 0, 1e39, generator), invalid("float32"));
  EXPECT_THAT(FillNormal(tensor, 0, -1, generator), invalid("deviation"));
  EXPECT_THAT(FillNormal(tensor, kInfinity, 1, generator), invalid("finite"));

  const Dims global = {6};
  for (const Dims& offsets :
       {Dims{3}, Dims{-1}, Dims{7}, Dims{0, 0}, Dims{INT64_MAX}, Dims{}}) {
    const RandomRegion region = {global, offsets};
    EXPECT_THAT(FillUniform(tensor, 0, 1, generator, &region),
                invalid("is not inside [6]"))
        << FormatDims(offsets);
  }
  EXPECT_TRUE(tensor.Equal(Tensor::Zeros({4}).value()));

  Tensor integers = Tensor::Zeros({4}, {.dtype = kInt32}).value();
  EXPECT_THAT(FillUniform(integers, 0, 1, generator),
              StatusIs(absl::StatusCode::kUnimplemented, "int32"));
  EXPECT_THAT(FillNormal(integers, 0, 1, generator),
              StatusIs(absl::StatusCode::kUnimplemented, "int32"));
  EXPECT_THAT(Rand({2}, {.dtype = kBool}, generator),
              StatusIs(absl::StatusCode::kUnimplemented, "bool"));

  static constexpr float kConstant[4] = {};
  Tensor read_only =
      Tensor::FromStorage(
          Storage::BorrowReadOnly(kConstant, sizeof(kConstant)).value(), 0, {4},
          kFloat32)
          .value();
  EXPECT_THAT(FillUniform(read_only, 0, 1, generator),
              StatusIs(absl::StatusCode::kFailedPrecondition, "read-only"));
  Tensor undefined;
  EXPECT_THAT(FillUniform(undefined, 0, 1, generator),
              StatusIs(absl::StatusCode::kFailedPrecondition, "undefined"));
  EXPECT_THAT(SkipRegion({-1}, kFloat32, generator), invalid("negative"));
  EXPECT_TRUE(unmoved());
}

}  // namespace
}  // namespace sherd
