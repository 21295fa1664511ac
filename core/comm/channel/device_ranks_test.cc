// Groups with a device part, each rank a process on a GPU of its own. On
// emulated GPUs, which run everything later than it is called, every test also
// checks whether something was not ordered or freed too early.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/tensor_collectives.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/emulated_gpu/driver_library.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::DriverLibrary;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::sherd::testing::WithoutComms;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DeviceRanksTest : public sherd::testing::DistributedTest {
 protected:
  void SetUp() override {
    start_ = std::chrono::steady_clock::now();
    driver_ = DriverLibrary::Load(GetKnobOr(Knob::kCudaLibrary, "").c_str());
    if (driver_.findings != nullptr) driver_.findings(1);
  }

  void TearDown() override {
    if (driver_.findings == nullptr) return;
    EXPECT_EQ(driver_.findings(0), 0u) << driver_.LastFinding();
  }

  Device device() { return *group().device(); }

  // Element i of this rank; small, so that sums of all types are exact.
  double ValueOf(int r, int64_t i) const {
    return static_cast<double>((r * 3 + i * 5) % 7);
  }

  Tensor HostTensor(int64_t count, DType dtype) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(ValueOf(rank(), i));
    return Tensor::FromSpan<double>(values, {count}).value().To(dtype).value();
  }

  Tensor DeviceTensor(int64_t count, DType dtype = kFloat32) {
    return HostTensor(count, dtype).To(device()).value();
  }

  // The device's result of `call` is that of the host.
  void ExpectSameAsOnHost(const char* what, int64_t count, DType dtype,
                          const std::function<absl::Status(Tensor&)>& call) {
    Tensor host = HostTensor(count, dtype);
    Tensor on_device = DeviceTensor(count, dtype);
    ASSERT_THAT(call(host), IsOk()) << what;
    ASSERT_THAT(call(on_device), IsOk()) << what;
    const Tensor back = on_device.To(Device()).value();
    EXPECT_TRUE(back.BitwiseEqual(host))
        << what << ": " << back.ToString() << " and not " << host.ToString();
  }

  absl::Duration Elapsed() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }

  std::chrono::steady_clock::time_point start_;
  DriverLibrary driver_;
};

SHERD_DIST_TEST_F(DeviceRanksTest, ReducesLikeTheHost) {
  for (const auto& kind :
       {std::pair(kFloat32, ReduceOp::kSum), std::pair(kInt64, ReduceOp::kMax),
        // Pairs that NCCL does not support.
        std::pair(kInt16, ReduceOp::kSum), std::pair(kUInt8, ReduceOp::kBxor),
        std::pair(kInt32, ReduceOp::kBand)}) {
    const DType dtype = kind.first;
    const ReduceOp op = kind.second;
    for (const int64_t count : {1, 1003}) {
      ExpectSameAsOnHost("all_reduce", count, dtype, [&](Tensor& tensor) {
        return AllReduce(group(), tensor, op);
      });
      ExpectSameAsOnHost("reduce", count, dtype, [&](Tensor& tensor) {
        return Reduce(group(), tensor, op, 1);
      });
    }
    ExpectSameAsOnHost(
        "reduce_scatter", 4 * size_t{3}, dtype, [&](Tensor& tensor) {
          const int64_t n = tensor.numel() / world_size();
          Tensor part = tensor.Narrow(0, 0, n).value();
          Tensor own = part.Clone().value();
          SHERD_RETURN_IF_ERROR(ReduceScatterTensor(group(), tensor, own, op));
          return part.CopyFrom(own);
        });
  }
}

SHERD_DIST_TEST_F(DeviceRanksTest, MovesLikeTheHost) {
  ExpectSameAsOnHost("broadcast", 33, kInt16, [&](Tensor& tensor) {
    return Broadcast(group(), tensor, 2);
  });
  const int64_t n = 5;
  ExpectSameAsOnHost("all_gather", n * world_size(), kInt32, [&](Tensor& all) {
    const Tensor own = all.Narrow(0, n * rank(), n).value().Clone().value();
    return AllGatherIntoTensor(group(), own, all);
  });
  ExpectSameAsOnHost("all_to_all", n * world_size(), kInt32, [&](Tensor& all) {
    const Tensor send = all.Clone().value();
    return AllToAllSingle(group(), send, all);
  });
  ExpectSameAsOnHost("gather", n * world_size(), kInt32, [&](Tensor& all) {
    const Tensor own = all.Narrow(0, 0, n).value().Clone().value();
    std::vector<Tensor> parts;
    for (int r = 0; rank() == 1 && r < world_size(); ++r) {
      parts.push_back(all.Narrow(0, n * r, n).value());
    }
    return Gather(group(), own, absl::MakeSpan(parts), 1);
  });
  ExpectSameAsOnHost("scatter", n * world_size(), kInt32, [&](Tensor& all) {
    std::vector<Tensor> parts;
    for (int r = 0; rank() == 0 && r < world_size(); ++r) {
      parts.push_back(all.Narrow(0, n * r, n).value());
    }
    Tensor own =
        Tensor::Empty({n}, {.dtype = kInt32, .device = all.device()}).value();
    SHERD_RETURN_IF_ERROR(Scatter(group(), parts, own, 0));
    Tensor first = all.Narrow(0, 0, n).value();
    return first.CopyFrom(own);
  });
  EXPECT_THAT(group().Barrier({.device = device()}), IsOk());
  EXPECT_THAT(group().Synchronize(), IsOk());
}

SHERD_DIST_TEST_F(DeviceRanksTest, AsynchronousCallsRunBesideTheStream) {
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(DeviceTensor(1000 + i));
    works.push_back(AllReduceAsync(group(), tensors.back(), ReduceOp::kSum));
  }
  // Half of them are dropped with their tensors.
  for (int i = 0; i < 4; ++i) {
    tensors.erase(tensors.begin());
    works.erase(works.begin());
  }
  Tensor copy = Tensor::Empty({1004}, {.device = device()}).value();
  ASSERT_THAT(works[0].WaitOnStream(), IsOk());
  ASSERT_THAT(copy.CopyFrom(tensors[0]), IsOk());
  for (Work& work : works) EXPECT_THAT(work.Wait(), IsOk());
  float expected = 0;
  for (int r = 0; r < world_size(); ++r) {
    expected += static_cast<float>(ValueOf(r, 1003));
  }
  EXPECT_EQ(copy.To(Device()).value().data_as<float>()[1003], expected);
}

SHERD_DIST_TEST_F(DeviceRanksTest, RanksExchangeInOneBatch) {
  const int next = (rank() + 1) % world_size();
  const int before = (rank() + world_size() - 1) % world_size();
  const Tensor send = DeviceTensor(100);
  Tensor recv = Tensor::Zeros({100}, {.device = device()}).value();
  ASSERT_THAT(group().Batch([&] {
    SHERD_RETURN_IF_ERROR(Send(group(), send, next));
    return Recv(group(), recv, before);
  }),
              IsOk());
  const Tensor back = recv.To(Device()).value();
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(back.data_as<float>()[i], static_cast<float>(ValueOf(before, i)));
  }
}

SHERD_DIST_TEST_F(DeviceRanksTest, TheFlightRecorderMarksDeviceCalls) {
  Tensor tensor = DeviceTensor(1);
  ASSERT_THAT(AllReduce(group(), tensor, ReduceOp::kSum), IsOk());
  ASSERT_THAT(group().Barrier(), IsOk());
  const internal::FlightSnapshot snapshot =
      internal::FlightRecorder::Global().Snapshot();
  std::map<CollectiveOp, bool> on_device;
  for (const internal::FlightEntry& entry : snapshot.entries) {
    on_device[entry.op] = entry.on_device;
  }
  EXPECT_TRUE(on_device[CollectiveOp::kAllReduce]);
  EXPECT_FALSE(on_device[CollectiveOp::kBarrier]);
  EXPECT_EQ(snapshot.groups.back().info.device, group().device()->ToString());
  EXPECT_EQ(snapshot.groups.back().info.device_backend, "nccl");
}

SHERD_DIST_TEST_F(DeviceRanksTest, ABatchIsOfOneGroup) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto half,
                             group().Split(rank() % 2, rank()));
  Tensor tensor = DeviceTensor(1);
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("a batch of another group"));
  EXPECT_THAT(group().Batch([&] {
    EXPECT_THAT(AllReduce(*half, tensor, ReduceOp::kSum), refused);
    EXPECT_THAT(AllReduceAsync(*half, tensor, ReduceOp::kSum).Wait(), refused);
    EXPECT_THAT(half->Batch([] { return absl::OkStatus(); }), refused);
    return AllReduce(group(), tensor, ReduceOp::kSum);
  }),
              IsOk());
  EXPECT_THAT(group().Synchronize(), IsOk());
  EXPECT_THAT(AllReduce(*half, tensor, ReduceOp::kSum), IsOk());
  EXPECT_THAT(half->Synchronize(), IsOk());
  EXPECT_THAT(half->Destroy(), IsOk());
}

SHERD_DIST_TEST_F(DeviceRanksTest, GroupsOfGroupsHaveDevicesToo) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto half,
                             group().Split(rank() % 2, -rank()));
  EXPECT_EQ(half->device(), group().device());
  Tensor tensor = DeviceTensor(1);
  ASSERT_THAT(AllReduce(*half, tensor, ReduceOp::kSum), IsOk());
  float expected = 0;
  for (int r = rank() % 2; r < world_size(); r += 2) {
    expected += static_cast<float>(ValueOf(r, 0));
  }
  EXPECT_EQ(tensor.To(Device()).value().data_as<float>()[0], expected);
  EXPECT_THAT(half->Destroy(), IsOk());

  const std::vector<int> some = {0, 2};
  SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group().NewGroup(some));
  if (!pair->is_member()) {
    EXPECT_EQ(pair->device(), std::nullopt);
    return;
  }
  tensor = DeviceTensor(1);
  ASSERT_THAT(AllReduce(*pair, tensor, ReduceOp::kSum), IsOk());
  EXPECT_EQ(tensor.To(Device()).value().data_as<float>()[0],
            static_cast<float>(ValueOf(0, 0) + ValueOf(2, 0)));
  EXPECT_THAT(pair->Destroy(), IsOk());
}

SHERD_DIST_TEST_F(DeviceRanksTest, GroupsWithoutDevicesAreMadeOnRequest) {
  std::vector<int> all(static_cast<size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto same,
                             group().NewGroup(all, {.with_devices = false}));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto half,
      group().Split(rank() % 2, rank(), {.with_devices = false}));
  for (const auto& host_only : {same, half}) {
    EXPECT_EQ(host_only->device(), std::nullopt);
    EXPECT_THAT(host_only->Barrier(), IsOk());
    EXPECT_THAT(host_only->Destroy(), IsOk());
  }
}

SHERD_DIST_TEST_F(DeviceRanksTest, CallsBecomePartOfAGraph) {
  if (driver_.more.GraphLaunch == nullptr) GTEST_SKIP() << driver_.problem;
  SHERD_ASSERT_OK_AND_ASSIGN(DeviceRuntime* const runtime,
                             DeviceRuntime::For(DeviceType::kCuda));
  SHERD_ASSERT_OK_AND_ASSIGN(const DeviceStream stream,
                             runtime->CreateStream(device().index));
  ASSERT_THAT(runtime->SetCurrentDevice(device().index), IsOk());
  Tensor first = DeviceTensor(12);
  Tensor second = DeviceTensor(12);
  Tensor warm = DeviceTensor(12);
  ASSERT_THAT(AllReduce(group(), warm, ReduceOp::kSum), IsOk());
  ASSERT_THAT(group().Synchronize(), IsOk());
  ASSERT_THAT(runtime->Synchronize(CurrentStream(device())), IsOk());
  auto* const handle = reinterpret_cast<internal::CUstream>(stream.handle);
  testing::CUgraph graph = nullptr;
  testing::CUgraphExec executable = nullptr;
  {
    const ScopedStream current(stream);
    ASSERT_EQ(driver_.more.StreamBeginCapture(handle, /*thread_local=*/1), 0);
    EXPECT_THAT(AllReduce(group(), first, ReduceOp::kSum,
                          {.timeout = absl::Milliseconds(1)}),
                IsOk());
    Work work = AllReduceAsync(group(), second, ReduceOp::kSum);
    EXPECT_THAT(work.WaitOnStream(), IsOk());
    ASSERT_EQ(driver_.more.StreamEndCapture(handle, &graph), 0);
  }
  ASSERT_EQ(driver_.more.GraphInstantiate(&executable, graph, 0), 0);
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_EQ(driver_.more.GraphLaunch(executable, handle), 0);
  }
  ASSERT_THAT(runtime->Synchronize(stream), IsOk());
  float sum = 0;
  for (int r = 0; r < world_size(); ++r) {
    sum += static_cast<float>(ValueOf(r, 7));
  }
  const float expected = sum * static_cast<float>(world_size());
  EXPECT_EQ(first.To(Device()).value().data_as<float>()[7], expected);
  EXPECT_EQ(second.To(Device()).value().data_as<float>()[7], expected);
  EXPECT_THAT(group().Synchronize(), IsOk());
  ASSERT_EQ(driver_.more.GraphExecDestroy(executable), 0);
  ASSERT_EQ(driver_.more.GraphDestroy(graph), 0);
}

SHERD_DIST_TEST_F(DeviceRanksTest, BuffersMustBeInTheMemoryOfTheCall) {
  Tensor host = HostTensor(5, kFloat32);
  Tensor on_device = DeviceTensor(5);
  const auto bytes = [](Tensor& tensor) {
    return MutableBytes(static_cast<std::byte*>(tensor.data()),
                        static_cast<size_t>(tensor.nbytes()));
  };
  const CollectiveOptions here = {.device = device()};
  EXPECT_THAT(group().Broadcast(bytes(host), 0, here),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "is in the memory of cpu, expected cuda:"));
  EXPECT_THAT(group().AllReduce(bytes(on_device), bytes(host), kFloat32,
                                ReduceOp::kSum, here),
              StatusIs(absl::StatusCode::kInvalidArgument, "memory of cpu"));
  EXPECT_THAT(group().Broadcast(bytes(on_device), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "is in the memory of cuda:"));
  // Nothing of that was sent.
  ExpectSameAsOnHost("broadcast", 5, kFloat32, [&](Tensor& tensor) {
    return Broadcast(group(), tensor, 1);
  });
}

SHERD_DIST_TEST_F(DeviceRanksTest, AnotherTypeIsNamedAtOnce) {
  constexpr int kFailedRank = 2;
  Tensor tensor = DeviceTensor(12, rank() == kFailedRank ? kInt32 : kFloat32);
  absl::Status status = AllReduce(group(), tensor, ReduceOp::kSum);
  if (status.ok()) status = group().Synchronize();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("int32"), HasSubstr("float32"),
                                     HasSubstr("on its device"))));
  EXPECT_EQ(ErrorRank(status), kFailedRank);
  EXPECT_LT(Elapsed(), group().timeout() / 2);
  EXPECT_THAT(group().Barrier(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

SHERD_DIST_TEST_F(DeviceRanksTest, ACallOnTheHostAgainstOneOnTheDeviceIsNamed) {
  constexpr int kFailedRank = 1;
  Tensor tensor = rank() == kFailedRank ? HostTensor(12, kFloat32)
                                        : DeviceTensor(12, kFloat32);
  absl::Status status = AllReduce(group(), tensor, ReduceOp::kSum);
  if (status.ok()) status = group().Synchronize();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("on its device")));
  EXPECT_EQ(ErrorRank(status), kFailedRank);
  EXPECT_LT(Elapsed(), group().timeout() / 2);
}

SHERD_DIST_TEST_F(DeviceRanksTest, AMissingRankIsNamedAtTheDeadline) {
  constexpr int kFailedRank = 1;
  if (rank() != kFailedRank) {
    Tensor tensor = DeviceTensor(12);
    Work work = AllReduceAsync(group(), tensor, ReduceOp::kSum,
                               {.timeout = absl::Seconds(1)});
    const absl::Status status = work.Wait();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr(absl::StrCat("rank ", kFailedRank))));
    EXPECT_EQ(ErrorRank(status), kFailedRank);
    EXPECT_THAT(AllReduce(group(), tensor, ReduceOp::kSum),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    // The streams go on.
    SHERD_ASSERT_OK_AND_ASSIGN(DeviceRuntime* const runtime,
                               DeviceRuntime::For(DeviceType::kCuda));
    EXPECT_THAT(runtime->Synchronize(CurrentStream(device()),
                                     Deadline::After(absl::Seconds(20))),
                IsOk());
  }
  SkipFinalBarrier();
  // Rank 1 keeps its process, and the store, until all have their error.
  ASSERT_THAT(WaitForRanks("done"), IsOk());
}

SHERD_DIST_TEST_F(DeviceRanksTest, SurvivorsOfAKilledRankGoOn) {
  constexpr int kFailedRank = 1;
  ExpectRankDies(kFailedRank, SIGKILL);
  SkipFinalBarrier();
  Tensor tensor = DeviceTensor(12);
  ASSERT_THAT(AllReduce(group(), tensor, ReduceOp::kSum), IsOk());
  ASSERT_THAT(group().Synchronize(), IsOk());
  ASSERT_THAT(WaitForRanks("synchronized"), IsOk());
  if (rank() == kFailedRank) raise(SIGKILL);
  Work work = AllReduceAsync(group(), tensor, ReduceOp::kSum);
  const absl::Status status = work.Wait();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr(absl::StrCat("rank ", kFailedRank))));
  EXPECT_EQ(ErrorRank(status), kFailedRank);
  EXPECT_LT(Elapsed(), group().timeout() / 2);
  std::vector<int> others;
  for (int r = 0; r < world_size(); ++r) {
    if (r != kFailedRank) others.push_back(r);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rest, group().NewGroup(others));
  Tensor fresh = DeviceTensor(3);
  ASSERT_THAT(AllReduce(*rest, fresh, ReduceOp::kSum), IsOk());
  float expected = 0;
  for (const int r : others) expected += static_cast<float>(ValueOf(r, 2));
  EXPECT_EQ(fresh.To(Device()).value().data_as<float>()[2], expected);
  EXPECT_THAT(rest->Destroy(), IsOk());
}

SHERD_DIST_TEST_F(DeviceRanksTest, AFailureOfTheVendorsLibraryIsReported) {
  constexpr int kFailedRank = 0;
  if (driver_.set_faults == nullptr) GTEST_SKIP() << "the GPUs are real";
  Tensor tensor = DeviceTensor(12);
  ASSERT_THAT(AllReduce(group(), tensor, ReduceOp::kSum), IsOk());
  ASSERT_THAT(group().Synchronize(), IsOk());
  ASSERT_THAT(WaitForRanks("synchronized"), IsOk());
  // ncclUnhandledCudaError, as where there is no memory.
  if (rank() == kFailedRank) driver_.set_faults("ncclAllReduce:1+:1");
  absl::Status status = AllReduce(group(), tensor, ReduceOp::kSum);
  if (status.ok()) status = group().Synchronize();
  EXPECT_THAT(status, Not(IsOk()));
  if (rank() != kFailedRank) {
    EXPECT_EQ(ErrorRank(status), kFailedRank);
  }
  EXPECT_LT(Elapsed(), group().timeout() / 2);
  SkipFinalBarrier();
}

SHERD_DIST_TEST_F(DeviceRanksTest, AStoppedRankIsNamedAtTheDeadline) {
  constexpr int kFailedRank = 1;
  ExpectRankDies(kFailedRank, SIGKILL);
  SkipFinalBarrier();
  Tensor tensor = DeviceTensor(12);
  ASSERT_THAT(AllReduce(group(), tensor, ReduceOp::kSum), IsOk());
  ASSERT_THAT(group().Synchronize(), IsOk());
  ASSERT_THAT(WaitForRanks("synchronized"), IsOk());
  if (rank() == kFailedRank) {
    ASSERT_THAT(store().Set("pid", absl::StrCat(getpid())), IsOk());
    raise(SIGSTOP);
  }
  Work work = AllReduceAsync(group(), tensor, ReduceOp::kSum,
                             {.timeout = absl::Seconds(1)});
  const absl::Status status = work.Wait();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr(absl::StrCat("rank ", kFailedRank))));
  EXPECT_EQ(ErrorRank(status), kFailedRank);
  ASSERT_THAT(WaitForRanks("done", world_size() - 1), IsOk());
  if (rank() != 0) return;
  kill(std::stoi(store().Get("pid", Deadline::Infinite()).value()), SIGKILL);
}

SHERD_DIST_TEST_F(DeviceRanksTest,
                  ADriverMissingOnOneRankIsTheSameErrorOnAllRanks,
                  WithoutComms{}) {
  if (driver_.set_faults == nullptr) GTEST_SKIP() << "the GPUs are real";
  if (rank() == 2) {
    setenv(GetKnobInfo(Knob::kCudaLibrary).variable, "/nowhere/libcuda.so.1",
           /*overwrite=*/1);
  }
  // A rank that arrives much later finds no other rank: all others have left.
  ASSERT_THAT(WaitForRanks("here"), IsOk());
  const auto group = Init({.timeout = absl::Seconds(30)});
  EXPECT_THAT(
      group.status(),
      AllOf(StatusIs(absl::StatusCode::kUnavailable, "the cuda part of"),
            StatusIs(absl::StatusCode::kUnavailable, "/nowhere/libcuda.so.1")));
  EXPECT_EQ(ErrorRank(group.status()), 2);
  EXPECT_LT(Elapsed(), absl::Seconds(15));
}

// While a call runs, or is still being posted: the first of a communicator
// connects, and waits for all ranks there.
class LateErrorTest : public DeviceRanksTest {
 protected:
  void ExpectTold(bool connected);
};

void LateErrorTest::ExpectTold(bool connected) {
  constexpr int kFailedRank = 0;
  constexpr int kAbsent = 3;
  if (driver_.set_faults == nullptr) GTEST_SKIP() << "the GPUs are real";
  SkipFinalBarrier();
  Tensor tensor = DeviceTensor(12);
  if (connected) {
    ASSERT_THAT(AllReduce(group(), tensor, ReduceOp::kSum), IsOk());
  }
  ASSERT_THAT(group().Synchronize(), IsOk());
  ASSERT_THAT(WaitForRanks("synchronized"), IsOk());
  if (rank() != kAbsent) {
    if (rank() == kFailedRank)
      driver_.set_faults("ncclCommGetAsyncError:*:async=6");
    Work work = AllReduceAsync(group(), tensor, ReduceOp::kSum);
    const absl::Status status = work.Wait();
    EXPECT_THAT(status, Not(IsOk()));
    if (rank() != kFailedRank) {
      EXPECT_EQ(ErrorRank(status), kFailedRank);
    }
    EXPECT_LT(Elapsed(), group().timeout() / 2);
  }
  ASSERT_THAT(WaitForRanks("done"), IsOk());
}

SHERD_DIST_TEST_F(LateErrorTest, ALaterErrorIsReported) {
  ExpectTold(/*connected=*/true);
}

SHERD_DIST_TEST_F(LateErrorTest, AnErrorInTheFirstCallIsReported) {
  ExpectTold(/*connected=*/false);
}

}  // namespace
}  // namespace sherd
