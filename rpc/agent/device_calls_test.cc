#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

// Tensors on devices that run work only when something waits for it: data whose
// work was not waited for has not arrived.

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kNoMap = absl::StatusCode::kFailedPrecondition;

// Returns its argument, and the device on which the handler received it.
struct Echo {
  static constexpr absl::string_view kName = "echo";
  using Signature =
      absl::StatusOr<std::pair<Tensor, std::string>>(const Tensor&);
};
// Returns a tensor of fives on a device.
struct Make {
  static constexpr absl::string_view kName = "make";
  using Signature = absl::StatusOr<Tensor>(const std::string& device,
                                           int64_t count);
};
using Nested = std::map<std::string, std::vector<std::optional<Tensor>>>;
struct Reverse {
  static constexpr absl::string_view kName = "reverse";
  using Signature = absl::StatusOr<Nested>(const Nested&);
};

class DeviceCallsTest : public ::testing::Test {
 protected:
  DeviceCallsTest() {
    RegisterHandler<Echo>(
        [this](
            const Tensor& x) -> absl::StatusOr<std::pair<Tensor, std::string>> {
          ++echoes_;
          return std::make_pair(x, x.device().ToString());
        });
    RegisterHandler<Make>([](const std::string& device, int64_t count) {
      // Queued, and not waited for.
      return Tensor::Full({count}, 5, {.device = device});
    });
    RegisterHandler<Reverse>([](const Nested& from) -> absl::StatusOr<Nested> {
      Nested to = from;
      for (auto& [key, tensors] : to) {
        std::reverse(tensors.begin(), tensors.end());
      }
      return to;
    });
  }

  // Worker 0 has `maps` and runs `body`, worker 1 serves it.
  void RunWorkers(const DeviceMaps& maps,
                  const std::function<void(RpcAgent&)>& body,
                  const std::function<void(RpcAgent&)>& server = nullptr) {
    RunRankThreads(2, [&](int rank) {
      const auto agent =
          InitRpc({.rank = rank,
                   .world_size = 2,
                   .store = store_,
                   .device_maps = rank == 0 ? maps : DeviceMaps(),
                   .workers_are_threads = true});
      ASSERT_THAT(agent, IsOk());
      if (rank == 1 && server != nullptr) server(**agent);
      if (rank == 0) body(**agent);
      EXPECT_THAT((*agent)->Shutdown(), IsOk());
    });
  }

  // The present contents of a device's memory, without any wait.
  std::vector<float> Now(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    const std::string bytes =
        fake_.ReadNow(tensor.data(), static_cast<size_t>(tensor.nbytes()));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // The contents that a program sees which waits for a stream that was not
  // used.
  std::vector<float> Values(const Tensor& tensor) {
    const Device device = tensor.device();
    std::optional<ScopedStream> scope;
    if (!device.is_cpu()) {
      scope.emplace(fake_.CreateStream(device.index, false).value());
    }
    const Tensor host = *tensor.To("cpu")->Contiguous();
    return {host.data_as<float>(), host.data_as<float>() + host.numel()};
  }

  static Tensor Host(std::vector<float> values) {
    return *Tensor::FromSpan<float>(values,
                                    {static_cast<int64_t>(values.size())});
  }

  FakeDevice& fake_ = FakeDevice::Install(3, /*bytes_each=*/1 << 20);
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  std::atomic<int> echoes_{0};
};

const DeviceMaps& Maps() {
  static const auto* const maps =
      new DeviceMaps{{"worker1", {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}}};
  return *maps;
}

TEST_F(DeviceCallsTest, ATensorGoesToTheMappedDeviceAndComesBack) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const DeviceStream stream = fake_.CreateStream(0, false).value();
    Tensor x;
    absl::StatusOr<std::pair<Tensor, std::string>> back;
    {
      // The default stream is not ordered with this work.
      const ScopedStream scope(stream);
      x = *Tensor::Full({4}, 7, {.device = "cuda:0"});
      back = agent.Call<Echo>(1, x);
    }
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->second, "cuda:1");
    EXPECT_EQ(back->first.device(), Device("cuda:0"));
    EXPECT_THAT(Now(back->first), ElementsAre(7, 7, 7, 7));
    EXPECT_NE(back->first.data(), x.data());
    // A column of it, nothing of it, and the CPU, which no map names.
    Tensor grid = *Tensor::Zeros({3, 2}, {.device = "cuda:1"});
    ASSERT_THAT(grid.Narrow(1, 1, 1)->Fill(2), IsOk());
    back = agent.Call<Echo>(1, *grid.Narrow(1, 1, 1));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->second, "cuda:0");
    EXPECT_THAT(Now(back->first), ElementsAre(2, 2, 2));
    back = agent.Call<Echo>(1, *Tensor::Zeros({0, 2}, {.device = "cuda:0"}));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->second, "cuda:1");
    EXPECT_EQ(back->first.device(), Device("cuda:0"));
    EXPECT_EQ(back->first.sizes(), Dims({0, 2}));
    back = agent.Call<Echo>(1, Host({1, 2}));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->second, "cpu");
    EXPECT_THAT(back->first, TensorEq(Host({1, 2})));
    // Calls use no events of the caller.
    const int events = fake_.live_events();
    for (int i = 0; i < 20; ++i) {
      ASSERT_THAT(agent.Call<Echo>(1, x), IsOk());
    }
    EXPECT_LT(fake_.live_events(), events + 20);
  });
}

TEST_F(DeviceCallsTest, AResultIncludesTheWorkThatItsHandlerQueued) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const absl::StatusOr<Tensor> made = agent.Call<Make>(1, "cuda:1", 3);
    ASSERT_THAT(made, IsOk());
    EXPECT_EQ(made->device(), Device("cuda:0"));
    EXPECT_THAT(Now(*made), ElementsAre(5, 5, 5));
  });
}

TEST_F(DeviceCallsTest, ASharedValueIncludesTheWorkThatItsThreadQueued) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const DeviceStream stream = fake_.CreateStream(0, false).value();
    absl::StatusOr<RemoteRef<Tensor>> shared;
    {
      const ScopedStream scope(stream);
      shared = agent.Share(*Tensor::Full({4}, 7, {.device = "cuda:0"}));
    }
    ASSERT_THAT(shared, IsOk());
    EXPECT_THAT(Now(*shared->LocalValue()), ElementsAre(7, 7, 7, 7));
  });
}

TEST_F(DeviceCallsTest, ContainersMixDevicesAndTheCpu) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const Nested nested = {
        {"a", {Host({1}), *Host({2}).To("cuda:0"), std::nullopt}},
        {"b", {*Host({3}).To("cuda:1"), Tensor(), *Host({4}).To("cuda:0")}}};
    const absl::StatusOr<Nested> back = agent.Call<Reverse>(1, nested);
    ASSERT_THAT(back, IsOk());
    const auto& a = back->at("a");
    EXPECT_FALSE(a[0].has_value());
    EXPECT_EQ(a[1]->device(), Device("cuda:0"));
    EXPECT_THAT(Now(*a[1]), ElementsAre(2));
    EXPECT_EQ(a[2]->device(), Device());
    EXPECT_THAT(*a[2], TensorEq(Host({1})));
    const auto& b = back->at("b");
    EXPECT_EQ(b[0]->device(), Device("cuda:0"));
    EXPECT_THAT(Now(*b[0]), ElementsAre(4));
    EXPECT_FALSE(b[1]->defined());
    EXPECT_EQ(b[2]->device(), Device("cuda:1"));
    EXPECT_THAT(Now(*b[2]), ElementsAre(3));
  });
}

TEST_F(DeviceCallsTest, OutIsOnAnyDevice) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    // On a device that no map has; with strides; in host memory.
    const Tensor there = *Tensor::Empty({3}, {.device = "cuda:2"});
    const Tensor grid = *Tensor::Empty({3, 2}, {.device = "cuda:0"});
    const Tensor column = *grid.Narrow(1, 0, 1)->Reshape({3});
    const Tensor host = *Tensor::Zeros({3}, {});
    for (const Tensor& out : {there, column, host}) {
      for (const std::string device : {"cuda:1", "cpu"}) {
        ASSERT_THAT(Tensor(out).Fill(0), IsOk());
        fake_.RunAll();
        const absl::StatusOr<Tensor> made =
            agent.Call<Make>(To{.worker = 1, .out = {out}}, device, 3);
        ASSERT_THAT(made, IsOk());
        EXPECT_EQ(made->data(), out.data());
        EXPECT_THAT(Values(out), ElementsAre(5, 5, 5));
      }
    }
    EXPECT_THAT(agent.Call<Make>(To{.worker = 1, .out = {there}}, "cuda:1", 4),
                StatusIs(absl::StatusCode::kInvalidArgument, "on cuda:2"));
    const Tensor meta = *Tensor::Empty({3}, {.device = "meta"});
    EXPECT_THAT(agent.Call<Make>(To{.worker = 1, .out = {meta}}, "cpu", 3),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "on meta, which may not be written to"));
    const Nested two = {{"a", {host, there.To("cuda:0").value()}}};
    EXPECT_THAT(agent.Call<Reverse>(To{.worker = 1, .out = {host}}, two),
                StatusIs(absl::StatusCode::kInvalidArgument, "as many, or"));
    // `out` needs no map, but what is returned does.
    EXPECT_THAT(agent.Call<Make>(To{.worker = 1, .out = {host}}, "cuda:2", 3),
                StatusIs(kNoMap, "cuda:2"));
  });
}

TEST_F(DeviceCallsTest, WithoutAMapTheCallFailsAndSaysWhatToSet) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const Tensor x = *Tensor::Zeros({2}, {.device = "cuda:2"});
    const absl::Status argument = agent.Call<Echo>(1, x).status();
    EXPECT_THAT(
        argument,
        StatusIs(kNoMap,
                 AllOf(HasSubstr("echo on worker1 (rank 1): tensor 0 of the "
                                 "message, on cuda:2: worker0 (rank 0) has no "
                                 "device map from cuda:2 to worker1"),
                       HasSubstr("set RpcOptions::device_maps"))));
    EXPECT_EQ(echoes_, 0);
    EXPECT_THAT(agent.Call<Make>(1, "cuda:2", 2),
                StatusIs(kNoMap,
                         "tensor 0 of the message, on cuda:2: worker0 (rank "
                         "0), the caller, has no device map to cuda:2 of "
                         "worker1 (rank 1); set RpcOptions::device_maps"));
    EXPECT_THAT(agent.Call<Make>(1, "cuda:1", 2), IsOk());
  });
}

TEST_F(DeviceCallsTest, AMapToAMissingDeviceFailsOnlyTransfersToIt) {
  const DeviceMaps maps = {
      {"worker1", {{"cuda:0", "cuda:3"}, {"cuda:3", "cuda:0"}}}};
  RunWorkers(maps, [&](RpcAgent& agent) {
    const Tensor x = *Tensor::Zeros({2}, {.device = "cuda:0"});
    EXPECT_THAT(agent.Call<Echo>(1, x),
                StatusIs(kNoMap, "a device map leads to cuda:3"));
    EXPECT_EQ(echoes_, 0);
    EXPECT_THAT(agent.Call<Make>(1, "cuda:0", 2),
                StatusIs(kNoMap, "a device map leads to cuda:3"));
    const absl::StatusOr<Tensor> made = agent.Call<Make>(1, "cpu", 2);
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(*made, TensorEq(Host({5, 5})));
  });
}

TEST_F(DeviceCallsTest, WorkersWithoutDevicesIgnoreMaps) {
  FakeDevice::InstallError(absl::UnavailableError("no driver"));
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const auto back = agent.Call<Echo>(1, Host({1, 2}));
    ASSERT_THAT(back, IsOk());
    EXPECT_THAT(back->first, TensorEq(Host({1, 2})));
  });
}

TEST_F(DeviceCallsTest, BadMapsFailTheStartOfAll) {
  RunRankThreads(2, [&](int rank) {
    RpcOptions options = {.rank = rank,
                          .world_size = 2,
                          .store = store_,
                          .workers_are_threads = true};
    if (rank == 1) options.device_maps = {{"worker7", {{"cuda:0", "cuda:0"}}}};
    const absl::Status status = InitRpc(options).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "worker1 (rank 1) has invalid target node names in "
                         "its device maps: \"worker7\""));
    EXPECT_EQ(ErrorRank(status), 1);
  });
  // The failed call leaves nothing behind.
  RunWorkers(Maps(), [](RpcAgent& agent) {
    EXPECT_THAT(agent.Call<Make>(1, "cuda:0", 2), IsOk());
  });
}

TEST_F(DeviceCallsTest, CopiesThatFailEndTheirCallAlone) {
  DeviceMaps maps = Maps();
  ASSERT_THAT(AddDeviceMap(maps, "worker1", {{"cpu", "cuda:2"}}), IsOk());
  RunWorkers(maps, [&](RpcAgent& agent) {
    const Tensor grid = *Tensor::Zeros({3, 2}, {.device = "cuda:0"});
    const Tensor column = *grid.Narrow(1, 0, 1)->Reshape({3});
    // An argument leaves its device; a result arrives in `out`.
    fake_.FailCopiesOn(0, absl::DataLossError("a broken copy"));
    EXPECT_THAT(agent.Call<Echo>(1, column),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("echo on worker1 (rank 1)"),
                               HasSubstr("a broken copy"))));
    EXPECT_EQ(echoes_, 0);
    EXPECT_THAT(agent.Call<Make>(To{.worker = 1, .out = {column}}, "cuda:1", 3),
                StatusIs(absl::StatusCode::kDataLoss, "a broken copy"));
    fake_.FailCopiesOn(0, absl::OkStatus());
    // An argument for which the callee's device has no memory.
    EXPECT_THAT(agent.Call<Echo>(1, *Tensor::Zeros({1 << 19}, {})),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         "copying tensor 0 to cuda:2"));
    EXPECT_EQ(echoes_, 0);
    const auto back = agent.Call<Echo>(1, column);
    ASSERT_THAT(back, IsOk());
    EXPECT_THAT(Now(back->first), ElementsAre(0, 0, 0));
  });
}

TEST_F(DeviceCallsTest, WorkThatNeverRunsEndsWithTheDeadline) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const DeviceStream stream = fake_.CreateStream(0, false).value();
    const ScopedStream scope(stream);
    const Tensor x = *Tensor::Full({4}, 7, {.device = "cuda:0"});
    fake_.Stop(stream);
    EXPECT_THAT(
        agent.Call<Echo>(To{.worker = 1, .timeout = absl::Milliseconds(20)}, x),
        StatusIs(absl::StatusCode::kDeadlineExceeded, "has not run in time"));
    EXPECT_EQ(echoes_, 0);
  });
}

TEST_F(DeviceCallsTest, CallsAreRefusedWhileAStreamIsCaptured) {
  RunWorkers(Maps(), [&](RpcAgent& agent) {
    const DeviceStream stream = fake_.CreateStream(0, false).value();
    const Tensor x = *Tensor::Full({4}, 7, {.device = "cuda:0"});
    const ScopedStream scope(stream);
    fake_.SetCapturing(stream, true);
    for (const int worker : {0, 1}) {
      EXPECT_THAT(agent.Call<Echo>(worker, x),
                  StatusIs(kNoMap, "captured into a graph"));
    }
    EXPECT_EQ(echoes_, 0);
  });
}

TEST_F(DeviceCallsTest, CallsToOneselfShareTensorsInTheOrderOfStreams) {
  RunWorkers({}, [&](RpcAgent& agent) {
    const DeviceStream stream = fake_.CreateStream(2, false).value();
    const ScopedStream scope(stream);
    const Tensor x = *Tensor::Full({2}, 7, {.device = "cuda:2"});
    const auto back = agent.Call<Echo>(0, x);
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->first.data(), x.data());
    EXPECT_THAT(Now(x), ElementsAre(7, 7));
    // The handler's work, on another stream than this thread's.
    const absl::StatusOr<Tensor> made = agent.Call<Make>(0, "cuda:2", 2);
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(Now(*made), ElementsAre(5, 5));
  });
}

TEST_F(DeviceCallsTest, PublishedShardsOnDevicesFollowTheMap) {
  const PublicationId id = {"group", 0};
  RunWorkers(
      Maps(),
      [&](RpcAgent& agent) {
        FetchRequest request = {
            .publication = id, .fingerprint = 1, .shard = 0};
        absl::StatusOr<Tensor> shard = agent.Fetch(1, request);
        ASSERT_THAT(shard, IsOk());
        EXPECT_EQ(shard->device(), Device("cuda:0"));
        EXPECT_THAT(Now(*shard), ElementsAre(1, 2, 3, 4));
        request.box = Box{{0, 1}, {2, 1}};
        shard = agent.Fetch(1, request);
        ASSERT_THAT(shard, IsOk());
        EXPECT_THAT(Now(*shard), ElementsAre(2, 4));
        // A shard on a device without a map needs a place.
        request.shard = 1;
        EXPECT_THAT(agent.Fetch(1, request),
                    StatusIs(kNoMap, "no device map to cuda:2 of worker1"));
        for (const std::string device : {"cpu", "cuda:0", "cuda:2"}) {
          request.out = *Tensor::Empty({2, 1}, {.device = device});
          shard = agent.Fetch(1, request);
          ASSERT_THAT(shard, IsOk());
          EXPECT_EQ(shard->data(), request.out.data());
          EXPECT_THAT(Values(*shard), ElementsAre(2, 4));
        }
      },
      [&](RpcAgent& agent) {
        const Tensor shard = *Host({1, 2, 3, 4}).Reshape({2, 2});
        ASSERT_THAT(agent.Publish(
                        {.id = id,
                         .fingerprint = 1,
                         .shards = {*shard.To("cuda:1"), *shard.To("cuda:2")}}),
                    IsOk());
      });
}

TEST_F(DeviceCallsTest, RemoteAccessThatAFixtureStartsHasMapsToo) {
  const PublicationId id = {"group", 0};
  RunRankThreads(2, [&](int rank) {
    const auto access =
        StartRemoteAccess({.rank = rank,
                           .world_size = 2,
                           .store = store_,
                           .workers_are_threads = true,
                           .device_maps = rank == 0 ? Maps() : DeviceMaps()});
    ASSERT_THAT(access, IsOk());
    if (rank == 1) {
      ASSERT_THAT((*access)->Publish(
                      {.id = id, .shards = {*Host({1, 2}).To("cuda:1")}}),
                  IsOk());
    } else {
      const absl::StatusOr<Tensor> shard =
          (*access)->Fetch(1, {.publication = id});
      ASSERT_THAT(shard, IsOk());
      EXPECT_EQ(shard->device(), Device("cuda:0"));
      EXPECT_THAT(Now(*shard), ElementsAre(1, 2));
    }
    EXPECT_THAT((*access)->Shutdown(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
