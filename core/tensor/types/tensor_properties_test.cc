#include "sherd/core/tensor/types/tensor_properties.h"

#include <sstream>

#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {
namespace {

TEST(TensorPropertiesTest, DefaultsAreThoseOfAnOrdinaryTensor) {
  const TensorProperties properties;
  EXPECT_EQ(properties.dtype, kFloat32);
  EXPECT_EQ(properties.layout, Layout::kStrided);
  EXPECT_FALSE(properties.requires_grad);
  EXPECT_EQ(properties.memory_format, MemoryFormat::kContiguous);
  EXPECT_FALSE(properties.pin_memory);
}

TEST(TensorPropertiesTest, EqualityLooksAtEveryField) {
  const TensorProperties base;
  TensorProperties other[5];
  other[0].dtype = kInt8;
  other[1].layout = Layout::kSparseCoo;
  other[2].requires_grad = true;
  other[3].memory_format = MemoryFormat::kPreserve;
  other[4].pin_memory = true;
  EXPECT_EQ(base, TensorProperties());
  for (const TensorProperties& properties : other) {
    EXPECT_NE(base, properties) << properties;
  }
}

TEST(TensorPropertiesTest, TextNamesEveryField) {
  const TensorProperties properties = {
      .dtype = kBFloat16,
      .layout = Layout::kSparseCsr,
      .requires_grad = true,
      .memory_format = MemoryFormat::kChannelsLast,
      .pin_memory = true};
  const char* const expected =
      "TensorProperties(dtype=bfloat16, layout=sparse_csr, requires_grad=true, "
      "memory_format=channels_last, pin_memory=true)";
  EXPECT_EQ(properties.ToString(), expected);
  std::ostringstream out;
  out << properties;
  EXPECT_EQ(out.str(), expected);
}

TEST(TensorPropertiesTest, MemoryFormatsKeepTheirNumbersInFiles) {
  EXPECT_EQ(static_cast<int>(MemoryFormat::kContiguous), 0);
  EXPECT_EQ(static_cast<int>(MemoryFormat::kChannelsLast), 1);
  EXPECT_EQ(static_cast<int>(MemoryFormat::kPreserve), 2);
}

}  // namespace
}  // namespace sherd
