// Tensors through the loader, the device plugin and a driver: a real one, or
// the emulated one, which ends the process where an order is missing.
// core/tensor/types/device_tensor_test.cc tests the contract of tensors.

#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

constexpr Device kHost = {};
constexpr Device kGpu = {DeviceType::kCuda, 0};

// 0, 1, 2, … in row-major order.
Tensor Iota(const Dims& sizes) {
  std::vector<int32_t> values(static_cast<size_t>(*NumElements(sizes)));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromSpan<int32_t>(values, sizes).value();
}

class CudaTensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto runtime = DeviceRuntime::For(DeviceType::kCuda);
    if (!runtime.ok()) GTEST_SKIP() << runtime.status().message();
    runtime_ = *runtime;
  }

  int Count() { return runtime_->DeviceCount().value(); }

  // The last device, which is the first where there is only one.
  Device Last() { return {DeviceType::kCuda, Count() - 1}; }

  DeviceRuntime* runtime_ = nullptr;
};

TEST_F(CudaTensorsTest, DevicesAreDescribed) {
  for (int i = 0; i < Count(); ++i) {
    const auto properties = runtime_->Properties(i);
    ASSERT_THAT(properties, IsOk());
    EXPECT_NE(properties->name, "");
    EXPECT_NE(properties->bus_id, "");
    EXPECT_GT(properties->total_bytes, 0u);
    EXPECT_GT(properties->compute_major, 0);
  }
  EXPECT_NE(runtime_->library_version(), "");
}

TEST_F(CudaTensorsTest, AMissingDeviceIsAnError) {
  EXPECT_THAT(Tensor::Empty({1}, {.device = {DeviceType::kCuda, Count()}}),
              StatusIs(absl::StatusCode::kOutOfRange, "choose one"));
}

TEST_F(CudaTensorsTest, WithoutAnIndexIsTheCurrentDeviceAndStaysIt) {
  std::thread([this] {
    EXPECT_EQ(Tensor::Zeros({3}, {.device = {DeviceType::kCuda}})->device(),
              kGpu);
    ASSERT_THAT(runtime_->SetCurrentDevice(Last().index), IsOk());
    EXPECT_EQ(Tensor::Zeros({3}, {.device = {DeviceType::kCuda}})->device(),
              Last());
    // Work on another device leaves it.
    EXPECT_THAT(Tensor::Zeros({3}, {.device = kGpu}), IsOk());
    EXPECT_EQ(runtime_->CurrentDevice().value(), Last().index);
  }).join();
}

TEST_F(CudaTensorsTest, FillsEveryDType) {
  for (int d = 0; d < kNumComputedDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    for (const int64_t count : {1, 33, 4099}) {
      Tensor expected = Tensor::Ones({count, 3}, {.dtype = dtype}).value();
      Tensor tensor =
          Tensor::Ones({count, 3}, {.dtype = dtype, .device = kGpu}).value();
      ASSERT_THAT(expected.Select(1, 1)->Fill(0), IsOk());
      ASSERT_THAT(tensor.Select(1, 1)->Fill(0), IsOk());
      EXPECT_TRUE(tensor.BitwiseEqual(expected)) << Name(dtype) << " " << count;
    }
  }
}

// Both sides in every combination of strides and devices.
TEST_F(CudaTensorsTest, CopiesWhateverTheStrides) {
  const Tensor values = Iota({40, 67});
  for (const Device& from : {kHost, kGpu, Last()}) {
    for (const Device& to : {kHost, kGpu, Last()}) {
      for (const bool from_strided : {false, true}) {
        for (const bool to_strided : {false, true}) {
          const auto make = [&](const Device& device, bool strided) {
            const Tensor whole =
                Tensor::Zeros(strided ? Dims{80, 40} : Dims{40, 67},
                              {.dtype = kInt32, .device = device})
                    .value();
            return strided ? whole.Narrow(0, 3, 67)->Transpose(0, 1).value()
                           : whole;
          };
          Tensor src = make(from, from_strided);
          Tensor dst = make(to, to_strided);
          ASSERT_THAT(src.CopyFrom(values), IsOk());
          ASSERT_THAT(dst.CopyFrom(src), IsOk());
          EXPECT_TRUE(dst.BitwiseEqual(values))
              << from << " " << from_strided << " to " << to << " "
              << to_strided;
        }
      }
    }
  }
}

TEST_F(CudaTensorsTest, HostMemoryMayChangeOnceItWasCopied) {
  Tensor host = Iota({1000});
  const Tensor device = host.To(kGpu).value();
  ASSERT_THAT(host.Fill(-1), IsOk());
  EXPECT_TRUE(device.Equal(Iota({1000})));
}

TEST_F(CudaTensorsTest, PinnedMemoryIsCopiedInTheOrderOfTheStream) {
  Tensor pinned = Tensor::Empty({1000}, {.dtype = kInt32,
                                         .allocator = runtime_->PinnedMemory()})
                      .value();
  ASSERT_THAT(pinned.CopyFrom(Iota({1000})), IsOk());
  const Tensor device = pinned.To(kGpu).value();
  // It may go at once, and other memory of the pool may not take its place.
  pinned = Tensor();
  Tensor next = Tensor::Zeros({1000}, {.dtype = kInt32,
                                       .allocator = runtime_->PinnedMemory()})
                    .value();
  ASSERT_THAT(next.CopyFrom(device), IsOk());
  EXPECT_TRUE(next.Equal(Iota({1000})));
}

TEST_F(CudaTensorsTest, ATensorMayBeDestroyedWhileAnotherStreamUsesIt) {
  const DeviceStream stream = runtime_->CreateStream(0).value();
  for (int i = 0; i < 20; ++i) {
    Tensor src =
        Tensor::Full({1000}, i, {.dtype = kInt32, .device = kGpu}).value();
    ASSERT_THAT(runtime_->Synchronize({kGpu, nullptr}), IsOk());
    Tensor dst;
    {
      const ScopedStream scope(stream);
      dst = src.Clone().value();
    }
    src = Tensor();
    // Likely the memory of src.
    const Tensor other =
        Tensor::Full({1000}, -1, {.dtype = kInt32, .device = kGpu}).value();
    const ScopedStream scope(stream);
    EXPECT_TRUE(dst.Equal(Tensor::Full({1000}, i, {.dtype = kInt32}).value()));
  }
  runtime_->DestroyStream(stream);
}

TEST_F(CudaTensorsTest, TensorsOutliveTheirStream) {
  const DeviceStream stream = runtime_->CreateStream(0, true).value();
  Tensor tensor;
  {
    const ScopedStream scope(stream);
    tensor = Iota({100}).To(kGpu).value();
  }
  runtime_->DestroyStream(stream);
  // Its work is not in the order of the default stream.
  tensor = Tensor();
  EXPECT_THAT(runtime_->Synchronize({kGpu, nullptr}), IsOk());
}

TEST_F(CudaTensorsTest, MemoryOfOthersIsBorrowedWhereItLies) {
  const Tensor owner = Iota({6}).To(Last()).value();
  void* const data = const_cast<void*>(owner.data());
  const Tensor tensor =
      Tensor::FromBorrowed(data, {2, 3}, kInt32, nullptr, {DeviceType::kCuda})
          .value();
  EXPECT_EQ(tensor.device(), Last());
  EXPECT_TRUE(tensor.Equal(Iota({2, 3})));
  Tensor host = Iota({6});
  EXPECT_THAT(Tensor::FromBorrowed(host.data(), {6}, kInt32, nullptr, kGpu),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "cannot borrow memory of cuda:0"));
  const Tensor pinned =
      Tensor::Empty({6}, {.allocator = runtime_->PinnedMemory()}).value();
  EXPECT_EQ(runtime_->Locate(pinned.data()).value(), kHost);
}

TEST_F(CudaTensorsTest, OutOfMemoryIsAnErrorAndTheDeviceStaysUsable) {
  const uint64_t all = runtime_->Properties(0)->total_bytes;
  const Tensor before = Iota({3}).To(kGpu).value();
  EXPECT_THAT(Tensor::Empty({2 * static_cast<int64_t>(all)},
                            {.dtype = kUInt8, .device = kGpu}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "out of memory: cuda:0 cannot provide"));
  EXPECT_TRUE(before.Equal(Iota({3})));
  EXPECT_THAT(Tensor::Zeros({3}, {.device = kGpu}), IsOk());
}

TEST_F(CudaTensorsTest, FreedMemoryIsUsedAgain) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Tensor::Zeros({1 << 20}, {.device = kGpu}), IsOk());
  }
  ASSERT_THAT(runtime_->Synchronize({kGpu, nullptr}), IsOk());
  const auto memory = runtime_->MemoryStatistics(0);
  ASSERT_THAT(memory, IsOk());
  EXPECT_LE(memory->live_bytes + memory->cached_bytes, uint64_t{64} << 20);
}

TEST_F(CudaTensorsTest, PrintsAndReadsElements) {
  const Tensor tensor = Iota({4, 5}).To(kGpu).value();
  EXPECT_EQ(tensor.ToString(),
            "Tensor(int32, [4, 5], cuda:0: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "
            "11, …)");
  EXPECT_EQ(tensor.At<int32_t>({3, 2}).value(), 17);
}

TEST_F(CudaTensorsTest, ThreadsWorkSideBySide) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const DeviceStream stream = runtime_->CreateStream(0).value();
      {
        const ScopedStream scope(stream);
        for (int i = 0; i < 10; ++i) {
          const Tensor tensor = Tensor::Full({257}, 100 * t + i,
                                             {.dtype = kInt32, .device = kGpu})
                                    .value();
          EXPECT_EQ(tensor.At<int32_t>({256}).value(), 100 * t + i);
        }
      }
      runtime_->DestroyStream(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sherd
