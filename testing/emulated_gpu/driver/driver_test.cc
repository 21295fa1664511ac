#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/testing/emulated_gpu/driver/driver_fixture.h"

namespace sherd::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EmulatedDriverTest : public DriverTest {
 protected:
  static CUmemoryPool NewPool(int device = 0) {
    internal::CUmemPoolProps props = {};
    props.allocType = internal::kCudaAllocationPinned;
    props.location = {internal::kCudaLocationDevice, device};
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(cu().MemPoolCreate(&pool, &props), 0);
    return pool;
  }
  static uint64_t PoolValue(CUmemoryPool pool, int attribute) {
    uint64_t value = 0;
    EXPECT_EQ(cu().MemPoolGetAttribute(pool, attribute, &value), 0);
    return value;
  }
};

TEST_F(EmulatedDriverTest, DevicesHaveNamesOfTheirOwn) {
  int count = 0;
  ASSERT_EQ(cu().DeviceGetCount(&count), 0);
  ASSERT_EQ(count, 4);
  char first[32];
  char last[32];
  ASSERT_EQ(cu().DeviceGetPCIBusId(first, 32, 0), 0);
  ASSERT_EQ(cu().DeviceGetPCIBusId(last, 32, 3), 0);
  EXPECT_STREQ(first, "0000:40:00.0");
  EXPECT_STREQ(last, "0000:43:00.0");
  int device = -1;
  EXPECT_EQ(cu().DeviceGet(&device, 4), 101);
  int major = 0;
  ASSERT_EQ(
      cu().DeviceGetAttribute(&major, internal::kCudaComputeCapabilityMajor, 0),
      0);
  EXPECT_EQ(major, 9);
}

TEST_F(EmulatedDriverTest, ContextsAreCountedAndStacked) {
  CUcontext again = nullptr;
  ASSERT_EQ(cu().DevicePrimaryCtxRetain(&again, 0), 0);
  EXPECT_EQ(again, contexts_[0]);
  ASSERT_EQ(more().DevicePrimaryCtxRelease(0), 0);
  unsigned flags = 1;
  int active = 0;
  ASSERT_EQ(cu().DevicePrimaryCtxGetState(0, &flags, &active), 0);
  EXPECT_EQ(active, 1);

  ASSERT_EQ(cu().CtxPushCurrent(contexts_[2]), 0);
  int device = -1;
  ASSERT_EQ(cu().CtxGetDevice(&device), 0);
  EXPECT_EQ(device, 2);
  CUcontext popped = nullptr;
  ASSERT_EQ(cu().CtxPopCurrent(&popped), 0);
  EXPECT_EQ(popped, contexts_[2]);
  std::thread([] {
    CUcontext none = reinterpret_cast<CUcontext>(1);
    EXPECT_EQ(cu().CtxGetCurrent(&none), 0);
    EXPECT_EQ(none, nullptr);
    CUdeviceptr data = 0;
    EXPECT_EQ(cu().MemAlloc(&data, 1), 201);
  }).join();
  EXPECT_EQ(cu().CtxSetCurrent(reinterpret_cast<CUcontext>(&flags)), 201);
}

TEST_F(EmulatedDriverTest, WorkRunsLaterAndInTheOrderOfItsStream) {
  CUstream stream = NewStream();
  const CUdeviceptr data = Allocate(4 * sizeof(int));
  CUevent event = NewEvent();
  EXPECT_EQ(cu().EventQuery(event), 0) << "never recorded";
  auto* const pinned = static_cast<int*>(AllocatePinned(4 * sizeof(int)));
  std::memset(pinned, 0, 4 * sizeof(int));
  {
    const HeldStreams held(Library().hold_streams);
    for (int i = 0; i < 20; ++i) {
      cu().MemsetD32Async(data, static_cast<unsigned>(i), 4, stream);
    }
    cu().MemcpyAsync(At(pinned), data, 4 * sizeof(int), stream);
    cu().EventRecord(event, stream);
    EXPECT_EQ(cu().EventQuery(event), 600);
    EXPECT_EQ(more().StreamQuery(stream), 600);
  }
  EXPECT_EQ(more().EventSynchronize(event), 0);
  EXPECT_EQ(cu().EventQuery(event), 0);
  EXPECT_EQ(more().StreamQuery(stream), 0);
  EXPECT_THAT(std::vector<int>(pinned, pinned + 4), Each(19));
}

TEST_F(EmulatedDriverTest, DestroyedStreamStillRunsWhatIsQueued) {
  CUstream stream = NewStream();
  auto* const pinned = static_cast<int*>(AllocatePinned(sizeof(int)));
  CUevent event = NewEvent();
  {
    const HeldStreams held(Library().hold_streams);
    const CUdeviceptr data = Allocate(sizeof(int));
    cu().MemsetD32Async(data, 42, 1, stream);
    cu().MemcpyAsync(At(pinned), data, sizeof(int), stream);
    cu().EventRecord(event, stream);
    EXPECT_EQ(cu().StreamDestroy(stream), 0);
  }
  EXPECT_EQ(more().EventSynchronize(event), 0);
  EXPECT_EQ(*pinned, 42);
}

TEST_F(EmulatedDriverTest, PageableMemoryIsReadAtOnceAndWrittenBeforeReturn) {
  CUstream stream = NewStream();
  const CUdeviceptr data = Allocate(3 * sizeof(int));
  {
    std::vector<int> values = {1, 2, 3};
    Write(data, values, stream);
    values.assign(3, -1);
  }
  EXPECT_THAT(Read(data, 3, stream), ElementsAre(1, 2, 3));
}

TEST_F(EmulatedDriverTest, PinnedMemoryIsReadInTheOrderOfTheStream) {
  CUstream stream = NewStream();
  const CUdeviceptr data = Allocate(sizeof(int));
  auto* const pinned = static_cast<int*>(AllocatePinned(sizeof(int)));
  {
    const HeldStreams held(Library().hold_streams);
    *pinned = 1;
    cu().MemcpyAsync(data, At(pinned), sizeof(int), stream);
    // A mistake that the checker cannot detect, but that the values show.
    *pinned = 2;
  }
  EXPECT_THAT(Read(data, 1, stream), ElementsAre(2));
}

TEST_F(EmulatedDriverTest, OutOfMemoryIsAnAnswer) {
  Library().set_device_bytes(1 << 20);
  CUdeviceptr small = 0;
  CUdeviceptr large = 0;
  EXPECT_EQ(cu().MemAlloc(&large, (1 << 20) + 1), 2);
  EXPECT_EQ(cu().MemAlloc(&small, 1 << 19), 0);
  EXPECT_EQ(cu().MemAlloc(&large, (1 << 19) + 1), 2);
  CUstream stream = NewStream();
  CUmemoryPool pool = NewPool();
  EXPECT_EQ(cu().MemAllocFromPoolAsync(&large, (1 << 19) + 1, pool, stream), 2);
  EXPECT_EQ(cu().MemAllocFromPoolAsync(&large, 1 << 19, pool, stream), 0);
  size_t free_bytes = 1;
  size_t total = 0;
  EXPECT_EQ(cu().MemGetInfo(&free_bytes, &total), 0);
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(total, size_t{1} << 20);
  EXPECT_EQ(cu().MemFree(small), 0);
  EXPECT_EQ(cu().MemAlloc(&small, 1 << 19), 0);
  Library().set_device_bytes(uint64_t{1} << 30);
}

TEST_F(EmulatedDriverTest, PoolsReturnFreedMemoryAboveTheirThreshold) {
  CUstream stream = NewStream();
  CUmemoryPool pool = NewPool();
  CUdeviceptr data = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&data, 4096, pool, stream), 0);
  EXPECT_EQ(PoolValue(pool, internal::kCudaPoolUsedCurrent), 4096u);
  ASSERT_EQ(cu().MemFreeAsync(data, stream), 0);
  EXPECT_EQ(PoolValue(pool, internal::kCudaPoolUsedCurrent), 0u);
  EXPECT_EQ(PoolValue(pool, internal::kCudaPoolReservedCurrent), 4096u);
  cu().StreamSynchronize(stream);
  EXPECT_EQ(PoolValue(pool, internal::kCudaPoolReservedCurrent), 0u);

  uint64_t all = UINT64_MAX;
  ASSERT_EQ(
      cu().MemPoolSetAttribute(pool, internal::kCudaPoolReleaseThreshold, &all),
      0);
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&data, 4096, pool, stream), 0);
  ASSERT_EQ(cu().MemFreeAsync(data, stream), 0);
  cu().StreamSynchronize(stream);
  EXPECT_EQ(PoolValue(pool, internal::kCudaPoolReservedCurrent), 4096u);
  ASSERT_EQ(cu().MemPoolTrimTo(pool, 0), 0);
  EXPECT_EQ(PoolValue(pool, internal::kCudaPoolReservedCurrent), 0u);
}

TEST_F(EmulatedDriverTest, NewAndFreedMemoryIsOverwritten) {
  CUstream stream = NewStream();
  CUmemoryPool pool = NewPool();
  CUdeviceptr data = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&data, 8, pool, stream), 0);
  EXPECT_THAT(Read(data, 2, stream), Each(static_cast<int>(0xcbcbcbcb)));
}

TEST_F(EmulatedDriverTest, ReportsTheOwnerOfAnAddress) {
  cu().CtxSetCurrent(contexts_[1]);
  const CUdeviceptr data = Allocate(100);
  void* const pinned = AllocatePinned(100);
  int on_stack = 0;
  const auto locate = [](CUdeviceptr address) {
    int attributes[] = {internal::kCudaPointerMemoryType,
                        internal::kCudaPointerDeviceOrdinal};
    int type = -1;
    int device = -1;
    void* values[] = {&type, &device};
    EXPECT_EQ(cu().PointerGetAttributes(2, attributes, values, address), 0);
    return std::vector<int>{type, device};
  };
  EXPECT_THAT(locate(data + 99), ElementsAre(2, 1));
  EXPECT_EQ(locate(At(pinned))[0], 1);
  EXPECT_THAT(locate(At(&on_stack)), ElementsAre(0, -2));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_EQ(cu().MemGetAddressRange(&base, &bytes, data + 50), 0);
  EXPECT_EQ(base, data);
  EXPECT_EQ(bytes, 100u);
  cu().MemFree(data);
  EXPECT_THAT(locate(data), ElementsAre(0, -2));
  EXPECT_EQ(cu().MemFree(data + 1), 1);
}

TEST_F(EmulatedDriverTest, FreeingWaitsForTheDevice) {
  CUstream stream = NewStream();
  const CUdeviceptr data = Allocate(64);
  const CUdeviceptr other = Allocate(64);
  std::atomic<bool> is_free{false};
  CUevent event = NewEvent();
  std::thread thread;
  {
    const HeldStreams held(Library().hold_streams);
    cu().MemcpyAsync(other, data, 64, stream);
    cu().EventRecord(event, stream);
    thread = std::thread([&] {
      cu().CtxSetCurrent(contexts_[0]);
      EXPECT_EQ(cu().MemFree(data), 0);
      is_free = true;
    });
    EXPECT_EQ(cu().EventQuery(event), 600);
    EXPECT_FALSE(is_free);
  }
  thread.join();
  EXPECT_EQ(cu().EventQuery(event), 0);
}

TEST_F(EmulatedDriverTest, BrokenDeviceFailsEveryLaterCall) {
  CUstream stream = NewStream();
  const CUdeviceptr data = Allocate(64);
  CUevent event = NewEvent();
  ASSERT_EQ(Library().set_faults("cuMemsetD8Async:2:break=700"), 0);
  EXPECT_EQ(cu().MemsetD8Async(data, 1, 64, stream), 0);
  EXPECT_EQ(cu().MemsetD8Async(data, 2, 64, stream), 0) << "queued";
  EXPECT_EQ(cu().StreamSynchronize(stream), 700);
  EXPECT_EQ(cu().MemsetD8Async(data, 3, 64, stream), 700);
  EXPECT_EQ(cu().EventRecord(event, stream), 700);
  CUdeviceptr more_data = 0;
  EXPECT_EQ(cu().MemAlloc(&more_data, 1), 700);
  // Another device works.
  cu().CtxSetCurrent(contexts_[1]);
  EXPECT_EQ(cu().MemAlloc(&more_data, 1), 0);
}

TEST_F(EmulatedDriverTest, CallsFailAsFaultsSay) {
  ASSERT_EQ(Library().set_faults("cuMemAlloc:1:2,cuInit:*:100"), 0);
  CUdeviceptr data = 0;
  EXPECT_EQ(cu().MemAlloc(&data, 64), 2);
  EXPECT_EQ(cu().MemAlloc(&data, 64), 0);
  EXPECT_EQ(cu().Init(0), 100);
}

TEST_F(EmulatedDriverTest, CopiesBetweenDevices) {
  cu().CtxSetCurrent(contexts_[1]);
  const CUdeviceptr there = Allocate(8);
  CUstream stream = NewStream();
  Write(there, {5, 6}, stream);
  cu().StreamSynchronize(stream);
  cu().CtxSetCurrent(contexts_[0]);
  const CUdeviceptr here = Allocate(8);
  CUstream own = NewStream();
  ASSERT_EQ(
      cu().MemcpyPeerAsync(here, contexts_[0], there, contexts_[1], 8, own), 0);
  EXPECT_THAT(Read(here, 2, own), ElementsAre(5, 6));
}

// One box of `rows` rows of 4-byte units, as KRN's planners would make it.
internal::SmallCopyParams RowsOf(CUdeviceptr dst, CUdeviceptr src,
                                 uint32_t units) {
  internal::SmallCopyParams params = {};
  params.num_boxes = 1;
  params.num_dims = 1;
  internal::CopyBox box;
  box.dst = dst;
  box.src = src;
  box.units = units;
  box.num_dims = 1;
  box.kind = internal::kRows4;
  internal::BoxDim dim;
  dim.size.divisor = 1;
  std::memcpy(params.table, &box, sizeof(box));
  dim.size.divisor = units;
  dim.dst_stride = 4;
  dim.src_stride = 4;
  std::memcpy(params.table + sizeof(box), &dim, sizeof(dim));
  return params;
}

internal::CUfunction CopyKernel(const internal::CudaFunctions& cu) {
  internal::CUmodule module = nullptr;
  EXPECT_EQ(cu.ModuleLoadData(&module, "any image"), 0);
  internal::CUfunction function = nullptr;
  EXPECT_EQ(cu.ModuleGetFunction(&function, module, "no_such_kernel"), 500);
  EXPECT_EQ(cu.ModuleGetFunction(&function, module, "sherd_copy_rows_small"),
            0);
  return function;
}

TEST_F(EmulatedDriverTest, KernelsRunOnTheStreamAndAreChecked) {
  CUstream stream = NewStream();
  const CUdeviceptr src = Allocate(16);
  const CUdeviceptr dst = Allocate(16);
  Write(src, {1, 2, 3, 4}, stream);
  internal::CUfunction function = CopyKernel(cu());
  internal::SmallCopyParams params = RowsOf(dst, src, 4);
  void* parameters[] = {&params};
  ASSERT_EQ(cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                              parameters, nullptr),
            0);
  params = {};
  EXPECT_THAT(Read(dst, 4, stream), ElementsAre(1, 2, 3, 4));

  params = RowsOf(dst, src, 5);
  ASSERT_EQ(cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                              parameters, nullptr),
            0);
  EXPECT_GE(Library().findings(0), 1u);
  EXPECT_THAT(Library().LastFinding(), HasSubstr("kernel sherd_copy_rows"));
  Library().findings(1);
  cu().CtxSetCurrent(contexts_[1]);
  EXPECT_EQ(cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                              parameters, nullptr),
            400)
      << "a stream of another device";
}

TEST_F(EmulatedDriverTest, KernelMayUseAllocationsAtEqualDistances) {
  CUstream stream = NewStream();
  const CUdeviceptr out = Allocate(16);
  internal::ReduceParams params = {};
  params.out = out;
  params.count = 4;
  params.num_ins = 3;
  params.divisor = 1;
  for (uint32_t i = 0; i < 3; ++i) {
    params.inputs[i] = Allocate(16);
    cu().MemsetD32Async(params.inputs[i], i + 1, 4, stream);
  }
  internal::CUmodule module = nullptr;
  internal::CUfunction function = nullptr;
  ASSERT_EQ(cu().ModuleLoadData(&module, "any image"), 0);
  ASSERT_EQ(cu().ModuleGetFunction(&function, module, "sherd_reduce_int32"), 0);
  void* parameters[] = {&params};
  ASSERT_EQ(cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                              parameters, nullptr),
            0);
  EXPECT_THAT(Read(out, 4, stream), Each(6));
}

TEST_F(EmulatedDriverTest, KernelWithATableOnTheDeviceIsCheckedWhenItRuns) {
  CUstream stream = NewStream();
  const CUdeviceptr src = Allocate(16);
  const CUdeviceptr dst = Allocate(16);
  const CUdeviceptr table = Allocate(256);
  Write(src, {1, 2, 3, 4}, stream);
  internal::CUmodule module = nullptr;
  internal::CUfunction function = nullptr;
  ASSERT_EQ(cu().ModuleLoadData(&module, "any image"), 0);
  ASSERT_EQ(cu().ModuleGetFunction(&function, module, "sherd_copy_rows_large"),
            0);
  const internal::SmallCopyParams boxes = RowsOf(dst, src, 4);
  cu().MemcpyAsync(table, At(boxes.table), 256, stream);
  internal::LargeCopyParams params = {};
  params.num_boxes = 1;
  params.num_dims = 1;
  params.table_address = table;
  void* parameters[] = {&params};
  ASSERT_EQ(cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                              parameters, nullptr),
            0);
  EXPECT_THAT(Read(dst, 4, stream), ElementsAre(1, 2, 3, 4));

  // Queued before what it conflicts with, and declared after.
  CUstream other = NewStream();
  {
    const HeldStreams held(Library().hold_streams);
    ASSERT_EQ(cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                                parameters, nullptr),
              0);
    cu().MemsetD32Async(src, 7, 4, other);
    EXPECT_EQ(Library().findings(0), 0u);
  }
  cu().StreamSynchronize(stream);
  EXPECT_THAT(TakeFinding(), HasSubstr("kernel sherd_copy_rows_large"));
  cu().StreamSynchronize(other);
}

class CaptureTest : public EmulatedDriverTest {
 protected:
  void SetUp() override {
    EmulatedDriverTest::SetUp();
    stream_ = NewStream();
    data_ = Allocate(16);
  }

  CUgraphExec End() {
    CUgraph graph = nullptr;
    EXPECT_EQ(more().StreamEndCapture(stream_, &graph), 0);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(more().GraphInstantiate(&exec, graph, 0), 0);
    EXPECT_EQ(more().GraphDestroy(graph), 0);
    return exec;
  }

  CUstream stream_ = nullptr;
  CUdeviceptr data_ = 0;
};

TEST_F(CaptureTest, RunsAtEachLaunchAndNotBefore) {
  const CUdeviceptr copy = Allocate(16);
  CUstream branch = NewStream();
  cu().MemsetD32Async(data_, 1, 4, stream_);
  cu().StreamSynchronize(stream_);
  ASSERT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  cu().MemsetD32Async(data_, 2, 2, stream_);
  Order(stream_, branch);
  int status = 0;
  EXPECT_EQ(cu().StreamIsCapturing(branch, &status), 0);
  EXPECT_EQ(status, 1) << "it waits for what is captured";
  cu().MemcpyAsync(copy, data_, 16, branch);
  cu().MemsetD32Async(data_ + 8, 9, 0, stream_);
  Order(branch, stream_);
  const CUgraphExec exec = End();
  EXPECT_EQ(cu().StreamIsCapturing(branch, &status), 0);
  EXPECT_EQ(status, 0);

  EXPECT_THAT(Read(data_, 4, stream_), ElementsAre(1, 1, 1, 1));
  ASSERT_EQ(more().GraphLaunch(exec, stream_), 0);
  EXPECT_THAT(Read(copy, 4, stream_), ElementsAre(2, 2, 1, 1));
  cu().MemsetD32Async(data_, 3, 4, stream_);
  ASSERT_EQ(more().GraphLaunch(exec, stream_), 0);
  ASSERT_EQ(more().GraphLaunch(exec, stream_), 0);
  EXPECT_THAT(Read(copy, 4, stream_), ElementsAre(2, 2, 3, 3));
  EXPECT_EQ(more().GraphExecDestroy(exec), 0);
  EXPECT_EQ(more().GraphLaunch(exec, stream_), 1);
}

TEST_F(CaptureTest, NeedsNoCurrentContext) {
  ASSERT_EQ(cu().CtxSetCurrent(nullptr), 0);
  EXPECT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  int status = 0;
  EXPECT_EQ(cu().StreamIsCapturing(stream_, &status), 0);
  EXPECT_EQ(cu().StreamIsCapturing(nullptr, &status), 201);
  CUgraph graph = nullptr;
  EXPECT_EQ(more().StreamEndCapture(stream_, &graph), 0);
  EXPECT_EQ(cu().StreamSynchronize(stream_), 0);
}

TEST_F(CaptureTest, MissingWaitWithinAGraphIsFound) {
  const CUdeviceptr copy = Allocate(16);
  CUstream branch = NewStream();
  ASSERT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  Order(stream_, branch);
  cu().MemsetD32Async(data_, 2, 4, stream_);
  cu().MemcpyAsync(copy, data_, 16, branch);
  Order(branch, stream_);
  const CUgraphExec exec = End();
  EXPECT_EQ(Library().findings(0), 0u);
  ASSERT_EQ(more().GraphLaunch(exec, stream_), 0);
  EXPECT_THAT(TakeFinding(), HasSubstr("node 1 of the cuGraphLaunch"));
}

TEST_F(CaptureTest, MissingWaitForAGraphIsFound) {
  ASSERT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  cu().MemsetD32Async(data_, 2, 4, stream_);
  const CUgraphExec exec = End();
  ASSERT_EQ(more().GraphLaunch(exec, stream_), 0);
  CUstream other = NewStream();
  cu().MemsetD32Async(data_, 3, 4, other);
  EXPECT_THAT(TakeFinding(), HasSubstr("nothing orders the two"));
  Order(stream_, other);
}

TEST_F(CaptureTest, BranchThatIsNotWaitedForIsAnError) {
  CUstream branch = NewStream();
  ASSERT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  Order(stream_, branch);
  cu().MemsetD32Async(data_, 2, 4, branch);
  CUgraph graph = nullptr;
  EXPECT_EQ(more().StreamEndCapture(stream_, &graph), 904);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(CaptureTest, UnsafeCallsBreakACaptureUnlessTheModeIsRelaxed) {
  CUevent event = NewEvent();
  cu().EventRecord(event, stream_);
  ASSERT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  int mode = internal::kCudaCaptureModeRelaxed;
  ASSERT_EQ(cu().ThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_NE(cu().EventQuery(event), 900);
  CUdeviceptr more_data = 0;
  EXPECT_EQ(cu().MemAlloc(&more_data, 8), 0);
  ASSERT_EQ(cu().ThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_EQ(mode, internal::kCudaCaptureModeRelaxed);

  // Another thread, which does not know.
  std::thread([&] {
    cu().CtxSetCurrent(contexts_[0]);
    EXPECT_EQ(cu().EventQuery(event), 900);
  }).join();
  CUgraph graph = nullptr;
  EXPECT_EQ(more().StreamEndCapture(stream_, &graph), 901);
  EXPECT_EQ(cu().MemsetD32Async(data_, 2, 4, stream_), 0) << "as ever";
}

TEST_F(CaptureTest, EventsAndStreamsThatCaptureCannotBeAsked) {
  CUevent event = NewEvent();
  CUstream other = NewStream();
  CUevent outside = NewEvent();
  cu().EventRecord(outside, other);
  ASSERT_EQ(more().StreamBeginCapture(stream_, 2), 0);
  cu().EventRecord(event, stream_);
  EXPECT_EQ(cu().EventQuery(event), 907);
  CUgraph graph = nullptr;
  EXPECT_EQ(more().StreamEndCapture(stream_, &graph), 901);
  ASSERT_EQ(more().StreamBeginCapture(stream_, 2), 0);
  EXPECT_EQ(cu().StreamWaitEvent(stream_, outside, 0), 905);
  EXPECT_EQ(cu().StreamSynchronize(stream_), 900);
  EXPECT_EQ(more().StreamEndCapture(stream_, &graph), 901);
  CUstream blocking = NewStream(0);
  ASSERT_EQ(more().StreamBeginCapture(blocking, 2), 0);
  EXPECT_EQ(cu().MemsetD32Async(data_, 2, 4, nullptr), 906);
  EXPECT_EQ(more().StreamEndCapture(blocking, &graph), 901);
}

TEST_F(CaptureTest, MemoryOfAGraphLivesOn) {
  CUmemoryPool pool = NewPool();
  ASSERT_EQ(more().StreamBeginCapture(stream_, 0), 0);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&block, 16, pool, stream_), 0);
  cu().MemsetD32Async(block, 4, 4, stream_);
  cu().MemcpyAsync(data_, block, 16, stream_);
  ASSERT_EQ(cu().MemFreeAsync(block, stream_), 0);
  const CUgraphExec exec = End();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(more().GraphLaunch(exec, stream_), 0);
    EXPECT_THAT(Read(data_, 4, stream_), Each(4));
  }
}

TEST_F(EmulatedDriverTest, ManyThreadsAndStreamsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      cu().CtxSetCurrent(contexts_[t % 2]);
      CUmemoryPool pool = NewPool(t % 2);
      CUstream one = NewStream();
      CUstream other = NewStream();
      for (int i = 0; i < 50; ++i) {
        CUdeviceptr block = 0;
        ASSERT_EQ(cu().MemAllocFromPoolAsync(&block, 4096, pool, one), 0);
        cu().MemsetD32Async(block, static_cast<unsigned>(t * 1000 + i), 1024,
                            one);
        Order(one, other);
        EXPECT_THAT(Read(block, 1024, other), Each(t * 1000 + i));
        ASSERT_EQ(cu().MemFreeAsync(block, other), 0);
      }
      EXPECT_EQ(cu().StreamDestroy(one), 0);
      EXPECT_EQ(cu().StreamDestroy(other), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sherd::testing
