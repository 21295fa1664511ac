// The device part of a group over a lazy device: nothing runs before something
// waits for it.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/tensor_collectives.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tensor OnHost(std::vector<int32_t> values) {
  return Tensor::FromSpan<int32_t>(values,
                                   {static_cast<int64_t>(values.size())})
      .value();
}

// The backend's behavior as set by a test, and the calls it received.
struct Script {
  absl::Mutex mutex;
  // Results of the next posts, and of Poll.
  absl::Status post ABSL_GUARDED_BY(mutex);
  absl::Status poll ABSL_GUARDED_BY(mutex);
  std::vector<std::string> calls ABSL_GUARDED_BY(mutex);
  DeviceRuntime* runtime = nullptr;

  void Note(std::string call) {
    absl::MutexLock lock(&mutex);
    calls.push_back(std::move(call));
  }
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex);
    return std::exchange(calls, {});
  }
  void SetPost(absl::Status status) {
    absl::MutexLock lock(&mutex);
    post = std::move(status);
  }
  void SetPoll(absl::Status status) {
    absl::MutexLock lock(&mutex);
    poll = std::move(status);
  }
};

// One rank alone: what reduces copies, on the stream.
class OneRank final : public Communicator {
 public:
  explicit OneRank(Script& script) : script_(script) {}
  ~OneRank() override { script_.Note("destroy"); }

  absl::StatusOr<bool> Post(const Collective& desc,
                            CollectiveRequest&) override {
    script_.Note(absl::StrCat("post ", Name(desc.op)));
    {
      absl::MutexLock lock(&script_.mutex);
      if (!script_.post.ok()) return script_.post;
    }
    if (desc.op != CollectiveOp::kAllReduce || desc.in == desc.out) return true;
    const DeviceStream stream = {{DeviceType::kCuda, 0}, desc.stream};
    const absl::Status copied =
        script_.runtime->CopyBytes(stream, desc.out, desc.in, desc.bytes);
    if (!copied.ok()) return copied;
    return true;
  }
  absl::StatusOr<bool> Test(CollectiveRequest&) override { return true; }
  void Abort() override { script_.Note("abort"); }
  absl::Status Poll() override {
    absl::MutexLock lock(&script_.mutex);
    return script_.poll;
  }
  absl::Status BeginBatch() override {
    script_.Note("begin");
    return absl::OkStatus();
  }
  absl::Status EndBatch() override {
    script_.Note("end");
    return absl::OkStatus();
  }
  absl::Status Finalize(Deadline) override {
    script_.Note("finalize");
    return absl::OkStatus();
  }
  absl::StatusOr<void*> Register(MutableBytes buffer) override {
    script_.Note(absl::StrCat("register ", buffer.size()));
    return buffer.data();
  }
  void Deregister(void*) override { script_.Note("deregister"); }

 private:
  Script& script_;
};

class HostBackend final : public Backend {
 public:
  HostBackend() {
    info_.name = "host";
    info_.native.operations = (1 << kNumCollectiveOps) - 1;
    info_.native.reductions.fill(0xff);
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions&) const override {
    return absl::InternalError("one rank needs none");
  }

 private:
  BackendInfo info_;
};

class DeviceBackend final : public Backend {
 public:
  explicit DeviceBackend(Script& script) : script_(script) {
    info_.name = "one";
    info_.device_type = DeviceType::kCuda;
    info_.native.operations = (1 << kNumCollectiveOps) - 1;
    info_.native.reductions.fill(0xff);
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const override {
    script_.Note(absl::StrCat("create on ", options.device, " ",
                              options.device_id.empty() ? "unnamed" : "named"));
    return std::make_unique<OneRank>(script_);
  }

 private:
  Script& script_;
  BackendInfo info_;
};

class DevicePartTest : public ::testing::Test {
 protected:
  DevicePartTest() : device_(FakeDevice::Install(2)), backend_(script_) {
    script_.runtime = &device_;
    auto group =
        ProcessGroup::Create(host_, {.store = std::make_shared<HashStore>(),
                                     .timeout = absl::Minutes(1),
                                     .device_backend = &backend_,
                                     .device = {DeviceType::kCuda, 0}});
    EXPECT_THAT(group, IsOk());
    group_ = *std::move(group);
    EXPECT_THAT(script_.Take(), ElementsAre("create on 0 named"));
  }
  ~DevicePartTest() override {
    if (group_ != nullptr) group_->Destroy().IgnoreError();
  }

  Tensor OnDevice(std::vector<int32_t> values) {
    return OnHost(values).To(*group_->device()).value();
  }
  std::vector<int32_t> Read(const Tensor& tensor) {
    const std::string bytes =
        device_.ReadNow(tensor.data(), static_cast<size_t>(tensor.nbytes()));
    const auto* const first = reinterpret_cast<const int32_t*>(bytes.data());
    return std::vector<int32_t>(first, first + tensor.numel());
  }
  static ConstBytes Bytes(const Tensor& tensor) {
    return {static_cast<const std::byte*>(tensor.data()),
            static_cast<size_t>(tensor.nbytes())};
  }
  static MutableBytes Writable(Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.data()),
            static_cast<size_t>(tensor.nbytes())};
  }
  CollectiveOptions OnOwn() const { return {.device = *group_->device()}; }
  DeviceStream Default() const { return {*group_->device(), nullptr}; }

  FakeDevice& device_;
  Script script_;
  HostBackend host_;
  DeviceBackend backend_;
  std::shared_ptr<ProcessGroup> group_;
};

TEST_F(DevicePartTest, DescribesItself) {
  EXPECT_EQ(group_->device(), (Device{DeviceType::kCuda, 0}));
  ASSERT_NE(group_->device_backend(), nullptr);
  EXPECT_EQ(group_->device_backend()->name, "one");
  EXPECT_EQ(group_->backend().name, "host");
  EXPECT_EQ(group_->PathOf(CollectiveOp::kAllReduce, kFloat32, ReduceOp::kSum,
                           DeviceType::kCuda),
            OperationPath::kNative);
  EXPECT_EQ(group_->PathOf(CollectiveOp::kAllReduce, kFloat32, ReduceOp::kSum,
                           DeviceType::kMeta),
            OperationPath::kUnsupported);
}

TEST_F(DevicePartTest, ASynchronousCallIsQueuedOnTheCurrentStream) {
  const Tensor send = OnDevice({3, 1, 4});
  Tensor recv = OnDevice({0, 0, 0});
  ASSERT_THAT(device_.Synchronize(Default()), IsOk());
  device_.Stop(Default());
  const DeviceStream own = device_.CreateStream(0, false).value();
  {
    const ScopedStream current(own);
    ASSERT_THAT(group_->AllReduce(Bytes(send), Writable(recv), kInt32,
                                  ReduceOp::kSum, OnOwn()),
                IsOk());
  }
  EXPECT_THAT(group_->Synchronize(), IsOk());
  EXPECT_THAT(Read(recv), ElementsAre(3, 1, 4));
  EXPECT_EQ(group_->counters().Of(CollectiveOp::kAllReduce).calls, 1);
}

TEST_F(DevicePartTest, AnAsynchronousCallRunsBehindTheCurrentStream) {
  Tensor send = OnDevice({0, 0, 0});
  Tensor recv = OnDevice({0, 0, 0});
  ASSERT_THAT(send.Fill(7), IsOk());
  Work work = group_->AllReduceAsync(Bytes(send), Writable(recv), kInt32,
                                     ReduceOp::kSum, OnOwn());
  EXPECT_THAT(work.Wait(), IsOk());
  EXPECT_TRUE(work.Test());
  EXPECT_THAT(Read(recv), ElementsAre(7, 7, 7));
}

TEST_F(DevicePartTest, TheCurrentStreamWaitsForAWork) {
  const Tensor send = OnDevice({2, 7, 1});
  Tensor recv = OnDevice({0, 0, 0});
  Tensor copy = OnDevice({0, 0, 0});
  Work work = group_->AllReduceAsync(Bytes(send), Writable(recv), kInt32,
                                     ReduceOp::kSum, OnOwn());
  ASSERT_THAT(work.WaitOnStream(), IsOk());
  ASSERT_THAT(copy.CopyFrom(recv), IsOk());
  ASSERT_THAT(device_.Synchronize(Default()), IsOk());
  EXPECT_THAT(Read(copy), ElementsAre(2, 7, 1));
  EXPECT_THAT(work.Wait(), IsOk());
}

TEST_F(DevicePartTest, OperationsOfOneGroupRunInTheOrderOfTheCalls) {
  const Tensor send = OnDevice({5, 6, 7});
  Tensor middle = OnDevice({0, 0, 0});
  Tensor last = OnDevice({0, 0, 0});
  Work work = group_->AllReduceAsync(Bytes(send), Writable(middle), kInt32,
                                     ReduceOp::kSum, OnOwn());
  const DeviceStream own = device_.CreateStream(0, false).value();
  {
    const ScopedStream current(own);
    ASSERT_THAT(group_->AllReduce(Bytes(middle), Writable(last), kInt32,
                                  ReduceOp::kSum, OnOwn()),
                IsOk());
  }
  ASSERT_THAT(device_.Synchronize(own), IsOk());
  EXPECT_THAT(Read(last), ElementsAre(5, 6, 7));
  EXPECT_THAT(work.Wait(), IsOk());
}

TEST_F(DevicePartTest, AWorkKeepsItsTensorsUntilTheOperationEnded) {
  device_.Stop(Default());
  std::weak_ptr<const Storage> memory;
  Work work(absl::OkStatus());
  {
    Tensor tensor = OnDevice({1, 2});
    memory = tensor.storage();
    ASSERT_THAT(tensor.Fill(3), IsOk());
    Work dropped = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
    work = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
  }
  EXPECT_FALSE(memory.expired());
  group_->Abort(absl::CancelledError("no more"));
  EXPECT_THAT(group_->Synchronize(), ::testing::Not(IsOk()));
  EXPECT_THAT(work.Wait(), ::testing::Not(IsOk()));
  // The stream may still reach the operation.
  EXPECT_FALSE(memory.expired());
}

TEST_F(DevicePartTest, AWorkMayKeepARegistration) {
  Tensor tensor = OnDevice({1, 2});
  {
    auto registration = group_->Register(Writable(tensor));
    ASSERT_THAT(registration, IsOk());
    Work work = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
    work.Keep(*std::move(registration));
    while (!work.Test()) {
    }
  }
  EXPECT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum), IsOk());
  EXPECT_THAT(script_.Take(), ElementsAre("register 8", "post all_reduce",
                                          "deregister", "post all_reduce"));
}

TEST_F(DevicePartTest, AWorkThatEndedLetsGoOfItsTensors) {
  std::weak_ptr<const Storage> memory;
  {
    Tensor tensor = OnDevice({1, 2});
    memory = tensor.storage();
    Work work = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
    tensor = Tensor();
    EXPECT_FALSE(memory.expired());
    EXPECT_THAT(work.Wait(), IsOk());
  }
  EXPECT_TRUE(memory.expired());
}

TEST_F(DevicePartTest, AnOperationThatDoesNotEndIsEndedAtItsDeadline) {
  Tensor tensor = OnDevice({1, 2});
  device_.Stop(Default());
  CollectiveOptions options = OnOwn();
  options.timeout = absl::Milliseconds(50);
  ASSERT_THAT(group_->AllReduce(Bytes(tensor), Writable(tensor), kInt32,
                                ReduceOp::kSum, options),
              IsOk());
  EXPECT_THAT(group_->Synchronize(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("all_reduce #1"),
                             HasSubstr("did not end in time"))));
  EXPECT_THAT(script_.Take(), ElementsAre("post all_reduce", "abort"));
  EXPECT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("did not end in time")));
  EXPECT_THAT(group_->Barrier(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(DevicePartTest, AnErrorOfTheCommunicatorPoisonsTheGroup) {
  Tensor tensor = OnDevice({1, 2});
  device_.Stop(Default());
  ASSERT_THAT(tensor.Fill(3), IsOk());
  ASSERT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum), IsOk());
  script_.SetPoll(absl::UnavailableError("the network went away"));
  EXPECT_THAT(group_->Synchronize(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the network went away")));
  EXPECT_THAT(group_->health(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(DevicePartTest, ACallThatCannotBePostedPoisons) {
  Tensor tensor = OnDevice({1, 2});
  script_.SetPost(absl::ResourceExhaustedError("no more memory"));
  EXPECT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no more memory")));
  EXPECT_THAT(AllReduceAsync(*group_, tensor, ReduceOp::kSum).Wait(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(group_->counters().Of(CollectiveOp::kAllReduce).errors, 1);
}

TEST_F(DevicePartTest, WrongMemoryIsRefusedAndTheGroupStaysUsable) {
  Tensor own = OnDevice({1, 2});
  Tensor other = OnHost({1, 2}).To(Device{DeviceType::kCuda, 1}).value();
  Tensor host = OnHost({1, 2});
  EXPECT_THAT(AllReduce(*group_, other, ReduceOp::kSum),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is on device cuda:1, expected cpu or cuda:0, "
                                 "this rank's device in the group")));
  EXPECT_THAT(AllGatherIntoTensor(*group_, host, own),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensors on different devices: the send "
                                 "tensor is on cpu and the receive tensor on "
                                 "cuda:0")));
  EXPECT_THAT(
      group_->AllReduce(Bytes(own), Writable(own), kInt32, ReduceOp::kSum,
                        {.device = {DeviceType::kCuda, 1}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("the buffers are on cuda:1, expected cpu or "
                         "cuda:0")));
  EXPECT_THAT(group_->Send(Bytes(own), 0, 0, OnOwn()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot send to itself")));
  EXPECT_THAT(script_.Take(), IsEmpty());
  EXPECT_THAT(AllReduce(*group_, host, ReduceOp::kSum), IsOk());
  EXPECT_THAT(AllReduce(*group_, own, ReduceOp::kSum), IsOk());
}

TEST_F(DevicePartTest, CallsInABatchAreOneOperation) {
  Tensor tensor = OnDevice({1, 2});
  EXPECT_THAT(group_->Batch([&] {
    EXPECT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum), IsOk());
    EXPECT_THAT(AllReduceAsync(*group_, tensor, ReduceOp::kSum).Wait(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("in a batch")));
    EXPECT_THAT(group_->Batch([] { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    return AllReduce(*group_, tensor, ReduceOp::kMax);
  }),
              IsOk());
  EXPECT_THAT(group_->Synchronize(), IsOk());
  EXPECT_THAT(script_.Take(), ElementsAre("begin", "post all_reduce",
                                          "post all_reduce", "end"));
  EXPECT_EQ(group_->counters().Of(CollectiveOp::kAllReduce).calls, 2);
  EXPECT_EQ(group_->counters().Of(CollectiveOp::kAllReduce).errors, 0);
}

TEST_F(DevicePartTest, ABatchThatBreaksOffPoisonsOnceItHasMadeACall) {
  Tensor tensor = OnDevice({1, 2});
  EXPECT_THAT(group_->Batch([] { return absl::CancelledError("at once"); }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(group_->health(), IsOk());
  EXPECT_THAT(group_->Batch([&] {
    EXPECT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum), IsOk());
    return absl::CancelledError("too late");
  }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(group_->health(), ::testing::Not(IsOk()));
  EXPECT_EQ(group_->counters().Of(CollectiveOp::kAllReduce).errors, 1);
}

TEST_F(DevicePartTest, CallsThatWouldWaitForABatchAreRefusedInIt) {
  Tensor tensor = OnDevice({1, 2});
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, "within a batch");
  EXPECT_THAT(group_->Batch([&] {
    EXPECT_THAT(group_->Synchronize(), refused);
    EXPECT_THAT(group_->Register(Writable(tensor)).status(), refused);
    EXPECT_THAT(group_->NewGroup({0}).status(), refused);
    EXPECT_THAT(group_->Destroy(), refused);
    return AllReduce(*group_, tensor, ReduceOp::kSum);
  }),
              IsOk());
  EXPECT_THAT(group_->Synchronize(), IsOk());
}

TEST_F(DevicePartTest, AGraphIsNotWatched) {
  const DeviceStream stream = device_.CreateStream(0, false).value();
  Tensor tensor = OnDevice({1, 2});
  const int events = device_.live_events();
  device_.SetCapturing(stream, true);
  {
    const ScopedStream current(stream);
    CollectiveOptions options;
    options.timeout = absl::Milliseconds(1);
    EXPECT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum, options), IsOk());
    Work work = AllReduceAsync(*group_, tensor, ReduceOp::kSum, options);
    EXPECT_THAT(work.WaitOnStream(), IsOk());
    EXPECT_TRUE(work.Test());
  }
  device_.SetCapturing(stream, false);
  EXPECT_THAT(group_->Synchronize(), IsOk());
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_LE(device_.live_events(), events);
}

TEST_F(DevicePartTest, MemoryIsRegisteredOnceAndLetGoWithTheLastCopy) {
  Tensor tensor = OnDevice({1, 2});
  auto first = group_->Register(Writable(tensor));
  ASSERT_THAT(first, IsOk());
  auto second = group_->Register(Writable(tensor));
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(script_.Take(), ElementsAre("register 8"));
  first->reset();
  EXPECT_THAT(script_.Take(), IsEmpty());
  second->reset();
  EXPECT_THAT(script_.Take(), ElementsAre("deregister"));
  auto third = group_->Register(Writable(tensor));
  ASSERT_THAT(third, IsOk());
  EXPECT_THAT(group_->Destroy(), IsOk());
  third->reset();
  EXPECT_THAT(script_.Take(),
              ElementsAre("register 8", "deregister", "finalize", "destroy"));
}

TEST_F(DevicePartTest, AGroupThatWasNotDestroyedLeavesTheDeviceAlone) {
  Tensor tensor = OnDevice({1, 2});
  ASSERT_THAT(AllReduce(*group_, tensor, ReduceOp::kSum), IsOk());
  ASSERT_THAT(group_->Synchronize(), IsOk());
  script_.Take();
  const int streams = device_.live_streams();
  group_ = nullptr;
  EXPECT_THAT(script_.Take(), IsEmpty());
  EXPECT_EQ(device_.live_streams(), streams);
}

TEST_F(DevicePartTest, TheLastHandleOfTheGroupMayGoWhenAnOperationEnds) {
  Tensor tensor = OnDevice({1, 2});
  const std::weak_ptr<ProcessGroup> alive = group_;
  absl::Notification dropped;
  Work work =
      AllReduceAsync(*group_, tensor, ReduceOp::kSum)
          .Then([group = group_, &dropped,
                 caller = std::this_thread::get_id()](absl::Status status) {
            if (std::this_thread::get_id() != caller) {
              dropped.WaitForNotification();
            }
            return status;
          });
  group_ = nullptr;
  dropped.Notify();
  // Only the group itself drives the operation.
  while (!alive.expired()) std::this_thread::yield();
  EXPECT_THAT(work.Wait(), IsOk());
}

TEST_F(DevicePartTest, AWorkMayKeepTheLastHandleOfItsGroup) {
  Tensor tensor = OnDevice({1, 2});
  const std::weak_ptr<ProcessGroup> alive = group_;
  {
    Work dropped = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
    dropped.Keep(std::exchange(group_, nullptr));
  }
  while (!alive.expired()) std::this_thread::yield();
}

TEST_F(DevicePartTest, OperationsInFlightAtTheEndOfTheGroupFail) {
  Tensor tensor = OnDevice({1, 2});
  auto registration = group_->Register(Writable(tensor));
  ASSERT_THAT(registration, IsOk());
  device_.Stop(Default());
  ASSERT_THAT(tensor.Fill(3), IsOk());
  Work work = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
  group_ = nullptr;
  EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kCancelled,
                                    "while the operation was under way"));
  registration->reset();
  EXPECT_THAT(script_.Take(), ElementsAre("register 8", "post all_reduce"));
}

TEST_F(DevicePartTest, ADestroyedGroupHasReleasedAllResources) {
  Tensor tensor = OnDevice({1, 2});
  Work work = AllReduceAsync(*group_, tensor, ReduceOp::kSum);
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_THAT(work.Wait(), IsOk());
  work = Work(absl::OkStatus());
  EXPECT_THAT(script_.Take(),
              ElementsAre("post all_reduce", "finalize", "destroy"));
  group_ = nullptr;
  EXPECT_EQ(device_.live_streams(), 0);
  EXPECT_EQ(device_.live_events(), 0);
}

TEST(DevicePartErrorsTest, ADeviceThatDoesNotWorkIsNamed) {
  Script script;
  HostBackend host;
  DeviceBackend backend(script);
  FakeDevice::Install(1);
  EXPECT_THAT(
      ProcessGroup::Create(host, {.store = std::make_shared<HashStore>(),
                                  .device_backend = &backend,
                                  .device = {DeviceType::kCuda, 3}}),
      StatusIs(absl::StatusCode::kOutOfRange,
               AllOf(HasSubstr("the cuda part, one"), HasSubstr("rank 0:"))));
  FakeDevice::InstallError(absl::UnavailableError("there is no driver"));
  EXPECT_THAT(
      ProcessGroup::Create(host, {.store = std::make_shared<HashStore>(),
                                  .device_backend = &backend,
                                  .device = {DeviceType::kCuda, 0}}),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("there is no driver")));
  EXPECT_THAT(script.Take(), IsEmpty());
}

TEST(DevicePartErrorsTest, AGroupOfTheHostRefusesDevices) {
  HostBackend host;
  FakeDevice::Install(1);
  auto group =
      ProcessGroup::Create(host, {.store = std::make_shared<HashStore>()});
  ASSERT_THAT(group, IsOk());
  Tensor tensor = OnHost({1, 2}).To(Device{DeviceType::kCuda, 0}).value();
  EXPECT_THAT(AllReduce(**group, tensor, ReduceOp::kSum),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cpu:auto,cuda:nccl")));
  EXPECT_THAT((*group)->Batch([] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT((*group)->DeviceAllocator(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT((*group)->Synchronize(), IsOk());
  EXPECT_EQ((*group)->device(), std::nullopt);
}

}  // namespace
}  // namespace sherd
