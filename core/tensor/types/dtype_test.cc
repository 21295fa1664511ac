#include "sherd/core/tensor/dtype.h"

#include <complex>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::StatusIs;

static_assert(DTypeOf<float>() == kFloat32);
static_assert(DTypeOf<const int64_t>() == kInt64);
static_assert(DTypeOf<std::complex<double>>() == kComplex128);

struct Row {
  int32_t number;
  DType dtype;
  const char* name;
  size_t size;
  size_t alignment;
  bool floating_point;
  bool complex;
  bool integer;
  bool is_signed;
};

// Files and plugins hold these numbers: a line may be added, never changed.
constexpr Row kTable[] = {
    {0, kBool, "bool", 1, 1, false, false, false, false},
    {1, kUInt8, "uint8", 1, 1, false, false, true, false},
    {2, kInt8, "int8", 1, 1, false, false, true, true},
    {3, kUInt16, "uint16", 2, 2, false, false, true, false},
    {4, kInt16, "int16", 2, 2, false, false, true, true},
    {5, kUInt32, "uint32", 4, 4, false, false, true, false},
    {6, kInt32, "int32", 4, 4, false, false, true, true},
    {7, kUInt64, "uint64", 8, 8, false, false, true, false},
    {8, kInt64, "int64", 8, 8, false, false, true, true},
    {9, kFloat8E4M3, "float8_e4m3fn", 1, 1, true, false, false, true},
    {10, kFloat8E5M2, "float8_e5m2", 1, 1, true, false, false, true},
    {11, kFloat16, "float16", 2, 2, true, false, false, true},
    {12, kBFloat16, "bfloat16", 2, 2, true, false, false, true},
    {13, kFloat32, "float32", 4, 4, true, false, false, true},
    {14, kFloat64, "float64", 8, 8, true, false, false, true},
    {15, kComplex64, "complex64", 8, 4, false, true, false, true},
    {16, kComplex128, "complex128", 16, 8, false, true, false, true},
    {17, kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1, 1, false, false, false, false},
    {18, kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1, 1, false, false, false, false},
    {19, kFloat8E8M0, "float8_e8m0fnu", 1, 1, false, false, false, false},
    {20, kComplex32, "complex32", 4, 4, false, false, false, false},
};

TEST(DTypeTest, NumbersNamesAndPropertiesAreThoseOfTheTable) {
  EXPECT_EQ(std::size(kTable), static_cast<size_t>(kNumDTypes));
  for (const Row& row : kTable) {
    EXPECT_EQ(static_cast<int32_t>(row.dtype), row.number);
    EXPECT_EQ(Name(row.dtype), row.name);
    EXPECT_EQ(SizeOf(row.dtype), row.size) << row.name;
    EXPECT_EQ(AlignmentOf(row.dtype), row.alignment) << row.name;
    EXPECT_EQ(IsFloatingPoint(row.dtype), row.floating_point) << row.name;
    EXPECT_EQ(IsComplex(row.dtype), row.complex) << row.name;
    EXPECT_EQ(IsInteger(row.dtype), row.integer) << row.name;
    EXPECT_EQ(IsSigned(row.dtype), row.is_signed) << row.name;
    EXPECT_EQ(IsCarried(row.dtype), row.number >= kNumComputedDTypes);
    EXPECT_EQ(CheckComputed(row.dtype).ok(), !IsCarried(row.dtype));
    EXPECT_TRUE(IsValid(row.number));
    std::ostringstream out;
    out << row.dtype;
    EXPECT_EQ(out.str(), row.name);
  }
}

TEST(DTypeTest, ParseIsTheInverseOfName) {
  for (const Row& row : kTable) {
    const absl::StatusOr<DType> parsed = ParseDType(row.name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, row.dtype);
  }
}

TEST(DTypeTest, ParseRefusesOtherNamesAndListsTheKnownOnes) {
  for (const char* name :
       {"", "float", "Float32", "float32 ", "f32", "int128", "float8_e4m3"}) {
    EXPECT_THAT(ParseDType(name), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "expected one of bool, uint8, int8"))
        << name;
  }
}

TEST(DTypeTest, NumbersOutsideTheTableAreInvalid) {
  for (int32_t number : {-1, 21, 1000, INT32_MIN, INT32_MAX}) {
    EXPECT_FALSE(IsValid(number)) << number;
  }
  std::ostringstream out;
  out << static_cast<DType>(99);
  EXPECT_EQ(out.str(), "DType(99)");
}

TEST(DTypeTest, DispatchVisitsTheTypeOfEachDType) {
  std::set<int32_t> seen;
  for (const Row& row : kTable) {
    if (IsCarried(row.dtype)) continue;
    const size_t size = DispatchDType(row.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(DTypeOf<T>(), row.dtype);
      EXPECT_EQ(alignof(T), row.alignment) << row.name;
      seen.insert(static_cast<int32_t>(DTypeOf<T>()));
      return sizeof(T);
    });
    EXPECT_EQ(size, row.size) << row.name;
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kNumComputedDTypes));
}

TEST(DTypeDeathTest, DispatchOnANumberThatIsNoDTypeEndsTheProcess) {
  EXPECT_DEATH(DispatchDType(static_cast<DType>(21), [](auto) {}), "21");
  EXPECT_DEATH(DispatchDType(kComplex32, [](auto) {}), "20");
  EXPECT_DEATH((void)SizeOf(static_cast<DType>(-1)), "-1");
}

}  // namespace
}  // namespace sherd
