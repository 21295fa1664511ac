#include "sherd/core/tensor/kernels/elementwise.h"

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/core/tensor/kernels/elementwise_kernels.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/scalar.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename T>
Tensor Of(std::vector<T> values) {
  if constexpr (std::is_same_v<T, bool>) {
    return Of(std::vector<uint8_t>(values.begin(), values.end()))
        .ViewAs(kBool)
        .value();
  } else {
    return Tensor::FromSpan<T>(values, {static_cast<int64_t>(values.size())})
        .value();
  }
}

// Numbers of `dtype` that differ from element to element.
Tensor Numbers(DType dtype, std::vector<double> values) {
  return Of(values).To(dtype).value();
}

constexpr UnaryOp kUnaryOps[] = {
    UnaryOp::kNot,    UnaryOp::kNeg,        UnaryOp::kSquare, UnaryOp::kAbs,
    UnaryOp::kSign,   UnaryOp::kRelu,       UnaryOp::kFloor,  UnaryOp::kCeil,
    UnaryOp::kRound,  UnaryOp::kReciprocal, UnaryOp::kSqrt,   UnaryOp::kExp,
    UnaryOp::kLog,    UnaryOp::kSin,        UnaryOp::kCos,    UnaryOp::kTanh,
    UnaryOp::kSigmoid};
constexpr BinaryOp kBinaryOps[] = {
    BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv,
    BinaryOp::kMin, BinaryOp::kMax, BinaryOp::kPow};

char KindOf(DType dtype) {
  if (dtype == kBool) return 'b';
  if (IsInteger(dtype)) return 'i';
  return IsComplex(dtype) ? 'c' : 'f';
}

template <typename Op>
bool IsDefined(Op op, DType dtype) {
  const struct {
    const char* names;
    const char* kinds;
  } table[] = {{"not ", "bi"},
               {"neg square ", "ifc"},
               {"abs sign relu floor ceil round ", "if"},
               {"reciprocal sqrt exp log sin cos tanh sigmoid ", "fc"},
               {"add mul ", "bifc"},
               {"sub div pow ", "ifc"},
               {"min max ", "bif"}};
  const std::string name = std::string(Name(op)) + " ";
  for (const auto& row : table) {
    if (std::strstr(row.names, name.c_str()) == nullptr) continue;
    return std::strchr(row.kinds, KindOf(dtype)) != nullptr;
  }
  ADD_FAILURE() << op;
  return false;
}

TEST(ElementwiseTest, IsDefinedAsInTheTableAndRefusedByNameElsewhere) {
  for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    const Tensor ones = Tensor::Ones({3}, {.dtype = dtype}).value();
    const auto check = [&](auto op, const absl::Status& status) {
      if (IsDefined(op, dtype)) {
        EXPECT_THAT(status, IsOk()) << op;
        return;
      }
      EXPECT_THAT(status,
                  StatusIs(kInvalid, "the operation " + std::string(Name(op)) +
                                         " is not defined for " +
                                         std::string(Name(dtype))));
    };
    for (const UnaryOp op : kUnaryOps) {
      check(op, CheckElementwise(op, dtype));
      check(op, Apply(op, ones).status());
    }
    for (const BinaryOp op : kBinaryOps) {
      check(op, CheckElementwise(op, dtype));
      check(op, Apply(op, ones, ones).status());
      check(op, Apply(op, ones, 1).status());
    }
  }
}

// The operation's result for numbers that every float can hold, in double.
double Model(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::kNot:
      return 0;
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kSquare:
      return x * x;
    case UnaryOp::kAbs:
      return std::fabs(x);
    case UnaryOp::kSign:
      return (x > 0) - (x < 0);
    case UnaryOp::kRelu:
      return x > 0 ? x : 0;
    case UnaryOp::kFloor:
      return std::floor(x);
    case UnaryOp::kCeil:
      return std::ceil(x);
    case UnaryOp::kRound:
      return std::nearbyint(x);
    case UnaryOp::kReciprocal:
      return 1 / x;
    case UnaryOp::kSqrt:
      return std::sqrt(x);
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kSin:
      return std::sin(x);
    case UnaryOp::kCos:
      return std::cos(x);
    case UnaryOp::kTanh:
      return std::tanh(x);
    case UnaryOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return 0;
}
double Model(BinaryOp op, double x, double y) {
  switch (op) {
    case BinaryOp::kAdd:
      return x + y;
    case BinaryOp::kSub:
      return x - y;
    case BinaryOp::kMul:
      return x * y;
    case BinaryOp::kDiv:
      return x / y;
    case BinaryOp::kMin:
      return std::min(x, y);
    case BinaryOp::kMax:
      return std::max(x, y);
    case BinaryOp::kPow:
      return std::pow(x, y);
  }
  return 0;
}

double ToleranceOf(DType dtype) {
  switch (dtype) {
    case kFloat8E4M3:
      return 0x1p-3;
    case kFloat8E5M2:
      return 0x1p-2;
    case kFloat16:
      return 0x1p-10;
    case kBFloat16:
      return 0x1p-7;
    case kFloat32:
    case kComplex64:
      return 0x1p-21;
    default:
      return 0x1p-50;
  }
}

TEST(ElementwiseTest, ComputesFloatsAndComplexNumbersAsTheLibraryDoes) {
  const std::vector<double> xs = {0.25, 0.5,  0.75, 1,   1.25, 1.5,
                                  1.75, 2,    2.5,  3,   3.5,  4,
                                  -0.5, -1.5, -2.5, 1.5, -1,   -3.5};
  const std::vector<double> ys = {0.5, -2,  1,    0.25, 3,   -1.5,
                                  2,   1.5, 0.75, -0.5, 1.5, 0.5,
                                  2,   -1,  3,    1.5,  1,   2};
  for (const DType dtype : {kFloat8E4M3, kFloat8E5M2, kFloat16, kBFloat16,
                            kFloat32, kFloat64, kComplex64, kComplex128}) {
    const double tolerance = ToleranceOf(dtype);
    const Tensor a = Numbers(dtype, xs);
    const Tensor b = Numbers(dtype, ys);
    const auto compare = [&](auto op, const Tensor& got,
                             const std::vector<double>& expected) {
      ASSERT_EQ(got.dtype(), dtype);
      const Tensor wide = got.To(kFloat64).value();
      for (size_t i = 0; i < expected.size(); ++i) {
        // Roots and logarithms of negative numbers are not real.
        if (std::isnan(expected[i])) continue;
        EXPECT_NEAR(wide.data_as<double>()[i], expected[i],
                    tolerance * std::max(0.25, std::fabs(expected[i])))
            << op << " of " << Name(dtype) << " at " << i;
      }
    };
    for (const UnaryOp op : kUnaryOps) {
      if (!IsDefined(op, dtype)) continue;
      std::vector<double> expected;
      for (const double x : xs) expected.push_back(Model(op, x));
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor got, Apply(op, a));
      compare(op, got, expected);
    }
    for (const BinaryOp op : kBinaryOps) {
      if (!IsDefined(op, dtype)) continue;
      std::vector<double> expected;
      for (size_t i = 0; i < xs.size(); ++i) {
        expected.push_back(Model(op, xs[i], ys[i]));
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor got, Apply(op, a, b));
      compare(op, got, expected);
      for (size_t i = 0; i < xs.size(); ++i) {
        expected[i] = Model(op, xs[i], 1.5);
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor right, Apply(op, a, 1.5));
      compare(op, right, expected);
      for (size_t i = 0; i < xs.size(); ++i) {
        expected[i] = Model(op, 1.5, xs[i]);
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor left, Apply(op, 1.5, a));
      compare(op, left, expected);
    }
  }
}

TEST(ElementwiseTest, ComputesComplexNumbersInTheirPlane) {
  using C = std::complex<double>;
  const Tensor a = Of<C>({{1, 2}, {-3, 0.5}});
  const Tensor b = Of<C>({{0, -1}, {2, 2}});
  EXPECT_THAT(Apply(BinaryOp::kMul, a, b),
              IsOkAndHolds(TensorEq(Of<C>({{2, -1}, {-7, -5}}))));
  EXPECT_THAT(Apply(BinaryOp::kDiv, a, C(0, 1)),
              IsOkAndHolds(TensorEq(Of<C>({{2, -1}, {0.5, 3}}))));
  EXPECT_THAT(Apply(UnaryOp::kSquare, a),
              IsOkAndHolds(TensorEq(Of<C>({{-3, 4}, {8.75, -3}}))));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor root,
                             Apply(UnaryOp::kSqrt, Of<C>({{-4, 0}})));
  EXPECT_NEAR(root.data_as<C>()[0].imag(), 2, 1e-12);
  EXPECT_THAT(Apply(UnaryOp::kAbs, a), StatusIs(kInvalid, "ViewAsReal"));
}

template <typename T>
class ElementwiseIntegerTest : public ::testing::Test {};
using Integers = ::testing::Types<uint8_t, int8_t, uint16_t, int16_t, uint32_t,
                                  int32_t, uint64_t, int64_t>;
TYPED_TEST_SUITE(ElementwiseIntegerTest, Integers);

TYPED_TEST(ElementwiseIntegerTest, ComputesModuloTwoToTheBits) {
  using T = TypeParam;
  using Unsigned = std::make_unsigned_t<T>;
  const T low = std::numeric_limits<T>::min();
  const T high = std::numeric_limits<T>::max();
  const std::vector<T> xs = {low, high, 0, 1, 3, 100, T(-1), T(-7), 42};
  const std::vector<T> ys = {T(-1), 2, 5, high, low, 7, T(-1), 3, 6};
  const Tensor a = Of(xs);
  const auto expect = [&](const absl::StatusOr<Tensor>& got, auto model) {
    std::vector<T> expected;
    for (size_t i = 0; i < xs.size(); ++i) {
      expected.push_back(static_cast<T>(model(xs[i], ys[i])));
    }
    EXPECT_THAT(got, IsOkAndHolds(TensorEq(Of(expected))));
  };
  const auto wrapped = [](T x) { return static_cast<Unsigned>(x); };
  using U = uint64_t;
  expect(Apply(BinaryOp::kAdd, a, Of(ys)),
         [&](T x, T y) { return U{wrapped(x)} + U{wrapped(y)}; });
  expect(Apply(BinaryOp::kSub, a, Of(ys)),
         [&](T x, T y) { return U{wrapped(x)} - U{wrapped(y)}; });
  expect(Apply(BinaryOp::kMul, a, Of(ys)),
         [&](T x, T y) { return U{wrapped(x)} * U{wrapped(y)}; });
  expect(Apply(BinaryOp::kMin, a, Of(ys)),
         [](T x, T y) { return std::min(x, y); });
  expect(Apply(BinaryOp::kMax, a, Of(ys)),
         [](T x, T y) { return std::max(x, y); });
  expect(Apply(BinaryOp::kDiv, a, T(7)), [](T x, T) { return x / 7; });
  expect(Apply(UnaryOp::kNot, a), [](T x, T) { return ~x; });
  expect(Apply(UnaryOp::kNeg, a), [&](T x, T) { return U{0} - U{wrapped(x)}; });
  expect(Apply(UnaryOp::kSquare, a),
         [&](T x, T) { return U{wrapped(x)} * U{wrapped(x)}; });
  expect(Apply(UnaryOp::kAbs, a), [&](T x, T) {
    return x < T{0} ? U{0} - U{wrapped(x)} : U{wrapped(x)};
  });
  expect(Apply(UnaryOp::kSign, a),
         [](T x, T) { return (x > T{0}) - (x < T{0}); });
  expect(Apply(UnaryOp::kRelu, a), [](T x, T) { return x < T{0} ? T{0} : x; });
  expect(Apply(UnaryOp::kRound, a), [](T x, T) { return x; });
  expect(Apply(BinaryOp::kPow, a, 5), [&](T x, T) {
    const U u = wrapped(x);
    return u * u * u * u * u;
  });
  EXPECT_THAT(Apply(BinaryOp::kPow, Scalar(2), Of<T>({0, 1, 6})),
              IsOkAndHolds(TensorEq(Of<T>({1, 2, 64}))));
}

TYPED_TEST(ElementwiseIntegerTest, RefusesDivisionByZeroBeforeItWrites) {
  using T = TypeParam;
  Tensor a = Of<T>({7, 8, 9});
  const Tensor before = a.Clone().value();
  EXPECT_THAT(ApplyInPlace(BinaryOp::kDiv, a, Of<T>({1, 2, 0})),
              StatusIs(kInvalid, "by zero"));
  EXPECT_THAT(ApplyInPlace(BinaryOp::kDiv, a, 0),
              StatusIs(kInvalid, "by zero"));
  EXPECT_THAT(Apply(BinaryOp::kDiv, 1, Of<T>({1, 0})),
              StatusIs(kInvalid, "by zero"));
  EXPECT_THAT(a, TensorEq(before));
  if constexpr (std::is_signed_v<T>) {
    const T low = std::numeric_limits<T>::min();
    EXPECT_THAT(Apply(BinaryOp::kDiv, Of<T>({low, T(-7)}), Of<T>({-1, 2})),
                IsOkAndHolds(TensorEq(Of<T>({low, -3}))));
    EXPECT_THAT(Apply(BinaryOp::kPow, a, Of<T>({1, -1, 2})),
                StatusIs(kInvalid, "negative integer powers"));
    EXPECT_THAT(Apply(BinaryOp::kPow, a, -2),
                StatusIs(kInvalid, "negative integer powers"));
  }
}

TEST(ElementwiseTest, BoolsAreTrueWhateverTheirByte) {
  std::vector<uint8_t> bytes = {0, 1, 2, 255};
  const Tensor odd = Of(bytes).ViewAs(kBool).value();
  const Tensor other = Of<bool>({false, true, false, true});
  EXPECT_THAT(Apply(BinaryOp::kAdd, odd, other),
              IsOkAndHolds(TensorEq(Of<bool>({false, true, true, true}))));
  EXPECT_THAT(Apply(BinaryOp::kMax, odd, other),
              IsOkAndHolds(TensorEq(Of<bool>({false, true, true, true}))));
  EXPECT_THAT(Apply(BinaryOp::kMul, odd, other),
              IsOkAndHolds(TensorEq(Of<bool>({false, true, false, true}))));
  EXPECT_THAT(Apply(BinaryOp::kMin, odd, true),
              IsOkAndHolds(TensorEq(Of<bool>({false, true, true, true}))));
  EXPECT_THAT(Apply(UnaryOp::kNot, odd),
              IsOkAndHolds(TensorEq(Of<bool>({true, false, false, false}))));
}

TEST(ElementwiseTest, KeepsTheRulesForNanAndZero) {
  for (const DType dtype : {kBFloat16, kFloat16, kFloat32, kFloat64}) {
    const Tensor a = Numbers(dtype, {kNan, 1, 0.0, -0.0, -kInf});
    const Tensor b = Numbers(dtype, {2, kNan, -0.0, 0.0, kNan});
    for (const BinaryOp op : {BinaryOp::kMin, BinaryOp::kMax}) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor got, Apply(op, a, b));
      const Tensor wide = got.To(kFloat64).value();
      const double* at = wide.data_as<double>();
      EXPECT_TRUE(std::isnan(at[0]) && std::isnan(at[1]) && std::isnan(at[4]));
      EXPECT_TRUE(std::signbit(at[2]) && !std::signbit(at[3])) << op;
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor relu, Apply(UnaryOp::kRelu, a));
    const Tensor wide = relu.To(kFloat64).value();
    EXPECT_TRUE(std::isnan(wide.data_as<double>()[0]));
    EXPECT_EQ(wide.data_as<double>()[4], 0);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor sign, Apply(UnaryOp::kSign, a));
    EXPECT_TRUE(std::isnan(sign.To(kFloat64)->data_as<double>()[0]));
    EXPECT_EQ(sign.To(kFloat64)->data_as<double>()[4], -1);
  }
}

// Every number of 8 or 16 bits is converted as by the class, and so is every
// sum and product of two, in code for every processor.
template <typename T>
void CheckSmallFloats(internal::ElementwiseTarget target, DType dtype) {
  using Bits = typename T::Bits;
  std::mt19937 random(7);
  const size_t codes = size_t{1} << (8 * sizeof(Bits));
  std::vector<Bits> a;
  for (size_t i = 0; i < 16 * codes; ++i) a.push_back(static_cast<Bits>(i));
  std::vector<Bits> b;
  while (b.size() < a.size()) b.push_back(static_cast<Bits>(random()));
  const int64_t step = sizeof(Bits);
  const auto at = [&](const std::vector<Bits>& v) {
    return internal::RunOperand{reinterpret_cast<const std::byte*>(v.data()),
                                step};
  };
  std::vector<Bits> out(a.size());
  const auto check = [&](auto op, auto model) {
    auto* to = reinterpret_cast<std::byte*>(out.data());
    const auto count = static_cast<int64_t>(out.size());
    if constexpr (std::is_same_v<decltype(op), UnaryOp>) {
      internal::RunElementwise(target, op, dtype, to, step, at(a), count);
    } else {
      internal::RunElementwise(target, op, dtype, to, step, at(a), at(b),
                               count);
    }
    int wrong = 0;
    for (size_t i = 0; i < a.size() && wrong < 5; ++i) {
      const float x = static_cast<float>(T::FromBits(a[i]));
      const float y = static_cast<float>(T::FromBits(b[i]));
      const T expected(model(x, y));
      const T got = T::FromBits(out[i]);
      const bool both_nan = expected != expected && got != got;
      if (both_nan || got.bits() == expected.bits()) continue;
      ++wrong;
      ADD_FAILURE() << op << " of " << Name(dtype) << ": " << x << ", " << y
                    << " gives " << got.bits() << ", expected "
                    << expected.bits();
    }
  };
  check(UnaryOp::kNeg, [](float x, float) { return -x; });
  check(BinaryOp::kAdd, [](float x, float y) { return x + y; });
  check(BinaryOp::kMul, [](float x, float y) { return x * y; });
  check(BinaryOp::kDiv, [](float x, float y) { return x / y; });
}

TEST(ElementwiseTest, RoundsSmallFloatsOnceOnEveryProcessor) {
  for (int target = 0;
       target <= static_cast<int>(internal::BestElementwiseTarget());
       ++target) {
    const auto t = static_cast<internal::ElementwiseTarget>(target);
    CheckSmallFloats<Float16>(t, kFloat16);
    CheckSmallFloats<BFloat16>(t, kBFloat16);
    CheckSmallFloats<Float8E4M3>(t, kFloat8E4M3);
    CheckSmallFloats<Float8E5M2>(t, kFloat8E5M2);
  }
}

TEST(ElementwiseTest, HasTheSameBitsOnEveryProcessor) {
  std::mt19937_64 random(11);
  constexpr int64_t kCount = 1003;
  for (int32_t number = 1; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    const auto step = static_cast<int64_t>(SizeOf(dtype));
    std::vector<uint64_t> words[2];
    for (auto& w : words) {
      // Small exponents, so that most numbers are finite.
      while (w.size() < kCount * 2) w.push_back(random() & 0xbf3fbf3fbf3fbf3f);
    }
    const auto operand = [&](int i) {
      return internal::RunOperand{
          reinterpret_cast<const std::byte*>(words[i].data()), step};
    };
    const auto run = [&](auto op, internal::ElementwiseTarget target) {
      std::vector<std::byte> out(kCount * 16);
      if constexpr (std::is_same_v<decltype(op), UnaryOp>) {
        internal::RunElementwise(target, op, dtype, out.data(), step,
                                 operand(0), kCount);
      } else {
        internal::RunElementwise(target, op, dtype, out.data(), step,
                                 operand(0), operand(1), kCount);
      }
      return out;
    };
    const auto check = [&](auto op) {
      if (!IsDefined(op, dtype)) return;
      EXPECT_EQ(run(op, internal::ElementwiseTarget::kBaseline),
                run(op, internal::BestElementwiseTarget()))
          << op << " of " << Name(dtype);
    };
    for (const UnaryOp op : kUnaryOps) check(op);
    for (const BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul,
                              BinaryOp::kMin, BinaryOp::kMax}) {
      check(op);
    }
  }
}

// Strides

TEST(ElementwiseTest, TakesAnyStrides) {
  for (const DType dtype : {kInt32, kFloat16, kFloat64, kComplex64, kBool}) {
    std::vector<double> xs;
    std::vector<double> ys;
    for (int i = 0; i < 40 * 30; ++i) {
      xs.push_back(i % 7);
      ys.push_back(i % 5 + 1);
    }
    const Tensor a = Numbers(dtype, xs).Reshape({40, 30}).value();
    const Tensor b = Numbers(dtype, ys).Reshape({30, 40}).value();
    const Tensor across = b.Transpose(0, 1).value();
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor expected,
                               Apply(BinaryOp::kAdd, a, *across.Clone()));
    EXPECT_TRUE(expected.is_contiguous());
    EXPECT_THAT(Apply(BinaryOp::kAdd, a, across),
                IsOkAndHolds(TensorBitwiseEq(expected)));
    Tensor room = Tensor::Zeros({31, 90}, {.dtype = dtype}).value();
    Tensor out =
        room.Narrow(1, 3, 40)->Narrow(0, 1, 30)->Transpose(0, 1).value();
    EXPECT_THAT(ApplyInto(BinaryOp::kAdd, a, across, out), IsOk());
    EXPECT_THAT(out, TensorBitwiseEq(expected));
    // Nothing else was written.
    EXPECT_THAT(
        room.Narrow(1, 0, 3),
        IsOkAndHolds(TensorEq(Tensor::Zeros({31, 3}, {.dtype = dtype}))));
    EXPECT_THAT(
        room.Narrow(1, 43, 47),
        IsOkAndHolds(TensorEq(Tensor::Zeros({31, 47}, {.dtype = dtype}))));
    // A column that is read over and over.
    const Tensor repeated =
        Tensor::FromStorageStrided(b.storage(), 0, {40, 30}, {1, 0}, dtype)
            .value();
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor from_copy,
                               Apply(BinaryOp::kMul, a, *repeated.Clone()));
    EXPECT_THAT(Apply(BinaryOp::kMul, a, repeated),
                IsOkAndHolds(TensorBitwiseEq(from_copy)));
  }
}

TEST(ElementwiseTest, ComputesInPlaceWhateverTheOperandsShare) {
  Tensor line = Tensor::Empty({2000}, {.dtype = kFloat32}).value();
  const auto restart = [&] {
    for (int i = 0; i < 2000; ++i) line.mutable_data_as<float>()[i] = i;
  };
  restart();
  ASSERT_THAT(ApplyInPlace(BinaryOp::kAdd, line, line), IsOk());
  EXPECT_EQ(line.data_as<float>()[1999], 2 * 1999);

  // Each element plus its left neighbour, as it was.
  restart();
  Tensor right = line.Narrow(0, 1, 1999).value();
  const Tensor left = line.Narrow(0, 0, 1999).value();
  ASSERT_THAT(ApplyInPlace(BinaryOp::kAdd, right, left), IsOk());
  for (int i = 1; i < 2000; ++i) {
    ASSERT_EQ(line.data_as<float>()[i], 2 * i - 1);
  }

  restart();
  Tensor square = line.Narrow(0, 0, 1600)->Reshape({40, 40}).value();
  const Tensor turned = square.Transpose(0, 1).value();
  ASSERT_THAT(ApplyInPlace(BinaryOp::kSub, square, turned), IsOk());
  EXPECT_EQ(line.data_as<float>()[3 * 40 + 5], 3 * 40 + 5 - (5 * 40 + 3));

  restart();
  ASSERT_THAT(ApplyInto(UnaryOp::kNeg, left, right), IsOk());
  EXPECT_EQ(line.data_as<float>()[1999], -1998);
  EXPECT_EQ(line.data_as<float>()[0], 0);
}

TEST(ElementwiseTest, HasNothingToDoWithoutElementsOrData) {
  const Tensor empty = Tensor::Empty({3, 0}, {.dtype = kInt32}).value();
  EXPECT_THAT(Apply(UnaryOp::kNeg, empty), IsOkAndHolds(TensorEq(empty)));
  EXPECT_THAT(Apply(BinaryOp::kDiv, empty, empty),
              IsOkAndHolds(TensorEq(empty)));
  const TensorOptions meta = {.device = Device::Parse("meta").value()};
  Tensor ghost = Tensor::Empty({4}, meta).value();
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor result,
                             Apply(BinaryOp::kAdd, ghost, 1));
  EXPECT_TRUE(result.device().is_meta());
  EXPECT_THAT(ApplyInPlace(UnaryOp::kExp, ghost), IsOk());
  EXPECT_THAT(Apply(BinaryOp::kAdd, ghost, Tensor::Zeros({4}).value()),
              StatusIs(kState, "meta"));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor scalar, Tensor::Scalar(3.0));
  EXPECT_THAT(Apply(BinaryOp::kMul, scalar, scalar),
              IsOkAndHolds(TensorEq(Tensor::Scalar(9.0))));
}

TEST(ElementwiseTest, RefusesScalarsThatTheDTypeCannotHold) {
  const struct {
    DType dtype;
    Scalar scalar;
    const char* phrase;
  } cases[] = {
      {kInt32, 2.5, "2.5 is not a whole number"},
      {kInt8, 128, "128"},
      {kUInt64, -1, "-1"},
      {kInt64, kNan, "not a whole number"},
      {kBool, 2, "2"},
      {kFloat64, std::complex<double>(1, 2), "imaginary"},
      {kFloat32, 1e300, "1e+300"},
      {kInt32, std::complex<float>(1, 2), "not a whole number"},
  };
  for (const auto& c : cases) {
    Tensor a = Tensor::Ones({2}, {.dtype = c.dtype}).value();
    EXPECT_THAT(ApplyInPlace(BinaryOp::kAdd, a, c.scalar),
                StatusIs(kInvalid, c.phrase))
        << Name(c.dtype);
    EXPECT_THAT(a, TensorEq(Tensor::Ones({2}, {.dtype = c.dtype})));
  }
  EXPECT_THAT(Apply(BinaryOp::kAdd, Of<int64_t>({1}), int64_t{1} << 60),
              IsOkAndHolds(TensorEq(Of<int64_t>({(int64_t{1} << 60) + 1}))));
  EXPECT_THAT(Apply(BinaryOp::kMul, Of<int16_t>({3}), 2.0),
              IsOkAndHolds(TensorEq(Of<int16_t>({6}))));
  // A scalar that float16 has no number for still scales one.
  EXPECT_THAT(Apply(BinaryOp::kMul, Numbers(kFloat16, {0.5}), 1e5),
              IsOkAndHolds(TensorEq(Numbers(kFloat16, {50000}))));
}

TEST(ElementwiseTest, RefusesWhatItCannotReadOrWrite) {
  Tensor ones = Tensor::Ones({2, 3}).value();
  const Tensor undefined;
  EXPECT_THAT(Apply(UnaryOp::kNeg, undefined), StatusIs(kState, "undefined"));
  EXPECT_THAT(Apply(BinaryOp::kAdd, ones, undefined),
              StatusIs(kState, "undefined"));
  EXPECT_THAT(Apply(BinaryOp::kAdd, ones, Tensor::Ones({3, 2}).value()),
              StatusIs(kInvalid, "[2, 3] and [3, 2]"));
  EXPECT_THAT(Apply(BinaryOp::kAdd, ones, *ones.To(kInt32)),
              StatusIs(kInvalid, "float32 and int32"));
  Tensor repeated =
      Tensor::FromStorageStrided(ones.storage(), 0, {2, 3}, {0, 1}, kFloat32)
          .value();
  EXPECT_THAT(ApplyInPlace(UnaryOp::kNeg, repeated),
              StatusIs(kInvalid, "coincide"));
  const float values[] = {1, 2};
  Tensor constant = Tensor::FromStorage(
                        Storage::BorrowReadOnly(values, sizeof(values)).value(),
                        0, {2}, kFloat32)
                        .value();
  EXPECT_THAT(ApplyInPlace(UnaryOp::kNeg, constant),
              StatusIs(kState, "read-only"));
  EXPECT_THAT(Apply(UnaryOp::kNeg, constant),
              IsOkAndHolds(TensorEq(Of<float>({-1, -2}))));
}

TEST(ScalarTest, KeepsTheTypeThatItWasGiven) {
  EXPECT_EQ(Scalar(true).dtype(), kBool);
  EXPECT_EQ(Scalar(1).dtype(), kInt32);
  EXPECT_EQ(Scalar(1LL).dtype(), kInt64);
  EXPECT_EQ(Scalar('c').dtype(), kInt8);
  EXPECT_EQ(Scalar(1.5f).dtype(), kFloat32);
  EXPECT_EQ(Scalar(BFloat16(1.5f)).dtype(), kBFloat16);
  EXPECT_EQ(Scalar(std::complex<double>(1, 2)).ToString(), "(1,2)");
  EXPECT_EQ(Scalar(int8_t{-3}).ToString(), "-3");
  EXPECT_EQ(Scalar(0.5).ToString(), "0.5");
  static_assert(!std::is_convertible_v<const char*, Scalar>);
  static_assert(!std::is_convertible_v<std::string, Scalar>);
  static_assert(!std::is_convertible_v<Tensor, Scalar>);
}

}  // namespace
}  // namespace sherd
