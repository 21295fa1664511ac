#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::SizeIs;

struct Scale {
  static constexpr absl::string_view kName = "scale";
  using Signature = absl::StatusOr<Tensor>(const Tensor&, double);
};
struct Fail {
  static constexpr absl::string_view kName = "fail";
  using Signature = absl::Status(const std::string&);
};
struct Unregistered {
  static constexpr absl::string_view kName = "unregistered";
  using Signature = absl::Status();
};
struct Busy {
  static constexpr absl::string_view kName = "busy";
  using Signature = absl::Status();
};
struct Mark {
  static constexpr absl::string_view kName = "mark";
  using Signature = absl::Status();
};
struct Pause {
  static constexpr absl::string_view kName = "pause";
  using Signature = absl::Status();
};
struct Park {
  static constexpr absl::string_view kName = "park";
  using Signature = absl::Status(const Tensor&);
};
struct AskNext {
  static constexpr absl::string_view kName = "ask_next";
  using Signature = absl::StatusOr<int64_t>(int64_t depth);
};

class RpcAgentTest : public ::testing::Test {
 protected:
  RpcAgentTest() {
    RegisterHandler<Scale>([](const Tensor& x, double factor) {
      absl::StatusOr<Tensor> result = x.Clone();
      if (!result.ok()) return result;
      for (int64_t i = 0; i < result->numel(); ++i) {
        result->mutable_data_as<double>()[i] *= factor;
      }
      return result;
    });
    RegisterHandler<Fail>([](const std::string& why) {
      return absl::Status(absl::DataLossError(why));
    });
  }

  RpcOptions Options(int rank, int size) {
    RpcOptions options;
    options.rank = rank;
    options.world_size = size;
    options.store = store_;
    options.workers_are_threads = true;
    return options;
  }

  // Runs each of `n` workers on a thread of its own; all shut down at the end.
  void RunWorkers(int n, const std::function<void(RpcAgent&)>& body) {
    RunRankThreads(n, [&](int rank) {
      const auto agent = InitRpc(Options(rank, n));
      ASSERT_THAT(agent, IsOk());
      body(**agent);
      EXPECT_THAT((*agent)->Shutdown(), IsOk());
    });
  }

  // From `stopped` until `go`, worker 0, whose agent this is, reads nothing
  // that worker 1 sends.
  static void StopReading(RpcAgent& agent, absl::Notification& stopped,
                          absl::Notification& go) {
    const auto attached = std::make_shared<absl::Notification>();
    RegisterHandler<Pause>([attached] {
      // What is attached to a result that has come runs on another thread than
      // the one that reads.
      attached->WaitForNotification();
      return absl::OkStatus();
    });
    agent.CallAsync<Pause>(1).OnReady([&](const absl::Status&) {
      stopped.Notify();
      go.WaitForNotification();
    });
    attached->Notify();
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(RpcAgentTest, WorkersCallEachOtherByRankAndByName) {
  RunWorkers(3, [](RpcAgent& agent) {
    EXPECT_EQ(agent.name(), absl::StrCat("worker", agent.rank()));
    EXPECT_EQ(DefaultRpcAgent()->get(), &agent);
    const Tensor x = *Tensor::FromSpan<double>({1, 2, 3}, {3});
    const Tensor twice = *Tensor::FromSpan<double>({2, 4, 6}, {3});
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(agent.Call<Scale>(rank, x, 2.0),
                  IsOkAndHolds(TensorEq(twice)));
      EXPECT_THAT(agent.Call<Scale>(absl::StrCat("worker", rank), x, 2.0),
                  IsOkAndHolds(TensorEq(twice)));
      const Future<Tensor> later = agent.CallAsync<Scale>(rank, x, 2.0);
      EXPECT_THAT(later.Wait(), IsOkAndHolds(TensorEq(twice)));
    }
    Tensor out = *Tensor::Zeros({3}, {.dtype = kFloat64});
    const int next = (agent.rank() + 1) % 3;
    EXPECT_THAT(agent.Call<Scale>(To{.worker = next, .out = {out}}, x, 2.0),
                IsOk());
    EXPECT_THAT(out, TensorEq(twice));
  });
}

static_assert(!std::is_convertible_v<bool, WorkerRef>);
static_assert(!std::is_convertible_v<double, WorkerRef>);
static_assert(!std::is_convertible_v<std::nullptr_t, WorkerRef>);

TEST_F(RpcAgentTest, RanksAreOfAnyIntegerAndNamesOfAnyText) {
  RunWorkers(1, [](RpcAgent& agent) {
    const absl::string_view name = agent.name();
    const char* const none = nullptr;
    for (const WorkerRef& worker :
         {WorkerRef(0), WorkerRef(size_t{0}), WorkerRef(int64_t{0}),
          WorkerRef(name), WorkerRef("worker0")}) {
      EXPECT_THAT(agent.Call<Fail>(worker, "x"),
                  StatusIs(absl::StatusCode::kDataLoss));
    }
    // Would be 0 as an int.
    EXPECT_THAT(agent.Call<Fail>(int64_t{1} << 32, "x"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "worker 4294967296 does not exist"));
    EXPECT_THAT(agent.Call<Fail>(SIZE_MAX, "x"),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(
        agent.Call<Fail>(none, "x"),
        StatusIs(absl::StatusCode::kInvalidArgument, "Invalid worker name ''"));
  });
}

// The errors that a program must distinguish to continue without lost workers.
TEST_F(RpcAgentTest, AnUnavailableHandlerIsNotALostWorker) {
  RegisterHandler<Busy>([] { return absl::UnavailableError("come later"); });
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2));
    ASSERT_THAT(agent, IsOk());
    const auto token = std::make_shared<int>(0);
    (*agent)->OnWorkerLost(
        [token](int, const absl::Status&) { ADD_FAILURE() << "none is lost"; });
    if (rank == 1) {
      while ((*agent)->Statistics()[0].served < 2) std::this_thread::yield();
    } else {
      const absl::Status busy = (*agent)->Call<Busy>(1);
      EXPECT_THAT(busy, StatusIs(absl::StatusCode::kUnavailable, "come later"));
      EXPECT_EQ(ErrorRank(busy), 1);
      EXPECT_EQ(FailedRank(busy), std::nullopt);
      absl::Status left = busy;
      while (!FailedRank(left)) left = (*agent)->Call<Busy>(1);
      EXPECT_THAT(left, StatusIs(absl::StatusCode::kUnavailable, "worker1"));
      EXPECT_EQ(FailedRank(left), 1);
      EXPECT_FALSE((*agent)->Statistics()[1].lost);
    }
    EXPECT_GT(token.use_count(), 1);
    EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    EXPECT_EQ(token.use_count(), 1);
    (*agent)->OnWorkerLost([token](int, const absl::Status&) {});
    EXPECT_EQ(token.use_count(), 1);
  });
  UnregisterHandler<Busy>();
}

TEST_F(RpcAgentTest, ErrorsNameCallAndWorker) {
  RunWorkers(2, [](RpcAgent& agent) {
    const int other = 1 - agent.rank();
    const absl::Status failed = agent.Call<Fail>(other, "broken disk");
    EXPECT_THAT(failed,
                StatusIs(absl::StatusCode::kDataLoss,
                         absl::StrCat("of fail on worker", other, " (rank ",
                                      other, "): broken disk")));
    EXPECT_EQ(ErrorRank(failed), other);
    EXPECT_THAT(agent.Call<Unregistered>(other),
                StatusIs(absl::StatusCode::kNotFound, "unregistered"));
    EXPECT_THAT(agent.Call<Fail>("workerfoo", "x"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "call of fail: Invalid worker name 'workerfoo': the "
                         "workers are worker0, worker1"));
    EXPECT_THAT(agent.Call<Fail>(2, "x"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "worker 2 does not exist"));
  });
}

// Worker 0 calls worker 1, whose handler calls worker 0, and so on.
TEST_F(RpcAgentTest, NestedCallsDoNotUseUpTheThreads) {
  std::array<std::atomic<RpcAgent*>, 2> agents = {};
  RegisterHandler<AskNext>([&](int64_t depth) -> absl::StatusOr<int64_t> {
    if (depth == 0) return 0;
    const int caller = CallContext::Current()->caller();
    const absl::StatusOr<int64_t> below =
        agents[1 - caller].load()->Call<AskNext>(caller, depth - 1);
    if (!below.ok()) return below;
    return *below + 1;
  });
  RunWorkers(2, [&](RpcAgent& agent) {
    agents[agent.rank()] = &agent;
    const int other = 1 - agent.rank();
    while (agents[other] == nullptr) std::this_thread::yield();
    EXPECT_THAT(agent.Call<AskNext>(other, 100), IsOkAndHolds(100));
  });
  UnregisterHandler<AskNext>();
}

TEST_F(RpcAgentTest, StatisticsCountCallsAndErrors) {
  RunWorkers(2, [](RpcAgent& agent) {
    const int other = 1 - agent.rank();
    EXPECT_THAT(agent.Call<Fail>(other, "x"),
                StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_THAT(
        agent.Call<Scale>(other, *Tensor::Ones({2}, {.dtype = kFloat64}), 1.0),
        IsOk());
    const std::vector<WorkerStatistics> statistics = agent.Statistics();
    ASSERT_THAT(statistics, SizeIs(2));
    EXPECT_EQ(statistics[other].calls, 2);
    EXPECT_EQ(statistics[other].errors, 1);
    EXPECT_EQ(statistics[other].outstanding, 0);
    EXPECT_GT(statistics[other].bytes_sent, 0);
  });
}

TEST_F(RpcAgentTest, InitAfterShutdownWorksOnTheSameStore) {
  RunRankThreads(2, [&](int rank) {
    for (int life = 0; life < 3; ++life) {
      const auto agent = InitRpc(Options(rank, 2));
      ASSERT_THAT(agent, IsOk());
      EXPECT_THAT(InitRpc(Options(rank, 2)),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "RPC is already initialized"));
      EXPECT_THAT((*agent)->Call<Fail>(1 - rank, "x"),
                  StatusIs(absl::StatusCode::kDataLoss));
      ASSERT_THAT((*agent)->Shutdown(), IsOk());
      EXPECT_THAT((*agent)->Shutdown(), IsOk());
      EXPECT_THAT((*agent)->Call<Fail>(1 - rank, "x"),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT(DefaultRpcAgent(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "RPC has not been initialized"));
    }
  });
}

// A worker that is ready early waits for the others' calls.
TEST_F(RpcAgentTest, AGracefulShutdownServesTheOthersUntilTheyAreDone) {
  RunRankThreads(3, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 3));
    ASSERT_THAT(agent, IsOk());
    if (rank == 2) {
      for (int i = 0; i < 200; ++i) {
        ASSERT_THAT((*agent)->Call<Fail>(i % 2, "x"),
                    StatusIs(absl::StatusCode::kDataLoss));
      }
    }
    EXPECT_THAT((*agent)->Shutdown(), IsOk());
  });
}

// Calls that follow one another closely are sent together, sooner or later.
TEST_F(RpcAgentTest, ABurstOfCallsEndsBeforeAGracefulShutdown) {
  constexpr int kWorkers = 3, kCalls = 100;
  const Tensor x = *Tensor::Full({3}, 2.0, {.dtype = kFloat64});
  RunRankThreads(kWorkers, [&](int rank) {
    const auto agent = InitRpc(Options(rank, kWorkers));
    ASSERT_THAT(agent, IsOk());
    std::vector<Future<Tensor>> results;
    std::vector<RemoteRef<Tensor>> kept;
    for (int i = 0; i < kCalls; ++i) {
      const int to = (rank + 1 + i % 2) % kWorkers;
      results.push_back((*agent)->CallAsync<Scale>(to, x, i));
      if (i % 5 == 0) results.back().Cancel();
      if (i % 7 == 0) kept.push_back(*(*agent)->Remote<Scale>(to, x, i));
    }
    kept.clear();
    EXPECT_THAT((*agent)->Shutdown(), IsOk());
    for (int i = 0; i < kCalls; ++i) {
      const absl::StatusOr<Tensor> result = results[i].Wait();
      if (i % 5 == 0 && absl::IsCancelled(result.status())) continue;
      EXPECT_THAT(result, IsOkAndHolds(TensorEq(*Tensor::Full(
                              {3}, 2.0 * i, {.dtype = kFloat64}))));
    }
  });
}

// Call does not wait for more, though calls before it did.
TEST_F(RpcAgentTest, ACallThatIsWaitedForLeavesAtOnce) {
  absl::Notification arrived;
  RegisterHandler<Mark>([&] {
    arrived.Notify();
    return absl::OkStatus();
  });
  RunWorkers(2, [&](RpcAgent& agent) {
    if (agent.rank() != 0) return;
    absl::Notification stopped, go;
    StopReading(agent, stopped, go);
    stopped.WaitForNotification();
    std::thread caller([&] {
      for (int i = 0; i < 3; ++i) agent.CallAsync<Fail>(1, "not asked for");
      EXPECT_THAT(agent.Call<Mark>(1), IsOk());
    });
    // Though this worker's loop, which would send what waits, stands still.
    EXPECT_TRUE(arrived.WaitForNotificationWithTimeout(absl::Seconds(30)));
    go.Notify();
    caller.join();
  });
  UnregisterHandler<Mark>();
}

TEST_F(RpcAgentTest, ACancelledCallReleasesItsArgumentsAtTheHandler) {
  // Never set.
  const Promise<void> promise;
  std::weak_ptr<const Storage> seen;
  absl::Notification parked;
  RegisterHandler<Park>([&](const Tensor& x) {
    seen = x.storage();
    parked.Notify();
    return promise.future();
  });
  RunWorkers(2, [&](RpcAgent& agent) {
    if (agent.rank() != 0) return;
    const Tensor x = *Tensor::Ones({1000}, {});
    const Future<void> call = agent.CallAsync<Park>(1, x);
    parked.WaitForNotification();
    EXPECT_FALSE(seen.expired());
    call.Cancel();
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (!seen.expired() && absl::Now() < end) std::this_thread::yield();
    EXPECT_TRUE(seen.expired());
  });
  EXPECT_FALSE(promise.future().Ready());
  UnregisterHandler<Park>();
}

TEST_F(RpcAgentTest, AShutdownIsShortenedByOneOfAnotherThread) {
  absl::Notification done;
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2));
    ASSERT_THAT(agent, IsOk());
    if (rank == 1) {
      done.WaitForNotification();
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
      return;
    }
    absl::Notification waits;
    testing::CallAt at("rpc/before_drain", [&] { waits.Notify(); },
                       {.rank = 0});
    std::thread first([&] {
      EXPECT_THAT((*agent)->Shutdown({.timeout = absl::Hours(1)}),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           "another thread's shutdown ended it while it waited "
                           "for worker1 (rank 1)"));
    });
    waits.WaitForNotification();
    // One waits less, and one not at all.
    EXPECT_THAT(
        (*agent)->Shutdown({.timeout = absl::Milliseconds(20)}),
        StatusIs(absl::StatusCode::kDeadlineExceeded, "worker1 (rank 1)"));
    EXPECT_FALSE((*agent)->is_running());
    EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    first.join();
    done.Notify();
  });
}

TEST_F(RpcAgentTest, AShutdownThatDoesNotWaitEndsOneThatDoes) {
  absl::Notification done;
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2));
    ASSERT_THAT(agent, IsOk());
    if (rank == 0) {
      absl::Notification waits;
      testing::CallAt at("rpc/before_drain", [&] { waits.Notify(); },
                         {.rank = 0});
      std::thread first([&] {
        EXPECT_THAT((*agent)->Shutdown({.timeout = absl::Hours(1)}),
                    StatusIs(absl::StatusCode::kDeadlineExceeded));
      });
      waits.WaitForNotification();
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
      first.join();
      done.Notify();
    } else {
      done.WaitForNotification();
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    }
  });
}

// Also if notifying the others took all of its time.
TEST_F(RpcAgentTest, AShutdownThatJoinsAnotherHasItsOutcome) {
  for (const bool is_graceful : {true, false}) {
    absl::Notification is_blocked;
    absl::Notification over;
    RunRankThreads(2, [&](int rank) {
      RpcOptions options = Options(rank, 2);
      options.transports = {"unix"};
      options.parting_timeout = absl::Milliseconds(20);
      const auto agent = InitRpc(options);
      ASSERT_THAT(agent, IsOk());
      if (rank == 0) {
        StopReading(**agent, is_blocked, over);
        over.WaitForNotification();
        EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
        return;
      }
      is_blocked.WaitForNotification();
      const Tensor large = *Tensor::Ones({1 << 17}, {.dtype = kFloat64});
      const Future<Tensor> sent = (*agent)->CallAsync<Scale>(0, large, 2.0);
      absl::Notification waits;
      testing::CallAt at("rpc/before_drain", [&] { waits.Notify(); },
                         {.rank = 1});
      const auto is_late = StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    "waited for worker0 (rank 0)");
      std::thread first([&] {
        EXPECT_THAT((*agent)->Shutdown({.timeout = absl::Hours(1)}), is_late);
      });
      waits.WaitForNotification();
      const absl::Status joined = (*agent)->Shutdown(
          {.graceful = is_graceful, .timeout = absl::Milliseconds(20)});
      if (is_graceful) {
        EXPECT_THAT(joined, is_late);
      } else {
        EXPECT_THAT(joined, IsOk());
      }
      // There is nothing left to wait for.
      EXPECT_THAT((*agent)->Shutdown({.timeout = absl::ZeroDuration()}),
                  IsOk());
      first.join();
      over.Notify();
    });
  }
}

// Its deadline has passed, and its messages are still under way.
TEST_F(RpcAgentTest, ALateShutdownStillSaysGoodbye) {
  RegisterHandler<Busy>([] { return absl::OkStatus(); });
  absl::Notification is_blocked;
  absl::Notification is_late;
  absl::Notification over;
  RunRankThreads(2, [&](int rank) {
    RpcOptions options = Options(rank, 2);
    options.transports = {"unix"};
    options.parting_timeout = absl::Seconds(60);
    const auto agent = InitRpc(options);
    ASSERT_THAT(agent, IsOk());
    if (rank == 0) {
      std::atomic<int> losses{0};
      (*agent)->OnWorkerLost([&](int, const absl::Status&) { ++losses; });
      StopReading(**agent, is_blocked, is_late);
      over.WaitForNotification();
      absl::Status status;
      while (status.ok()) status = (*agent)->Call<Busy>(1);
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kUnavailable, "has said goodbye"));
      EXPECT_EQ(losses, 0);
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
      return;
    }
    is_blocked.WaitForNotification();
    const Tensor large = *Tensor::Ones({1 << 17}, {.dtype = kFloat64});
    const Future<Tensor> sent = (*agent)->CallAsync<Scale>(0, large, 2.0);
    std::thread waker([&] {
      while ((*agent)->is_running()) std::this_thread::yield();
      is_late.Notify();
    });
    EXPECT_THAT((*agent)->Shutdown({.timeout = absl::Milliseconds(20)}),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         "waited for worker0 (rank 0)"));
    waker.join();
    over.Notify();
    EXPECT_THAT(sent.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition));
  });
  UnregisterHandler<Busy>();
}

TEST_F(RpcAgentTest, CallsToAWorkerThatDoesNotReadFailWithItsName) {
  absl::Notification is_blocked;
  absl::Notification go;
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2));
    ASSERT_THAT(agent, IsOk());
    if (rank == 0) {
      StopReading(**agent, is_blocked, go);
      go.WaitForNotification();
    } else {
      is_blocked.WaitForNotification();
      const std::string large(60000, 'x');
      std::vector<Future<void>> calls;
      do {
        calls.push_back((*agent)->CallAsync<Fail>(0, large));
      } while (!calls.back().Ready());
      for (const Future<void>& call : calls) {
        const absl::Status status = call.Wait();
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                     "it does not read what is sent to it"));
        EXPECT_EQ(FailedRank(status), 0);
      }
      go.Notify();
    }
    EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
  });
}

TEST_F(RpcAgentTest, ShardsOfOtherWorkersAreReadInPlace) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const auto agent = InitRpc(Options(group.rank(), 3));
    ASSERT_THAT(agent, IsOk());
    const auto rows =
        ChunkShardingSpec::Create(0, {"rank:0", "rank:1", "rank:2"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Full(rows, {6, 40000}, 2.5, {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    for (const auto& [rank, shards] : remote) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, shards[0].ToHere());
      EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full({2, 40000}, 2.5, {})));
      const Tensor out = *Tensor::Zeros({2, 7}, {});
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Shard box,
          shards[0].ToHere({.box = Box{{0, 39990}, {2, 7}}, .out = out}));
      EXPECT_EQ(box.tensor.data(), out.data());
      EXPECT_THAT(out, TensorEq(Tensor::Full({2, 7}, 2.5, {})));
      EXPECT_THAT(shards[0].ToHere({.box = Box{{0, 39990}, {2, 17}}}),
                  StatusIs(absl::StatusCode::kInvalidArgument, "a box at"));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    // What the owner writes is seen.
    ASSERT_THAT(tensor.Fill(-1), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
    for (const auto& [rank, shards] : remote) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, shards[0].ToHere());
      EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full({2, 40000}, -1, {})));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    tensor = ShardedTensor();
    ASSERT_THAT(group.Barrier(), IsOk());
    for (const auto& [rank, shards] : remote) {
      const absl::Status gone = shards[0].ToHere().status();
      EXPECT_THAT(gone, StatusIs(absl::StatusCode::kNotFound, "withdrawn"));
      EXPECT_EQ(ErrorRank(gone), rank);
    }
    EXPECT_THAT((*agent)->Shutdown(), IsOk());
    for (const auto& [rank, shards] : remote) {
      EXPECT_THAT(shards[0].ToHere(),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
    }
  });
}

TEST_F(RpcAgentTest, AFetchFromAWorkerThatShutsDownIsUnavailable) {
  // Its answer and its goodbye race.
  for (int round = 0; round < 20; ++round) {
    RunRankThreads(2, [&](int rank) {
      const auto agent = InitRpc(Options(rank, 2));
      ASSERT_THAT(agent, IsOk());
      if (rank == 0) {
        EXPECT_THAT((*agent)->Fetch(1, {.publication = {"g", 0}}),
                    StatusIs(absl::StatusCode::kUnavailable));
      } else {
        while ((*agent)->Statistics()[0].served == 0) {
          absl::SleepFor(absl::Milliseconds(1));
        }
      }
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    });
  }
}

TEST_F(RpcAgentTest, AFailedStartNamesTheReason) {
  RpcOptions options = Options(0, 1);
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(InitRpc(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                         "timeout must be above zero"));
  options = Options(0, 2);
  options.timeout = absl::Milliseconds(50);
  EXPECT_THAT(InitRpc(options),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  options = Options(0, 1);
  options.name = "two words";
  EXPECT_THAT(InitRpc(options),
              StatusIs(absl::StatusCode::kInvalidArgument, "two words"));
  options = Options(0, 1);
  options.transports = {"pigeon"};
  EXPECT_THAT(InitRpc(options),
              StatusIs(absl::StatusCode::kInvalidArgument, "pigeon"));
}

TEST_F(RpcAgentTest, ABadOptionOfOneWorkerIsReportedToAllAndLeavesNothing) {
  RunRankThreads(2, [&](int rank) {
    RpcOptions options = Options(rank, 2);
    if (rank == 1) {
      options.transports = {"pigeon"};
      // Rank 0 is in the session that this worker gives up.
      ASSERT_THAT(store_->Get("group/rpc/1/member/0", Deadline::Infinite()),
                  IsOk());
    }
    EXPECT_THAT(InitRpc(options),
                StatusIs(absl::StatusCode::kInvalidArgument, "pigeon"));
  });
  RunWorkers(2, [](RpcAgent&) {});
}

TEST_F(RpcAgentTest, TwoWorkersOfOneNameAreRefusedOnAll) {
  RunRankThreads(2, [&](int rank) {
    RpcOptions options = Options(rank, 2);
    options.name = "same";
    EXPECT_THAT(InitRpc(options),
                StatusIs(absl::StatusCode::kAlreadyExists, "same"));
  });
}

}  // namespace
}  // namespace sherd
