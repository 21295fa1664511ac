#include "sherd/core/tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kRange = absl::StatusCode::kOutOfRange;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;

// 0, 1, 2, … in row-major order.
Tensor Iota(const Dims& sizes) {
  std::vector<int32_t> values(static_cast<size_t>(*NumElements(sizes)));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromSpan<int32_t>(values, sizes).value();
}

// Elements in row-major order, read one by one.
template <typename T>
std::vector<T> Elements(const Tensor& tensor) {
  std::vector<T> values;
  Dims index(static_cast<size_t>(tensor.dim()), 0);
  for (int64_t n = 0; n < tensor.numel(); ++n) {
    values.push_back(tensor.At<T>(index).value());
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.sizes()[d]) break;
      index[d] = 0;
    }
  }
  return values;
}

TEST(TensorTest, ADefaultTensorIsUndefined) {
  Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.numel(), 0);
  EXPECT_EQ(tensor.nbytes(), 0);
  EXPECT_EQ(tensor.dim(), 0);
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(tensor.ToString(), "Tensor(undefined)");
  EXPECT_FALSE(tensor.Equal(tensor));
  EXPECT_THAT(tensor.Clone(), StatusIs(kPrecondition, "undefined"));
  EXPECT_THAT(tensor.Fill(1), StatusIs(kPrecondition, "undefined"));
  EXPECT_THAT(tensor.Narrow({}, {}), StatusIs(kPrecondition, "undefined"));
  EXPECT_THAT(tensor.Permute({}), StatusIs(kPrecondition, "undefined"));
  EXPECT_THAT(tensor.Reshape({0}), StatusIs(kPrecondition, "undefined"));
  EXPECT_THAT(tensor.CopyFrom(Iota({1})), StatusIs(kPrecondition, "undefined"));
}

TEST(TensorTest, EmptyHasTheShapeAndLayoutItWasAskedFor) {
  for (int32_t number = 0; number < kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    const Tensor tensor = Tensor::Empty({2, 3, 4}, {.dtype = dtype}).value();
    EXPECT_TRUE(tensor.defined());
    EXPECT_EQ(tensor.dtype(), dtype);
    EXPECT_THAT(tensor.sizes(), ElementsAre(2, 3, 4));
    EXPECT_THAT(tensor.strides(), ElementsAre(12, 4, 1));
    EXPECT_EQ(tensor.dim(), 3);
    EXPECT_EQ(tensor.numel(), 24);
    EXPECT_EQ(tensor.element_size(), SizeOf(dtype));
    EXPECT_EQ(tensor.nbytes(), 24 * static_cast<int64_t>(SizeOf(dtype)));
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_TRUE(tensor.writable());
    EXPECT_TRUE(tensor.device().is_cpu());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  }
}

TEST(TensorTest, SizeCountsNegativeDimensionsFromTheEnd) {
  const Tensor tensor = Iota({2, 3});
  EXPECT_EQ(*tensor.size(0), 2);
  EXPECT_EQ(*tensor.size(-1), 3);
  EXPECT_THAT(tensor.size(2), StatusIs(kRange, "in [-2, 1], got 2"));
  EXPECT_THAT(tensor.size(-3), StatusIs(kRange, "got -3"));
}

TEST(TensorTest, ZerosAndOnesAreTheNumbersOfEveryDType) {
  for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    const Tensor zeros = Tensor::Zeros({3, 5}, {.dtype = dtype}).value();
    const Tensor ones = Tensor::Ones({3, 5}, {.dtype = dtype}).value();
    EXPECT_THAT(Elements<int16_t>(zeros.To(kInt16).value()),
                ::testing::Each(0));
    EXPECT_THAT(Elements<int16_t>(ones.To(kInt16).value()), ::testing::Each(1));
    EXPECT_EQ(zeros.numel(), 15);
  }
}

TEST(TensorTest, FullConvertsTheValue) {
  EXPECT_THAT(
      Elements<double>(Tensor::Full({2}, 2.5f, {.dtype = kFloat64}).value()),
      ElementsAre(2.5, 2.5));
  EXPECT_THAT(Elements<uint64_t>(
                  Tensor::Full({1}, UINT64_MAX, {.dtype = kUInt64}).value()),
              ElementsAre(UINT64_MAX));
  EXPECT_THAT(
      Elements<int64_t>(Tensor::Full({1}, 7LL, {.dtype = kInt64}).value()),
      ElementsAre(7));
  EXPECT_THAT(Tensor::Full({2}, 300, {.dtype = kInt8}),
              StatusIs(kInvalid, "300 does not fit in int8"));
}

TEST(TensorTest, FromSpanCopiesTheValues) {
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const Tensor tensor = Tensor::FromSpan<float>(values, {2, 3}).value();
  values[0] = 99;
  EXPECT_THAT(Elements<float>(tensor), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Tensor::FromSpan<float>(values, {2, 2}),
              StatusIs(kInvalid, "[2, 2] needs 4 values, got 6"));
  EXPECT_THAT(Tensor::FromSpan<float>({}, {0, 7}), IsOk());
}

TEST(TensorTest, ScalarsHaveOneElementAndNoDimension) {
  const Tensor tensor = Tensor::Scalar(std::complex<double>(1, 2)).value();
  EXPECT_EQ(tensor.dim(), 0);
  EXPECT_EQ(tensor.numel(), 1);
  EXPECT_EQ(*tensor.At<std::complex<double>>({}), std::complex<double>(1, 2));
  EXPECT_EQ(Tensor::Scalar(3LL)->dtype(), kInt64);
  EXPECT_EQ(Tensor::Scalar(true)->dtype(), kBool);
  EXPECT_EQ(Tensor::Scalar(Float16(1))->dtype(), kFloat16);
}

TEST(TensorTest, ImpossibleShapesAreErrors) {
  EXPECT_THAT(Tensor::Empty({-1}), StatusIs(kInvalid, "negative"));
  EXPECT_THAT(Tensor::Empty({INT64_MAX, 2}), StatusIs(kInvalid, "64 bits"));
  EXPECT_THAT(Tensor::Empty({INT64_MAX / 2}), StatusIs(kInvalid, "64 bits"));
  EXPECT_THAT(Tensor::Empty(Dims(65, 1)), StatusIs(kInvalid, "64 dimensions"));
  EXPECT_THAT(Tensor::Empty({int64_t{1} << 58}),
              StatusIs(absl::StatusCode::kResourceExhausted, "out of memory"));
}

TEST(TensorTest, MetaTensorsHaveAShapeButNoData) {
  const TensorOptions options = {.dtype = kFloat64,
                                 .device = {DeviceType::kMeta}};
  Tensor tensor = Tensor::Empty({1 << 20, 1 << 20, 1 << 10}, options).value();
  EXPECT_EQ(tensor.numel(), int64_t{1} << 50);
  EXPECT_TRUE(tensor.device().is_meta());
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_FALSE(tensor.writable());
  EXPECT_THAT(Tensor::Ones({3}, options), IsOk());
  const Tensor view =
      tensor.Narrow(0, 5, 10)->Transpose(0, 2)->Select(0, 3).value();
  EXPECT_THAT(view.sizes(), ElementsAre(1 << 20, 10));
  EXPECT_EQ(view.data(), nullptr);
  EXPECT_THAT(tensor.Reshape({-1}), IsOk());
  EXPECT_THAT(tensor.Clone(), StatusIs(kPrecondition, "meta"));
  EXPECT_THAT(tensor.Fill(0), StatusIs(kPrecondition, "meta"));
  EXPECT_THAT(tensor.To(kFloat32), StatusIs(kPrecondition, "meta"));
  EXPECT_THAT(tensor.At<double>({0, 0, 0}), StatusIs(kPrecondition, "meta"));
  EXPECT_FALSE(tensor.Equal(tensor));
  EXPECT_EQ(view.ToString(), "Tensor(float64, [1048576, 10], meta)");
}

TEST(TensorTest, OtherDevicesNeedALoaderOrAnAllocatorForThem) {
  EXPECT_THAT(
      Tensor::Empty({1}, {.device = {DeviceType::kCuda, 1}}),
      StatusIs(kPrecondition,
               "a tensor on cuda:1: memory of cuda needs a device plugin, and "
               "this program has no loader: add @sherd//backends:loader"));
}

// Host memory that claims to be on a device.
class FakeDeviceAllocator : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    return HeapAllocator().Allocate(bytes, alignment);
  }
  void Deallocate(void* data, size_t bytes) override {
    HeapAllocator().Deallocate(data, bytes);
  }
  absl::string_view name() const override { return "fake"; }
  Device device() const override { return {DeviceType::kCuda, 2}; }
};

TEST(TensorTest, DeviceMemoryCanBeViewedButNotReadByTheHost) {
  FakeDeviceAllocator allocator;
  const Tensor tensor = Tensor::Empty({4}, {.device = {DeviceType::kCuda},
                                            .allocator = &allocator})
                            .value();
  EXPECT_EQ(tensor.device().ToString(), "cuda:2");
  EXPECT_THAT(tensor.Narrow(0, 1, 2), IsOk());
  EXPECT_THAT(tensor.Clone(), StatusIs(kPrecondition, "on cuda:2"));
  EXPECT_EQ(tensor.ToString(), "Tensor(float32, [4], cuda:2)");
  EXPECT_THAT(Tensor::Empty({4}, {.allocator = &allocator}),
              StatusIs(kInvalid, "'fake' is for cuda:2"));
  EXPECT_THAT(Tensor::Empty({4}, {.device = {DeviceType::kCuda, 1},
                                  .allocator = &allocator}),
              StatusIs(kInvalid, "on cuda:1"));
}

TEST(FromStorageTest, SharesTheBytesAtTheOffset) {
  const std::shared_ptr<Storage> storage = Storage::Allocate(64).value();
  uint8_t* const bytes = static_cast<uint8_t*>(storage->data());
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i);
  Tensor tensor = Tensor::FromStorage(storage, 10, {2, 3}, kUInt8).value();
  EXPECT_THAT(Elements<uint8_t>(tensor), ElementsAre(10, 11, 12, 13, 14, 15));
  ASSERT_THAT(tensor.Fill(7), IsOk());
  EXPECT_EQ(bytes[9], 9);
  EXPECT_EQ(bytes[10], 7);
  EXPECT_EQ(bytes[15], 7);
  EXPECT_EQ(bytes[16], 16);
  EXPECT_EQ(tensor.storage(), storage);
}

TEST(FromStorageTest, RefusesWhatDoesNotLieInsideOrIsMisaligned) {
  const std::shared_ptr<Storage> storage = Storage::Allocate(64).value();
  const struct {
    int64_t offset;
    Dims sizes;
    DType dtype;
    const char* message;
  } kCases[] = {
      {0, {17}, kFloat32, "its storage of 64 bytes"},
      {4, {16}, kFloat32, "its storage of 64 bytes"},
      {-4, {1}, kFloat32, "does not lie within"},
      {65, {0}, kInt8, "does not lie within"},
      {INT64_MAX, {1}, kInt8, "does not lie within"},
      {INT64_MAX, {2}, kInt8, "does not lie within"},
      {0, {INT64_MAX}, kInt8, "does not lie within"},
      {0, {INT64_MAX}, kFloat64, "64 bits"},
      {0, {-1}, kInt8, "negative"},
      {2, {1}, kFloat32, "not aligned to 4"},
      {4, {1}, kFloat64, "not aligned to 8"},
      {4, {1}, kComplex128, "not aligned to 8"},
      {1, {1}, kBFloat16, "not aligned to 2"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Tensor::FromStorage(storage, c.offset, c.sizes, c.dtype),
                StatusIs(kInvalid, c.message))
        << c.offset << " " << FormatDims(c.sizes);
  }
  EXPECT_THAT(Tensor::FromStorage(nullptr, 0, {1}, kInt8),
              StatusIs(kInvalid, "needs storage"));
  EXPECT_THAT(Tensor::FromStorage(storage, 64, {0}, kInt8), IsOk());
  EXPECT_THAT(Tensor::FromStorage(storage, 4, {1}, kComplex64), IsOk());
}

TEST(FromStorageTest, StridesAreCheckedAgainstTheStorage) {
  const std::shared_ptr<Storage> storage = Storage::Allocate(40).value();
  const auto make = [&](const Dims& sizes, const Dims& strides) {
    return Tensor::FromStorageStrided(storage, 0, sizes, strides, kInt32);
  };
  EXPECT_THAT(make({2, 5}, {5, 1}), IsOk());
  EXPECT_THAT(make({5, 2}, {1, 5}), IsOk());
  EXPECT_THAT(make({2, 5}, {6, 1}), StatusIs(kInvalid, "lie within"));
  EXPECT_THAT(make({2}, {INT64_MAX}), StatusIs(kInvalid, "lie within"));
  EXPECT_THAT(make({INT64_MAX}, {2}), StatusIs(kInvalid, "lie within"));
  EXPECT_THAT(make({3, 3}, {INT64_MAX / 4, INT64_MAX / 4}),
              StatusIs(kInvalid, "lie within"));
  EXPECT_THAT(make({2}, {-1}), StatusIs(kInvalid, "not be negative"));
  EXPECT_THAT(make({2}, {1, 1}), StatusIs(kInvalid, "one stride per"));
}

TEST(FromStorageTest, CoincidingElementsCanBeReadButNotWritten) {
  const std::shared_ptr<Storage> storage = Storage::Allocate(12).value();
  Tensor row = Tensor::FromStorage(storage, 0, {3}, kInt32).value();
  ASSERT_THAT(row.CopyFrom(Iota({3})), IsOk());
  Tensor repeated =
      Tensor::FromStorageStrided(storage, 0, {2, 3}, {0, 1}, kInt32).value();
  EXPECT_THAT(Elements<int32_t>(repeated), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(Elements<int32_t>(repeated.Clone().value()),
              ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(repeated.Fill(1), StatusIs(kInvalid, "coincide"));
  EXPECT_THAT(repeated.CopyFrom(Iota({2, 3})), StatusIs(kInvalid, "coincide"));
  EXPECT_THAT(Elements<int32_t>(row), ElementsAre(0, 1, 2));
}

TEST(FromStorageTest, ReadOnlyStorageRefusesWriters) {
  static constexpr int32_t kData[] = {1, 2, 3};
  Tensor tensor =
      Tensor::FromStorage(Storage::BorrowReadOnly(kData, sizeof(kData)).value(),
                          0, {3}, kInt32)
          .value();
  EXPECT_FALSE(tensor.writable());
  EXPECT_EQ(tensor.data_as<int32_t>(), kData);
  EXPECT_THAT(tensor.Fill(0), StatusIs(kPrecondition, "read-only"));
  EXPECT_THAT(tensor.CopyFrom(Iota({3})), StatusIs(kPrecondition, "read-only"));
  EXPECT_TRUE(tensor.Clone()->writable());
}

TEST(FromBorrowedTest, UsesTheCallersMemory) {
  auto values = std::make_shared<std::vector<double>>(6, 1.5);
  double* const data = values->data();
  const std::weak_ptr<std::vector<double>> watch = values;
  {
    Tensor tensor =
        Tensor::FromBorrowed(data, {2, 3}, kFloat64, std::move(values)).value();
    EXPECT_EQ(tensor.data(), data);
    ASSERT_THAT(tensor.Fill(2), IsOk());
    EXPECT_EQ(data[5], 2);
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
  EXPECT_THAT(Tensor::FromBorrowed(nullptr, {1}, kInt8),
              StatusIs(kInvalid, "null"));
}

TEST(TensorTest, HandlesAndViewsShareData) {
  Tensor a = Iota({2, 3});
  Tensor b = a;
  b.mutable_data_as<int32_t>()[1] = 50;
  EXPECT_EQ(*a.At<int32_t>({0, 1}), 50);
  Tensor row = a.Select(0, 1).value();
  ASSERT_THAT(row.Fill(-1), IsOk());
  EXPECT_THAT(Elements<int32_t>(b), ElementsAre(0, 50, 2, -1, -1, -1));
  EXPECT_EQ(row.storage(), a.storage());
}

TEST(TensorTest, AtChecksTypeRankAndRange) {
  const Tensor tensor = Iota({2, 3});
  EXPECT_EQ(*tensor.At<int32_t>({1, 2}), 5);
  EXPECT_THAT(tensor.At<float>({0, 0}),
              StatusIs(kInvalid, "holds int32, not float32"));
  EXPECT_THAT(tensor.At<int32_t>({0}), StatusIs(kInvalid, "2 entries, got 1"));
  EXPECT_THAT(tensor.At<int32_t>({0, 3}), StatusIs(kRange, "[0, 3]"));
  EXPECT_THAT(tensor.At<int32_t>({-1, 0}), StatusIs(kRange, "[-1, 0]"));
}

TEST(TensorDeathTest, TypedAccessToTheWrongTypeEndsTheProcess) {
  Tensor tensor = Iota({2});
  EXPECT_DEATH((void)tensor.data_as<float>(), "int32 tensor as float32");
  EXPECT_DEATH((void)tensor.mutable_data_as<int64_t>(), "as int64");
  static constexpr int32_t kData[] = {1};
  Tensor constant =
      Tensor::FromStorage(Storage::BorrowReadOnly(kData, 4).value(), 0, {1},
                          kInt32)
          .value();
  EXPECT_DEATH((void)constant.mutable_data_as<int32_t>(), "read-only");
}

TEST(ViewTest, NarrowTakesARangeOfADimension) {
  const Tensor tensor = Iota({3, 4});
  EXPECT_THAT(Elements<int32_t>(tensor.Narrow(0, 1, 2).value()),
              ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(Elements<int32_t>(tensor.Narrow(-1, 1, 2).value()),
              ElementsAre(1, 2, 5, 6, 9, 10));
  EXPECT_THAT(tensor.Narrow(1, 4, 0)->sizes(), ElementsAre(3, 0));
  EXPECT_TRUE(tensor.Narrow(0, 1, 2)->is_contiguous());
  EXPECT_FALSE(tensor.Narrow(1, 1, 2)->is_contiguous());
  EXPECT_THAT(tensor.Narrow(1, 3, 2), StatusIs(kRange, "2 elements from 3"));
  EXPECT_THAT(tensor.Narrow(1, -1, 1), StatusIs(kRange, "from -1"));
  EXPECT_THAT(tensor.Narrow(1, 0, -1), StatusIs(kRange, "-1 elements"));
  EXPECT_THAT(tensor.Narrow(1, 5, 0), StatusIs(kRange, "from 5"));
  EXPECT_THAT(tensor.Narrow(1, 1, INT64_MAX), StatusIs(kRange, "from 1"));
  EXPECT_THAT(tensor.Narrow(2, 0, 1), StatusIs(kRange, "got 2"));
}

TEST(ViewTest, NarrowTakesABox) {
  const Tensor tensor = Iota({3, 4});
  EXPECT_THAT(Elements<int32_t>(tensor.Narrow({1, 2}, {2, 2}).value()),
              ElementsAre(6, 7, 10, 11));
  EXPECT_EQ(Tensor::Scalar(1)->Narrow({}, {})->numel(), 1);
  EXPECT_EQ(tensor.Narrow({3, 9}, {0, 0})->numel(), 0);
  EXPECT_THAT(tensor.Narrow({1, 2}, {3, 2}), StatusIs(kRange, "not inside"));
  EXPECT_THAT(tensor.Narrow({-1, 2}, {1, 2}), StatusIs(kRange, "not inside"));
  EXPECT_THAT(tensor.Narrow({1, 2}, {1, -2}), StatusIs(kRange, "not inside"));
  EXPECT_THAT(tensor.Narrow({1, INT64_MAX}, {1, 2}),
              StatusIs(kRange, "not inside"));
  EXPECT_THAT(tensor.Narrow({1}, {1}), StatusIs(kInvalid, "needs 2 offsets"));
}

TEST(ViewTest, SelectRemovesADimension) {
  const Tensor tensor = Iota({3, 4});
  EXPECT_THAT(Elements<int32_t>(tensor.Select(1, 2).value()),
              ElementsAre(2, 6, 10));
  EXPECT_THAT(Elements<int32_t>(tensor.Select(0, -1).value()),
              ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(tensor.Select(0, 3), StatusIs(kRange, "index 3"));
  EXPECT_THAT(tensor.Select(0, -4), StatusIs(kRange, "index -4"));
  EXPECT_THAT(Tensor::Scalar(1)->Select(0, 0), StatusIs(kRange, ""));
}

TEST(ViewTest, TransposeAndPermuteReorderDimensions) {
  const Tensor tensor = Iota({2, 3, 4});
  const Tensor transposed = tensor.Transpose(0, -1).value();
  EXPECT_THAT(transposed.sizes(), ElementsAre(4, 3, 2));
  EXPECT_EQ(*transposed.At<int32_t>({3, 1, 0}), 7);
  const Tensor permuted = tensor.Permute({2, -3, 1}).value();
  EXPECT_THAT(permuted.sizes(), ElementsAre(4, 2, 3));
  EXPECT_EQ(*permuted.At<int32_t>({3, 1, 2}), 23);
  EXPECT_THAT(tensor.Permute({0, 1, 1}), StatusIs(kInvalid, "dimension 1"));
  EXPECT_THAT(tensor.Permute({0, 1, -2}), StatusIs(kInvalid, "twice"));
  EXPECT_THAT(tensor.Permute({0, 1}), StatusIs(kInvalid, "3 entries"));
  EXPECT_THAT(tensor.Permute({0, 1, 3}), StatusIs(kRange, "got 3"));
  EXPECT_THAT(tensor.Transpose(0, 3), StatusIs(kRange, "got 3"));
}

TEST(ViewTest, ReshapeIsAViewWhereStridesCanExpressIt) {
  const Tensor tensor = Iota({4, 6});
  const Tensor cube = tensor.Reshape({2, -1, 3}).value();
  EXPECT_THAT(cube.sizes(), ElementsAre(2, 4, 3));
  EXPECT_EQ(cube.data(), tensor.data());
  // Columns 0 to 3 of each row: rows split, and the four columns, too.
  const Tensor left = tensor.Narrow(1, 0, 4).value();
  EXPECT_THAT(left.Reshape({2, 2, 2, 2})->strides(), ElementsAre(12, 6, 2, 1));
  EXPECT_THAT(left.Reshape({4, 1, 4, 1}), IsOk());
  EXPECT_THAT(left.Reshape({16}), StatusIs(kInvalid, "use ReshapeOrCopy"));
  EXPECT_THAT(tensor.Transpose(0, 1)->Reshape({24}),
              StatusIs(kInvalid, "without a copy"));
  EXPECT_THAT(tensor.Transpose(0, 1)->Reshape({3, 2, 2, 2}), IsOk());
  EXPECT_THAT(Tensor::Scalar(1)->Reshape({1, 1}), IsOk());
  EXPECT_THAT(tensor.Select(0, 0)->Select(0, 0)->Reshape({}), IsOk());
  EXPECT_THAT(Iota({0, 3}).Reshape({5, 0}), IsOk());
}

TEST(ViewTest, ReshapeRefusesAnotherNumberOfElements) {
  const Tensor tensor = Iota({4, 6});
  EXPECT_THAT(tensor.Reshape({5, 5}), StatusIs(kInvalid, "24 elements"));
  EXPECT_THAT(tensor.Reshape({-1, 7}), StatusIs(kInvalid, "[-1, 7]"));
  EXPECT_THAT(tensor.Reshape({-1, -1}), StatusIs(kInvalid, "negative"));
  EXPECT_THAT(tensor.Reshape({-2, 12}), StatusIs(kInvalid, "negative"));
  EXPECT_THAT(tensor.Reshape({-1, 0}), StatusIs(kInvalid, "[-1, 0]"));
  EXPECT_THAT(tensor.Reshape({INT64_MAX, 3}), StatusIs(kInvalid, "64 bits"));
  EXPECT_THAT(Iota({0}).Reshape({-1, 0}), StatusIs(kInvalid, "cannot"));
}

TEST(ViewTest, ViewAsReinterpretsBytesOfTheSameSize) {
  const Tensor ones = Tensor::Full({2}, 1.0f).value();
  EXPECT_THAT(Elements<uint32_t>(ones.ViewAs(kUInt32).value()),
              ElementsAre(0x3f800000, 0x3f800000));
  EXPECT_THAT(ones.ViewAs(kFloat64), StatusIs(kInvalid, "viewed as float64"));
  EXPECT_THAT(Tensor::Zeros({2}, {.dtype = kComplex64})->ViewAs(kInt64),
              IsOk());
  EXPECT_THAT(Tensor::Zeros({3}, {.dtype = kFloat32})
                  ->Narrow(0, 1, 2)
                  ->ViewAsComplex()
                  ->ViewAs(kInt64),
              StatusIs(kInvalid, "viewed as int64"));
}

TEST(ViewTest, ComplexNumbersAreViewedAsTheirPartsAndBack) {
  std::vector<std::complex<double>> values = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  const Tensor tensor =
      Tensor::FromSpan<std::complex<double>>(values, {2, 2}).value();
  const Tensor real = tensor.Transpose(0, 1)->ViewAsReal().value();
  EXPECT_THAT(real.sizes(), ElementsAre(2, 2, 2));
  EXPECT_THAT(Elements<double>(real), ElementsAre(1, 2, 5, 6, 3, 4, 7, 8));
  EXPECT_TRUE(real.ViewAsComplex()->Equal(tensor.Transpose(0, 1).value()));
  EXPECT_EQ(real.ViewAsComplex()->numel(), 4);
  EXPECT_THAT(real.ViewAsReal(), StatusIs(kInvalid, "got float64"));
  EXPECT_THAT(Iota({2}).ViewAsComplex(), StatusIs(kInvalid, "got int32"));
  EXPECT_THAT(Tensor::Zeros({2, 3})->ViewAsComplex(),
              StatusIs(kInvalid, "[2, 3]"));
  EXPECT_THAT(Tensor::Zeros({2, 3})->Narrow(1, 0, 2)->ViewAsComplex(),
              StatusIs(kInvalid, "strides [3, 1]"));
  EXPECT_THAT(Tensor::Zeros({2, 2})->Transpose(0, 1)->ViewAsComplex(),
              StatusIs(kInvalid, "strides [1, 2]"));
}

TEST(ViewTest, TheLargestRankWorks) {
  Dims sizes(kMaxRank, 1);
  sizes[10] = 2;
  sizes[63] = 3;
  Tensor tensor = Iota(sizes);
  const Tensor transposed = tensor.Transpose(10, 63).value();
  const Tensor clone = transposed.Clone().value();
  EXPECT_THAT(Elements<int32_t>(clone.Reshape({6}).value()),
              ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_TRUE(clone.Equal(transposed));
  EXPECT_THAT(Tensor::Zeros(sizes, {.dtype = kComplex64})->ViewAsReal(),
              StatusIs(kInvalid, "at most 64"));
}

// A tensor as a list: for each element in row-major order, its place in the
// base tensor.
struct Model {
  Dims sizes;
  std::vector<int64_t> places;

  int64_t Count() const { return static_cast<int64_t>(places.size()); }

  // The model whose element at `index` is the one of this at map(index).
  template <typename Map>
  Model Rearrange(const Dims& new_sizes, const Map& map) const {
    Model result;
    result.sizes = new_sizes;
    const Dims strides = ContiguousStrides(sizes);
    Dims index(new_sizes.size(), 0);
    for (int64_t n = *NumElements(new_sizes); n > 0; --n) {
      const Dims from = map(index);
      int64_t at = 0;
      for (size_t d = 0; d < from.size(); ++d) at += from[d] * strides[d];
      result.places.push_back(places[static_cast<size_t>(at)]);
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < new_sizes[d]) break;
        index[d] = 0;
      }
    }
    return result;
  }
};

struct Pair {
  Tensor tensor;
  Model model;
};

class RandomViews {
 public:
  explicit RandomViews(uint32_t seed) : random_(seed) {}

  uint32_t Next(uint32_t below) { return random_() % below; }

  // A view of Iota(sizes) by up to six random steps.
  Pair Make(const Dims& sizes) {
    Pair pair = {Iota(sizes), {sizes, {}}};
    pair.model.places.resize(static_cast<size_t>(pair.tensor.numel()));
    std::iota(pair.model.places.begin(), pair.model.places.end(), 0);
    for (uint32_t step = Next(7); step > 0; --step) pair = Step(pair);
    return pair;
  }

  Dims Sizes() {
    Dims sizes;
    for (uint32_t d = Next(5); d > 0; --d) {
      sizes.push_back(Next(20) == 0 ? 0 : 1 + Next(6));
    }
    return sizes;
  }

 private:
  Pair Step(const Pair& in) {
    const int64_t rank = in.tensor.dim();
    if (rank == 0) return in;
    const int64_t d = Next(static_cast<uint32_t>(rank));
    const int64_t size = in.model.sizes[d];
    switch (Next(5)) {
      case 0:
        return Narrow(in, d, size);
      case 1:
        return size == 0 ? in
                         : Select(in, d, Next(static_cast<uint32_t>(size)));
      case 2:
        return Transpose(in, d, Next(static_cast<uint32_t>(rank)));
      case 3:
        return Permute(in);
      default:
        return Reshape(in);
    }
  }

  Pair Narrow(const Pair& in, int64_t d, int64_t size) {
    const int64_t start = Next(static_cast<uint32_t>(size) + 1);
    const int64_t length = Next(static_cast<uint32_t>(size - start) + 1);
    Dims sizes = in.model.sizes;
    sizes[d] = length;
    return {in.tensor.Narrow(d, start, length).value(),
            in.model.Rearrange(sizes, [&](Dims index) {
              index[d] += start;
              return index;
            })};
  }

  Pair Select(const Pair& in, int64_t d, int64_t at) {
    Dims sizes = in.model.sizes;
    sizes.erase(sizes.begin() + d);
    return {in.tensor.Select(d, at).value(),
            in.model.Rearrange(sizes, [&](Dims index) {
              index.insert(index.begin() + d, at);
              return index;
            })};
  }

  Pair Transpose(const Pair& in, int64_t a, int64_t b) {
    Dims sizes = in.model.sizes;
    std::swap(sizes[a], sizes[b]);
    return {in.tensor.Transpose(a, b).value(),
            in.model.Rearrange(sizes, [&](Dims index) {
              std::swap(index[a], index[b]);
              return index;
            })};
  }

  Pair Permute(const Pair& in) {
    Dims order(in.model.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    Dims sizes;
    for (int64_t d : order) sizes.push_back(in.model.sizes[d]);
    return {in.tensor.Permute(order).value(),
            in.model.Rearrange(sizes, [&](const Dims& index) {
              Dims from(index.size());
              for (size_t i = 0; i < index.size(); ++i) {
                from[order[i]] = index[i];
              }
              return from;
            })};
  }

  // Splits one dimension, or joins two, and copies if it must.
  Pair Reshape(const Pair& in) {
    Dims sizes = in.model.sizes;
    const size_t d = Next(static_cast<uint32_t>(sizes.size()));
    if (d + 1 < sizes.size() && Next(2) == 0) {
      sizes[d] *= sizes[d + 1];
      sizes.erase(sizes.begin() + d + 1);
    } else if (sizes[d] % 2 == 0 && sizes.size() < 7) {
      sizes[d] /= 2;
      sizes.insert(sizes.begin() + d + 1, 2);
    }
    const absl::StatusOr<Tensor> view = in.tensor.Reshape(sizes);
    Pair out = {in.tensor.ReshapeOrCopy(sizes).value(), in.model};
    out.model.sizes = sizes;
    if (view.ok()) {
      ++reshaped_views;
      EXPECT_EQ(view->data(), in.tensor.data());
      EXPECT_EQ(out.tensor.storage(), in.tensor.storage());
    } else {
      ++reshaped_copies;
      EXPECT_NE(out.tensor.storage(), in.tensor.storage());
    }
    return out;
  }

 public:
  int reshaped_views = 0;
  int reshaped_copies = 0;

 private:
  std::mt19937 random_;
};

TEST(RandomViewTest, EveryChainOfViewsAgreesWithTheModel) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  RandomViews views(seed);
  for (int trial = 0; trial < 3000; ++trial) {
    const Pair pair = views.Make(views.Sizes());
    ASSERT_THAT(pair.tensor.sizes(), ElementsAreArray(pair.model.sizes));
    ASSERT_EQ(pair.tensor.numel(), pair.model.Count());
    const std::vector<int32_t> expected(pair.model.places.begin(),
                                        pair.model.places.end());
    ASSERT_EQ(Elements<int32_t>(pair.tensor), expected);
    const Tensor clone = pair.tensor.Clone().value();
    ASSERT_TRUE(clone.is_contiguous());
    ASSERT_EQ(Elements<int32_t>(clone), expected);
    ASSERT_TRUE(clone.Equal(pair.tensor));
    ASSERT_TRUE(pair.tensor.BitwiseEqual(clone));
    const Tensor contiguous = pair.tensor.Contiguous().value();
    ASSERT_EQ(contiguous.storage() == pair.tensor.storage(),
              pair.tensor.is_contiguous());
    ASSERT_EQ(Elements<int32_t>(contiguous), expected);
    const Tensor doubles = pair.tensor.To(kFloat64).value();
    ASSERT_EQ(Elements<double>(doubles),
              std::vector<double>(expected.begin(), expected.end()));
  }
  // Both kinds of reshaping were among them.
  EXPECT_GT(views.reshaped_views, 0);
  EXPECT_GT(views.reshaped_copies, 0);
}

TEST(RandomViewTest, WritesThroughViewsReachExactlyTheirElements) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  RandomViews views(seed);
  for (int trial = 0; trial < 1000; ++trial) {
    Pair to = views.Make(views.Sizes());
    // A source of the same sizes with other strides.
    Tensor src = Iota(to.model.sizes);
    if (to.tensor.dim() > 1 && views.Next(2) == 0) {
      src = src.Transpose(0, 1)->Clone()->Transpose(0, 1).value();
    }
    ASSERT_THAT(src.Fill(0), IsOk());
    const bool fill = views.Next(2) == 0;
    if (fill) {
      ASSERT_THAT(to.tensor.Fill(-7), IsOk());
    } else {
      ASSERT_THAT(to.tensor.CopyFrom(src), IsOk());
    }
    const int64_t elements =
        static_cast<int64_t>(to.tensor.storage()->size() / 4);
    Tensor base =
        Tensor::FromStorage(to.tensor.storage(), 0, {elements}, kInt32).value();
    std::vector<int32_t> expected = Elements<int32_t>(base);
    int64_t touched = 0;
    for (int32_t value : expected) {
      if (value == (fill ? -7 : 0)) ++touched;
    }
    // Place 0 of the base holds 0 from the start.
    const int64_t extra = touched - to.model.Count();
    ASSERT_TRUE(extra == 0 || (!fill && extra == 1)) << extra;
    ASSERT_THAT(Elements<int32_t>(to.tensor), ::testing::Each(fill ? -7 : 0));
  }
}

TEST(CopyTest, CopyFromRefusesOtherShapesAndDTypes) {
  Tensor tensor = Iota({2, 3});
  EXPECT_THAT(tensor.CopyFrom(Iota({3, 2})),
              StatusIs(kInvalid, "expected [2, 3], got [3, 2]"));
  EXPECT_THAT(tensor.CopyFrom(Iota({6})), StatusIs(kInvalid, "sizes"));
  EXPECT_THAT(tensor.CopyFrom(Tensor::Zeros({2, 3}).value()),
              StatusIs(kInvalid, "expected int32, got float32"));
  EXPECT_THAT(tensor.CopyFrom(Tensor()), StatusIs(kPrecondition, "undefined"));
}

TEST(CopyTest, OverlappingViewsAreCopiedAsIfTheSourceDidNotChange) {
  Tensor tensor = Iota({6});
  Tensor right = tensor.Narrow(0, 1, 5).value();
  ASSERT_THAT(right.CopyFrom(tensor.Narrow(0, 0, 5).value()), IsOk());
  EXPECT_THAT(Elements<int32_t>(tensor), ElementsAre(0, 0, 1, 2, 3, 4));
  Tensor square = Iota({3, 3});
  Tensor transposed = square.Transpose(0, 1).value();
  ASSERT_THAT(square.CopyFrom(transposed), IsOk());
  EXPECT_THAT(Elements<int32_t>(square),
              ElementsAre(0, 3, 6, 1, 4, 7, 2, 5, 8));
  ASSERT_THAT(square.CopyFrom(square), IsOk());
  EXPECT_EQ(*square.At<int32_t>({0, 1}), 3);
}

TEST(CopyTest, EmptyAndScalarTensorsAreCopied) {
  Tensor empty = Iota({0, 4});
  EXPECT_THAT(empty.CopyFrom(Iota({0, 4})), IsOk());
  EXPECT_THAT(empty.Fill(3), IsOk());
  EXPECT_TRUE(empty.Equal(empty.Clone().value()));
  EXPECT_THAT(empty.ReshapeOrCopy({2, 0, 2}), IsOk());
  Tensor scalar = Tensor::Scalar(1).value();
  ASSERT_THAT(scalar.CopyFrom(Tensor::Scalar(2).value()), IsOk());
  EXPECT_EQ(*scalar.At<int32_t>({}), 2);
}

TEST(CopyTest, ContiguousReturnsTheTensorItselfWhenItCan) {
  const Tensor tensor = Iota({4, 4});
  EXPECT_EQ(tensor.Contiguous()->data(), tensor.data());
  const Tensor transposed = tensor.Transpose(0, 1).value();
  EXPECT_NE(transposed.Contiguous()->data(), transposed.data());
  EXPECT_EQ(tensor.To(kInt32)->data(), tensor.data());
  EXPECT_NE(tensor.Clone()->data(), tensor.data());
}

TEST(FillTest, FillsEveryDTypeAndStride) {
  for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    Tensor tensor = Tensor::Zeros({40, 31}, {.dtype = dtype}).value();
    Tensor column = tensor.Narrow(1, 7, 2).value();
    ASSERT_THAT(column.Fill(1), IsOk());
    EXPECT_TRUE(column.Equal(Tensor::Ones({40, 2}, {.dtype = dtype}).value()));
    EXPECT_TRUE(tensor.Narrow(1, 0, 7)->Equal(
        Tensor::Zeros({40, 7}, {.dtype = dtype}).value()));
    EXPECT_TRUE(tensor.Narrow(1, 9, 22)->Equal(
        Tensor::Zeros({40, 22}, {.dtype = dtype}).value()));
    ASSERT_THAT(tensor.Fill(1), IsOk());
    EXPECT_TRUE(tensor.Equal(Tensor::Ones({40, 31}, {.dtype = dtype}).value()));
  }
}

TEST(FillTest, LongPatternsAreRepeatedToTheEnd) {
  for (int64_t n : {1, 2, 3, 1023, 1024, 1025, 2047, 5000}) {
    Tensor tensor = Tensor::Empty({n}, {.dtype = kComplex128}).value();
    ASSERT_THAT(tensor.Fill(std::complex<double>(1.5, -2.25)), IsOk());
    EXPECT_THAT(Elements<std::complex<double>>(tensor),
                ::testing::Each(std::complex<double>(1.5, -2.25)));
  }
}

TEST(FillTest, ValuesThatDoNotFitChangeNothing) {
  Tensor tensor = Tensor::Ones({2}, {.dtype = kUInt8}).value();
  EXPECT_THAT(tensor.Fill(-1), StatusIs(kInvalid, "-1 does not fit in uint8"));
  EXPECT_THAT(tensor.Fill(256.0), StatusIs(kInvalid, "256"));
  EXPECT_THAT(tensor.Fill(std::complex<float>(1, 1)),
              StatusIs(kInvalid, "imaginary"));
  EXPECT_TRUE(tensor.Equal(Tensor::Ones({2}, {.dtype = kUInt8}).value()));
  ASSERT_THAT(tensor.Fill(7.9), IsOk());
  EXPECT_THAT(Elements<uint8_t>(tensor), ElementsAre(7, 7));
}

TEST(EqualTest, ComparesNumbersAndBitwiseEqualComparesBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor a = Tensor::FromSpan<float>({0.0f, 1.0f}, {2}).value();
  const Tensor b = Tensor::FromSpan<float>({-0.0f, 1.0f}, {2}).value();
  const Tensor c = Tensor::FromSpan<float>({nan, 1.0f}, {2}).value();
  EXPECT_TRUE(a.Equal(b));
  EXPECT_FALSE(a.BitwiseEqual(b));
  EXPECT_FALSE(c.Equal(c));
  EXPECT_TRUE(c.BitwiseEqual(c));
  EXPECT_FALSE(a.Equal(c));
}

TEST(EqualTest, ShapeAndDTypeCount) {
  EXPECT_FALSE(Iota({6}).Equal(Iota({2, 3})));
  EXPECT_FALSE(Iota({0, 3}).Equal(Iota({3, 0})));
  EXPECT_FALSE(Iota({2}).Equal(Iota({2}).To(kInt64).value()));
  EXPECT_FALSE(Iota({2}).BitwiseEqual(Iota({2}).To(kUInt32).value()));
  EXPECT_FALSE(Iota({2}).AllClose(Iota({2}).To(kFloat32).value()));
  EXPECT_TRUE(Iota({0, 3}).Equal(Iota({0, 3})));
}

TEST(EqualTest, FindsOneDifferentElementInEveryDTypeAndPlace) {
  for (int32_t number = 0; number < kNumComputedDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    const Tensor a = Tensor::Zeros({3, 5}, {.dtype = dtype}).value();
    for (int64_t i = 0; i < 15; ++i) {
      Tensor b = a.Clone().value();
      Tensor element = b.Narrow({i / 5, i % 5}, {1, 1}).value();
      ASSERT_THAT(element.Fill(1), IsOk());
      EXPECT_FALSE(a.Equal(b)) << dtype << " " << i;
      EXPECT_FALSE(a.BitwiseEqual(b)) << dtype << " " << i;
      EXPECT_FALSE(a.AllClose(b)) << dtype << " " << i;
      const Tensor strided =
          b.Transpose(0, 1)->Clone()->Transpose(0, 1).value();
      EXPECT_FALSE(a.Equal(strided));
      EXPECT_FALSE(a.BitwiseEqual(strided));
      EXPECT_TRUE(b.Equal(strided));
      EXPECT_TRUE(b.BitwiseEqual(strided));
      EXPECT_TRUE(b.AllClose(strided, 0, 0));
    }
  }
}

// The elements 0x01010101 and 0x02020202, or a byte of these.
Tensor Carried(DType dtype) {
  Tensor tensor = Tensor::Empty({2}, {.dtype = dtype}).value();
  const size_t bytes = SizeOf(dtype);
  std::memset(tensor.data(), 1, bytes);
  std::memset(static_cast<char*>(tensor.data()) + bytes, 2, bytes);
  return tensor;
}

TEST(CarriedTest, ElementsAreCopiedViewedAndComparedBitByBit) {
  for (int32_t number = kNumComputedDTypes; number < kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    const Tensor tensor = Carried(dtype);
    const std::string bits = SizeOf(dtype) == 1 ? "01" : "01010101";
    EXPECT_THAT(tensor.ToString(),
                ::testing::HasSubstr(absl::StrCat(Name(dtype), ", [2], cpu: 0x",
                                                  bits, ", 0x02")));
    const Tensor copy = tensor.Clone().value();
    EXPECT_TRUE(copy.Equal(tensor));
    EXPECT_TRUE(copy.AllClose(tensor));
    EXPECT_TRUE(copy.BitwiseEqual(tensor));
    const DType integer = SizeOf(dtype) == 1 ? kUInt8 : kUInt32;
    Tensor view = copy.ViewAs(integer).value();
    EXPECT_TRUE(view.BitwiseEqual(*tensor.ViewAs(integer)));
    ASSERT_THAT(view.Select(0, 1)->Fill(1), IsOk());
    EXPECT_FALSE(copy.Equal(tensor));
    EXPECT_FALSE(copy.AllClose(tensor, 1e9, 1e9));
    EXPECT_THAT(tensor.To(dtype), IsOk());
    const Tensor zeros = Tensor::Zeros({2}, {.dtype = dtype}).value();
    EXPECT_TRUE(
        zeros.ViewAs(integer)->Equal(*Tensor::Zeros({2}, {.dtype = integer})));
  }
}

TEST(CarriedTest, NumbersAreRefused) {
  for (int32_t number = kNumComputedDTypes; number < kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    Tensor tensor = Carried(dtype);
    const auto refused =
        StatusIs(absl::StatusCode::kUnimplemented,
                 absl::StrCat(Name(dtype), " is carried, not computed with"));
    EXPECT_THAT(Tensor::Ones({2}, {.dtype = dtype}), refused);
    EXPECT_THAT(tensor.Fill(0.5), refused);
    EXPECT_THAT(tensor.To(kFloat32), refused);
    EXPECT_THAT(Tensor::Zeros({2})->To(dtype), refused);
    EXPECT_THAT(tensor.At<float>({0}), StatusIs(kInvalid, "the tensor holds"));
    EXPECT_FALSE(tensor.ViewAsReal().ok());
    EXPECT_TRUE(tensor.BitwiseEqual(Carried(dtype)));
  }
}

TEST(AllCloseTest, ToleranceIsAbsolutePlusRelativeToTheOther) {
  const auto scalar = [](double value) {
    return Tensor::Scalar(value).value();
  };
  EXPECT_TRUE(scalar(1.1).AllClose(scalar(1.0), 0, 0.11));
  EXPECT_FALSE(scalar(1.1).AllClose(scalar(1.0), 0, 0.09));
  EXPECT_TRUE(scalar(9).AllClose(scalar(10), 0.1, 0));
  EXPECT_FALSE(scalar(10).AllClose(scalar(9), 0.1, 0));
  EXPECT_TRUE(scalar(-9).AllClose(scalar(-10), 0.1, 0));
}

TEST(AllCloseTest, InfinitiesAndNaN) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor infinity = Tensor::Scalar(kInfinity).value();
  const Tensor minus = Tensor::Scalar(-kInfinity).value();
  const Tensor nan = Tensor::Scalar(std::nan("")).value();
  const Tensor zero = Tensor::Scalar(0.0).value();
  EXPECT_TRUE(infinity.AllClose(infinity));
  EXPECT_FALSE(infinity.AllClose(minus));
  EXPECT_FALSE(infinity.AllClose(zero, 1, 1));
  EXPECT_FALSE(zero.AllClose(infinity, 1, 1));
  EXPECT_FALSE(nan.AllClose(nan));
  EXPECT_TRUE(nan.AllClose(nan, 0, 0, /*equal_nan=*/true));
  EXPECT_FALSE(nan.AllClose(zero, 1, 1, /*equal_nan=*/true));
  EXPECT_FALSE(zero.AllClose(nan, 1, 1, /*equal_nan=*/true));
}

TEST(AllCloseTest, IntegersComplexAndNarrowFloats) {
  EXPECT_TRUE(Tensor::Scalar(uint8_t{3})
                  ->AllClose(Tensor::Scalar(uint8_t{5}).value(), 0, 2));
  EXPECT_FALSE(Tensor::Scalar(uint8_t{3})
                   ->AllClose(Tensor::Scalar(uint8_t{5}).value(), 0, 1));
  // Neighbours that are one number as double.
  EXPECT_FALSE(Tensor::Scalar(INT64_MAX)->AllClose(
      Tensor::Scalar(INT64_MAX - 1).value(), 0, 0));
  const Tensor z = Tensor::Scalar(std::complex<float>(3, 4)).value();
  EXPECT_TRUE(
      z.AllClose(Tensor::Scalar(std::complex<float>(3, 4.5f)).value(), 0.1, 0));
  EXPECT_FALSE(
      z.AllClose(Tensor::Scalar(std::complex<float>(3, 5)).value(), 0.1, 0));
  EXPECT_TRUE(Tensor::Scalar(Float16(1.0f))
                  ->AllClose(Tensor::Scalar(Float16(1.001f)).value(), 1e-2, 0));
  EXPECT_FALSE(Tensor::Scalar(Float8E5M2(1.0f))
                   ->AllClose(Tensor::Scalar(Float8E5M2(1.25f)).value()));
}

TEST(ToStringTest, ShowsDTypeShapeDeviceAndTheFirstElements) {
  EXPECT_EQ(Iota({2, 3}).ToString(),
            "Tensor(int32, [2, 3], cpu: 0, 1, 2, 3, 4, 5)");
  EXPECT_EQ(Iota({2, 3}).Transpose(0, 1)->ToString(),
            "Tensor(int32, [3, 2], cpu: 0, 3, 1, 4, 2, 5)");
  EXPECT_EQ(Iota({100}).ToString(),
            "Tensor(int32, [100], cpu: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "
            "…)");
  EXPECT_EQ(Iota({12}).ToString(),
            "Tensor(int32, [12], cpu: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)");
  EXPECT_EQ(Iota({0}).ToString(), "Tensor(int32, [0], cpu)");
  EXPECT_EQ(Tensor::Scalar(true)->ToString(), "Tensor(bool, [], cpu: true)");
  EXPECT_EQ(Tensor::Scalar(uint8_t{65})->ToString(),
            "Tensor(uint8, [], cpu: 65)");
  EXPECT_EQ(Tensor::Scalar(BFloat16(1.5f))->ToString(),
            "Tensor(bfloat16, [], cpu: 1.5)");
  EXPECT_EQ(Tensor::Scalar(std::complex<float>(1, -2))->ToString(),
            "Tensor(complex64, [], cpu: (1,-2))");
  std::ostringstream out;
  out << Iota({1});
  EXPECT_EQ(out.str(), "Tensor(int32, [1], cpu: 0)");
}

}  // namespace
}  // namespace sherd
