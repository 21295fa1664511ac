#include "sherd/serialization/safetensors/device_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
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

TEST_F(DeviceBlocksTest, ManyBoxesAreCopiedByFewLaunches) {
  std::vector<Tensor> tensors;
  int filled = 0;
  DeviceWriter writer([&] {
    ++filled;
    return absl::OkStatus();
  });
  // 2000 of 4 KiB are two blocks, less what alignment takes.
  for (int i = 0; i < 2000; ++i) {
    tensors.push_back(
        Tensor::Empty({1000}, {.dtype = kFloat32, .device = kDevice}).value());
  }
  devices_.TakeQueued();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const BoxPiece piece = {.bytes = tensors[i].nbytes(),
                            .data = static_cast<std::byte*>(tensors[i].data())};
    SHERD_ASSERT_OK_AND_ASSIGN(const absl::Span<std::byte> bytes,
                               writer.Take(kDevice, piece, sizeof(float)));
    ASSERT_EQ(bytes.size(), 4000u);
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(i % 251));
  }
  ASSERT_THAT(writer.Flush(), IsOk());
  EXPECT_EQ(filled, 2);
  const std::vector<std::string> queued = devices_.TakeQueued();
  EXPECT_EQ(std::count(queued.begin(), queued.end(), "copy"), 2);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(devices_.ReadNow(tensors[i].data(), 4000),
              std::string(4000, static_cast<char>(i % 251)))
        << i;
  }
  ASSERT_THAT(writer.Flush(), IsOk());
  EXPECT_EQ(filled, 2) << "nothing was taken";
}

TEST_F(DeviceBlocksTest, NothingIsCopiedThatWasNotFilled) {
  DeviceWriter writer([] { return absl::DataLossError("short"); });
  const BoxPiece piece = {.bytes = 100,
                          .data = static_cast<std::byte*>(tensor_.data())};
  ASSERT_THAT(writer.Take(kDevice, piece, 1), IsOk());
  EXPECT_THAT(writer.Flush(), StatusIs(absl::StatusCode::kDataLoss, "short"));
  EXPECT_EQ(devices_.ReadNow(tensor_.data(), 100), std::string(100, '\1'));
}

// Where it follows what the program has queued there.
TEST_F(DeviceBlocksTest, AWriterGoesOnOnAnotherStream) {
  SHERD_ASSERT_OK_AND_ASSIGN(const DeviceStream stream,
                             devices_.CreateStream(0, false));
  DeviceWriter writer;
  for (int64_t i = 0; i < 4; ++i) {
    std::optional<ScopedStream> current;
    if (i % 2 == 1) current.emplace(stream);
    ASSERT_THAT(tensor_.Narrow(0, 10 * i, 10)->Fill(9), IsOk());
    const BoxPiece piece = {
        .bytes = 10, .data = static_cast<std::byte*>(tensor_.data()) + 10 * i};
    SHERD_ASSERT_OK_AND_ASSIGN(const absl::Span<std::byte> bytes,
                               writer.Take(kDevice, piece, 1));
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>('a' + i));
  }
  ASSERT_THAT(writer.Flush(), IsOk());
  devices_.RunAll();
  EXPECT_EQ(devices_.ReadNow(tensor_.data(), 40),
            "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd");
  devices_.DestroyStream(stream);
}

}  // namespace
}  // namespace sherd
