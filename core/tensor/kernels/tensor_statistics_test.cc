#include "sherd/core/tensor/kernels/tensor_statistics.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/kernels/exact_sum.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/scalar.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor Of(const std::vector<double>& values) {
  return Tensor::FromSpan<double>(values, {static_cast<int64_t>(values.size())})
      .value();
}

double AsDouble(const Scalar& scalar) {
  return DispatchDType(scalar.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T value;
    std::memcpy(&value, scalar.data(), sizeof(T));
    if constexpr (requires { value.real(); }) {
      return static_cast<double>(value.real());
    } else {
      return static_cast<double>(value);
    }
  });
}

TEST(TensorStatisticsTest, AddsElementsOfEveryDTypeAndStride) {
  for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    std::vector<double> values;
    double expected = 0;
    for (int i = 0; i < 12; ++i) {
      values.push_back(dtype == kBool ? i % 3 == 0 : i % 8);
      // The middle two columns of three rows.
      if (i % 4 == 1 || i % 4 == 2) expected += values.back();
    }
    const Tensor inner =
        Of(values).To(dtype)->Reshape({3, 4})->Narrow(1, 1, 2).value();
    for (const Tensor& tensor : {inner, inner.Transpose(0, 1).value()}) {
      ExactSum real;
      ExactSum imaginary;
      ASSERT_THAT(AddElements(tensor, real, imaginary), IsOk());
      EXPECT_EQ(real.Round(), expected) << Name(dtype);
      EXPECT_EQ(imaginary.Round(), 0);
    }
  }
}

TEST(TensorStatisticsTest, AddsIntegersBeyondTheirRange) {
  const int64_t low = std::numeric_limits<int64_t>::min();
  const std::vector<int64_t> negative(1000, low);
  ExactSum sum;
  ExactSum none;
  ASSERT_THAT(AddElements(Tensor::FromSpan<int64_t>(negative, {1000}).value(),
                          sum, none),
              IsOk());
  absl::int128 total;
  ASSERT_TRUE(sum.ToInteger(total));
  EXPECT_EQ(total, absl::int128(low) * 1000);
  const std::vector<uint64_t> large(999, std::numeric_limits<uint64_t>::max());
  ASSERT_THAT(
      AddElements(Tensor::FromSpan<uint64_t>(large, {999}).value(), sum, none),
      IsOk());
  ASSERT_TRUE(sum.ToInteger(total));
  EXPECT_EQ(total,
            absl::int128(low) * 1000 +
                absl::int128(std::numeric_limits<uint64_t>::max()) * 999);
}

TEST(TensorStatisticsTest, AddsBothPartsOfComplexNumbers) {
  const std::vector<std::complex<float>> values = {{1, 2}, {-3, 0.5}, {7, -9}};
  ExactSum real;
  ExactSum imaginary;
  ASSERT_THAT(
      AddElements(Tensor::FromSpan<std::complex<float>>(values, {3}).value(),
                  real, imaginary),
      IsOk());
  EXPECT_EQ(real.Round(), 5);
  EXPECT_EQ(imaginary.Round(), -6.5);
}

TEST(TensorStatisticsTest, AddsPowersOfMagnitudes) {
  const Tensor values = Of({3, -4, 0, 0.5});
  const struct {
    double p;
    double divisor;
    double expected;
  } cases[] = {{0, 1, 3},
               {1, 1, 7.5},
               {1, 0.5, 15},
               {2, 1, 25.25},
               {2, 2, 6.3125},
               {3, 1, 91.125},
               {0.5, 1, std::sqrt(3.0) + 2 + std::sqrt(0.5)}};
  for (const auto& c : cases) {
    ExactSum sum;
    ASSERT_THAT(AddPowers(values, c.p, c.divisor, sum), IsOk());
    EXPECT_NEAR(sum.Round(), c.expected, 1e-14) << c.p;
  }
  const std::vector<std::complex<double>> complex = {{3, 4}, {0, -12}};
  const Tensor z = Tensor::FromSpan<std::complex<double>>(complex, {2}).value();
  for (const auto& [p, expected] :
       {std::pair<double, double>{0, 2}, {1, 17}, {2, 169}, {3, 1853}}) {
    ExactSum sum;
    ASSERT_THAT(AddPowers(z, p, 1, sum), IsOk());
    EXPECT_NEAR(sum.Round(), expected, 1e-9) << p;
  }
  ExactSum sum;
  EXPECT_THAT(AddPowers(*values.To(kInt32), 2, 1, sum),
              StatusIs(absl::StatusCode::kInvalidArgument, "int32"));
}

TEST(TensorStatisticsTest, FindsTheLargestMagnitude) {
  EXPECT_THAT(LargestMagnitude(Of({})), IsOkAndHolds(0.0));
  EXPECT_THAT(LargestMagnitude(Of({1, -3, 2})), IsOkAndHolds(3.0));
  EXPECT_THAT(LargestMagnitude(Of({1, -kInf, 2})), IsOkAndHolds(kInf));
  EXPECT_TRUE(std::isnan(*LargestMagnitude(Of({kInf, -kNan, 2}))));
  const std::vector<std::complex<double>> complex = {{3, 4}, {kInf, kNan}};
  const Tensor z = Tensor::FromSpan<std::complex<double>>(complex, {2}).value();
  EXPECT_THAT(LargestMagnitude(*z.Narrow(0, 0, 1)), IsOkAndHolds(5.0));
  EXPECT_TRUE(std::isnan(*LargestMagnitude(z)));
}

TEST(TensorStatisticsTest, OrdersTheNumbersOfEveryDType) {
  for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (IsComplex(dtype)) continue;
    const bool is_signed = IsSigned(dtype);
    const Tensor values =
        Of({1, is_signed ? -7.0 : 0.0, 3, dtype == kBool ? 1.0 : 12.0, 2})
            .To(dtype)
            .value();
    SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange range, RangeOf(values));
    EXPECT_EQ(NumberAt(range.smallest, dtype).dtype(), dtype);
    EXPECT_EQ(AsDouble(NumberAt(range.smallest, dtype)), is_signed ? -7 : 0);
    EXPECT_EQ(AsDouble(NumberAt(range.largest, dtype)), dtype == kBool ? 1 : 12)
        << Name(dtype);
    // Parts put together.
    SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange head,
                               RangeOf(*values.Narrow(0, 0, 2)));
    SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange tail,
                               RangeOf(*values.Narrow(0, 2, 3)));
    SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange none,
                               RangeOf(*values.Narrow(0, 5, 0)));
    EXPECT_EQ(std::min({head.smallest, tail.smallest, none.smallest}),
              range.smallest);
    EXPECT_EQ(std::max({head.largest, tail.largest, none.largest}),
              range.largest);
  }
}

TEST(TensorStatisticsTest, OrdersZerosAndPutsNanFirst) {
  for (const DType dtype : {kFloat8E5M2, kFloat16, kFloat32, kFloat64}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange zeros,
                               RangeOf(*Of({0.0, -0.0, 0.0}).To(dtype)));
    EXPECT_TRUE(std::signbit(AsDouble(NumberAt(zeros.smallest, dtype))));
    EXPECT_FALSE(std::signbit(AsDouble(NumberAt(zeros.largest, dtype))));
    SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange infinities,
                               RangeOf(*Of({kInf, 1, -kInf}).To(dtype)));
    EXPECT_EQ(AsDouble(NumberAt(infinities.smallest, dtype)), -kInf);
    EXPECT_EQ(AsDouble(NumberAt(infinities.largest, dtype)), kInf);
    for (const double nan : {kNan, -kNan}) {
      SHERD_ASSERT_OK_AND_ASSIGN(const OrderedRange range,
                                 RangeOf(*Of({kInf, nan, -kInf}).To(dtype)));
      EXPECT_TRUE(std::isnan(AsDouble(NumberAt(range.smallest, dtype))));
      EXPECT_TRUE(std::isnan(AsDouble(NumberAt(range.largest, dtype))));
    }
  }
}

TEST(TensorStatisticsTest, RefusesWhatItCannotRead) {
  constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;
  const Tensor meta =
      Tensor::Empty({2}, {.device = Device::Parse("meta").value()}).value();
  ExactSum sum;
  for (const Tensor& tensor : {Tensor(), meta}) {
    EXPECT_THAT(AddElements(tensor, sum, sum), StatusIs(kState));
    EXPECT_THAT(AddPowers(tensor, 2, 1, sum), StatusIs(kState));
    EXPECT_THAT(LargestMagnitude(tensor), StatusIs(kState));
    EXPECT_THAT(RangeOf(tensor), StatusIs(kState));
  }
  const Tensor complex = *Of({1}).To(kComplex64);
  EXPECT_THAT(RangeOf(complex),
              StatusIs(absl::StatusCode::kInvalidArgument, "no order"));
}

}  // namespace
}  // namespace sherd
