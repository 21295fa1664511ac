#include "sherd/core/nn/lookup/pool_kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::RandomSeed;

// Rows of random numbers at odd places, and bags of them.
class PoolKernelsTest : public ::testing::Test {
 protected:
  void Draw(DType in, int64_t width) {
    const int64_t element = static_cast<int64_t>(SizeOf(in));
    numbers_ = Tensor::Empty({kRows, width + 3}, {.dtype = kFloat64}).value();
    for (int64_t i = 0; i < numbers_.numel(); ++i) {
      numbers_.mutable_data_as<double>()[i] =
          std::ldexp(std::normal_distribution<double>()(random_),
                     static_cast<int>(random_() % 12));
    }
    numbers_ = numbers_.To(in).value();
    rows_.clear();
    ends_.clear();
    divisors_.clear();
    for (int b = 0; b < kBags; ++b) {
      const uint64_t count = random_() % 6;
      for (uint64_t k = 0; k < count; ++k) {
        picked_.push_back(static_cast<int64_t>(random_() % kRows));
        rows_.push_back(static_cast<const std::byte*>(numbers_.data()) +
                        (picked_.back() * (width + 3) + 1) * element);
      }
      ends_.push_back(static_cast<int64_t>(rows_.size()));
      divisors_.push_back(static_cast<int64_t>(random_() % 4));
    }
    doubles_.assign(rows_.size(), 0);
    floats_.assign(rows_.size(), 0);
    for (size_t k = 0; k < rows_.size(); ++k) {
      doubles_[k] = std::normal_distribution<double>()(random_);
      floats_[k] = static_cast<float>(doubles_[k]);
    }
    rows_.resize(rows_.size() + kRowsAhead,
                 static_cast<const std::byte*>(numbers_.data()));
  }

  // What the contract says, element by element.
  template <typename In, typename Out, typename Sum>
  std::vector<std::byte> Expected(int64_t width, bool max, const Sum* weights,
                                  bool divide) {
    std::vector<std::byte> out(static_cast<size_t>(kBags * Stride<Out>(width)),
                               std::byte{0x5a});
    int64_t begin = 0;
    for (int64_t b = 0; b < kBags; ++b) {
      const int64_t end = ends_[static_cast<size_t>(b)];
      for (int64_t c = 0; c < width; ++c) {
        Sum sum = 0;
        for (int64_t k = begin; k < end; ++k) {
          Sum x = static_cast<Sum>(
              reinterpret_cast<const In*>(rows_[static_cast<size_t>(k)])[c]);
          if (weights != nullptr) x *= weights[k];
          if (k == begin) {
            sum = x;
          } else if (max) {
            sum = sum > x ? sum : x;
          } else {
            sum += x;
          }
        }
        const int64_t divisor = divisors_[static_cast<size_t>(b)];
        if (divide && divisor > 1) sum /= static_cast<Sum>(divisor);
        const Out rounded = static_cast<Out>(sum);
        std::memcpy(&out[static_cast<size_t>(b * Stride<Out>(width)) +
                         static_cast<size_t>(c) * sizeof(Out)],
                    &rounded, sizeof(Out));
      }
      begin = end;
    }
    return out;
  }

  template <typename Out>
  static int64_t Stride(int64_t width) {
    return (width + 2) * static_cast<int64_t>(sizeof(Out));
  }

  template <typename In, typename Out, typename Sum>
  void Check(int64_t width, const Sum* weights) {
    const DType in = DTypeOf<In>();
    const DType out = DTypeOf<Out>();
    for (const int variant : {0, 1, 2, 3}) {
      const bool max = variant == 1;
      const bool divide = variant == 2;
      const Sum* const used = variant == 3 ? weights : nullptr;
      const std::vector<std::byte> expected =
          Expected<In, Out, Sum>(width, max, used, divide);
      for (int target = 0; target <= static_cast<int>(BestReductionTarget());
           ++target) {
        std::vector<std::byte> result(expected.size(), std::byte{0x5a});
        PoolRowsWith(static_cast<ReductionTarget>(target), in, out, max,
                     {.out = result.data(),
                      .out_stride = Stride<Out>(width),
                      .width = width,
                      .bags = kBags,
                      .ends = ends_.data(),
                      .rows = rows_.data(),
                      .weights = used,
                      .divisors = divide ? divisors_.data() : nullptr});
        EXPECT_EQ(result, expected)
            << in << " to " << out << ", width " << width << ", variant "
            << variant << ", target " << target;
      }
    }
  }

  static constexpr int64_t kRows = 50;
  static constexpr int64_t kBags = 12;
  std::mt19937_64 random_{RandomSeed()};
  Tensor numbers_;
  std::vector<int64_t> picked_;
  std::vector<const std::byte*> rows_;
  std::vector<int64_t> ends_;
  std::vector<int64_t> divisors_;
  std::vector<double> doubles_;
  std::vector<float> floats_;
};

TEST_F(PoolKernelsTest, EveryTargetAddsRowsInTheirOrderAndRoundsOnce) {
  for (const int64_t width :
       {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 128, 200, 300}) {
    Draw(kFloat64, width);
    Check<double, double>(width, doubles_.data());
    Draw(kFloat32, width);
    Check<float, float>(width, floats_.data());
    Check<float, Float16>(width, floats_.data());
    Check<float, BFloat16>(width, floats_.data());
    Draw(kFloat16, width);
    Check<Float16, Float16>(width, floats_.data());
    Check<Float16, float>(width, floats_.data());
    Draw(kBFloat16, width);
    Check<BFloat16, BFloat16>(width, floats_.data());
    Check<BFloat16, float>(width, floats_.data());
  }
}

TEST_F(PoolKernelsTest, AMaximumWithANanIsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> numbers = {1, nan, 2, nan, 4, 3};
  std::vector<const std::byte*> rows;
  for (const size_t row : {0, 1, 2}) {
    rows.push_back(reinterpret_cast<const std::byte*>(&numbers[2 * row]));
  }
  rows.resize(rows.size() + kRowsAhead, rows.back());
  const int64_t ends[] = {3};
  float result[2];
  PoolRows(kFloat32, kFloat32, /*max=*/true,
           {.out = reinterpret_cast<std::byte*>(result),
            .width = 2,
            .bags = 1,
            .ends = ends,
            .rows = rows.data()});
  EXPECT_EQ(result[0], 4);
  EXPECT_TRUE(std::isnan(result[1]));
}

}  // namespace
}  // namespace sherd::internal
