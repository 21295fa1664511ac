#include "sherd/serialization/safetensors/tensors_on_host.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;

class TensorsOnHostTest : public ::testing::Test {
 protected:
  static constexpr Device kDevice = {DeviceType::kCuda, 0};
  static constexpr Device kOther = {DeviceType::kCuda, 1};

  // Number `i` has the pattern of that seed.
  void Add(const Dims& sizes, DType dtype, const Device& device) {
    Tensor tensor = PatternTensor(sizes, dtype, Seed(tensors_.size()));
    if (!device.is_cpu()) tensor = tensor.To(device).value();
    tensors_.push_back(std::move(tensor));
  }

  static int Seed(size_t i) { return static_cast<int>(i % 100); }

  absl::StatusOr<Tensor> Get(size_t i) {
    if (i == failing_) return absl::InternalError(absl::StrCat("number ", i));
    return tensors_[i];
  }

  // What is queued from now on, by name.
  int64_t NumQueued(const std::string& name) {
    const std::vector<std::string> names = devices_.TakeQueued();
    return std::count(names.begin(), names.end(), name);
  }

  void ExpectAt(TensorsOnHost& on_host, size_t i) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, on_host.At(i));
    ASSERT_TRUE(tensor.device().is_cpu()) << i;
    if (!tensors_[i].device().is_cpu()) {
      // All of it is in a block.
      const auto* const data = static_cast<const std::byte*>(tensor.data());
      EXPECT_THAT(devices_.Locate(data + tensor.nbytes() - 1),
                  IsOkAndHolds(Device()))
          << i;
    }
    const Dims zeros(tensors_[i].sizes().size(), 0);
    EXPECT_TRUE(HasPattern(tensor, zeros, tensors_[i].sizes(), Seed(i))) << i;
  }

  FakeDevice& devices_ = FakeDevice::Install(2);
  std::vector<Tensor> tensors_;
  size_t failing_ = ~size_t{0};
};

TEST_F(TensorsOnHostTest, ManyShortOnesComeByFewLaunches) {
  for (int i = 0; i < 1000; ++i) Add({10, 7}, kFloat32, kDevice);
  devices_.TakeQueued();
  const auto get = [this](size_t i) { return Get(i); };
  TensorsOnHost on_host(tensors_.size(), get, /*ahead=*/true);
  for (size_t i = 0; i < tensors_.size(); ++i) ExpectAt(on_host, i);
  EXPECT_EQ(NumQueued("copy"), 1);
}

TEST_F(TensorsOnHostTest, MoreThanABlockComesInSeveral) {
  for (int i = 0; i < 40; ++i) Add({300, 1000}, kUInt8, kDevice);
  devices_.TakeQueued();
  const auto get = [this](size_t i) { return Get(i); };
  TensorsOnHost on_host(tensors_.size(), get, /*ahead=*/true);
  for (size_t i = 0; i < tensors_.size(); ++i) ExpectAt(on_host, i);
  EXPECT_EQ(NumQueued("copy_bytes"), 40);
}

TEST_F(TensorsOnHostTest, TheyMayBeOfAnyKindAndPlace) {
  const std::vector<DType> dtypes = {kUInt8, kFloat64, kBFloat16, kComplex128};
  for (size_t i = 0; i < 400; ++i) {
    const auto rows = static_cast<int64_t>(i * 37 % 500);
    Add({rows, 33}, dtypes[i % 4],
        i % 11 == 3        ? Device()
        : i / 100 % 2 == 1 ? kOther
                           : kDevice);
    if (i % 5 == 0 && rows > 0) {
      // Columns of a wider one.
      Tensor wide =
          Tensor::Empty({rows, 40}, {.dtype = dtypes[i % 4], .device = kDevice})
              .value();
      Tensor columns = wide.Narrow(1, 4, 33).value();
      ASSERT_THAT(columns.CopyFrom(tensors_.back()), IsOk());
      tensors_.back() = columns;
    }
  }
  const auto get = [this](size_t i) { return Get(i); };
  TensorsOnHost all(tensors_.size(), get, /*ahead=*/true);
  TensorsOnHost some(tensors_.size(), get, /*ahead=*/true);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].nbytes() == 0) continue;
    ExpectAt(all, i);
    if (i * i % 7 < 3) ExpectAt(some, i);
  }
}

TEST_F(TensorsOnHostTest, ALongOneStaysWhereItIs) {
  Add({10}, kFloat32, kDevice);
  Add({TensorsOnHost::kLongest + 1}, kUInt8, kDevice);
  Add({10}, kFloat32, kDevice);
  const auto get = [this](size_t i) { return Get(i); };
  TensorsOnHost on_host(tensors_.size(), get, /*ahead=*/true);
  ExpectAt(on_host, 0);
  EXPECT_EQ(on_host.At(1)->data(), tensors_[1].data());
  ExpectAt(on_host, 2);
}

TEST_F(TensorsOnHostTest, NoneIsAskedForAheadIfThatMayNotBe) {
  for (int i = 0; i < 3; ++i) Add({10}, kFloat32, kDevice);
  size_t asked = 0;
  const auto get = [&](size_t i) {
    EXPECT_EQ(i, asked++);
    return Get(i);
  };
  TensorsOnHost on_host(tensors_.size(), get, /*ahead=*/false);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(on_host.At(i)->data(), tensors_[i].data());
  }
}

TEST_F(TensorsOnHostTest, AnErrorIsThatOfTheTensorItBelongsTo) {
  for (int i = 0; i < 10; ++i) Add({10}, kFloat32, kDevice);
  failing_ = 5;
  const auto get = [this](size_t i) { return Get(i); };
  TensorsOnHost on_host(tensors_.size(), get, /*ahead=*/true);
  for (size_t i = 0; i < 5; ++i) ExpectAt(on_host, i);
  EXPECT_THAT(on_host.At(5), StatusIs(absl::StatusCode::kInternal, "number 5"));
  ExpectAt(on_host, 6);
  devices_.FailCopiesOn(0, absl::FailedPreconditionError("illegal address"));
  TensorsOnHost failing(tensors_.size(), get, /*ahead=*/true);
  EXPECT_THAT(failing.At(6), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      "illegal address"));
}

}  // namespace
}  // namespace sherd
