#include "sherd/core/tensor/concatenate.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::ElementsAre;

Tensor Numbers(const std::vector<int64_t>& values, const Dims& sizes) {
  return Tensor::FromSpan(absl::MakeConstSpan(values), sizes).value();
}

TEST(ConcatenateTest, JoinsAlongAnyDimensionAndFromAnyStrides) {
  const Tensor a = Numbers({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor b = Numbers({7, 8, 9, 10}, {2, 2});
  EXPECT_THAT(
      Concatenate({a, b}, 1).value(),
      TensorBitwiseEq(Numbers({1, 2, 3, 7, 8, 4, 5, 6, 9, 10}, {2, 5})));
  EXPECT_THAT(Concatenate({a, b}, -1).value(),
              TensorBitwiseEq(Concatenate({a, b}, 1).value()));
  EXPECT_THAT(Concatenate({b, b.Transpose(0, 1).value(), b}).value(),
              TensorBitwiseEq(
                  Numbers({7, 8, 9, 10, 7, 9, 8, 10, 7, 8, 9, 10}, {6, 2})));
}

TEST(ConcatenateTest, TheResultHasMemoryOfItsOwn) {
  const Tensor a = Numbers({1, 2}, {2});
  Tensor result = Concatenate({a}).value();
  ASSERT_THAT(result.Fill(0), ::sherd::testing::IsOk());
  EXPECT_THAT(a, TensorBitwiseEq(Numbers({1, 2}, {2})));
}

TEST(ConcatenateTest, EmptyOnes) {
  const Tensor a = Numbers({1, 2}, {1, 2});
  const Tensor none = Numbers({}, {0});
  EXPECT_THAT(Concatenate({none, a, none}, 1).value(), TensorBitwiseEq(a));
  EXPECT_THAT(Concatenate({none, none})->sizes(), ElementsAre(0));
  EXPECT_THAT(Concatenate({Numbers({}, {0, 2}), a}).value(),
              TensorBitwiseEq(a));
}

TEST(ConcatenateTest, OnMetaSizesAreComputed) {
  const Tensor a =
      Tensor::Empty({2, 3}, {.device = {DeviceType::kMeta}}).value();
  const Tensor result = Concatenate({a, a, a}, 1).value();
  EXPECT_TRUE(result.device().is_meta());
  EXPECT_THAT(result.sizes(), ElementsAre(2, 9));
}

TEST(ConcatenateTest, Rejections) {
  const Tensor a = Numbers({1, 2, 3, 4}, {2, 2});
  const struct {
    std::vector<Tensor> tensors;
    int64_t dim;
    absl::StatusCode code;
    std::string phrase;
  } rejections[] = {
      {{},
       0,
       absl::StatusCode::kInvalidArgument,
       "a non-empty list of Tensors"},
      {{a, Tensor()}, 0, absl::StatusCode::kFailedPrecondition, "tensor 1 in"},
      {{a, Tensor::Scalar(int64_t{1}).value()},
       0,
       absl::StatusCode::kInvalidArgument,
       "zero-dimensional tensor (at position 1) cannot be concatenated"},
      {{a, Numbers({1, 2}, {2})},
       0,
       absl::StatusCode::kInvalidArgument,
       "Tensors must have same number of dimensions: got 2 and 1"},
      {{a, a, Numbers({1, 2, 3}, {1, 3})},
       0,
       absl::StatusCode::kInvalidArgument,
       "Sizes of tensors must match except in dimension 0. Expected size 2 but "
       "got size 3 for tensor number 2 in the list."},
      {{a, a.To(kFloat32).value()},
       0,
       absl::StatusCode::kInvalidArgument,
       "expected tensors of one dtype, got int64 and float32"},
      {{a,
        Tensor::Empty({2, 2}, {.dtype = kInt64, .device = {DeviceType::kMeta}})
            .value()},
       0,
       absl::StatusCode::kInvalidArgument,
       "on the same device, got cpu and meta"},
      {{a, a}, 2, absl::StatusCode::kOutOfRange, ""},
      {{a, a}, -3, absl::StatusCode::kOutOfRange, ""},
  };
  for (const auto& rejection : rejections) {
    EXPECT_THAT(Concatenate(rejection.tensors, rejection.dim).status(),
                StatusIs(rejection.code, rejection.phrase))
        << rejection.phrase;
  }
}

}  // namespace
}  // namespace sherd
