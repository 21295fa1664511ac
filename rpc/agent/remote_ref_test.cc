#include "sherd/rpc/remote_ref.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(60);

using Ref = RemoteRef<int64_t>;

struct Keep {
  static constexpr absl::string_view kName = "keep";
  using Signature = absl::StatusOr<int64_t>(int64_t);
};
struct KeepTensor {
  static constexpr absl::string_view kName = "keep_tensor";
  using Signature = absl::StatusOr<Tensor>(const Tensor&);
};
struct KeepLater {
  static constexpr absl::string_view kName = "keep_later";
  using Signature = absl::StatusOr<int64_t>();
};
struct KeepNothing {
  static constexpr absl::string_view kName = "keep_nothing";
  using Signature = absl::Status(const std::string& error);
};
struct Unregistered {
  static constexpr absl::string_view kName = "unregistered";
  using Signature = absl::StatusOr<int64_t>();
};
struct Read {
  static constexpr absl::string_view kName = "read";
  using Signature = absl::StatusOr<int64_t>(const Ref&);
};
// Reads `ref` on the last of `route`, to which each passes it on.
struct ReadAfter {
  static constexpr absl::string_view kName = "read_after";
  using Signature = absl::StatusOr<int64_t>(const std::vector<int32_t>& route,
                                            const Ref& ref);
};
struct Owns {
  static constexpr absl::string_view kName = "owns";
  using Signature = absl::StatusOr<uint64_t>(const RemoteRef<Tensor>&);
};
// Any references, in whatever holds them.
struct Bundle {
  static auto Fields(auto& self) {
    return std::tie(self.list, self.map, self.maybe, self.pair);
  }
  std::vector<Ref> list;
  std::map<std::string, Ref> map;
  std::optional<Ref> maybe;
  std::pair<int32_t, RemoteRef<Tensor>> pair;
};
struct Turn {
  static constexpr absl::string_view kName = "turn";
  using Signature = absl::StatusOr<Bundle>(const Bundle&);
};
struct Node {
  static auto Fields(auto& self) { return std::tie(self.next); }
  RemoteRef<Node> next;
};

class RemoteRefTest : public ::testing::Test {
 protected:
  RemoteRefTest() {
    RegisterHandler<Keep>(
        [](int64_t x) -> absl::StatusOr<int64_t> { return x; });
    RegisterHandler<KeepTensor>(
        [](const Tensor& x) { return absl::StatusOr<Tensor>(x.Clone()); });
    RegisterHandler<KeepLater>([this] { return Later().future(); });
    RegisterHandler<KeepNothing>([](const std::string& error) {
      if (error.empty()) return absl::OkStatus();
      return absl::Status(absl::DataLossError(error));
    });
    RegisterHandler<Read>([](const Ref& ref) { return ref.ToHere(kLong); });
    RegisterHandler<Owns>(
        [](const RemoteRef<Tensor>& ref) -> absl::StatusOr<uint64_t> {
          absl::StatusOr<Tensor> tensor = ref.LocalValue();
          if (!tensor.ok()) return tensor.status();
          return reinterpret_cast<uint64_t>(tensor->data());
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

  // Runs each of `n` workers on a thread of its own; at the end no reference is
  // left on any, and all shut down.
  void RunWorkers(int n, const std::function<void(RpcAgent&)>& body) {
    agents_.resize(static_cast<size_t>(n));
    absl::Barrier* const started = new absl::Barrier(n);
    RunRankThreads(n, [&](int rank) {
      const auto agent = InitRpc(Options(rank, n));
      ASSERT_THAT(agent, IsOk());
      agents_[static_cast<size_t>(rank)] = agent->get();
      if (started->Block()) delete started;
      body(**agent);
      AwaitNothing(**agent);
      EXPECT_THAT((*agent)->Shutdown(), IsOk());
    });
  }

  static void AwaitNothing(const RpcAgent& agent) {
    const absl::Time end = absl::Now() + kLong;
    while (!agent.DescribeReferences().empty() && absl::Now() < end) {
      std::this_thread::yield();
    }
    EXPECT_EQ(agent.DescribeReferences(), "");
  }

  // The promise of the Future that KeepLater returns.
  Promise<int64_t> Later() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return later_;
  }
  void NextLater() ABSL_LOCKS_EXCLUDED(mutex_) {
    const Promise<int64_t> next;
    absl::MutexLock lock(&mutex_);
    later_ = next;
  }

  // By rank, for handlers.
  RpcAgent& AgentOfCallee(int rank) { return *agents_[rank]; }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  std::vector<RpcAgent*> agents_;

 private:
  absl::Mutex mutex_;
  Promise<int64_t> later_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(RemoteRefTest, ResultsStayUntilTheyAreFetchedAndGoWithTheReference) {
  RunWorkers(2, [](RpcAgent& agent) {
    const int other = 1 - agent.rank();
    const Tensor x = *Tensor::FromSpan<double>({1, 2, 3}, {3});
    SHERD_ASSERT_OK_AND_ASSIGN(RemoteRef<Tensor> ref,
                               agent.Remote<KeepTensor>(other, x));
    EXPECT_EQ(ref.owner(), other);
    EXPECT_EQ(ref.owner_name(), absl::StrCat("worker", other));
    EXPECT_FALSE(ref.is_owner());
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(ref.ToHere(), IsOkAndHolds(TensorEq(x)));
    }
    EXPECT_THAT(
        ref.LocalValue(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat("the value is on worker", other, " (rank ", other,
                              "), not on worker", agent.rank())));
    const RemoteRef<Tensor> copy = ref;
    EXPECT_EQ(copy, ref);
    const RemoteRef<Tensor> moved = std::move(ref);
    ref = RemoteRef<Tensor>();
    EXPECT_TRUE(ref.empty());
    EXPECT_THAT(ref.ToHere(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       "the reference is empty"));
    EXPECT_THAT(moved.ToHere(), IsOkAndHolds(TensorEq(x)));
  });
}

TEST_F(RemoteRefTest, TheOwnerSharesStorageWithItsValue) {
  RunWorkers(2, [](RpcAgent& agent) {
    const int other = 1 - agent.rank();
    const Tensor x = *Tensor::FromSpan<double>({1, 2, 3}, {3});
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteRef<Tensor> shared, agent.Share(x));
    EXPECT_TRUE(shared.is_owner());
    EXPECT_EQ(shared.LocalValue()->data(), x.data());
    EXPECT_EQ(shared.ToHere()->data(), x.data());
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteRef<Tensor> own,
                               agent.Remote<KeepTensor>(agent.name(), x));
    EXPECT_THAT(own.ToHere(), IsOkAndHolds(TensorEq(x)));
    EXPECT_EQ(own.LocalValue()->data(), own.ToHere()->data());
    // The owner gets its own value, and recognises it.
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteRef<Tensor> theirs,
                               agent.Remote<KeepTensor>(other, x));
    const absl::StatusOr<uint64_t> at = agent.Call<Owns>(other, theirs);
    ASSERT_THAT(at, IsOk());
    EXPECT_THAT(agent.Call<Owns>(other, theirs), IsOkAndHolds(*at));
    EXPECT_THAT(agent.Call<Owns>(other, shared),
                StatusIs(absl::StatusCode::kFailedPrecondition, "not on"));
  });
}

TEST_F(RemoteRefTest, AFailureIsReturnedToEveryFetch) {
  RunWorkers(2, [](RpcAgent& agent) {
    for (const int owner : {0, 1}) {
      SHERD_ASSERT_OK_AND_ASSIGN(const RemoteRef<void> lost,
                                 agent.Remote<KeepNothing>(owner, "no disk"));
      for (int i = 0; i < 2; ++i) {
        const absl::Status error = lost.ToHere();
        EXPECT_THAT(error, StatusIs(absl::StatusCode::kDataLoss, "no disk"));
        EXPECT_EQ(ErrorRank(error), owner);
        // The first may have waited for the call.
        if (i == 1 && owner == agent.rank()) {
          EXPECT_THAT(
              std::string(error.message()),
              StartsWith(absl::StrCat("reference ", owner, ":", owner, ":")));
        }
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const RemoteRef<void> fine,
                                 agent.Remote<KeepNothing>(owner, ""));
      EXPECT_THAT(fine.ToHere(), IsOk());
      SHERD_ASSERT_OK_AND_ASSIGN(const Ref none,
                                 agent.Remote<Unregistered>(owner));
      EXPECT_THAT(none.ToHere(),
                  StatusIs(absl::StatusCode::kNotFound, "unregistered"));
      EXPECT_THAT(agent.Call<Read>(1 - owner, none),
                  StatusIs(absl::StatusCode::kNotFound, "unregistered"));
    }
    EXPECT_THAT(agent.Remote<Keep>("workerfoo", 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "remote keep: Invalid worker name 'workerfoo'"));
    EXPECT_THAT(agent.Remote<Keep>(
                    To{.worker = 0, .out = {*Tensor::Zeros({1}, {})}}, 1),
                StatusIs(absl::StatusCode::kInvalidArgument, "To::out"));
  });
}

// A call that cannot be sent makes a value without holders.
TEST_F(RemoteRefTest, ACreationThatCannotBeSentIsAnError) {
  RunWorkers(2, [](RpcAgent& agent) {
    for (const int owner : {0, 1}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Ref late,
          agent.Remote<Keep>(To{.worker = owner, .timeout = -absl::Seconds(1)},
                             1));
      const absl::Status error = late.ToHere().status();
      EXPECT_THAT(error, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                  absl::StrCat("reference ", owner, ":",
                                               agent.rank(), ":")));
      EXPECT_EQ(ErrorRank(error), owner);
    }
  });
}

TEST_F(RemoteRefTest, AFetchWaitsForAValueThatIsNotReady) {
  RunWorkers(2, [&](RpcAgent& agent) {
    if (agent.rank() != 0) return;
    for (const int owner : {0, 1}) {
      NextLater();
      SHERD_ASSERT_OK_AND_ASSIGN(const Ref ref, agent.Remote<KeepLater>(owner));
      EXPECT_THAT(ref.ToHere(absl::Milliseconds(20)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded));
      std::thread reader(
          [&] { EXPECT_THAT(ref.ToHere(kLong), IsOkAndHolds(7)); });
      std::thread other([&] {
        EXPECT_THAT(agent.Call<Read>(1 - owner, ref), IsOkAndHolds(7));
      });
      Later().Set(7);
      reader.join();
      other.join();
      EXPECT_THAT(ref.ToHere(), IsOkAndHolds(7));
    }
  });
}

TEST_F(RemoteRefTest, ACreationEndsAtItsDeadline) {
  RunWorkers(2, [&](RpcAgent& agent) {
    if (agent.rank() != 0) return;
    for (const int owner : {0, 1}) {
      NextLater();
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Ref ref,
          agent.Remote<KeepLater>(
              To{.worker = owner, .timeout = absl::Milliseconds(20)}));
      EXPECT_THAT(
          ref.ToHere(kLong),
          StatusIs(absl::StatusCode::kDeadlineExceeded,
                   absl::StrCat("keep_later on worker", owner, " (rank ", owner,
                                "): it did not return before its deadline")));
      // A late result is dropped.
      Later().Set(8);
      EXPECT_THAT(ref.ToHere(), StatusIs(absl::StatusCode::kDeadlineExceeded));
    }
  });
}

TEST_F(RemoteRefTest, ReferencesArePassedOnWhileEachSenderDropsThem) {
  RegisterHandler<ReadAfter>([&](const std::vector<int32_t>& route,
                                 const Ref& ref) -> absl::StatusOr<int64_t> {
    if (route.size() == 1) return ref.ToHere(kLong);
    // The one that was called, which is not in the context.
    RpcAgent& agent = AgentOfCallee(route[0]);
    return agent.Call<ReadAfter>(
        route[1], std::vector<int32_t>(route.begin() + 1, route.end()), ref);
  });
  RunWorkers(4, [](RpcAgent& agent) {
    std::vector<Future<int64_t>> reads;
    for (int i = 0; i < 100; ++i) {
      const int self = agent.rank();
      const int owner = (self + i) % 4;
      absl::StatusOr<Ref> ref = agent.Remote<Keep>(owner, 10 * i + self);
      ASSERT_THAT(ref, IsOk());
      const int first = (self + 1 + i / 4) % 4;
      reads.push_back(agent.CallAsync<ReadAfter>(
          first,
          std::vector<int32_t>{first, (first + 1) % 4, (first + 3) % 4, first},
          *ref));
      // `ref` is destroyed before the others have it.
    }
    for (int i = 0; i < 100; ++i) {
      EXPECT_THAT(reads[static_cast<size_t>(i)].Wait(),
                  IsOkAndHolds(10 * i + agent.rank()));
    }
  });
  UnregisterHandler<ReadAfter>();
}

TEST_F(RemoteRefTest, ReferencesTravelInContainersBothWays) {
  RegisterHandler<Turn>([](const Bundle& bundle) -> absl::StatusOr<Bundle> {
    Bundle back = bundle;
    back.list.push_back(back.map.at("b"));
    return back;
  });
  RunWorkers(3, [](RpcAgent& agent) {
    const int next = (agent.rank() + 1) % 3;
    Bundle bundle;
    for (int i = 0; i < 5; ++i) {
      bundle.list.push_back(*agent.Remote<Keep>(i % 3, i));
    }
    bundle.list.emplace_back();
    bundle.map["a"] = bundle.list[1];
    bundle.map["b"] = *agent.Share(int64_t{17});
    bundle.maybe = *agent.Remote<Keep>(next, 18);
    bundle.pair.second = *agent.Share(*Tensor::Ones({3}, {}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Bundle back,
                               agent.Call<Turn>(next, bundle));
    ASSERT_EQ(back.list.size(), 7);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(back.list[i], bundle.list[i]);
      EXPECT_THAT(back.list[i].ToHere(), IsOkAndHolds(i));
    }
    EXPECT_TRUE(back.list[5].empty());
    EXPECT_THAT(back.list[6].LocalValue(), IsOkAndHolds(17));
    EXPECT_EQ(back.map, bundle.map);
    EXPECT_THAT(back.maybe->ToHere(), IsOkAndHolds(18));
    EXPECT_THAT(back.pair.second.ToHere(),
                IsOkAndHolds(TensorEq(Tensor::Ones({3}, {}))));
    // As a value, which keeps its references alive.
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteRef<Bundle> kept,
                               agent.Remote<Turn>(next, bundle));
    bundle = {};
    SHERD_ASSERT_OK_AND_ASSIGN(const Bundle fetched, kept.ToHere());
    EXPECT_THAT(fetched.list[6].ToHere(), IsOkAndHolds(17));
  });
  UnregisterHandler<Turn>();
}

TEST_F(RemoteRefTest, ALongChainOfValuesEndsWithoutRecursion) {
  RunWorkers(1, [](RpcAgent& agent) {
    Node node;
    for (int i = 0; i < 20000; ++i) {
      absl::StatusOr<RemoteRef<Node>> next = agent.Share(node);
      ASSERT_THAT(next, IsOk());
      node.next = *next;
    }
  });
}

TEST_F(RemoteRefTest, CancelledCallsLeaveNothing) {
  RunWorkers(3, [](RpcAgent& agent) {
    const int next = (agent.rank() + 1) % 3;
    for (int i = 0; i < 200; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Ref ref,
                                 agent.Remote<Keep>((next + i) % 3, i));
      const Future<int64_t> read = agent.CallAsync<Read>(
          To{.worker = next, .timeout = absl::Microseconds(i * 10)}, ref);
      if (i % 2 == 0) read.Cancel();
      const absl::StatusOr<int64_t> result = read.Wait();
      if (result.ok()) {
        EXPECT_EQ(*result, i);
      }
    }
  });
}

TEST_F(RemoteRefTest, ReferencesFailAfterTheirOwnerLeftOrTheShutdown) {
  std::vector<Ref> after(2);
  absl::Barrier* const passed = new absl::Barrier(2);
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2));
    ASSERT_THAT(agent, IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(Ref ref, (*agent)->Remote<Keep>(1 - rank, 5));
    EXPECT_THAT(ref.ToHere(), IsOkAndHolds(5));
    if (passed->Block()) delete passed;
    if (rank == 1) {
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    } else {
      absl::Status gone = absl::OkStatus();
      while (gone.ok()) gone = ref.ToHere().status();
      EXPECT_THAT(gone, StatusIs(absl::StatusCode::kUnavailable, "worker1"));
      EXPECT_EQ(ErrorRank(gone), 1);
      EXPECT_THAT((*agent)->Remote<Keep>(1, 5),
                  StatusIs(absl::StatusCode::kUnavailable));
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    }
    EXPECT_THAT(ref.ToHere(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       absl::StrCat("reference ", 1 - rank, ":",
                                                    rank, ":1: ")));
    EXPECT_THAT((*agent)->Share(int64_t{1}),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    after[static_cast<size_t>(rank)] = ref;
  });
  // The agents are destroyed.
  for (const Ref& ref : after) {
    EXPECT_THAT(ref.ToHere(), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(ref.owner_name(), absl::StrCat("worker", ref.owner()));
  }
  // A later agent has references of the same numbers.
  RunWorkers(2, [&](RpcAgent& agent) {
    const int other = 1 - agent.rank();
    SHERD_ASSERT_OK_AND_ASSIGN(const Ref ref, agent.Remote<Keep>(other, 6));
    EXPECT_THAT(
        agent.Call<Read>(other, after[agent.rank()]),
        StatusIs(absl::StatusCode::kFailedPrecondition, "before a shutdown"));
    EXPECT_THAT(ref.ToHere(), IsOkAndHolds(6));
  });
}

// Each worker is the first to shut down once, while all hold references.
TEST_F(RemoteRefTest, AGracefulShutdownDoesNotWaitForReferences) {
  for (int first = 0; first < 3; ++first) {
    std::vector<Ref> held(9);
    RunRankThreads(3, [&](int rank) {
      const auto agent = InitRpc(Options(rank, 3));
      ASSERT_THAT(agent, IsOk());
      for (int owner = 0; owner < 3; ++owner) {
        Ref& ref = held[3 * rank + owner];
        ref = *(*agent)->Remote<Keep>(owner, owner);
        if (rank != first) {
          EXPECT_THAT((*agent)->Call<Read>((owner + 1) % 3, ref),
                      IsOkAndHolds(owner));
        }
      }
      EXPECT_THAT((*agent)->Shutdown(), IsOk());
      EXPECT_EQ((*agent)->DescribeReferences(), "");
    });
  }
}

// Workers that do anything with references, in any order.
TEST_F(RemoteRefTest, RandomUseLeavesNothing) {
  const auto seed = static_cast<uint64_t>(
      GetIntKnob(Knob::kTestSeed, 0, INT64_MAX)
          .value()
          .value_or(static_cast<int64_t>(std::random_device()())));
  std::cout << "SHERD_TEST_SEED=" << seed << "\n";
  RegisterHandler<Turn>(
      [](const Bundle& bundle) -> absl::StatusOr<Bundle> { return bundle; });
  RunWorkers(4, [&](RpcAgent& agent) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(agent.rank()));
    const auto pick = [&](size_t below) { return random() % below; };
    std::vector<std::pair<Ref, int64_t>> held;
    std::vector<RemoteRef<Bundle>> bundles;
    std::vector<Future<Bundle>> calls;
    for (int i = 0; i < 1000; ++i) {
      const int to = static_cast<int>(pick(4));
      if (held.size() < 5 || pick(3) == 0) {
        held.emplace_back(pick(2) == 0 ? *agent.Remote<Keep>(to, i)
                                       : *agent.Share(int64_t{i}),
                          i);
      }
      Bundle bundle;
      for (size_t j = pick(4); j > 0; --j) {
        bundle.list.push_back(held[pick(held.size())].first);
      }
      const size_t at = pick(held.size());
      switch (pick(6)) {
        case 0:
          calls.push_back(agent.CallAsync<Turn>(to, bundle));
          break;
        case 1:
          bundles.push_back(*agent.Remote<Turn>(to, bundle));
          break;
        case 2:
          EXPECT_THAT(held[at].first.ToHere(), IsOkAndHolds(held[at].second));
          break;
        case 3:
          EXPECT_THAT(agent.Call<Read>(to, held[at].first),
                      IsOkAndHolds(held[at].second));
          break;
        case 4:
          if (!calls.empty()) calls.back().Cancel();
          if (!bundles.empty()) {
            EXPECT_THAT(bundles.back().ToHere(), IsOk());
          }
          break;
        default:
          held.erase(held.begin() + static_cast<ptrdiff_t>(at));
          if (!bundles.empty()) bundles.pop_back();
      }
    }
  });
  UnregisterHandler<Turn>();
}

}  // namespace
}  // namespace sherd
