#include "sherd/backends/nccl/nccl_types.h"

#include <string>

#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"

namespace sherd::internal {
namespace {

// Reductions in the order of their numbers, as letters; '-' where NCCL has
// none.
std::string Native(int32_t dtype) {
  static constexpr char kLetters[] = "sapmMaox";
  std::string text;
  for (int32_t r = 0; r < SHERD_NUM_REDUCTIONS; ++r) {
    text += (NcclReductionBits(dtype) >> r & 1) != 0 ? kLetters[r] : '-';
  }
  return text;
}

TEST(NcclTypesTest, HasTheTypesAndReductionsOfNccl) {
  const struct {
    int32_t dtype;
    const char* native;
  } cases[] = {
      {SHERD_BOOL, "s-pmMao-"},        {SHERD_UINT8, "s-pmM---"},
      {SHERD_INT8, "s-pmM---"},        {SHERD_UINT16, "--------"},
      {SHERD_INT16, "--------"},       {SHERD_UINT32, "s-pmM---"},
      {SHERD_INT32, "s-pmM---"},       {SHERD_UINT64, "s-pmM---"},
      {SHERD_INT64, "s-pmM---"},       {SHERD_FLOAT8_E4M3, "--------"},
      {SHERD_FLOAT8_E5M2, "--------"}, {SHERD_FLOAT16, "sapmM---"},
      {SHERD_BFLOAT16, "sapmM---"},    {SHERD_FLOAT32, "sapmM---"},
      {SHERD_FLOAT64, "sapmM---"},     {SHERD_COMPLEX64, "sa------"},
      {SHERD_COMPLEX128, "sa------"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.dtype);
    EXPECT_EQ(Native(test.dtype), test.native);
  }
  EXPECT_EQ(std::size(cases), size_t{SHERD_NUM_DTYPES});
}

TEST(NcclTypesTest, NamesThemAsNcclDoes) {
  const NcclReduction complex = NcclReductionOf(SHERD_COMPLEX128, SHERD_AVG);
  EXPECT_EQ(complex.type, kNcclFloat64);
  EXPECT_EQ(complex.op, kNcclAvg);
  EXPECT_EQ(complex.element_size, 8);
  EXPECT_EQ(NcclReductionOf(SHERD_BOOL, SHERD_SUM).op, kNcclMax);
  EXPECT_EQ(NcclReductionOf(SHERD_BOOL, SHERD_BOR).op, kNcclMax);
  EXPECT_EQ(NcclReductionOf(SHERD_BOOL, SHERD_PRODUCT).op, kNcclMin);
  EXPECT_EQ(NcclReductionOf(SHERD_BOOL, SHERD_BAND).op, kNcclMin);
  EXPECT_EQ(NcclReductionOf(SHERD_INT8, SHERD_MIN).op, kNcclMin);
  EXPECT_EQ(NcclReductionOf(SHERD_INT8, SHERD_MAX).op, kNcclMax);
  EXPECT_EQ(NcclReductionOf(SHERD_FLOAT16, SHERD_PRODUCT).op, kNcclProd);
  EXPECT_FALSE(NcclReductionOf(-1, SHERD_SUM).native);
  EXPECT_FALSE(NcclReductionOf(SHERD_NUM_DTYPES, SHERD_SUM).native);
  EXPECT_FALSE(NcclReductionOf(SHERD_INT8, SHERD_NUM_REDUCTIONS).native);
}

}  // namespace
}  // namespace sherd::internal
