#include "sherd/core/comm/remote_access.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/store/store_remote_access.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/publications.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FirstOf;
using ::sherd::testing::IsOk;
using ::sherd::testing::PublicationOf;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

class RemoteAccessTest : public ::testing::Test {
 protected:
  RemoteAccessTest() { RegisterRemoteAccess(StartStoreRemoteAccess); }
  ~RemoteAccessTest() override { RegisterRemoteAccess(nullptr); }

  RemoteAccessOptions Options(int rank, int world_size) {
    return {.rank = rank,
            .world_size = world_size,
            .store = store_,
            .workers_are_threads = true};
  }

  // Runs `body` as each of the workers, on a thread each.
  void RunWorkers(int n, const std::function<void(RemoteAccess&)>& body) {
    testing::RunRankThreads(n, [&](int rank) {
      auto access = StartRemoteAccess(Options(rank, n));
      ASSERT_THAT(access, IsOk());
      body(**access);
    });
  }

  // Returns once all of `n` ranks have called it.
  void AwaitAll(const std::string& what, int rank, int n) {
    std::vector<std::string> keys;
    for (int r = 0; r < n; ++r) keys.push_back(absl::StrCat(what, "/", r));
    ASSERT_THAT(store_->Set(keys[rank], ""), IsOk());
    ASSERT_THAT(store_->Wait(keys, Deadline::Infinite()), IsOk());
  }

  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(RemoteAccessTest, WithoutImplementationSaysWhatToDependOn) {
  EXPECT_TRUE(HasRemoteAccess());
  RegisterRemoteAccess(nullptr);
  EXPECT_FALSE(HasRemoteAccess());
  EXPECT_THAT(StartRemoteAccess(Options(0, 1)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "no RPC is linked: depend on @sherd//rpc"));
}

TEST_F(RemoteAccessTest, RejectsUnusableArguments) {
  const auto started = [this](auto change) {
    RemoteAccessOptions options = Options(1, 2);
    change(options);
    return StartRemoteAccess(options).status();
  };
  using Options = RemoteAccessOptions;
  for (const auto& [change, expected] :
       std::vector<std::pair<std::function<void(Options&)>, const char*>>{
           {[](Options& o) { o.rank = 2; }, "rank 2 of 2"},
           {[](Options& o) { o.rank = -1; }, "rank -1 of 2"},
           {[](Options& o) { o.world_size = 0; }, "rank 1 of 0"},
           {[](Options& o) { o.store = nullptr; }, "store"},
           {[](Options& o) { o.timeout = absl::ZeroDuration(); },
            "timeout must be above zero"}}) {
    EXPECT_THAT(started(change),
                StatusIs(absl::StatusCode::kInvalidArgument, expected));
  }
}

TEST_F(RemoteAccessTest, TheImplementationGetsAWorkersNameInAnyCase) {
  std::vector<std::string> names;
  RegisterRemoteAccess([&names](const RemoteAccessOptions& options) {
    names.push_back(options.name);
    return absl::UnavailableError("full");
  });
  RemoteAccessOptions options = Options(1, 4);
  EXPECT_THAT(StartRemoteAccess(options),
              StatusIs(absl::StatusCode::kUnavailable, "full"));
  options.name = "trainer";
  EXPECT_THAT(StartRemoteAccess(options),
              StatusIs(absl::StatusCode::kUnavailable, "full"));
  EXPECT_THAT(names, ElementsAre("worker1", "trainer"));
}

TEST_F(RemoteAccessTest, AShardIsFetchedAsItWasPublished) {
  RunWorkers(3, [this](RemoteAccess& access) {
    EXPECT_THAT(access.workers(), ElementsAre("worker0", "worker1", "worker2"));
    const int32_t rank = access.rank();
    // Not contiguous: its columns are rows in memory.
    const auto shard = [](int32_t r) {
      return *Tensor::FromSpan<int32_t>(
                  {r, 10 + r, 20 + r, 30 + r, 40 + r, 50 + r}, {2, 3})
                  ->Transpose(0, 1);
    };
    ASSERT_THAT(access.Publish(PublicationOf("shard", shard(rank))), IsOk());
    EXPECT_THAT(access.Publish(PublicationOf("shard", shard(rank))),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         "has published shard #0 already"));
    ASSERT_THAT(access.Publish(PublicationOf("empty", *Tensor::Empty({0, 7}))),
                IsOk());
    AwaitAll("published", rank, 3);
    const int32_t next = (rank + 1) % 3;
    const absl::StatusOr<Tensor> fetched = access.Fetch(next, FirstOf("shard"));
    ASSERT_THAT(fetched, IsOk());
    EXPECT_TRUE(fetched->BitwiseEqual(shard(next))) << *fetched;
    const absl::StatusOr<Tensor> empty = access.Fetch(next, FirstOf("empty"));
    ASSERT_THAT(empty, IsOk());
    EXPECT_THAT(empty->sizes(), ElementsAre(0, 7));
    AwaitAll("fetched", rank, 3);
  });
}

TEST_F(RemoteAccessTest, AShardCanBeFetchedUntilItIsWithdrawn) {
  RunWorkers(1, [](RemoteAccess& access) {
    const Tensor value = *Tensor::FromSpan<int32_t>({7, 8}, {2});
    ASSERT_THAT(access.Publish(PublicationOf("a", value)), IsOk());
    const absl::StatusOr<Tensor> fetched = access.Fetch(0, FirstOf("a"));
    ASSERT_THAT(fetched, IsOk());
    EXPECT_TRUE(fetched->BitwiseEqual(value));
    EXPECT_NE(fetched->data(), value.data());
    ASSERT_THAT(access.Withdraw({.scope = "a"}), IsOk());
    const absl::Status missing = access.Fetch(0, FirstOf("a")).status();
    EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound,
                                  "worker0 has withdrawn publication a #0"));
    EXPECT_EQ(ErrorRank(missing), 0);
    EXPECT_THAT(access.Withdraw({.scope = "a"}),
                StatusIs(absl::StatusCode::kNotFound, "a #0"));
    EXPECT_THAT(access.Fetch(1, FirstOf("a")),
                StatusIs(absl::StatusCode::kInvalidArgument, "worker 1 of 1"));
  });
}

TEST_F(RemoteAccessTest, ABoxOfAShardIsFetchedIntoMemoryOfTheCaller) {
  RunWorkers(1, [](RemoteAccess& access) {
    const Tensor first = *Tensor::FromSpan<int32_t>({1, 2, 3, 4, 5, 6}, {2, 3});
    const Tensor second = *Tensor::FromSpan<float>({0.5, 1.5}, {2});
    ASSERT_THAT(
        access.Publish(
            {.id = {"group", 0}, .fingerprint = 7, .shards = {first, second}}),
        IsOk());
    FetchRequest request = {.publication = {"group", 0}, .fingerprint = 7};
    request.box = Box{{0, 1}, {2, 2}};
    request.out = *Tensor::Zeros({2, 2}, {.dtype = kInt32});
    const absl::StatusOr<Tensor> box = access.Fetch(0, request);
    ASSERT_THAT(box, IsOk());
    EXPECT_EQ(box->data(), request.out.data());
    EXPECT_TRUE(
        box->BitwiseEqual(*Tensor::FromSpan<int32_t>({2, 3, 5, 6}, {2, 2})));

    const auto rejects = [&](auto change, const char* why) {
      FetchRequest wrong = request;
      change(wrong);
      EXPECT_THAT(access.Fetch(0, wrong),
                  StatusIs(absl::StatusCode::kInvalidArgument, why));
    };
    rejects([](FetchRequest& r) { r.box->sizes[1] = 3; }, "a box at");
    rejects([](FetchRequest& r) { r.box->offsets[0] = -1; }, "a box at");
    rejects([](FetchRequest& r) { r.box->offsets.push_back(0); }, "a box at");
    rejects([](FetchRequest& r) { r.shard = 2; },
            "shard 2 of publication group #0, which has 2");
    rejects([](FetchRequest& r) { r.shard = -1; }, "shard -1");
    rejects(
        [](FetchRequest& r) {
          r.out = *Tensor::Zeros({2, 3}, {});
        },
        "`out` has size");
    rejects(
        [](FetchRequest& r) {
          r.out = *Tensor::Zeros({2, 2}, {});
        },
        "dtype float32, but should have");
    request.fingerprint = 8;
    EXPECT_THAT(access.Fetch(0, request),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "is another tensor on its owner"));
  });
}

// Members of a group publish when they get there; a reader need not know when
// that is.
TEST_F(RemoteAccessTest, AFetchWaitsForAFuturePublication) {
  RunWorkers(2, [this](RemoteAccess& access) {
    const Tensor value = *Tensor::FromSpan<int32_t>({3}, {1});
    if (access.rank() == 0) {
      ASSERT_THAT(store_->Wait({"asking"}, Deadline::Infinite()), IsOk());
      for (uint64_t number = 0; number < 2; ++number) {
        ASSERT_THAT(
            access.Publish({.id = {"group", number}, .shards = {value}}),
            IsOk());
      }
      ASSERT_THAT(access.Withdraw({"group", 0}), IsOk());
    } else {
      FetchRequest late = {.publication = {"group", 7}};
      late.timeout = absl::Milliseconds(1);
      const absl::Status missing = access.Fetch(0, late).status();
      EXPECT_THAT(missing, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    "worker0 has not published group #7"));
      EXPECT_EQ(ErrorRank(missing), 0);
      ASSERT_THAT(store_->Set("asking", ""), IsOk());
      EXPECT_THAT(access.Fetch(0, {.publication = {"group", 1}}), IsOk());
    }
    AwaitAll("published", access.rank(), 2);
    EXPECT_THAT(access.Fetch(0, {.publication = {"group", 0}}),
                StatusIs(absl::StatusCode::kNotFound, "withdrawn"));
    AwaitAll("done", access.rank(), 2);
  });
}

TEST_F(RemoteAccessTest, NumbersCountByScopeAndCanSkip) {
  RunWorkers(1, [](RemoteAccess& access) {
    EXPECT_EQ(access.TakeNumber("a"), 0);
    EXPECT_EQ(access.TakeNumber("a"), 1);
    EXPECT_EQ(access.TakeNumber("b"), 0);
    access.SkipNumbers("a", 5);
    EXPECT_EQ(access.TakeNumber("a"), 6);
    access.SkipNumbers("a", 2);
    EXPECT_EQ(access.TakeNumber("a"), 7);
  });
}

TEST_F(RemoteAccessTest, TheDefaultIsTheAccessThatRuns) {
  EXPECT_EQ(DefaultRemoteAccess(), nullptr);
  RunWorkers(2, [this](RemoteAccess& access) {
    // Each thread has its own.
    EXPECT_EQ(DefaultRemoteAccess().get(), &access);
    EXPECT_THAT(StartRemoteAccess(Options(access.rank(), 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "RPC is already initialized"));
    ASSERT_THAT(access.Shutdown(), IsOk());
    EXPECT_EQ(DefaultRemoteAccess(), nullptr);
  });
  RemoteAccessOptions options = Options(0, 1);
  options.workers_are_threads = false;
  auto access = StartRemoteAccess(options);
  ASSERT_THAT(access, IsOk());
  // Other threads of the process find it too.
  testing::RunRankThreads(
      1, [&](int) { EXPECT_EQ(DefaultRemoteAccess(), *access); });
  access->reset();
  EXPECT_EQ(DefaultRemoteAccess(), nullptr);
}

TEST_F(RemoteAccessTest, AGracefulShutdownKeepsShardsForPendingFetches) {
  RunWorkers(3, [this](RemoteAccess& access) {
    const int rank = access.rank();
    ASSERT_THAT(access.Publish(PublicationOf(
                    "own", *Tensor::FromSpan<double>({rank + 0.5}, {1}))),
                IsOk());
    AwaitAll("published", rank, 3);
    // Worker 0 fetches while the others already shut down.
    const int next = (rank + 1) % 3;
    if (rank == 0) {
      ASSERT_THAT(store_->Wait({"shutting down/1", "shutting down/2"},
                               Deadline::Infinite()),
                  IsOk());
      const absl::StatusOr<Tensor> fetched = access.Fetch(next, FirstOf("own"));
      ASSERT_THAT(fetched, IsOk());
      EXPECT_EQ(fetched->data_as<double>()[0], next + 0.5);
    }
    ASSERT_THAT(store_->Set(absl::StrCat("shutting down/", rank), ""), IsOk());
    ASSERT_THAT(access.Shutdown(), IsOk());
    EXPECT_THAT(access.Shutdown(), IsOk());
    EXPECT_THAT(access.Fetch(next, FirstOf("own")),
                StatusIs(absl::StatusCode::kFailedPrecondition, "shut down"));
  });
}

TEST_F(RemoteAccessTest, AWorkerThatHasEndedIsNamed) {
  RunWorkers(2, [this](RemoteAccess& access) {
    if (access.rank() == 1) {
      ASSERT_THAT(access.Shutdown({.graceful = false}), IsOk());
      ASSERT_THAT(store_->Set("left", ""), IsOk());
      return;
    }
    ASSERT_THAT(store_->Wait({"left"}, Deadline::Infinite()), IsOk());
    const absl::Status gone = access.Fetch(1, FirstOf("x")).status();
    EXPECT_THAT(gone, StatusIs(absl::StatusCode::kUnavailable, "worker1"));
    EXPECT_EQ(ErrorRank(gone), 1);
  });
}

TEST_F(RemoteAccessTest, AMissingWorkerIsNamed) {
  RemoteAccessOptions options = Options(0, 2);
  options.timeout = absl::Milliseconds(1);
  EXPECT_THAT(StartRemoteAccess(options),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "worker/1"));
}

TEST(AddDeviceMapTest, MergesAndRefusesConflicts) {
  DeviceMaps maps;
  // As a fixture does for each worker, itself included.
  ASSERT_THAT(AddDeviceMap(maps, "w", {{"cuda:1", "cuda:0"}}), IsOk());
  ASSERT_THAT(
      AddDeviceMap(maps, "w", {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}),
      IsOk());
  ASSERT_THAT(AddDeviceMap(maps, "v", {{"cuda:3", "cuda:0"}}), IsOk());
  const DeviceMaps merged = {
      {"w", {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}},
      {"v", {{"cuda:3", "cuda:0"}}}};
  EXPECT_EQ(maps, merged);
  EXPECT_THAT(
      AddDeviceMap(maps, "w", {{"cuda:2", "cuda:2"}, {"cuda:1", "cuda:3"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "device_maps only supports 1-to-1 mapping, trying to "
               "map cuda:1 to cuda:3 of w: it goes to cuda:0"));
  EXPECT_THAT(AddDeviceMap(maps, "w", {{"cuda:3", "cuda:0"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "cuda:1 goes there already"));
  EXPECT_THAT(
      AddDeviceMap(maps, "u", {{"cuda:0", "cuda:0"}, {"cuda:1", "cuda:0"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, "1-to-1"));
  EXPECT_EQ(maps, merged);
}

}  // namespace
}  // namespace sherd
