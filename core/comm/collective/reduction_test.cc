#include "sherd/core/comm/reduction.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using internal::ReductionTarget;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

template <typename T>
constexpr bool kIsComplex = std::is_same_v<T, std::complex<float>> ||
                            std::is_same_v<T, std::complex<double>>;
template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// A model of `Reduce`, one element at a time and in other arithmetic where that
// is exact: bool as int, integers as 128 bits, small floats as float.

bool ReferenceOf(ReduceOp op, const std::vector<bool>& values, int) {
  int trues = 0;
  for (const bool value : values) trues += value ? 1 : 0;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return trues > 0;
    case ReduceOp::kBxor:
      return trues % 2 == 1;
    default:
      return trues == static_cast<int>(values.size());
  }
}

template <typename T>
requires kIsInteger<T> T ReferenceOf(ReduceOp op, const std::vector<T>& values,
                                     int divisor) {
  unsigned __int128 result = static_cast<unsigned __int128>(values[0]);
  const auto signed_value = [](unsigned __int128 value) {
    return static_cast<__int128>(static_cast<T>(value));
  };
  for (size_t k = 1; k < values.size(); ++k) {
    const auto next = static_cast<unsigned __int128>(values[k]);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result += next;
        break;
      case ReduceOp::kProduct:
        result *= next;
        break;
      case ReduceOp::kMin:
        if (signed_value(next) < signed_value(result)) result = next;
        break;
      case ReduceOp::kMax:
        if (signed_value(next) > signed_value(result)) result = next;
        break;
      case ReduceOp::kBand:
        result &= next;
        break;
      case ReduceOp::kBor:
        result |= next;
        break;
      case ReduceOp::kBxor:
        result ^= next;
        break;
    }
  }
  if (op == ReduceOp::kAvg) {
    return static_cast<T>(signed_value(result) / divisor);
  }
  return static_cast<T>(result);
}

template <typename T>
T FloatReference(ReduceOp op, const std::vector<T>& values, int divisor) {
  T result = values[0];
  for (size_t k = 1; k < values.size(); ++k) {
    const T next = values[k];
    switch (op) {
      case ReduceOp::kProduct:
        result = result * next;
        break;
      case ReduceOp::kMin:
        if (!std::isnan(result) && !(result < next)) result = next;
        break;
      case ReduceOp::kMax:
        if (!std::isnan(result) && !(result > next)) result = next;
        break;
      default:
        result = result + next;
    }
  }
  return op == ReduceOp::kAvg ? result / static_cast<T>(divisor) : result;
}

float ReferenceOf(ReduceOp op, const std::vector<float>& values, int divisor) {
  return FloatReference(op, values, divisor);
}
double ReferenceOf(ReduceOp op, const std::vector<double>& values,
                   int divisor) {
  return FloatReference(op, values, divisor);
}

template <typename Format>
internal::SmallFloat<Format> ReferenceOf(
    ReduceOp op, const std::vector<internal::SmallFloat<Format>>& values,
    int divisor) {
  std::vector<float> wide;
  for (const auto value : values) wide.push_back(static_cast<float>(value));
  return internal::SmallFloat<Format>(FloatReference(op, wide, divisor));
}

template <typename T>
std::complex<T> ReferenceOf(ReduceOp op,
                            const std::vector<std::complex<T>>& values,
                            int divisor) {
  T real = values[0].real();
  T imag = values[0].imag();
  for (size_t k = 1; k < values.size(); ++k) {
    const T re = values[k].real();
    const T im = values[k].imag();
    if (op == ReduceOp::kProduct) {
      const T old = real;
      real = old * re - imag * im;
      imag = old * im + imag * re;
    } else {
      real = real + re;
      imag = imag + im;
    }
  }
  if (op == ReduceOp::kAvg) {
    real = real / static_cast<T>(divisor);
    imag = imag / static_cast<T>(divisor);
  }
  return {real, imag};
}

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else if constexpr (kIsComplex<T>) {
    return false;
  } else {
    return std::isnan(static_cast<double>(value));
  }
}

template <typename T>
bool Same(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return Same(a.real(), b.real()) && Same(a.imag(), b.imag());
  } else {
    return (IsNan(a) && IsNan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
  }
}

template <typename T>
std::string Show(T value) {
  if constexpr (kIsComplex<T>) {
    return absl::StrCat("(", value.real(), ", ", value.imag(), ")");
  } else if constexpr (std::is_integral_v<T>) {
    return absl::StrCat(+value);
  } else {
    return absl::StrCat(static_cast<double>(value));
  }
}

// Half of the elements are any bits, the others moderate numbers.
template <typename T>
T RandomElement(std::mt19937_64& random) {
  T value;
  const bool moderate = random() % 2 == 0;
  if constexpr (std::is_same_v<T, bool>) {
    value = moderate;
  } else if constexpr (kIsComplex<T>) {
    using Real = typename T::value_type;
    value = T(RandomElement<Real>(random), RandomElement<Real>(random));
  } else if (moderate) {
    value = static_cast<T>(static_cast<int>(random() % 61) - 30);
    if constexpr (!std::is_integral_v<T>) {
      value = static_cast<T>(static_cast<float>(value) / 7.0f);
    }
  } else {
    const uint64_t bits = random();
    static_assert(sizeof(T) <= sizeof(bits));
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  }
  return value;
}

// An array of T at any address, with bytes around it that must not change.
template <typename T>
class UnalignedArray {
 public:
  UnalignedArray(size_t count, size_t misalignment)
      : count_(count),
        begin_(kGuard + misalignment),
        bytes_(begin_ + count * sizeof(T) + kGuard, std::byte{0xa5}) {}

  void* data() { return bytes_.data() + begin_; }
  void Set(size_t i, T value) {
    std::memcpy(bytes_.data() + begin_ + i * sizeof(T), &value, sizeof(T));
  }
  T Get(size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + begin_ + i * sizeof(T), sizeof(T));
    return value;
  }
  bool GuardsAreIntact() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool is_guard = i < begin_ || i >= begin_ + count_ * sizeof(T);
      if (is_guard && bytes_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t count_;
  size_t begin_;
  std::vector<std::byte> bytes_;
};

struct Case {
  ReductionTarget target = ReductionTarget::kBaseline;
  ReduceOp op = ReduceOp::kSum;
  size_t num_ins = 2;
  size_t count = 0;
  int divisor = 3;
  // Which input is the output too; -1 for none.
  int in_place = -1;
};

std::string Describe(const Case& c, DType dtype) {
  return absl::StrCat(Name(c.op), " of ", Name(dtype), ", target ",
                      static_cast<int>(c.target), ", ", c.num_ins,
                      " inputs, count ", c.count, ", divisor ", c.divisor,
                      ", in place ", c.in_place);
}

// Reduces random arrays and compares each element with ReferenceOf.
template <typename T>
void CheckRandom(const Case& c, std::mt19937_64& random) {
  SCOPED_TRACE(Describe(c, DTypeOf<T>()));
  std::vector<UnalignedArray<T>> arrays;
  for (size_t k = 0; k < c.num_ins; ++k) {
    arrays.emplace_back(c.count, random() % 9);
    for (size_t i = 0; i < c.count; ++i) {
      arrays[k].Set(i, RandomElement<T>(random));
    }
  }
  std::vector<T> expected;
  for (size_t i = 0; i < c.count; ++i) {
    std::vector<T> column;
    for (const auto& array : arrays) column.push_back(array.Get(i));
    expected.push_back(ReferenceOf(c.op, column, c.divisor));
  }
  UnalignedArray<T> separate(c.count, random() % 9);
  UnalignedArray<T>& out =
      c.in_place < 0 ? separate : arrays[static_cast<size_t>(c.in_place)];
  std::vector<const void*> ins;
  for (auto& array : arrays) ins.push_back(array.data());
  internal::ReduceWith(c.target, c.op, DTypeOf<T>(), out.data(), ins, c.count,
                       c.divisor);
  for (size_t i = 0; i < c.count; ++i) {
    ASSERT_TRUE(Same<T>(out.Get(i), expected[i]))
        << "element " << i << ": " << Show<T>(out.Get(i)) << " for "
        << Show<T>(expected[i]);
  }
  ASSERT_TRUE(out.GuardsAreIntact());
}

std::vector<ReductionTarget> Targets() {
  std::vector<ReductionTarget> targets;
  for (int i = 0; i <= static_cast<int>(internal::BestReductionTarget()); ++i) {
    targets.push_back(static_cast<ReductionTarget>(i));
  }
  return targets;
}

// Calls `visitor(tag, op)` for every defined combination.
template <typename Visitor>
void ForEachReduction(const Visitor& visitor) {
  for (int d = 0; d < kNumComputedDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      const auto dtype = static_cast<DType>(d);
      if (!CheckReduction(op, dtype).ok()) continue;
      DispatchDType(dtype, [&](auto tag) { visitor(tag, op); });
    }
  }
}

TEST(ReductionTest, EveryReductionIsThatOfItsElementsForEveryInstructionSet) {
  constexpr uint64_t kSeed = 20240917;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  int combinations = 0;
  ForEachReduction([&](auto tag, ReduceOp op) {
    using T = typename decltype(tag)::type;
    ++combinations;
    for (const ReductionTarget target : Targets()) {
      for (const size_t count : {0, 1, 3, 7, 64, 255, 1003}) {
        for (const size_t num_ins : {1, 2, 3, 5}) {
          for (const int divisor : {1, 3, 4}) {
            if (op != ReduceOp::kAvg && divisor != 3) continue;
            CheckRandom<T>({target, op, num_ins, count, divisor}, random);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
  // 7 for bool, 8 each for 8 integers, 5 for 6 floats, 3 for 2 complex.
  EXPECT_EQ(combinations, 7 + 8 * 8 + 6 * 5 + 2 * 3);
}

TEST(ReductionTest, TheOutputMayBeAnyOneOfTheInputs) {
  constexpr uint64_t kSeed = 77;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  ForEachReduction([&](auto tag, ReduceOp op) {
    using T = typename decltype(tag)::type;
    for (int in_place = 0; in_place < 4; ++in_place) {
      for (const size_t count : {1, 7, 5003}) {
        CheckRandom<T>(
            {internal::BestReductionTarget(), op, 4, count, 4, in_place},
            random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(ReductionTest, ManyInputsAreReducedFromLeftToRight) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  for (const size_t num_ins : {8, 17, 64}) {
    const Case c = {internal::BestReductionTarget(), ReduceOp::kSum, num_ins,
                    1003};
    CheckRandom<float>(c, random);
    CheckRandom<BFloat16>(c, random);
    CheckRandom<int64_t>(c, random);
  }
}

TEST(ReductionTest, OneArrayMayBeSeveralInputs) {
  const std::vector<float> values = {1.5f, -2.0f, 0.25f};
  std::vector<float> out(3);
  const void* const ins[] = {values.data(), values.data(), values.data()};
  Reduce(ReduceOp::kSum, kFloat32, out.data(), ins, 3, 1);
  EXPECT_EQ(out, (std::vector<float>{4.5f, -6.0f, 0.75f}));
}

// Every pair of codes, so that rounding is tried at every place.
template <typename T>
void CheckAllPairsOfBytes() {
  std::vector<T> a, b;
  for (int i = 0; i < 256; ++i) {
    for (int j = 0; j < 256; ++j) {
      a.push_back(T::FromBits(static_cast<uint8_t>(i)));
      b.push_back(T::FromBits(static_cast<uint8_t>(j)));
    }
  }
  for (const ReductionTarget target : Targets()) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
          ReduceOp::kMax}) {
      SCOPED_TRACE(Describe({target, op}, DTypeOf<T>()));
      std::vector<T> out(a.size(), T(0));
      const void* const ins[] = {a.data(), b.data()};
      internal::ReduceWith(target, op, DTypeOf<T>(), out.data(), ins, a.size(),
                           2);
      for (size_t i = 0; i < out.size(); ++i) {
        const T expected = ReferenceOf(op, std::vector<T>{a[i], b[i]}, 2);
        ASSERT_TRUE(Same(out[i], expected))
            << Show(a[i]) << ", " << Show(b[i]) << ": " << Show(out[i])
            << " for " << Show(expected);
      }
    }
  }
}

TEST(ReductionTest, EveryPairOfFloat8E4M3IsRoundedOnce) {
  CheckAllPairsOfBytes<Float8E4M3>();
}

TEST(ReductionTest, EveryPairOfFloat8E5M2IsRoundedOnce) {
  CheckAllPairsOfBytes<Float8E5M2>();
}

// Every code, alone and with random partners.
template <typename T>
void CheckAllCodes() {
  constexpr uint64_t kSeed = 99;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  std::vector<T> a, b;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    a.push_back(T::FromBits(static_cast<uint16_t>(i)));
    b.push_back(RandomElement<T>(random));
  }
  for (const ReductionTarget target : Targets()) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kAvg}) {
      SCOPED_TRACE(Describe({target, op}, DTypeOf<T>()));
      std::vector<T> out(a.size(), T(0));
      const void* const ins[] = {a.data(), b.data()};
      internal::ReduceWith(target, op, DTypeOf<T>(), out.data(), ins, a.size(),
                           3);
      for (size_t i = 0; i < out.size(); ++i) {
        const T expected = ReferenceOf(op, std::vector<T>{a[i], b[i]}, 3);
        ASSERT_TRUE(Same(out[i], expected))
            << Show(a[i]) << ", " << Show(b[i]) << ": " << Show(out[i])
            << " for " << Show(expected);
      }
      const void* const alone[] = {a.data()};
      internal::ReduceWith(target, ReduceOp::kSum, DTypeOf<T>(), out.data(),
                           alone, a.size(), 1);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(Same(out[i], a[i]));
    }
  }
}

TEST(ReductionTest, EveryFloat16IsRoundedOnce) { CheckAllCodes<Float16>(); }

TEST(ReductionTest, EveryBFloat16IsRoundedOnce) { CheckAllCodes<BFloat16>(); }

// 2048 + 1 is 2048 in float16; four of them in float32 are 2052.
TEST(ReductionTest, SmallFloatsKeepTheirPrecisionUntilTheEnd) {
  const Float16 big(2048.0f), one(1.0f);
  Float16 out(0.0f);
  const void* const ins[] = {&big, &one, &one, &one, &one};
  Reduce(ReduceOp::kSum, kFloat16, &out, ins, 1, 1);
  EXPECT_EQ(static_cast<float>(out), 2052.0f);
}

TEST(ReductionTest, SumsAreCloseToTheExactOnes) {
  constexpr uint64_t kSeed = 4;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  constexpr size_t kCount = 1000;
  std::vector<std::vector<float>> arrays(8, std::vector<float>(kCount));
  std::vector<const void*> ins;
  for (auto& array : arrays) {
    for (float& value : array) value = uniform(random);
    ins.push_back(array.data());
  }
  std::vector<float> out(kCount);
  Reduce(ReduceOp::kAvg, kFloat32, out.data(), ins, kCount, 8);
  for (size_t i = 0; i < kCount; ++i) {
    long double sum = 0;
    for (const auto& array : arrays) sum += array[i];
    EXPECT_NEAR(out[i], static_cast<double>(sum / 8), 8 * 0x1p-24);
  }
}

TEST(ReductionTest, IntegersWrapAndTheirMeanIsTheWrappedSumDivided) {
  const int8_t a = 100, b = 100, c = -128;
  int8_t out = 0;
  const void* const ins[] = {&a, &b};
  Reduce(ReduceOp::kSum, kInt8, &out, ins, 1, 1);
  EXPECT_EQ(out, -56);
  Reduce(ReduceOp::kAvg, kInt8, &out, ins, 1, 3);
  EXPECT_EQ(out, -18);  // -56 / 3 toward zero.
  // A divisor that the dtype cannot hold.
  const void* const alone[] = {&c};
  Reduce(ReduceOp::kAvg, kInt8, &out, alone, 1, 256);
  EXPECT_EQ(out, 0);
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  uint64_t mean = 0;
  const void* const large[] = {&most};
  Reduce(ReduceOp::kAvg, kUInt64, &mean, large, 1, 2);
  EXPECT_EQ(mean, most / 2);
}

TEST(ReductionTest, AnyByteButZeroIsTrueAndResultsAreZeroOrOne) {
  const uint8_t a[] = {2, 2, 0, 0, 255}, b[] = {4, 0, 8, 0, 255};
  uint8_t out[5];
  const void* const ins[] = {a, b};
  const auto result = [&](ReduceOp op) {
    Reduce(op, kBool, out, ins, 5, 1);
    return std::vector<int>(out, out + 5);
  };
  EXPECT_EQ(result(ReduceOp::kProduct), (std::vector<int>{1, 0, 0, 0, 1}));
  EXPECT_EQ(result(ReduceOp::kSum), (std::vector<int>{1, 1, 1, 0, 1}));
  EXPECT_EQ(result(ReduceOp::kBxor), (std::vector<int>{0, 1, 1, 0, 0}));
}

TEST(ReductionTest, NanWinsInEveryPosition) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (int place = 0; place < 3; ++place) {
    float values[] = {-infinity, 1.0f, infinity};
    values[place] = nan;
    const void* const ins[] = {&values[0], &values[1], &values[2]};
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      float out = 0;
      Reduce(op, kFloat32, &out, ins, 1, 1);
      EXPECT_TRUE(std::isnan(out)) << op << ", NaN at " << place;
    }
  }
}

TEST(ReductionTest, AllInstructionSetsGiveTheSameBits) {
  constexpr uint64_t kSeed = 12;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<float> uniform(-10.0f, 10.0f);
  constexpr size_t kCount = 1001;
  std::vector<float> a(kCount), b(kCount), c(kCount);
  for (auto* array : {&a, &b, &c}) {
    for (float& value : *array) value = uniform(random);
  }
  const void* const ins[] = {a.data(), b.data(), c.data()};
  for (const DType dtype : {kFloat32, kComplex64}) {
    for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kProduct}) {
      std::vector<float> first;
      for (const ReductionTarget target : Targets()) {
        std::vector<float> out(kCount);
        internal::ReduceWith(target, op, dtype, out.data(), ins,
                             kCount * 4 / SizeOf(dtype), 3);
        if (first.empty()) first = out;
        EXPECT_EQ(std::memcmp(first.data(), out.data(), kCount * 4), 0)
            << op << " of " << dtype;
      }
    }
  }
}

TEST(CheckReductionTest, UndefinedCombinationsAreNamed) {
  const struct {
    ReduceOp op;
    DType dtype;
    const char* message;
  } kCases[] = {
      {ReduceOp::kBand, kFloat32,
       "the reduction band is not defined for float32: bitwise reductions"},
      {ReduceOp::kBor, kBFloat16, "bor is not defined for bfloat16"},
      {ReduceOp::kBxor, kComplex64, "bxor is not defined for complex64"},
      {ReduceOp::kBxor, kFloat8E5M2, "bxor is not defined for float8_e5m2"},
      {ReduceOp::kMin, kComplex64,
       "the reduction min is not defined for complex64: complex numbers have "
       "no order"},
      {ReduceOp::kMax, kComplex128, "max is not defined for complex128"},
      {ReduceOp::kAvg, kBool, "the reduction avg is not defined for bool"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(CheckReduction(c.op, c.dtype),
                StatusIs(absl::StatusCode::kInvalidArgument, c.message));
  }
}

TEST(CheckReductionTest, CarriedElementsAreNotReduced) {
  for (int d = kNumComputedDTypes; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int o = 0; o < kNumReduceOps; ++o) {
      EXPECT_THAT(CheckReduction(static_cast<ReduceOp>(o), dtype),
                  StatusIs(absl::StatusCode::kUnimplemented,
                           absl::StrCat(Name(dtype),
                                        " is carried, not computed with")));
    }
  }
}

TEST(CheckReductionTest, NumbersOutsideTheEnumsAreRefused) {
  for (const int number : {-1, kNumReduceOps, 100}) {
    EXPECT_THAT(
        CheckReduction(static_cast<ReduceOp>(number), kFloat32),
        StatusIs(absl::StatusCode::kInvalidArgument, absl::StrCat(number)));
  }
  EXPECT_THAT(CheckReduction(ReduceOp::kSum, static_cast<DType>(kNumDTypes)),
              StatusIs(absl::StatusCode::kInvalidArgument, "dtype number 21"));
}

TEST(CheckReductionTest, NamesAreDistinct) {
  std::vector<std::string> names;
  for (int o = 0; o < kNumReduceOps; ++o) {
    names.emplace_back(Name(static_cast<ReduceOp>(o)));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"sum", "avg", "product", "min",
                                             "max", "band", "bor", "bxor"}));
}

TEST(ReductionDeathTest, UndefinedCombinationsEndTheProcess) {
  float value = 1;
  const void* const ins[] = {&value};
  EXPECT_DEATH(Reduce(ReduceOp::kBand, kFloat32, &value, ins, 1, 1),
               "band is not defined for float32");
  EXPECT_DEATH(Reduce(ReduceOp::kSum, kFloat32, &value, {}, 1, 1), "empty");
}

}  // namespace
}  // namespace sherd
