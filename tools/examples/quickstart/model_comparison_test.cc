#include "sherd/tools/examples/quickstart/model_comparison.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

using Tensors = std::map<std::string, Tensor>;

// Elements that all differ.
Tensor Counting(DType dtype, const Dims& sizes) {
  Tensor tensor = *Tensor::Empty(sizes, {.dtype = dtype});
  for (int64_t i = 0; i < tensor.nbytes(); ++i) {
    static_cast<unsigned char*>(tensor.data())[i] = (i * 37 + 11) & 0x3f;
  }
  return tensor;
}

std::string WriteFile(const std::string& name, const Tensors& tensors) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::vector<SafetensorsTensorInfo> infos;
  for (const auto& [key, tensor] : tensors) {
    infos.push_back({key, tensor.dtype(),
                     Dims(tensor.sizes().begin(), tensor.sizes().end())});
  }
  auto writer = SafetensorsWriter::Create(FileSystem::Posix(), path, infos);
  EXPECT_THAT(writer, IsOk());
  for (const auto& [key, tensor] : tensors) {
    EXPECT_THAT((*writer)->Write(key, tensor), IsOk());
  }
  EXPECT_THAT((*writer)->Finish(), IsOk());
  return path;
}

absl::StatusOr<ModelComparison> Compare(const Tensors& a, const Tensors& b) {
  return CompareModels(FileSystem::Posix(), WriteFile("a.safetensors", a),
                       WriteFile("b.safetensors", b), nullptr);
}

Tensors Sample() {
  return {{"w", Counting(kFloat32, {30, 7})},
          {"scalar", Counting(kInt64, {})},
          {"empty", Counting(kInt16, {0, 3})}};
}

TEST(CompareModelsTest, EqualFilesHaveAllTheirBytesCounted) {
  const auto comparison = Compare(Sample(), Sample());
  ASSERT_THAT(comparison, IsOk());
  EXPECT_EQ(comparison->tensors, 3);
  EXPECT_EQ(comparison->bytes, 30 * 7 * 4 + 8);
}

TEST(CompareModelsTest, EverySingleBitCounts) {
  Tensors b = Sample();
  for (int64_t byte : {0, 1, 421, 839}) {
    for (int bit : {0, 7}) {
      b["w"] = Counting(kFloat32, {30, 7});
      static_cast<unsigned char*>(b["w"].data())[byte] ^= 1 << bit;
      EXPECT_THAT(Compare(Sample(), b),
                  StatusIs(absl::StatusCode::kDataLoss,
                           absl::StrCat("b.safetensors: tensor w: element ",
                                        byte / 4, " differs")));
    }
  }
}

TEST(CompareModelsTest, ADifferenceBehindTheFirstPieceHasItsElement) {
  Tensors a = {{"long", Counting(kUInt8, {9 << 20})}};
  Tensors b = {{"long", Counting(kUInt8, {9 << 20})}};
  static_cast<unsigned char*>(b["long"].data())[(9 << 20) - 2] ^= 0x40;
  EXPECT_THAT(Compare(a, b),
              StatusIs(absl::StatusCode::kDataLoss, "element 9437182 differs"));
}

TEST(CompareModelsTest, NamesTypesAndShapesCount) {
  Tensors missing = Sample();
  missing.erase("scalar");
  EXPECT_THAT(Compare(Sample(), missing),
              StatusIs(absl::StatusCode::kDataLoss,
                       "b.safetensors: tensor scalar is missing"));
  EXPECT_THAT(Compare(missing, Sample()),
              StatusIs(absl::StatusCode::kDataLoss, "tensor scalar is not in"));
  Tensors type = Sample();
  type["w"] = Counting(kInt32, {30, 7});
  EXPECT_THAT(Compare(Sample(), type),
              StatusIs(absl::StatusCode::kDataLoss,
                       "tensor w: expected F32 [30, 7], got I32 [30, 7]"));
  Tensors shape = Sample();
  shape["empty"] = Counting(kInt16, {3, 0});
  EXPECT_THAT(Compare(Sample(), shape),
              StatusIs(absl::StatusCode::kDataLoss,
                       "tensor empty: expected I16 [0, 3], got I16 [3, 0]"));
}

}  // namespace
}  // namespace sherd
