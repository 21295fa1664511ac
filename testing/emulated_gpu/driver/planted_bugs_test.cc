// Typical bugs of programs: each is found, with any timing, and the correct
// program beside it has no finding.

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/emulated_gpu/driver/driver_fixture.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlantedBugTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    one_ = NewStream();
    other_ = NewStream();
    data_ = Allocate(1024);
    copy_ = Allocate(1024);
  }
  void TearDown() override {
    EXPECT_EQ(cu().StreamDestroy(one_), 0);
    EXPECT_EQ(cu().StreamDestroy(other_), 0);
    DriverTest::TearDown();
  }

  CUstream one_ = nullptr;
  CUstream other_ = nullptr;
  CUdeviceptr data_ = 0;
  CUdeviceptr copy_ = 0;
};

TEST_F(PlantedBugTest, MissingWaitBetweenStreamsIsFound) {
  cu().MemsetD8Async(data_, 1, 1024, one_);
  cu().MemcpyAsync(copy_, data_, 1024, other_);
  EXPECT_THAT(TakeFinding(), AllOf(HasSubstr("cuMemcpyAsync of 1024 bytes"),
                                   HasSubstr("cuMemsetD8Async"),
                                   HasSubstr("nothing orders the two")));
}

TEST_F(PlantedBugTest, MissingWaitIsFoundAlthoughAWatcherSawTheFirstRun) {
  cu().MemsetD8Async(data_, 1, 1024, one_);
  CUevent event = NewEvent();
  cu().EventRecord(event, one_);
  std::promise<void> seen;
  std::promise<void> end;
  std::thread watcher([&] {
    cu().CtxSetCurrent(contexts_[0]);
    while (cu().EventQuery(event) != 0) std::this_thread::yield();
    // It knows for itself.
    cu().MemcpyAsync(copy_ + 512, data_, 512, other_);
    seen.set_value();
    // Lives on: with its end, what it knows would be known.
    end.get_future().wait();
  });
  seen.get_future().wait();
  EXPECT_EQ(Library().findings(0), 0u);
  cu().MemcpyAsync(copy_, data_, 512, NewStream());
  EXPECT_THAT(TakeFinding(), HasSubstr("nothing orders the two"));
  end.set_value();
  watcher.join();
}

TEST_F(PlantedBugTest, EventThatIsRecordedTooEarlyIsFound) {
  CUevent event = NewEvent();
  cu().EventRecord(event, one_);
  cu().MemsetD8Async(data_, 1, 1024, one_);
  cu().StreamWaitEvent(other_, event, 0);
  cu().MemcpyAsync(copy_, data_, 1024, other_);
  EXPECT_THAT(TakeFinding(), HasSubstr("nothing orders the two"));
}

TEST_F(PlantedBugTest, WaitForTheWrongEventIsFound) {
  CUstream third = NewStream();
  CUevent right = NewEvent();
  CUevent wrong = NewEvent();
  cu().MemsetD8Async(data_, 1, 1024, one_);
  cu().EventRecord(right, one_);
  cu().EventRecord(wrong, third);
  cu().StreamWaitEvent(other_, wrong, 0);
  cu().MemcpyAsync(copy_, data_, 1024, other_);
  EXPECT_THAT(TakeFinding(), HasSubstr("nothing orders the two"));
}

TEST_F(PlantedBugTest, OverwritingDataThatIsStillReadIsFound) {
  cu().MemcpyAsync(copy_, data_, 1024, one_);
  cu().MemsetD8Async(data_, 1, 1024, other_);
  EXPECT_THAT(TakeFinding(), HasSubstr("cuMemsetD8Async"));
}

TEST_F(PlantedBugTest, OrderByEventsAndByTheHostIsSeen) {
  cu().MemsetD8Async(data_, 1, 1024, one_);
  Order(one_, other_);
  cu().MemcpyAsync(copy_, data_, 1024, other_);
  Order(other_, one_);
  cu().MemsetD8Async(data_, 2, 1024, one_);
  cu().StreamSynchronize(one_);
  cu().MemcpyAsync(copy_, data_, 1024, other_);
  CUevent event = NewEvent();
  cu().EventRecord(event, other_);
  while (cu().EventQuery(event) != 0) std::this_thread::yield();
  cu().MemsetD8Async(data_, 3, 1024, one_);
}

TEST_F(PlantedBugTest, TwoReadersAndTwoPartsAreNotReported) {
  cu().MemcpyAsync(copy_, data_, 512, one_);
  cu().MemcpyAsync(copy_ + 512, data_, 512, other_);
}

TEST_F(PlantedBugTest, HostWaitOfOneThreadCountsForOthersIfItRecorded) {
  cu().MemsetD8Async(data_, 1, 1024, one_);
  CUevent event = NewEvent();
  cu().EventRecord(event, one_);
  while (cu().EventQuery(event) != 0) std::this_thread::yield();
  std::thread([&] {
    cu().CtxSetCurrent(contexts_[0]);
    cu().MemcpyAsync(copy_, data_, 1024, other_);
  }).join();
}

TEST_F(PlantedBugTest, FreeingMemoryThatAnotherStreamUsesIsFound) {
  internal::CUmemPoolProps props = {};
  props.allocType = 1;
  props.location = {1, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu().MemPoolCreate(&pool, &props), 0);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&block, 1024, pool, one_), 0);
  Order(one_, other_);
  cu().MemcpyAsync(copy_, block, 1024, other_);
  cu().MemFreeAsync(block, one_);
  EXPECT_THAT(TakeFinding(), AllOf(HasSubstr("cuMemFreeAsync of 1024 bytes"),
                                   HasSubstr("cuMemcpyAsync")));
}

TEST_F(PlantedBugTest, UseAfterFreeIsFound) {
  internal::CUmemPoolProps props = {};
  props.allocType = 1;
  props.location = {1, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu().MemPoolCreate(&pool, &props), 0);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&block, 1024, pool, one_), 0);
  cu().MemFreeAsync(block, one_);
  cu().MemcpyAsync(copy_, block, 1024, one_);
  EXPECT_THAT(TakeFinding(), HasSubstr("freed by cuMemFreeAsync"));
  EXPECT_NE(cu().MemFreeAsync(block, one_), 0);
  EXPECT_THAT(TakeFinding(), HasSubstr("was freed by"));
}

TEST_F(PlantedBugTest, UseOnAStreamThatDoesNotWaitForTheAllocationIsFound) {
  internal::CUmemPoolProps props = {};
  props.allocType = 1;
  props.location = {1, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu().MemPoolCreate(&pool, &props), 0);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&block, 1024, pool, one_), 0);
  cu().MemsetD8Async(block, 1, 1024, other_);
  EXPECT_THAT(TakeFinding(), HasSubstr("cuMemAllocFromPoolAsync"));
}

TEST_F(PlantedBugTest, UseBeyondTheEndIsFound) {
  cu().MemsetD8Async(data_ + 1000, 1, 25, one_);
  EXPECT_THAT(TakeFinding(), HasSubstr("ends 1 bytes behind the end"));
  cu().MemsetD8Async(data_ + 1024, 1, 1, one_);
  EXPECT_THAT(TakeFinding(), HasSubstr("begins 0 bytes behind the end"));
}

TEST_F(PlantedBugTest, FreeingAfterAStreamWasDestroyedWaitsForItsWork) {
  CUstream stream = NewStream();
  cu().MemsetD8Async(data_, 1, 1024, stream);
  EXPECT_EQ(cu().StreamDestroy(stream), 0);
  EXPECT_EQ(cu().MemFree(data_), 0);
  CUstream blocking = NewStream(0);
  cu().MemsetD8Async(copy_, 1, 1024, blocking);
  EXPECT_EQ(cu().StreamDestroy(blocking), 0);
  cu().MemsetD8Async(copy_, 2, 1024, nullptr);
}

TEST_F(PlantedBugTest, PeersMemoryWithoutAccessIsFound) {
  cu().CtxSetCurrent(contexts_[1]);
  CUstream stream = NewStream();
  cu().MemsetD8Async(data_, 1, 16, stream);
  EXPECT_THAT(TakeFinding(), HasSubstr("memory of device 0 without access"));
  ASSERT_EQ(cu().CtxEnablePeerAccess(contexts_[0], 0), 0);
  cu().MemsetD8Async(data_, 1, 16, stream);
}

TEST_F(PlantedBugTest, PeersPoolWithoutAccessIsFound) {
  internal::CUmemPoolProps props = {};
  props.allocType = 1;
  props.location = {1, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu().MemPoolCreate(&pool, &props), 0);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&block, 1024, pool, one_), 0);
  cu().StreamSynchronize(one_);
  cu().CtxSetCurrent(contexts_[1]);
  ASSERT_EQ(cu().CtxEnablePeerAccess(contexts_[0], 0), 0);
  CUstream stream = NewStream();
  cu().MemsetD8Async(block, 1, 16, stream);
  EXPECT_THAT(TakeFinding(), HasSubstr("memory of device 0 without access"));
  // Also for memory that is allocated already.
  const internal::CUmemAccessDesc access = {{1, 1}, 3};
  ASSERT_EQ(cu().MemPoolSetAccess(pool, &access, 1), 0);
  cu().MemsetD8Async(block, 1, 16, stream);
}

TEST_F(PlantedBugTest, DestroyedStreamAndEventAreFound) {
  CUstream stream = NewStream();
  cu().StreamDestroy(stream);
  EXPECT_EQ(cu().MemsetD8Async(data_, 1, 16, stream), 400);
  EXPECT_THAT(TakeFinding(), HasSubstr("stream is used after"));
  CUevent event = NewEvent();
  cu().EventDestroy(event);
  EXPECT_EQ(cu().EventRecord(event, one_), 400);
  EXPECT_THAT(TakeFinding(), HasSubstr("event is used after"));
}

TEST_F(PlantedBugTest, BlockingStreamsAndTheDefaultStreamAreOrdered) {
  CUstream blocking = NewStream(0);
  cu().MemsetD8Async(data_, 1, 1024, nullptr);
  cu().MemsetD8Async(data_, 2, 1024, blocking);
  cu().MemsetD8Async(data_, 3, 1024, nullptr);
  EXPECT_EQ(Library().findings(0), 0u);
  // One that does not wait for the default stream.
  cu().MemsetD8Async(data_, 4, 1024, one_);
  EXPECT_THAT(TakeFinding(), HasSubstr("default stream"));
}

TEST_F(PlantedBugTest, MemoryOfADeviceCannotBeTouchedByTheHost) {
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(data_) = 1, "");
}

TEST_F(PlantedBugTest, FindingEndsTheProcessUnlessItIsCounted) {
  EXPECT_DEATH(
      {
        Library().set_abort_on_finding(1);
        cu().MemsetD8Async(data_ + 1024, 1, 1, one_);
      },
      "behind the end");
}

}  // namespace
}  // namespace sherd::testing
