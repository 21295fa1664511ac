// Tensors in the memory of devices. tensor_test.cc tests the functions of all
// tensors.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/kernels/elementwise_op.h"
#include "sherd/core/tensor/kernels/tensor_statistics.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;

constexpr Device kHost = {};
constexpr Device kAnyGpu = {DeviceType::kCuda};
constexpr Device kGpu = {DeviceType::kCuda, 0};
constexpr Device kOther = {DeviceType::kCuda, 1};

// 0, 1, 2, … in row-major order.
Tensor Iota(const Dims& sizes) {
  std::vector<int32_t> values(static_cast<size_t>(*NumElements(sizes)));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromSpan<int32_t>(values, sizes).value();
}

class DeviceTensorTest : public ::testing::Test {
 protected:
  FakeDevice& fake_ = FakeDevice::Install(2, /*bytes_each=*/1 << 20);
};

TEST_F(DeviceTensorTest, IsCreatedInTheMemoryOfTheDevice) {
  const Tensor tensor =
      Tensor::Empty({2, 3}, {.dtype = kInt32, .device = kOther}).value();
  EXPECT_EQ(tensor.device(), kOther);
  EXPECT_EQ(tensor.storage()->device(), kOther);
  EXPECT_EQ(fake_.Locate(tensor.data()).value(), kOther);
  // Nothing was written.
  EXPECT_EQ(tensor.At<int32_t>({1, 2}).value(),
            static_cast<int32_t>(0xCDCDCDCD));
  const Tensor empty = Tensor::Empty({0, 3}, {.device = kOther}).value();
  EXPECT_EQ(empty.device(), kOther);
  EXPECT_EQ(empty.data(), nullptr);
}

TEST_F(DeviceTensorTest, WithoutAnIndexLiesOnTheThreadsCurrentDevice) {
  EXPECT_EQ(Tensor::Empty({1}, {.device = kAnyGpu})->device(), kGpu);
  ASSERT_THAT(fake_.SetCurrentDevice(1), IsOk());
  EXPECT_EQ(Tensor::Empty({1}, {.device = kAnyGpu})->device(), kOther);
  EXPECT_EQ(Iota({2}).To(kAnyGpu)->device(), kOther);
}

TEST_F(DeviceTensorTest, FillsAreQueuedAndReadsWait) {
  const TensorOptions options = {.dtype = kBFloat16, .device = kGpu};
  const Tensor zeros = Tensor::Zeros({2, 2}, options).value();
  const Tensor ones = Tensor::Ones({2, 2}, options).value();
  Tensor full = Tensor::Full({2, 2}, 1.5, options).value();
  ASSERT_THAT(full.Transpose(0, 1)->Narrow(0, 1, 1)->Fill(-2), IsOk());
  EXPECT_THAT(fake_.TakeRun(), ElementsAre());
  EXPECT_EQ(zeros.ToString(), "Tensor(bfloat16, [2, 2], cuda:0: 0, 0, 0, 0)");
  EXPECT_EQ(ones.ToString(), "Tensor(bfloat16, [2, 2], cuda:0: 1, 1, 1, 1)");
  EXPECT_EQ(full.ToString(),
            "Tensor(bfloat16, [2, 2], cuda:0: 1.5, -2, 1.5, -2)");
}

TEST_F(DeviceTensorTest, FillsEveryWidthOfElements) {
  for (const DType dtype :
       {kBool, kInt16, kFloat32, kFloat64, kComplex64, kComplex128}) {
    const TensorOptions options = {.dtype = dtype, .device = kGpu};
    const Tensor tensor = Tensor::Full({3}, true, options).value();
    EXPECT_TRUE(tensor.Equal(Tensor::Ones({3}, {.dtype = dtype}).value()))
        << Name(dtype);
  }
}

TEST_F(DeviceTensorTest, ChecksFillValuesAsOnTheHost) {
  Tensor tensor = Tensor::Zeros({2}, {.dtype = kInt8, .device = kGpu}).value();
  fake_.TakeQueued();
  EXPECT_THAT(tensor.Fill(200), StatusIs(kInvalid, ""));
  Tensor repeated =
      Tensor::FromStorageStrided(tensor.storage(), 0, {4}, {0}, kInt8).value();
  EXPECT_THAT(repeated.Fill(1), StatusIs(kInvalid, "coincide"));
  EXPECT_THAT(fake_.TakeQueued(), ElementsAre());
}

TEST_F(DeviceTensorTest, WorkGoesToTheCurrentStream) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  Tensor tensor = Tensor::Zeros({4}, {.device = kGpu}).value();
  {
    const ScopedStream scope(stream);
    ASSERT_THAT(tensor.Fill(1), IsOk());
  }
  // The default stream does not hold it.
  ASSERT_THAT(fake_.Synchronize({kGpu, nullptr}), IsOk());
  EXPECT_THAT(fake_.TakeRun(), ElementsAre("fill"));
  ASSERT_THAT(fake_.Synchronize(stream), IsOk());
  EXPECT_THAT(fake_.TakeRun(), ElementsAre("fill"));
}

TEST_F(DeviceTensorTest, MovesThereAndBack) {
  const Tensor host = Iota({3, 5});
  const Tensor device = host.To(kGpu).value();
  EXPECT_EQ(device.device(), kGpu);
  EXPECT_EQ(device.dtype(), kInt32);
  EXPECT_THAT(fake_.TakeRun(), ElementsAre());
  const Tensor other = device.To(kOther).value();
  EXPECT_EQ(other.device(), kOther);
  EXPECT_THAT(fake_.TakeRun(), ElementsAre());
  const Tensor back = other.To(kHost).value();
  EXPECT_TRUE(back.Equal(host)) << back;
  EXPECT_NE(back.data(), host.data());
}

TEST_F(DeviceTensorTest, IsNotCopiedWhereItLiesAlready) {
  const Tensor host = Iota({3});
  EXPECT_EQ(host.To(kHost)->data(), host.data());
  const Tensor device = host.To(kGpu).value();
  EXPECT_EQ(device.To(kGpu)->data(), device.data());
  EXPECT_EQ(device.To(kAnyGpu)->data(), device.data());
  EXPECT_NE(device.To(kOther)->data(), device.data());
}

TEST_F(DeviceTensorTest, HostMemoryMayChangeOnceItWasCopied) {
  Tensor host = Iota({4});
  const Tensor device = host.To(kGpu).value();
  ASSERT_THAT(host.Fill(-1), IsOk());
  EXPECT_TRUE(device.Equal(Iota({4})));
}

TEST_F(DeviceTensorTest, APinnedSourceStaysUntilItWasRead) {
  Tensor pinned =
      Tensor::Empty({4}, {.dtype = kInt32, .allocator = fake_.PinnedMemory()})
          .value();
  EXPECT_EQ(pinned.device(), kHost);
  ASSERT_THAT(pinned.CopyFrom(Iota({4})), IsOk());
  const Tensor device = pinned.To(kGpu).value();
  EXPECT_THAT(fake_.TakeRun(), ElementsAre());
  pinned = Tensor();
  EXPECT_TRUE(device.Equal(Iota({4})));
}

// Both sides in every combination of strides and devices.
TEST_F(DeviceTensorTest, CopiesWhateverTheStrides) {
  const Tensor values = Iota({4, 6});
  for (const Device& from : {kHost, kGpu, kOther}) {
    for (const Device& to : {kHost, kGpu, kOther}) {
      for (const bool from_strided : {false, true}) {
        for (const bool to_strided : {false, true}) {
          const auto make = [&](const Device& device, bool strided) {
            const Tensor whole =
                Tensor::Zeros(strided ? Dims{12, 4} : Dims{4, 6},
                              {.dtype = kInt32, .device = device})
                    .value();
            return strided ? whole.Narrow(0, 3, 6)->Transpose(0, 1).value()
                           : whole;
          };
          Tensor src = make(from, from_strided);
          Tensor dst = make(to, to_strided);
          ASSERT_THAT(src.CopyFrom(values), IsOk());
          ASSERT_THAT(dst.CopyFrom(src), IsOk());
          EXPECT_TRUE(dst.Equal(values))
              << from << " " << from_strided << " to " << to << " "
              << to_strided << ": " << dst;
        }
      }
    }
  }
  EXPECT_EQ(fake_.live_events(), 0);
}

TEST_F(DeviceTensorTest, NothingButTheHostIsWaitedFor) {
  const Tensor a = Iota({4, 6}).To(kGpu).value();
  Tensor b = Tensor::Empty({6, 4}, {.dtype = kInt32, .device = kGpu}).value();
  ASSERT_THAT(b.CopyFrom(*a.Transpose(0, 1)), IsOk());
  const Tensor c = b.Transpose(0, 1)->Contiguous().value();
  const Tensor d = b.Transpose(0, 1)->ReshapeOrCopy({24}).value();
  const Tensor e = b.Clone()->To(kOther).value();
  EXPECT_THAT(fake_.TakeRun(), ElementsAre());
  EXPECT_TRUE(c.Equal(a));
  EXPECT_TRUE(d.Equal(*a.Flatten()));
  EXPECT_TRUE(e.Equal(b));
}

TEST_F(DeviceTensorTest, ACopyOfOverlappingElementsIsAsIfMadeBefore) {
  Tensor tensor = Iota({6}).To(kGpu).value();
  ASSERT_THAT(tensor.Narrow(0, 1, 5)->CopyFrom(*tensor.Narrow(0, 0, 5)),
              IsOk());
  EXPECT_EQ(tensor.ToString(), "Tensor(int32, [6], cuda:0: 0, 0, 1, 2, 3, 4)");
}

// The stream of each device waits for the other's.
TEST_F(DeviceTensorTest, CopiesBetweenDevicesAreInTheOrderOfBothStreams) {
  Tensor src = Tensor::Zeros({4}, {.dtype = kInt32, .device = kGpu}).value();
  ASSERT_THAT(src.Fill(1), IsOk());
  const Tensor dst = src.To(kOther).value();
  ASSERT_THAT(src.Fill(2), IsOk());
  // Runs the second fill, and what has to come before.
  ASSERT_THAT(fake_.Synchronize({kGpu, nullptr}), IsOk());
  EXPECT_TRUE(dst.Equal(Tensor::Full({4}, 1, {.dtype = kInt32}).value()))
      << dst;
}

// A tensor that is destroyed while another stream works on it.
TEST_F(DeviceTensorTest, MayBeDestroyedWhileAnotherStreamReadsIt) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  Tensor src = Iota({4}).To(kGpu).value();
  ASSERT_THAT(fake_.Synchronize({kGpu, nullptr}), IsOk());
  Tensor dst = Tensor::Empty({4}, {.dtype = kInt32, .device = kGpu}).value();
  {
    const ScopedStream scope(stream);
    ASSERT_THAT(dst.CopyFrom(src), IsOk());
  }
  src = Tensor();
  ASSERT_THAT(fake_.Synchronize({kGpu, nullptr}), IsOk());
  ASSERT_THAT(fake_.Synchronize(stream), IsOk());
  EXPECT_TRUE(dst.Equal(Iota({4}))) << dst;
}

TEST_F(DeviceTensorTest, MayBeDestroyedWhileAnotherStreamFillsIt) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  Tensor tensor = Tensor::Zeros({4}, {.device = kGpu}).value();
  const void* const data = tensor.data();
  {
    const ScopedStream scope(stream);
    ASSERT_THAT(tensor.Fill(1), IsOk());
  }
  tensor = Tensor();
  ASSERT_THAT(fake_.Synchronize({kGpu, nullptr}), IsOk());
  ASSERT_THAT(fake_.Synchronize(stream), IsOk());
  EXPECT_EQ(fake_.ReadNow(data, 1), "\xDD");
}

TEST_F(DeviceTensorTest, APinnedCopyIsThereWhenTheCallReturns) {
  Tensor pinned =
      Tensor::Zeros({4}, {.dtype = kInt32, .allocator = fake_.PinnedMemory()})
          .value();
  const Tensor device = Iota({4}).To(kGpu).value();
  ASSERT_THAT(pinned.CopyFrom(device), IsOk());
  EXPECT_EQ(pinned.ToString(), "Tensor(int32, [4], cpu: 0, 1, 2, 3)");
}

TEST_F(DeviceTensorTest, ComparesAcrossDevices) {
  const Tensor host = Tensor::FromSpan<float>({0.f, 1.5f}, {2}).value();
  const Tensor device = host.To(kGpu).value();
  const Tensor other =
      Tensor::FromSpan<float>({-0.f, 1.5f}, {2})->To(kOther).value();
  EXPECT_TRUE(device.Equal(host));
  EXPECT_TRUE(host.Equal(device));
  EXPECT_TRUE(device.Equal(other));
  EXPECT_FALSE(device.BitwiseEqual(other));
  EXPECT_TRUE(device.BitwiseEqual(host));
  EXPECT_TRUE(device.AllClose(other));
  EXPECT_FALSE(device.AllClose(Tensor::Ones({2}).value()));
  EXPECT_FALSE(device.Equal(Tensor::Zeros({2}).value()));
  fake_.FailWith(absl::FailedPreconditionError("illegal address"));
  EXPECT_FALSE(device.Equal(host));
}

TEST_F(DeviceTensorTest, PrintsItsFirstElements) {
  const Tensor tensor = Iota({3, 2, 5}).To(kGpu).value();
  fake_.RunAll();
  fake_.TakeQueued();
  EXPECT_EQ(tensor.ToString(),
            "Tensor(int32, [3, 2, 5], cuda:0: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, "
            "10, 11, …)");
  EXPECT_EQ(tensor.Permute({2, 1, 0})->ToString(),
            "Tensor(int32, [5, 2, 3], cuda:0: 0, 10, 20, 5, 15, 25, 1, 11, "
            "21, 6, 16, 26, …)");
  fake_.TakeBytesCopied();
  const Tensor large = Tensor::Zeros({100, 7}, {.device = kGpu}).value();
  EXPECT_EQ(large.ToString().substr(0, 38),
            "Tensor(float32, [100, 7], cuda:0: 0, 0");
  EXPECT_EQ(fake_.TakeBytesCopied(), 2 * 7 * sizeof(float));
  fake_.FailWith(absl::FailedPreconditionError("illegal address"));
  EXPECT_EQ(tensor.ToString(), "Tensor(int32, [3, 2, 5], cuda:0)");
}

TEST_F(DeviceTensorTest, OneElementIsReadByOneSmallCopy) {
  const Tensor tensor = Iota({3, 5}).To(kGpu)->Transpose(0, 1).value();
  fake_.TakeBytesCopied();
  EXPECT_EQ(tensor.At<int32_t>({4, 2}).value(), 14);
  EXPECT_EQ(fake_.TakeBytesCopied(), sizeof(int32_t));
  EXPECT_THAT(tensor.At<int32_t>({5, 0}),
              StatusIs(absl::StatusCode::kOutOfRange, ""));
  EXPECT_THAT(tensor.At<float>({0, 0}), StatusIs(kInvalid, ""));
}

TEST_F(DeviceTensorTest, BorrowsMemoryOfOthers) {
  const Tensor owner = Iota({2, 3}).To(kOther).value();
  void* const data = const_cast<void*>(owner.data());
  auto keep_alive = std::make_shared<int>(0);
  Tensor tensor =
      Tensor::FromBorrowed(data, {3, 2}, kInt32, keep_alive, kAnyGpu).value();
  EXPECT_EQ(tensor.device(), kOther);
  EXPECT_EQ(keep_alive.use_count(), 2);
  ASSERT_THAT(tensor.Fill(7), IsOk());
  EXPECT_EQ(owner.At<int32_t>({1, 2}).value(), 7);
  tensor = Tensor();
  EXPECT_EQ(keep_alive.use_count(), 1);
  EXPECT_THAT(Tensor::FromBorrowed(nullptr, {0}, kInt32, nullptr, kGpu),
              IsOk());
}

TEST_F(DeviceTensorTest, RefusesToBorrowMemoryOfOtherDevices) {
  const Tensor owner = Iota({4}).To(kOther).value();
  Tensor host = Iota({4});
  const Tensor pinned =
      Tensor::Empty({4}, {.dtype = kInt32, .allocator = fake_.PinnedMemory()})
          .value();
  const auto borrow = [](const void* data, const Device& device) {
    return Tensor::FromBorrowed(const_cast<void*>(data), {4}, kInt32, nullptr,
                                device);
  };
  EXPECT_THAT(borrow(owner.data(), kGpu),
              StatusIs(kInvalid, "memory of cuda:0: the address is of cuda:1"));
  EXPECT_THAT(borrow(host.data(), kGpu),
              StatusIs(kInvalid, "perhaps the host's"));
  EXPECT_THAT(borrow(pinned.data(), kGpu),
              StatusIs(kInvalid, "of pinned host memory"));
  EXPECT_THAT(borrow(nullptr, kGpu), StatusIs(kInvalid, "null pointer"));
  EXPECT_THAT(borrow(host.data(), {DeviceType::kMeta}),
              StatusIs(kInvalid, "borrow memory of meta"));
  EXPECT_THAT(Storage::Borrow(host.data(), 4, nullptr, kAnyGpu),
              StatusIs(kInvalid, "a device with its index"));
}

TEST_F(DeviceTensorTest, FunctionsThatNeedHostMemoryExplainHowToGetIt) {
  const Tensor device = Tensor::Ones({2}, {.device = kGpu}).value();
  const Tensor host = Tensor::Ones({2}).value();
  constexpr char kRemedy[] = "move it there with To(Device())";
  EXPECT_THAT(device.To(kFloat64), StatusIs(kPrecondition, kRemedy));
  EXPECT_THAT(Apply(BinaryOp::kAdd, device, device),
              StatusIs(kPrecondition, kRemedy));
  EXPECT_THAT(Apply(BinaryOp::kAdd, host, device),
              StatusIs(kPrecondition, kRemedy));
  EXPECT_THAT(Apply(BinaryOp::kAdd, device, host),
              StatusIs(kPrecondition, "on cuda:0"));
  EXPECT_THAT(LargestMagnitude(device), StatusIs(kPrecondition, kRemedy));
  EXPECT_THAT(device.To(Device{DeviceType::kMeta}),
              StatusIs(kInvalid, "cannot be moved to the device meta"));
}

TEST_F(DeviceTensorTest, ErrorsOfDevicesAreReportedAndChangeNothing) {
  constexpr Device kMissing = {DeviceType::kCuda, 2};
  EXPECT_THAT(Tensor::Zeros({2}, {.device = kMissing}),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "there is no cuda:2: in this process there are cuda:0 "
                       "to cuda:1"));
  EXPECT_THAT(Iota({2}).To(kMissing),
              StatusIs(absl::StatusCode::kOutOfRange, "no cuda:2"));
  EXPECT_THAT(Tensor::Empty({1 << 20}, {.device = kGpu}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "out of memory: cuda:0 cannot provide 4194304 bytes"));
  Tensor host = Iota({2});
  Tensor device = Iota({2}).To(kGpu).value();
  fake_.FailWith(absl::FailedPreconditionError("illegal address"));
  EXPECT_THAT(host.CopyFrom(device), StatusIs(kPrecondition, "illegal"));
  EXPECT_THAT(device.CopyFrom(host), StatusIs(kPrecondition, "illegal"));
  EXPECT_THAT(device.Fill(0), StatusIs(kPrecondition, "illegal"));
  EXPECT_THAT(device.At<int32_t>({0}), StatusIs(kPrecondition, "illegal"));
  EXPECT_TRUE(host.Equal(Iota({2})));
  fake_.FailWith(absl::OkStatus());
  EXPECT_TRUE(device.Equal(host));
}

TEST_F(DeviceTensorTest, WithoutADriverListsTheSearchedPlaces) {
  FakeDevice::InstallError(
      absl::UnavailableError("no cuda device can be used: no libcuda.so.1"));
  EXPECT_THAT(Tensor::Zeros({2}, {.device = kGpu}),
              StatusIs(absl::StatusCode::kUnavailable,
                       "no memory for a tensor on cuda:0: no cuda device can "
                       "be used: no libcuda.so.1"));
  EXPECT_THAT(Iota({2}).To(kAnyGpu),
              StatusIs(absl::StatusCode::kUnavailable, "libcuda.so.1"));
}

TEST_F(DeviceTensorTest, ACaptureTakesCopiesButHandsNothingToTheHost) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  const Tensor a = Tensor::Ones({4}, {.device = kGpu}).value();
  Tensor b = Tensor::Zeros({4}, {.device = kGpu}).value();
  Tensor host = Tensor::Zeros({4}).value();
  const ScopedStream scope(stream);
  fake_.SetCapturing(stream, true);
  EXPECT_THAT(b.CopyFrom(a), IsOk());
  EXPECT_THAT(b.Fill(2), IsOk());
  fake_.TakeQueued();
  EXPECT_THAT(host.CopyFrom(b), StatusIs(kPrecondition, "being captured"));
  EXPECT_THAT(b.CopyFrom(host), StatusIs(kPrecondition, "being captured"));
  EXPECT_THAT(b.Clone(), StatusIs(kPrecondition, "being captured"));
  EXPECT_THAT(fake_.TakeQueued(), ElementsAre());
  EXPECT_EQ(fake_.live_events(), 0);
}

// Host memory that a graph would read each time it is launched.
TEST_F(DeviceTensorTest, ACaptureTakesPinnedMemory) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  Tensor device = Tensor::Zeros({4}, {.device = kGpu}).value();
  const Tensor pinned =
      Tensor::Ones({4}, {.allocator = fake_.PinnedMemory()}).value();
  const ScopedStream scope(stream);
  fake_.SetCapturing(stream, true);
  EXPECT_THAT(device.CopyFrom(pinned), IsOk());
}

TEST_F(DeviceTensorTest, ViewsShareDeviceMemory) {
  const Tensor tensor = Iota({4, 6}).To(kGpu).value();
  const Tensor view =
      tensor.Narrow({1, 2}, {2, 3})->Transpose(0, 1)->Select(1, 1).value();
  EXPECT_EQ(view.storage(), tensor.storage());
  EXPECT_EQ(view.device(), kGpu);
  EXPECT_EQ(view.ToString(), "Tensor(int32, [3], cuda:0: 14, 15, 16)");
  EXPECT_EQ(tensor.Narrow(0, 0, 0)->ToString(),
            "Tensor(int32, [0, 6], cuda:0)");
}

}  // namespace
}  // namespace sherd
