#include "sherd/testing/tensor_matchers.h"

#include <bit>
#include <complex>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Matcher;
using ::testing::Not;
using ::testing::Pair;
using ::testing::Pointwise;
using ::testing::StringMatchResultListener;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename T>
Tensor Make(const std::vector<T>& values, const Dims& sizes) {
  return Tensor::FromSpan<T>(values, sizes).value();
}

template <typename T>
Tensor One(T value) {
  return Tensor::FromSpan<T>({value}, {}).value();
}

// The text that a failed expectation prints after the value; "" if it holds.
std::string Explain(const Matcher<const Tensor&>& matcher,
                    const Tensor& actual) {
  StringMatchResultListener listener;
  const bool matches = matcher.MatchAndExplain(actual, &listener);
  EXPECT_EQ(matches, listener.str().empty());
  return listener.str();
}

std::string Describe(const Matcher<const Tensor&>& matcher) {
  std::ostringstream text;
  matcher.DescribeTo(&text);
  return text.str();
}

// 0, 1, 2, … of any dtype that holds them.
Tensor Iota(const Dims& sizes, DType dtype) {
  std::vector<float> values(NumElements(sizes).value());
  std::iota(values.begin(), values.end(), 0.0f);
  return Make(values, sizes).To(dtype).value();
}

TEST(TensorEqTest, EqualTensorsOfEveryDtypeMatch) {
  for (int i = 0; i < kNumComputedDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    SCOPED_TRACE(Name(dtype));
    const Tensor tensor = Iota({2, 3}, dtype);
    EXPECT_THAT(tensor.Clone(), IsOkAndHolds(TensorEq(tensor)));
    EXPECT_THAT(tensor.Clone(), IsOkAndHolds(TensorBitwiseEq(tensor)));
    EXPECT_THAT(tensor.Clone(), IsOkAndHolds(TensorNear(tensor)));
    // Strided, so that elements are looked at one by one.
    const Tensor turned = tensor.Transpose(0, 1).value().Clone().value();
    EXPECT_THAT(turned.Transpose(0, 1), IsOkAndHolds(TensorEq(tensor)));
    EXPECT_THAT(turned.Transpose(0, 1), IsOkAndHolds(TensorBitwiseEq(tensor)));
    EXPECT_THAT(turned.Transpose(0, 1), IsOkAndHolds(TensorNear(tensor)));
  }
}

TEST(TensorEqTest, OneDifferentElementOfAnyDtypeIsFound) {
  for (int i = 0; i < kNumComputedDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    SCOPED_TRACE(Name(dtype));
    const Tensor ones = Tensor::Ones({2, 3}, {.dtype = dtype}).value();
    const Tensor changed = ones.Clone().value();
    ASSERT_THAT(changed.Narrow({1, 2}, {1, 1}).value().Fill(false), IsOk());
    const std::string place = "which differs in 1 of 6 elements, at [1, 2]: ";
    EXPECT_THAT(Explain(TensorEq(ones), changed), HasSubstr(place));
    EXPECT_THAT(Explain(TensorBitwiseEq(ones), changed), HasSubstr(place));
    EXPECT_THAT(Explain(TensorNear(ones), changed), HasSubstr(place));
    const Tensor turned = changed.Transpose(0, 1).value().Clone().value();
    EXPECT_THAT(Explain(TensorEq(ones), turned.Transpose(0, 1).value()),
                HasSubstr(place));
  }
}

TEST(TensorEqTest, CarriedElementsAreComparedByTheirBits) {
  for (int i = kNumComputedDTypes; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    const Tensor zeros = Tensor::Zeros({2, 3}, {.dtype = dtype}).value();
    EXPECT_THAT(zeros.Clone(), IsOkAndHolds(TensorEq(zeros)));
    EXPECT_THAT(zeros.Clone(), IsOkAndHolds(TensorNear(zeros)));
    Tensor changed = zeros.Clone().value();
    static_cast<uint8_t*>(changed.data())[5 * SizeOf(dtype)] = 7;
    EXPECT_THAT(Explain(TensorEq(zeros), changed),
                HasSubstr("which differs in 1 of 6 elements, at [1, 2]: 7"));
  }
}

TEST(TensorEqTest, NanEqualsNanAndZeroEqualsMinusZero) {
  const double other_nan = std::bit_cast<double>(uint64_t{0xfff8000000000123});
  EXPECT_THAT(Make<double>({kNan, 0.0}, {2}),
              TensorEq(Make<double>({other_nan, -0.0}, {2})));
  EXPECT_THAT(
      Make<Float16>({Float16(kNan), Float16(-0.0)}, {2}),
      TensorEq(Make<Float16>({Float16::FromBits(0xfe01), Float16(0.0)}, {2})));
  EXPECT_THAT(One(Float8E4M3::FromBits(0xff)),
              TensorEq(One(Float8E4M3::FromBits(0x7f))));
  EXPECT_THAT(One(kNan), Not(TensorEq(One(1.0))));
  EXPECT_THAT(One(1.0), Not(TensorEq(One(kNan))));
  EXPECT_THAT(One(kInf), TensorEq(One(kInf)));
  EXPECT_THAT(One(kInf), Not(TensorEq(One(-kInf))));
}

TEST(TensorEqTest, ComplexNumbersAreEqualInBothParts) {
  using C = std::complex<float>;
  const float nan = static_cast<float>(kNan);
  EXPECT_THAT(One(C(nan, 2)), TensorEq(One(C(-nan, 2))));
  EXPECT_THAT(One(C(nan, 2)), Not(TensorEq(One(C(nan, 3)))));
  EXPECT_THAT(One(C(nan, 2)), Not(TensorEq(One(C(2, nan)))));
  EXPECT_EQ(Explain(TensorEq(One(C(1, 2))), One(C(1, 2.5))),
            "which differs in 1 of 1 element, at []: (1,2.5), expected (1,2); "
            "largest difference 0.5");
}

TEST(TensorEqTest, AnyByteThatIsNotZeroIsTrue) {
  const Tensor strange = Make<uint8_t>({0, 1, 2}, {3}).ViewAs(kBool).value();
  const Tensor plain = Make<uint8_t>({0, 1, 1}, {3}).ViewAs(kBool).value();
  EXPECT_THAT(strange, TensorEq(plain));
  EXPECT_THAT(strange, TensorNear(plain));
  EXPECT_EQ(Explain(TensorBitwiseEq(plain), strange),
            "which differs in 1 of 3 elements, at [2]: true = 0x02, expected "
            "true = 0x01");
}

TEST(TensorEqTest, ReportsHowManyDifferWhichFirstAndWhichMost) {
  const Tensor expected = Iota({2, 3, 4}, kFloat32);
  const Tensor actual = expected.Clone().value();
  ASSERT_THAT(actual.Narrow({0, 1, 2}, {1, 1, 1}).value().Fill(6.25), IsOk());
  ASSERT_THAT(actual.Narrow({1, 0, 0}, {1, 1, 1}).value().Fill(-3), IsOk());
  ASSERT_THAT(actual.Narrow({1, 2, 3}, {1, 1, 1}).value().Fill(24), IsOk());
  EXPECT_EQ(Explain(TensorEq(expected), actual),
            "which differs in 3 of 24 elements, first at [0, 1, 2]: 6.25, "
            "expected 6; largest difference 15 at [1, 0, 0]: -3, expected 12");
}

TEST(TensorEqTest, IndicesAreThoseOfTheTensorWhateverItsStrides) {
  const Tensor whole = Iota({5, 7, 6}, kInt32);
  const Tensor box =
      whole.Narrow({1, 2, 3}, {3, 4, 2}).value().Permute({2, 0, 1}).value();
  std::mt19937 random(20240611);
  for (int i = 0; i < 20; ++i) {
    const Tensor expected = box.Clone().value();
    const Dims index = {static_cast<int64_t>(random() % 2),
                        static_cast<int64_t>(random() % 3),
                        static_cast<int64_t>(random() % 4)};
    ASSERT_THAT(expected.Narrow(index, {1, 1, 1}).value().Fill(1000), IsOk());
    EXPECT_THAT(
        Explain(TensorEq(expected), box),
        HasSubstr(absl::StrCat("at ", FormatDims(index), ": ",
                               *box.At<int32_t>(index), ", expected 1000")));
  }
}

TEST(TensorEqTest, BytesBetweenTheElementsOfEitherSideDoNotCount) {
  // Every other element is 0, 7; the bytes side by side are 0, 0.
  const Tensor gaps = Make<int32_t>({0, 0, 7, 0}, {2, 2}).Select(1, 0).value();
  const Tensor zeros = Make<int32_t>({0, 0}, {2});
  EXPECT_THAT(gaps, Not(TensorEq(zeros)));
  EXPECT_THAT(zeros, Not(TensorEq(gaps)));
  EXPECT_THAT(gaps, TensorEq(Make<int32_t>({0, 7}, {2})));
  EXPECT_THAT(Make<int32_t>({0, 7}, {2}), TensorEq(gaps));
}

TEST(TensorEqTest, FindsADifferenceInEveryBlockOfALargeTensor) {
  const Tensor expected = Tensor::Zeros({100'003}, {.dtype = kInt16}).value();
  for (const int64_t at : {0, 8191, 8192, 50'000, 100'002}) {
    const Tensor actual = expected.Clone().value();
    ASSERT_THAT(actual.Narrow(0, at, 1).value().Fill(-7), IsOk());
    EXPECT_EQ(Explain(TensorEq(expected), actual),
              absl::StrCat("which differs in 1 of 100003 elements, at [", at,
                           "]: -7, expected 0; largest difference 7"));
  }
}

TEST(TensorEqTest, LargeIntegersAreComparedAndShownExactly) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(Explain(TensorEq(One<uint64_t>(kMax)), One<uint64_t>(kMax - 1)),
            "which differs in 1 of 1 element, at []: 18446744073709551614, "
            "expected 18446744073709551615; largest difference 1");
  EXPECT_THAT(Explain(TensorEq(One(std::numeric_limits<int64_t>::min())),
                      One(std::numeric_limits<int64_t>::max())),
              EndsWith("largest difference 18446744073709551615"));
  EXPECT_THAT(One<uint64_t>(kMax - 1),
              Not(TensorNear(One<uint64_t>(kMax), {.atol = 0.5})));
  EXPECT_THAT(One<uint64_t>(kMax - 1),
              TensorNear(One<uint64_t>(kMax), {.atol = 1}));
  constexpr int64_t kNoDouble = (int64_t{1} << 53) + 1;
  EXPECT_THAT(One(kNoDouble),
              Not(TensorNear(One<int64_t>(0), {.atol = 0x1p53})));
}

TEST(TensorEqTest, NumbersAreShownWithTheDigitsThatDiffer) {
  EXPECT_THAT(Explain(TensorEq(One(0.1f)), One(0.10000001f)),
              HasSubstr("0.10000001, expected 0.1;"));
  EXPECT_THAT(Explain(TensorEq(One(1.0)), One(1.0000000000000002)),
              HasSubstr("1.0000000000000002, expected 1;"));
  EXPECT_THAT(Explain(TensorBitwiseEq(One(0.0f)), One(-0.0f)),
              EndsWith("at []: -0, expected 0"));
  EXPECT_THAT(Explain(TensorBitwiseEq(One(std::bit_cast<float>(0x7fc00001))),
                      One(std::bit_cast<float>(0x7fc00002))),
              EndsWith("at []: nan = 0x7fc00002, expected nan = 0x7fc00001"));
  EXPECT_THAT(Explain(TensorEq(One(BFloat16(1.0))), One(BFloat16(1.01))),
              HasSubstr("1.0078125, expected 1;"));
}

TEST(TensorEqTest, ANanOnOneSideIsNotADistance) {
  EXPECT_EQ(Explain(TensorEq(Make<double>({1, 2, kNan, 4}, {4})),
                    Make<double>({kNan, 2, 3, 4.5}, {4})),
            "which differs in 3 of 4 elements, first at [0]: nan, expected 1; "
            "NaN on one side in 2; largest difference 0.5 at [3]: 4.5, "
            "expected 4");
  EXPECT_EQ(Explain(TensorEq(One(kNan)), One(1.0)),
            "which differs in 1 of 1 element, at []: 1, expected nan");
}

TEST(TensorEqTest, OtherPropertiesAreNamedWithBothValues) {
  const Tensor expected = Iota({2, 3}, kFloat32);
  EXPECT_EQ(Explain(TensorEq(expected), Iota({3, 2}, kFloat32)),
            "whose shape is [3, 2], expected [2, 3]");
  EXPECT_EQ(Explain(TensorEq(expected), Iota({2, 3}, kFloat64)),
            "whose dtype is float64, expected float32");
  EXPECT_EQ(Explain(TensorEq(expected), Iota({6}, kInt8)),
            "whose dtype is int8, expected float32, and whose shape is [6], "
            "expected [2, 3]");
  const Tensor meta =
      Tensor::Empty({2, 3}, {.device = Device{DeviceType::kMeta}}).value();
  EXPECT_EQ(Explain(TensorEq(expected), meta),
            "whose device is meta, expected cpu");
  EXPECT_EQ(Explain(TensorEq(expected), Tensor()),
            "which is undefined, expected float32 of [2, 3] on cpu");
  EXPECT_EQ(Explain(TensorEq(Tensor()), expected),
            "which is float32 of [2, 3] on cpu, expected one that is "
            "undefined");
}

TEST(TensorEqTest, TensorsWithoutElementsMatchByTheirProperties) {
  EXPECT_THAT(Tensor(), TensorEq(Tensor()));
  EXPECT_THAT(Iota({0, 3}, kInt8), TensorEq(Iota({0, 3}, kInt8)));
  EXPECT_THAT(Iota({0, 3}, kInt8), Not(TensorEq(Iota({3, 0}, kInt8))));
  const TensorOptions on_meta = {.device = Device{DeviceType::kMeta}};
  const Tensor meta = Tensor::Empty({2}, on_meta).value();
  EXPECT_THAT(meta, TensorEq(Tensor::Empty({2}, on_meta)));
  EXPECT_THAT(meta, Not(TensorEq(Tensor::Empty({3}, on_meta))));
}

TEST(TensorEqTest, AScalarHasOneElement) {
  EXPECT_THAT(One<int8_t>(3), TensorEq(One<int8_t>(3)));
  EXPECT_THAT(One<int8_t>(3), Not(TensorEq(Make<int8_t>({3}, {1}))));
}

// Memory of a device, which the host must not touch.
class DeviceMemory final : public Allocator {
 public:
  explicit DeviceMemory(int index) : device_{DeviceType::kCuda, index} {}

  absl::StatusOr<void*> Allocate(size_t, size_t alignment) override {
    return reinterpret_cast<void*>(alignment);
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "device"; }
  Device device() const override { return device_; }

 private:
  const Device device_;
};

Tensor OnDevice(Allocator& memory) {
  return Tensor::Empty({4}, {.device = memory.device(), .allocator = &memory})
      .value();
}

// Nothing drives such a device here.
TEST(TensorEqTest, ElementsOutsideOfHostMemoryAreNotTouched) {
  DeviceMemory memory(1);
  const Tensor tensor = OnDevice(memory);
  EXPECT_THAT(Explain(TensorEq(tensor), tensor),
              ::testing::StartsWith("whose elements on cuda:1 cannot be copied "
                                    "to host memory: "));
  EXPECT_EQ(Explain(TensorEq(Iota({4}, kFloat32)), tensor),
            "whose device is cuda:1, expected cpu");
  DeviceMemory other_memory(0);
  EXPECT_EQ(Explain(TensorEq(OnDevice(other_memory)), tensor),
            "whose device is cuda:1, expected cuda:0");
}

TEST(TensorEqTest, WorksInsideOfOtherMatchers) {
  const Tensor a = Iota({2}, kFloat32);
  const Tensor b = Iota({3}, kInt64);
  const std::vector<Tensor> list = {a, b};
  EXPECT_THAT(list, ElementsAre(TensorEq(a), TensorEq(b)));
  EXPECT_THAT(list, Not(ElementsAre(TensorEq(b), TensorEq(a))));
  EXPECT_THAT(list, Pointwise(TensorEq(), {a, b}));
  EXPECT_THAT(list, Not(Pointwise(TensorEq(), {a, a})));
  EXPECT_THAT(list, Pointwise(TensorNear(), {a, b}));
  EXPECT_THAT(list, Not(Pointwise(TensorNear(), {b, b})));
  EXPECT_THAT((std::map<std::string, Tensor>{{"w", a}}),
              ElementsAre(Pair("w", TensorEq(a))));
  EXPECT_THAT(a.Select(0, 9), Not(IsOkAndHolds(TensorEq(a))));
  StringMatchResultListener listener;
  EXPECT_FALSE(::testing::ExplainMatchResult(Pointwise(TensorEq(), {a, a}),
                                             list, &listener));
  EXPECT_THAT(listener.str(), HasSubstr("whose dtype is int64, expected "
                                        "float32, and whose shape is [3]"));
}

TEST(TensorEqTest, DescribesWhatItExpects) {
  const Tensor tensor = Make<float>({1, 2}, {2});
  EXPECT_EQ(Describe(TensorEq(tensor)),
            "equals Tensor(float32, [2], cpu: 1, 2)");
  EXPECT_EQ(Describe(Not(TensorBitwiseEq(tensor))),
            "does not have the bits of Tensor(float32, [2], cpu: 1, 2)");
  EXPECT_EQ(Describe(TensorNear(tensor)),
            "is within rtol 1.3e-06 and atol 1e-05 of "
            "Tensor(float32, [2], cpu: 1, 2)");
  EXPECT_EQ(Describe(TensorNear(tensor, {.rtol = 0.5, .equal_nan = false})),
            "is within rtol 0.5 and atol 0 (NaN is near nothing) of "
            "Tensor(float32, [2], cpu: 1, 2)");
}

TEST(TensorEqTest, AnErrorInPlaceOfATensorFailsTheTest) {
  const absl::StatusOr<Tensor> error = absl::InternalError("no tensor");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(Tensor(), Not(TensorEq(error))),
                          "TensorEq expects a tensor, got INTERNAL: no tensor");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(Tensor(), Not(TensorNear(error))),
                          "TensorNear expects a tensor");
}

TEST(TensorNearTest, TolerancesAreThoseOfTheDtype) {
  // Below and above |a - e| <= atol + rtol * |e| at e = 1.
  const auto near = []<typename T>(T value, std::type_identity_t<T> expected) {
    return ::testing::Matches(TensorNear(One(expected)))(One(value));
  };
  EXPECT_TRUE(near(1.0f + 1.1e-5f, 1.0f));
  EXPECT_FALSE(near(1.0f + 1.2e-5f, 1.0f));
  EXPECT_TRUE(near(1.0 + 1.9e-7, 1.0));
  EXPECT_FALSE(near(1.0 + 2.1e-7, 1.0));
  // The next number is 2^-10 away in float16, 2^-7 in bfloat16.
  EXPECT_TRUE(near(Float16(1 + 0x1p-10), Float16(1)));
  EXPECT_FALSE(near(Float16(1 + 0x1p-9), Float16(1)));
  EXPECT_TRUE(near(BFloat16(1 + 0x1p-6), BFloat16(1)));
  EXPECT_FALSE(near(BFloat16(1 + 3 * 0x1p-7), BFloat16(1)));
  EXPECT_TRUE(near(std::complex<float>(0, 1.1e-5f + 1), {0, 1}));
  EXPECT_FALSE(near(std::complex<float>(0, 1.2e-5f + 1), {0, 1}));
  EXPECT_TRUE(near(std::complex<double>(1.9e-7 + 1, 0), {1, 0}));
  EXPECT_FALSE(near(std::complex<double>(2.1e-7 + 1, 0), {1, 0}));
  EXPECT_FALSE(near(Float8E5M2(1.25), Float8E5M2(1)));
  EXPECT_FALSE(near(Float8E4M3(1.125), Float8E4M3(1)));
  EXPECT_FALSE(near(int64_t{1'000'000'001}, int64_t{1'000'000'000}));
}

TEST(TensorNearTest, TheExpectedTensorScalesTheTolerance) {
  EXPECT_THAT(One(90.0), TensorNear(One(100.0), {.rtol = 0.1}));
  EXPECT_THAT(One(100.0), Not(TensorNear(One(90.0), {.rtol = 0.1})));
  EXPECT_THAT(One<int8_t>(-100), TensorNear(One<int8_t>(-90), {.atol = 10}));
  EXPECT_THAT(One<int8_t>(-100),
              Not(TensorNear(One<int8_t>(-90), {.rtol = 0.1, .atol = 0.9})));
  EXPECT_THAT(One<int8_t>(-100),
              TensorNear(One<int8_t>(-90), {.rtol = 0.1, .atol = 1}));
}

TEST(TensorNearTest, InfinitiesAreNearThemselvesOnly) {
  const Tolerance all = {.rtol = kInf, .atol = kInf};
  EXPECT_THAT(One(kInf), TensorNear(One(kInf), all));
  EXPECT_THAT(One(kInf), Not(TensorNear(One(-kInf), all)));
  EXPECT_THAT(One(1e308), Not(TensorNear(One(kInf), all)));
  EXPECT_THAT(One(kInf), Not(TensorNear(One(1e308), all)));
  EXPECT_THAT(One(kNan), Not(TensorNear(One(kInf), all)));
  EXPECT_THAT(One(1.0), TensorNear(One(2.0), all));
  using C = std::complex<double>;
  EXPECT_THAT(One(C(kInf, 1)), TensorNear(One(C(kInf, 2)), {.atol = 1}));
  EXPECT_THAT(One(C(kInf, 1)), Not(TensorNear(One(C(kInf, 2)), {.atol = 0.5})));
  EXPECT_THAT(One(C(kInf, 1)), Not(TensorNear(One(C(-kInf, 1)), all)));
}

TEST(TensorNearTest, NanIsNearNanByDefault) {
  const Tensor nan = Make<double>({1, kNan}, {2});
  EXPECT_THAT(nan, TensorNear(nan));
  EXPECT_THAT(nan, TensorNear(nan, {}));
  EXPECT_EQ(Explain(TensorNear(nan, {.equal_nan = false}), nan),
            "which differs in 1 of 2 elements, at [1]: nan = "
            "0x7ff8000000000000, expected nan = 0x7ff8000000000000");
  EXPECT_THAT(nan, Not(TensorNear(Make<double>({1, 1}, {2}), {.atol = 9})));
}

TEST(TensorNearTest, ReportsTheTolerance) {
  EXPECT_EQ(Explain(TensorNear(Make<float>({10, 20, 30}, {3}), {.rtol = 0.05}),
                    Make<float>({10.5, 22, 40}, {3})),
            "which differs in 2 of 3 elements, first at [1]: 22, expected 20; "
            "largest difference 10 at [2]: 40, expected 30, where 1.5 is "
            "allowed");
}

TEST(TensorNearTest, ToleranceIsNotNegative) {
  EXPECT_NONFATAL_FAILURE(
      EXPECT_THAT(One(2.0), Not(TensorNear(One(1.0), {.rtol = -1}))),
      "TensorNear expects tolerances that are not negative, got rtol -1 and");
  EXPECT_NONFATAL_FAILURE(TensorNear(One(1.0), {.atol = kNan}), "atol nan");
}

TEST(ExplainDifferenceTest, ShowsThePlaceInALargerTensorToo) {
  const Tensor expected = Iota({2, 2}, kInt32);
  const Tensor actual = expected.Clone().value();
  ASSERT_THAT(actual.Narrow({1, 0}, {1, 1}).value().Fill(9), IsOk());
  EXPECT_EQ(internal::ExplainDifference(actual, expected, {}, {5, 30}),
            "which differs in 1 of 4 elements, at [1, 0], of the whole "
            "[6, 30]: 9, expected 2; largest difference 7");
  EXPECT_EQ(internal::ExplainDifference(actual, actual, {}, {5, 30}), "");
}

}  // namespace
}  // namespace sherd::testing
