#include "sherd/serialization/safetensors/device_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::StatusIs;

class DeviceBlocksTest : public ::testing::Test {
 protected:
  static constexpr Device kDevice = {DeviceType::kCuda, 0};

  DeviceBlocksTest() {
    devices_.RunAll();
    devices_.TakeRun();
    devices_.TakeQueued();
  }

  BoxInArray Box() {
    return {{origin_, tensor_.sizes()},
            tensor_.sizes(),
            1,
            static_cast<std::byte*>(tensor_.data()),
            tensor_.strides()};
  }

  int64_t NumQueued() { return Count(devices_.TakeQueued()); }
  int64_t NumRun() { return Count(devices_.TakeRun()); }

  FakeDevice& devices_ = FakeDevice::Install(1);
  const Dims origin_ = {0};
  Tensor tensor_ = Tensor::Ones({3 * kDeviceBlockBytes},
                                {.dtype = kUInt8, .device = kDevice})
                       .value();

 private:
  static int64_t Count(const std::vector<std::string>& names) {
    return std::count(names.begin(), names.end(), "copy_bytes");
  }
};

// The box may be freed on any stream after this.
TEST_F(DeviceBlocksTest, NothingIsUnderWayAfterAnErrorOfTheReader) {
  int blocks = 0;
  EXPECT_THAT(ReadDeviceBox(Box(), kDevice,
                            [&](int64_t, absl::Span<const std::byte>) {
                              return ++blocks == 2 ? absl::DataLossError("full")
                                                   : absl::OkStatus();
                            }),
              StatusIs(absl::StatusCode::kDataLoss, "full"));
  const int64_t queued = NumQueued();
  EXPECT_EQ(queued, 3);
  EXPECT_EQ(NumRun(), queued);
  EXPECT_EQ(devices_.live_pooled_blocks(), 0);
}

TEST_F(DeviceBlocksTest, NothingIsUnderWayAfterAnErrorOfTheWriter) {
  int blocks = 0;
  EXPECT_THAT(
      WriteDeviceBox(Box(), kDevice,
                     [&](int64_t, absl::Span<std::byte> block) {
                       std::fill(block.begin(), block.end(), std::byte{2});
                       return ++blocks == 2 ? absl::DataLossError("short")
                                            : absl::OkStatus();
                     }),
      StatusIs(absl::StatusCode::kDataLoss, "short"));
  const int64_t queued = NumQueued();
  EXPECT_EQ(queued, 1);
  EXPECT_EQ(NumRun(), queued);
  EXPECT_EQ(devices_.live_pooled_blocks(), 0);
}

}  // namespace
}  // namespace sherd
