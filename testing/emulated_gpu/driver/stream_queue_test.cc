#include "sherd/testing/emulated_gpu/driver/stream_queue.h"

#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/control.h"
#include "sherd/testing/emulated_gpu/graph_api.h"

namespace sherd::testing {

// The driver is linked into this test.
extern "C" {
CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemHostAlloc(void** data, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void* data);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                         CUstream stream);
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph);
CUresult cuGraphInstantiateWithFlags(
    CUgraphExec* exec, CUgraph graph,
    unsigned long long flags);  // NOLINT(runtime/int)
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StreamQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sherd_emulated_gpu_set_abort_on_finding(0);
    sherd_emulated_gpu_findings(1);
    ASSERT_EQ(cuInit(0), 0);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
    ASSERT_EQ(cuCtxSetCurrent(context_), 0);
    ASSERT_EQ(cuStreamCreate(&stream_, 1), 0);
    ASSERT_EQ(cuStreamCreate(&other_, 1), 0);
    ASSERT_EQ(AllocateDeviceMemory(64, &data_), 0);
  }
  void TearDown() override { EXPECT_EQ(sherd_emulated_gpu_findings(0), 0u); }

  static std::string TakeFinding() {
    EXPECT_EQ(sherd_emulated_gpu_findings(0), 1u);
    char text[512];
    sherd_emulated_gpu_last_finding(text, sizeof(text));
    sherd_emulated_gpu_findings(1);
    return text;
  }

  // Writes `bytes` from `data_` on, and declares that it writes all of it.
  QueuedOperation Filling(char value, size_t bytes) const {
    return {"fill",
            {Writes(data_, 64)},
            [data = data_, value, bytes] {
              std::memset(HostView(data), value, bytes);
              return 0;
            },
            nullptr};
  }
  char FirstByte() const {
    char byte = 0;
    cuMemcpy(reinterpret_cast<CUdeviceptr>(&byte),
             reinterpret_cast<CUdeviceptr>(data_), 1);
    return byte;
  }

  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUstream other_ = nullptr;
  void* data_ = nullptr;
};

TEST_F(StreamQueueTest, RunsOnAnotherThreadInTheOrderOfTheStream) {
  std::vector<int> order;
  std::thread::id runner;
  sherd_emulated_gpu_hold_streams(1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Queue(stream_, {"note",
                              {},
                              [&, i] {
                                order.push_back(i);
                                runner = std::this_thread::get_id();
                                return 0;
                              },
                              nullptr}),
              0);
  }
  EXPECT_TRUE(order.empty());
  sherd_emulated_gpu_hold_streams(-1);
  cuStreamSynchronize(stream_);
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_NE(runner, std::this_thread::get_id());
}

TEST_F(StreamQueueTest, KnowsStreamsDevicesAndMemory) {
  EXPECT_EQ(CurrentDevice(), 0);
  EXPECT_EQ(DeviceOfStream(stream_), 0);
  EXPECT_EQ(DeviceOfStream(nullptr), 0);
  EXPECT_EQ(DeviceOfStream(&context_), -1);
  EXPECT_EQ(BusId(0), "0000:40:00.0");
  int number = 0;
  EXPECT_EQ(HostView(&number), &number);
  EXPECT_NE(HostView(data_), data_);
  EXPECT_FALSE(LocateMemory(&number));
  const auto location = LocateMemory(static_cast<char*>(data_) + 63);
  ASSERT_TRUE(location);
  EXPECT_EQ(location->base, data_);
  EXPECT_EQ(location->bytes, 64u);
  EXPECT_EQ(FreeDeviceMemory(data_), 0);
  EXPECT_FALSE(LocateMemory(data_));
}

TEST_F(StreamQueueTest, WritingNextToAnAllocationIsFound) {
  Queue(stream_, Filling(1, 65));
  cuStreamSynchronize(stream_);
  EXPECT_THAT(TakeFinding(), HasSubstr("wrote next to an allocation"));
}

TEST_F(StreamQueueTest, HostMemoryThatIsNotPinnedIsAFinding) {
  int number = 0;
  Queue(stream_, {"read", {Reads(&number, 4)}, [] { return 0; }, nullptr});
  EXPECT_THAT(TakeFinding(), HasSubstr("neither memory of a device"));
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 100, 0), 0);
  Queue(stream_, {"read", {Reads(pinned, 100)}, [] { return 0; }, nullptr});
  ASSERT_EQ(cuMemFreeHost(pinned), 0);
  Queue(stream_, {"read", {Reads(pinned, 100)}, [] { return 0; }, nullptr});
  EXPECT_THAT(TakeFinding(), HasSubstr("freed by cuMemFreeHost"));
  EXPECT_EQ(cuMemFreeHost(pinned), 1);
  EXPECT_THAT(TakeFinding(), HasSubstr("was freed by"));
}

TEST_F(StreamQueueTest, StreamsAreOrderedAsByAnEvent) {
  Queue(stream_, Filling(1, 64));
  ASSERT_EQ(OrderStreams(stream_, other_), 0);
  Queue(other_, Filling(2, 64));
  cuStreamSynchronize(other_);
  EXPECT_EQ(FirstByte(), 2);
}

TEST_F(StreamQueueTest, QueuesOnBehalfOfAnotherThread) {
  Queue(stream_, Filling(1, 64));
  const HostOrder before = OrderOfThisThread();
  std::promise<void> end;
  // It existed before, and does not know for what the others wait.
  std::promise<HostOrder> orders;
  std::promise<void> queued;
  std::thread helper([&] {
    OrderOfThisThread();
    Queue(other_, Filling(3, 64), orders.get_future().get());
    queued.set_value();
    end.get_future().wait();
  });
  orders.set_value(before);
  queued.get_future().wait();
  EXPECT_THAT(TakeFinding(), HasSubstr("nothing orders the two"));
  end.set_value();
  helper.join();
  cuStreamSynchronize(stream_);
  cuStreamSynchronize(other_);
}

TEST_F(StreamQueueTest, OperationThatFailsBreaksTheDevice) {
  // On a device of its own, which stays broken.
  CUcontext last = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&last, 3), 0);
  ASSERT_EQ(cuCtxSetCurrent(last), 0);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
  Queue(stream, {"fail", {}, [] { return 719; }, nullptr});
  bool has_run = false;
  Queue(stream, {"skip",
                 {},
                 [&] {
                   has_run = true;
                   return 0;
                 },
                 nullptr});
  EXPECT_EQ(cuStreamSynchronize(stream), 719);
  EXPECT_FALSE(has_run);
  EXPECT_EQ(DeviceError(3), 719);
  EXPECT_EQ(DeviceError(0), 0);
  EXPECT_EQ(Queue(stream, {"late", {}, [] { return 0; }, nullptr}), 719);
}

TEST_F(StreamQueueTest, IsPreparedOncePerLaunchByTheThreadThatLaunches) {
  std::vector<std::thread::id> preparers;
  std::vector<int> runs;
  const QueuedOperation operation = {
      "numbered", {}, nullptr, [&]() -> std::function<int()> {
        preparers.push_back(std::this_thread::get_id());
        return [&runs, number = static_cast<int>(preparers.size())] {
          runs.push_back(number);
          return 0;
        };
      }};
  ASSERT_EQ(Queue(stream_, operation), 0);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream_, 0), 0);
  EXPECT_TRUE(IsCapturing(stream_));
  ASSERT_EQ(Queue(stream_, operation), 0);
  ASSERT_EQ(OrderStreams(stream_, other_), 0);
  EXPECT_TRUE(IsCapturing(other_));
  ASSERT_EQ(Queue(other_, operation), 0);
  ASSERT_EQ(OrderStreams(other_, stream_), 0);
  EXPECT_EQ(preparers.size(), 1u);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), 0);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
  ASSERT_EQ(cuGraphLaunch(exec, stream_), 0);
  ASSERT_EQ(cuGraphLaunch(exec, stream_), 0);
  EXPECT_THAT(preparers, ::testing::Each(std::this_thread::get_id()));
  cuStreamSynchronize(stream_);
  EXPECT_THAT(runs, ElementsAre(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace sherd::testing
