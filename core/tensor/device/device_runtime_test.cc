#include "sherd/core/tensor/device_runtime.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DeviceType kCuda = DeviceType::kCuda;
constexpr Device kFirst = {kCuda, 0};

TEST(DeviceRuntimeTest, WithoutALoaderNamesTheMissingDependency) {
  DeviceRuntime::SetLoader(nullptr);
  EXPECT_THAT(DeviceRuntime::For(kCuda),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "no loader: add @sherd//backends:loader"));
}

TEST(DeviceRuntimeTest, ThereIsNoneForTheHost) {
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kMeta}) {
    EXPECT_THAT(
        DeviceRuntime::For(type),
        StatusIs(absl::StatusCode::kInvalidArgument, "there is no runtime"));
  }
}

TEST(DeviceRuntimeTest, IsTheSameEachTime) {
  FakeDevice& fake = FakeDevice::Install(1);
  EXPECT_EQ(DeviceRuntime::For(kCuda).value(), &fake);
  EXPECT_EQ(DeviceRuntime::For(kCuda).value(), &fake);
}

TEST(DeviceRuntimeTest, AnErrorIsTheSameEachTimeAndNotSearchedAgain) {
  int asked = 0;
  DeviceRuntime::SetLoader(
      [&](DeviceType) -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
        ++asked;
        return absl::NotFoundError("nothing in /a, /b");
      });
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(DeviceRuntime::For(kCuda),
                StatusIs(absl::StatusCode::kNotFound, "nothing in /a, /b"));
  }
  EXPECT_EQ(asked, 1);
  // A new loader is asked anew.
  FakeDevice& fake = FakeDevice::Install(1);
  EXPECT_EQ(DeviceRuntime::For(kCuda).value(), &fake);
}

TEST(DeviceRuntimeTest, WithoutAWorkingDeviceReturnsTheErrorOfProbe) {
  DeviceRuntime::SetLoader(
      [](DeviceType) -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
        auto fake = std::make_unique<FakeDevice>(1);
        fake->SetProbe(absl::UnavailableError("no driver: libcuda.so.1"));
        return fake;
      });
  EXPECT_THAT(DeviceRuntime::For(kCuda),
              StatusIs(absl::StatusCode::kUnavailable, "libcuda.so.1"));
  EXPECT_THAT(DeviceRuntime::AllocatorFor(kFirst),
              StatusIs(absl::StatusCode::kUnavailable, "libcuda.so.1"));
}

TEST(DeviceRuntimeTest, ADeviceWithoutIndexIsTheThreadsCurrentOne) {
  FakeDevice& fake = FakeDevice::Install(3);
  EXPECT_EQ(DeviceRuntime::Resolve({kCuda}).value(), kFirst);
  ASSERT_THAT(fake.SetCurrentDevice(2), IsOk());
  EXPECT_EQ(DeviceRuntime::Resolve({kCuda}).value(), (Device{kCuda, 2}));
  EXPECT_EQ((*DeviceRuntime::AllocatorFor({kCuda}))->device(),
            (Device{kCuda, 2}));
  EXPECT_EQ(DeviceRuntime::Resolve({kCuda, 1}).value(), (Device{kCuda, 1}));
  EXPECT_EQ(DeviceRuntime::Resolve({}).value(), Device());
  EXPECT_EQ(DeviceRuntime::AllocatorFor({}).value(), &HeapAllocator());
  EXPECT_THAT(DeviceRuntime::AllocatorFor({DeviceType::kMeta}),
              StatusIs(absl::StatusCode::kInvalidArgument, "meta"));
}

TEST(DeviceRuntimeTest, AMissingDeviceListsTheExistingOnes) {
  FakeDevice& fake = FakeDevice::Install(2);
  for (const int index : {2, 7, 1 << 30}) {
    EXPECT_THAT(
        DeviceRuntime::Resolve({kCuda, index}),
        StatusIs(absl::StatusCode::kOutOfRange, "there are cuda:0 to cuda:1"))
        << index;
  }
  EXPECT_THAT(fake.MemoryOf(-1), StatusIs(absl::StatusCode::kOutOfRange, ""));
  EXPECT_THAT(fake.SharedMemoryOf(2),
              StatusIs(absl::StatusCode::kOutOfRange, "cuda:2"));
  FakeDevice::Install(1);
  EXPECT_THAT(DeviceRuntime::Resolve({kCuda, 1}),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "there is no cuda:1: in this process there is only "
                       "cuda:0; choose one"));
}

class DeviceMemoryTest : public ::testing::Test {
 protected:
  std::shared_ptr<Storage> Make(size_t bytes) {
    auto storage = Storage::Allocate(bytes, *fake_.MemoryOf(0).value());
    EXPECT_THAT(storage, IsOk());
    return storage.ok() ? *storage : nullptr;
  }

  absl::Status Fill(const Storage& storage, const DeviceStream& stream,
                    char value) {
    const int64_t size = static_cast<int64_t>(storage.size());
    const int64_t stride = 1;
    return fake_.Fill(stream, {.data = storage.data(),
                               .strides = {&stride, 1},
                               .sizes = {&size, 1},
                               .element_size = 1,
                               .value = &value});
  }

  FakeDevice& fake_ = FakeDevice::Install(2, /*bytes_each=*/1 << 20);
  const DeviceStream default_ = {kFirst, nullptr};
};

TEST_F(DeviceMemoryTest, IsFreedInTheOrderOfItsStream) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  std::shared_ptr<Storage> storage;
  {
    const ScopedStream scope(stream);
    storage = Make(64);
    ASSERT_THAT(Fill(*storage, stream, 7), IsOk());
  }
  const void* const data = storage->data();
  fake_.TakeQueued();
  // It is freed behind its own work, whatever the stream.
  storage.reset();
  EXPECT_THAT(fake_.TakeQueued(), ElementsAre("free"));
  EXPECT_EQ(fake_.live_blocks(), 0);
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  EXPECT_EQ(fake_.ReadNow(data, 1), "\xCD");
  ASSERT_THAT(fake_.Synchronize(stream), IsOk());
  EXPECT_EQ(fake_.ReadNow(data, 1), "\xDD");
  fake_.DestroyStream(stream);
}

TEST_F(DeviceMemoryTest, WorkOnAnotherStreamRunsBeforeMemoryIsFreed) {
  const DeviceStream other = fake_.CreateStream(0, false).value();
  std::shared_ptr<Storage> storage = Make(64);
  std::shared_ptr<Storage> copy = Make(64);
  ASSERT_THAT(Fill(*storage, other, 7), IsOk());
  ASSERT_THAT(fake_.CopyBytes(other, copy->data(), storage->data(), 64),
              IsOk());
  storage->UsedOn(other);
  storage.reset();
  // Work that runs after the free runs after the copy.
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  EXPECT_EQ(fake_.ReadNow(copy->data(), 2), "\x07\x07");
  copy->UsedOn(other);
  copy.reset();
  EXPECT_EQ(fake_.live_events(), 0);
  fake_.DestroyStream(other);
}

TEST_F(DeviceMemoryTest, IsNotFreedBeforeTheLastUseOfSeveral) {
  const DeviceStream a = fake_.CreateStream(0, false).value();
  const DeviceStream b = fake_.CreateStream(1, false).value();
  std::shared_ptr<Storage> storage = Make(64);
  const std::shared_ptr<Storage> copies[] = {Make(64), Make(64)};
  ASSERT_THAT(Fill(*storage, default_, 7), IsOk());
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  // Twice on the first: the later one counts.
  storage->UsedOn(a);
  ASSERT_THAT(fake_.CopyBytes(a, copies[0]->data(), storage->data(), 64),
              IsOk());
  storage->UsedOn(a);
  ASSERT_THAT(fake_.CopyBytes(b, copies[1]->data(), storage->data(), 64),
              IsOk());
  storage->UsedOn(b);
  storage->UsedOn(default_);
  EXPECT_EQ(fake_.live_events(), 2);
  storage.reset();
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  EXPECT_EQ(fake_.ReadNow(copies[0]->data(), 1), "\x07");
  EXPECT_EQ(fake_.ReadNow(copies[1]->data(), 1), "\x07");
}

TEST_F(DeviceMemoryTest, OutlivesTheStreamThatItWasAllocatedOn) {
  const DeviceStream stream = fake_.CreateStream(0, true).value();
  std::shared_ptr<Storage> storage;
  {
    const ScopedStream scope(stream);
    storage = Make(64);
    ASSERT_THAT(Fill(*storage, stream, 7), IsOk());
  }
  fake_.DestroyStream(stream);
  EXPECT_EQ(fake_.live_streams(), 0);
  const void* const data = storage->data();
  storage.reset();
  fake_.TakeRun();
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  EXPECT_THAT(fake_.TakeRun(), ElementsAre("fill", "wait", "free"));
  EXPECT_EQ(fake_.ReadNow(data, 1), "\xDD");
}

// Drivers give the handle of a destroyed stream to the next one.
TEST_F(DeviceMemoryTest, WorkOfADestroyedStreamRunsBeforeMemoryIsFreed) {
  const std::shared_ptr<Storage> copy = Make(64);
  Allocator* const memories[] = {fake_.MemoryOf(0).value(),
                                 fake_.MemoryOf(1).value(),
                                 fake_.PinnedMemory()};
  for (Allocator* const memory : memories) {
    SCOPED_TRACE(memory->name());
    const char value = 7;
    const DeviceStream first = fake_.CreateStream(0, false).value();
    std::shared_ptr<Storage> storage = Storage::Allocate(64, *memory).value();
    ASSERT_THAT(
        fake_.CopyBytes(default_, copy->data(), std::string(64, 0).data(), 64),
        IsOk());
    ASSERT_THAT(fake_.Synchronize(default_), IsOk());
    ASSERT_THAT(fake_.CopyBytes(first, storage->data(), &value, 1), IsOk());
    ASSERT_THAT(fake_.CopyBytes(first, copy->data(), storage->data(), 1),
                IsOk());
    storage->UsedOn(first);
    fake_.DestroyStream(first);
    const DeviceStream second = fake_.CreateStream(0, false).value();
    EXPECT_EQ(second, first);
    storage->UsedOn(second);
    storage.reset();
    // Taken back by now, in the order of the default stream of its device.
    for (int device = 0; device < 2; ++device) {
      ASSERT_THAT(fake_.Synchronize({{kCuda, device}, nullptr}), IsOk());
    }
    Storage::Allocate(64, *memory).value().reset();
    EXPECT_EQ(fake_.ReadNow(copy->data(), 1), "\x07");
    fake_.DestroyStream(second);
  }
}

TEST_F(DeviceMemoryTest, OutOfMemoryReportsTheAvailableMemory) {
  const std::shared_ptr<Storage> storage = Make(1 << 19);
  EXPECT_THAT(
      Storage::Allocate(1 << 20, *fake_.MemoryOf(0).value()),
      StatusIs(absl::StatusCode::kResourceExhausted,
               "out of memory: cuda:0 cannot provide 1048576 bytes; 524288 of "
               "1048576 are free, this process uses 524288 and keeps 0 for "
               "reuse; use smaller shards or more devices (fake out of"));
  // The memory of the pools was given back before.
  EXPECT_THAT(fake_.TakeQueued(), Contains("trim"));
  EXPECT_THAT(Storage::Allocate(1 << 20, *fake_.MemoryOf(1).value()), IsOk());
}

TEST_F(DeviceMemoryTest, CannotBeAllocatedDuringACapture) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  const ScopedStream scope(stream);
  std::shared_ptr<Storage> before = Make(64);
  fake_.SetCapturing(stream, true);
  EXPECT_THAT(Storage::Allocate(64, *fake_.MemoryOf(0).value()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "create tensors before the capture"));
  // Memory freed meanwhile is reclaimed later.
  before.reset();
  EXPECT_EQ(fake_.live_blocks(), 1);
  fake_.SetCapturing(stream, false);
  Make(64).reset();
  EXPECT_EQ(fake_.live_blocks(), 0);
}

TEST_F(DeviceMemoryTest, AlignsAsDocumented) {
  EXPECT_THAT((*fake_.MemoryOf(0))->Allocate(8, 512),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "memory of cuda:0 is aligned to 256 bytes"));
  EXPECT_THAT(fake_.PinnedMemory()->Allocate(8, 8192),
              StatusIs(absl::StatusCode::kInvalidArgument, "4096"));
}

TEST_F(DeviceMemoryTest, AFailureOfTheDeviceIsReported) {
  Allocator* const memory = fake_.MemoryOf(0).value();
  fake_.FailWith(absl::FailedPreconditionError("illegal address"));
  EXPECT_THAT(
      Storage::Allocate(64, *memory),
      StatusIs(absl::StatusCode::kFailedPrecondition, "illegal address"));
  EXPECT_THAT(fake_.Synchronize(default_),
              StatusIs(absl::StatusCode::kFailedPrecondition, "illegal"));
}

TEST_F(DeviceMemoryTest, FreeingOnABrokenDeviceIsQuiet) {
  const DeviceStream other = fake_.CreateStream(0, false).value();
  std::shared_ptr<Storage> storage = Make(64);
  fake_.FailWith(absl::FailedPreconditionError("illegal address"));
  storage->UsedOn(other);
  storage.reset();
  EXPECT_EQ(fake_.live_blocks(), 0);
}

TEST_F(DeviceMemoryTest, PinnedMemoryIsReusedOnlyOnceItsWorkHasRun) {
  Allocator& pinned = *fake_.PinnedMemory();
  EXPECT_EQ(pinned.device(), Device());
  std::shared_ptr<Storage> source = Storage::Allocate(64, pinned).value();
  const std::shared_ptr<Storage> copy = Make(64);
  static_cast<char*>(source->data())[0] = 'x';
  ASSERT_THAT(fake_.CopyBytes(default_, copy->data(), source->data(), 64),
              IsOk());
  source->UsedOn(default_);
  // It would be overwritten if it were given back.
  source.reset();
  EXPECT_EQ(fake_.live_pooled_blocks(), 1);
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  EXPECT_EQ(fake_.ReadNow(copy->data(), 1), "x");
  std::shared_ptr<Storage> next = Storage::Allocate(64, pinned).value();
  EXPECT_EQ(fake_.live_pooled_blocks(), 1);
  // Unused, it is freed at once.
  next.reset();
  EXPECT_EQ(fake_.live_pooled_blocks(), 0);
  EXPECT_EQ(fake_.live_events(), 0);
}

TEST_F(DeviceMemoryTest, PinnedMemoryThatIsInUseIsNotHandedOut) {
  const DeviceStream stuck = fake_.CreateStream(0, false).value();
  fake_.Stop(stuck);
  std::shared_ptr<Storage> source =
      Storage::Allocate(64, *fake_.PinnedMemory()).value();
  const std::shared_ptr<Storage> copy = Make(64);
  ASSERT_THAT(fake_.CopyBytes(stuck, copy->data(), source->data(), 64), IsOk());
  source->UsedOn(stuck);
  source.reset();
  const auto next = Storage::Allocate(64, *fake_.PinnedMemory());
  EXPECT_EQ(fake_.live_pooled_blocks(), 2);
}

TEST_F(DeviceMemoryTest, SharedMemoryCanBeExported) {
  Allocator& shared = *fake_.SharedMemoryOf(1).value();
  EXPECT_EQ(shared.device(), (Device{kCuda, 1}));
  EXPECT_EQ(shared.name(), "cuda:1 shared");
  std::shared_ptr<Storage> storage = Storage::Allocate(64, shared).value();
  const auto handle = fake_.Export(1, storage->data(), 64);
  ASSERT_THAT(handle, IsOk());
  EXPECT_EQ(fake_.Import(1, *handle).value(), storage->data());
  storage->UsedOn(default_);
  storage.reset();
  EXPECT_EQ(fake_.live_pooled_blocks(), 1);
  // Nothing is queued: it has been passed.
  const auto next = Storage::Allocate(64, shared);
  EXPECT_EQ(fake_.live_pooled_blocks(), 1);
}

class SynchronizeTest : public DeviceMemoryTest {};

TEST_F(SynchronizeTest, RunsTheQueuedWorkOfTheStreamAndReturnsItsEvent) {
  const std::shared_ptr<Storage> storage = Make(64);
  ASSERT_THAT(Fill(*storage, default_, 7), IsOk());
  EXPECT_EQ(fake_.ReadNow(storage->data(), 1), "\xCD");
  ASSERT_THAT(fake_.Synchronize(default_), IsOk());
  EXPECT_EQ(fake_.ReadNow(storage->data(), 1), "\x07");
  EXPECT_EQ(fake_.live_events(), 0);
}

TEST_F(SynchronizeTest, EndsAtTheDeadline) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  const std::shared_ptr<Storage> storage = Make(64);
  const DeviceStream stuck = fake_.CreateStream(0, false).value();
  ASSERT_THAT(Fill(*storage, stuck, 7), IsOk());
  fake_.Stop(stuck);
  EXPECT_THAT(
      fake_.Synchronize(stuck, Deadline::After(absl::Milliseconds(1))),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "a stream of cuda:0"));
  EXPECT_THAT(fake_.Synchronize(stream, Deadline::After(absl::Seconds(60))),
              IsOk());
}

TEST_F(SynchronizeTest, IsRefusedDuringACapture) {
  const DeviceStream stream = fake_.CreateStream(0, false).value();
  fake_.SetCapturing(stream, true);
  EXPECT_THAT(fake_.Synchronize(stream),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "is being captured into a graph"));
}

}  // namespace
}  // namespace sherd
