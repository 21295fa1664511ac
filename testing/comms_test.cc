#include "sherd/testing/comms.h"

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/file_store.h"
#include "sherd/core/comm/hash_store.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/store_remote_access.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/described_backend.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 4;

// What happens to the rank of this thread, in its order.
thread_local std::vector<std::string> events;

// Remote access that says what becomes of it, and of the group meanwhile.
class ToldRemoteAccess final : public RemoteAccess {
 public:
  explicit ToldRemoteAccess(std::unique_ptr<RemoteAccess> base)
      : base_(std::move(base)) {}
  ~ToldRemoteAccess() override { events.push_back("remote access destroyed"); }

  int rank() const override { return base_->rank(); }
  const std::vector<std::string>& workers() const override {
    return base_->workers();
  }
  absl::Status Publish(absl::string_view key, Tensor shard) override {
    return base_->Publish(key, std::move(shard));
  }
  absl::Status Withdraw(absl::string_view key) override {
    return base_->Withdraw(key);
  }
  absl::StatusOr<Tensor> Fetch(int rank, absl::string_view key,
                               absl::Duration timeout) override {
    return base_->Fetch(rank, key, timeout);
  }
  absl::Status Shutdown(bool graceful) override {
    events.push_back(
        absl::StrCat(graceful ? "graceful" : "prompt", " shutdown, ",
                     DefaultGroup().ok() ? "with a group" : "without a group"));
    return base_->Shutdown(graceful);
  }

 private:
  const std::unique_ptr<RemoteAccess> base_;
};

absl::StatusOr<std::unique_ptr<RemoteAccess>> StartTold(
    const RemoteAccessOptions& options) {
  events.push_back(DefaultGroup().ok() ? "start, with a group"
                                       : "start, without a group");
  absl::StatusOr<std::unique_ptr<RemoteAccess>> base =
      StartStoreRemoteAccess(options);
  if (!base.ok()) return base.status();
  return std::make_unique<ToldRemoteAccess>(*std::move(base));
}

class CommsTest : public ::testing::Test {
 protected:
  CommsTest() { RegisterRemoteAccess(StartTold); }
  ~CommsTest() override { RegisterRemoteAccess(nullptr); }

  CommsPlace Place(int rank) const {
    return {.rank = rank,
            .world_size = kRanks,
            .ranks = RanksAre::kThreads,
            .store = store_,
            .timeout = absl::Hours(1),
            .on_phase = [](absl::string_view phase) {
              events.push_back(absl::StrCat("phase ", phase));
            }};
  }

  // As rank 0 to kRanks - 1, on a thread each.
  static void RunRanks(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&body, r] {
        SCOPED_TRACE(absl::StrCat("rank ", r));
        events.clear();
        body(r);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // A whole test on rank `place.rank`: every rank fetches a shard of the next.
  static void RunTest(const CommsPlace& place, const std::string& text) {
    const auto comms = Comms::SetUp({.init_rpc = true}, place);
    ASSERT_THAT(comms, IsOk());
    RemoteAccess& access = *(*comms)->remote_access();
    const auto shard = [&text](int rank) {
      return *Tensor::FromSpan<int64_t>({rank, int64_t(text.size()), -rank},
                                        {3});
    };
    ASSERT_THAT(access.Publish(text, shard(place.rank)), IsOk());
    ASSERT_THAT((*comms)->group()->Barrier(), IsOk());
    const int next = (place.rank + 1) % kRanks;
    const absl::StatusOr<Tensor> fetched = access.Fetch(next, text, {});
    ASSERT_THAT(fetched, IsOk());
    EXPECT_TRUE(fetched->BitwiseEqual(shard(next))) << *fetched;
    ASSERT_THAT((*comms)->Barrier(), IsOk());
    ASSERT_THAT((*comms)->TearDown(Leaving::kTogether), IsOk());
  }

  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(CommsTest, GoesUpAndDownInTheOrderOfTheReference) {
  RunRanks([this](int rank) {
    const auto comms = Comms::SetUp({.init_rpc = true}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    EXPECT_THAT((*comms)->remote_access()->workers(),
                ElementsAre("worker0", "worker1", "worker2", "worker3"));
    EXPECT_EQ((*comms)->group()->rank(), rank);
    EXPECT_EQ((*comms)->group()->size(), kRanks);
    events.push_back("body");
    ASSERT_THAT((*comms)->Barrier(), IsOk());
    ASSERT_THAT((*comms)->TearDown(Leaving::kTogether), IsOk());
    EXPECT_THAT(events,
                ElementsAre("phase remote access", "start, without a group",
                            "phase Init", "phase barrier after Init", "body",
                            "phase barrier", "phase end of remote access",
                            "graceful shutdown, with a group",
                            "remote access destroyed", "phase Destroy"));
    EXPECT_THAT(DefaultGroup(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    events.clear();
    EXPECT_THAT((*comms)->TearDown(Leaving::kTogether), IsOk());
    EXPECT_THAT(events, IsEmpty());
  });
}

TEST_F(CommsTest, BareItHasAGroupOnlyAndNeedsNoRpc) {
  RegisterRemoteAccess(nullptr);
  RunRanks([this](int rank) {
    const auto comms = Comms::SetUp({}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    EXPECT_EQ((*comms)->remote_access(), nullptr);
    EXPECT_EQ((*comms)->group()->backend().name, "local");
    EXPECT_EQ((*comms)->group()->timeout(), absl::Seconds(60));
    ASSERT_THAT((*comms)->TearDown(Leaving::kAlone), IsOk());
  });
}

TEST_F(CommsTest, NobodyWaitsForOthersAfterAFailedBody) {
  RunRanks([this](int rank) {
    const auto comms = Comms::SetUp(
        {.init_rpc = true, .timeout = absl::Minutes(40)}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    if (rank == 2) {
      // Nobody ever sends it.
      std::byte received[3];
      Work pending = (*comms)->group()->RecvAsync(received, /*source=*/3);
      events.clear();
      ASSERT_THAT((*comms)->TearDown(Leaving::kFailed), IsOk());
      EXPECT_THAT(events,
                  ElementsAre("phase end of remote access",
                              "prompt shutdown, with a group",
                              "remote access destroyed", "phase Destroy"));
      EXPECT_FALSE(pending.Wait().ok());
      return;
    }
    const absl::Status barrier = (*comms)->Barrier();
    EXPECT_FALSE(barrier.ok());
    EXPECT_EQ(ErrorRank(barrier), 2) << barrier;
    EXPECT_THAT((*comms)->TearDown(Leaving::kFailed), IsOk());
  });
}

TEST_F(CommsTest, WhoLeavesAloneWaitsForNobody) {
  RunRanks([this](int rank) {
    const auto comms = Comms::SetUp({.init_rpc = true}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    events.clear();
    // The others stay until it has gone.
    if (rank > 0) {
      EXPECT_THAT(store_->Wait({"rank 0 has left"}, Deadline::Infinite()),
                  IsOk());
    }
    EXPECT_THAT((*comms)->TearDown(Leaving::kAlone), IsOk());
    EXPECT_THAT(events[1], HasSubstr("prompt"));
    if (rank == 0) {
      EXPECT_THAT(store_->Set("rank 0 has left", ""), IsOk());
    }
  });
}

TEST_F(CommsTest, TheEndOfTheObjectIsAnEndInAnyCase) {
  RunRanks([this](int rank) {
    auto comms = Comms::SetUp({.init_rpc = true}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    events.clear();
    comms->reset();
    EXPECT_THAT(events,
                ElementsAre("phase end of remote access",
                            "prompt shutdown, with a group",
                            "remote access destroyed", "phase Destroy"));
    EXPECT_FALSE(DefaultGroup().ok());
  });
}

TEST_F(CommsTest, OnePlaceServesTestAfterTest) {
  RunRanks([this](int rank) {
    for (const char* test : {"first", "second one", "third"}) {
      RunTest(Place(rank), test);
    }
  });
}

TEST_F(CommsTest, AfterAFailedTestThePlaceServesTheNext) {
  RunRanks([this](int rank) {
    auto comms = Comms::SetUp({.init_rpc = true}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    ASSERT_THAT(
        (*comms)->remote_access()->Publish("shard", *Tensor::Ones({2}, {})),
        IsOk());
    EXPECT_THAT(
        (*comms)->TearDown(rank == 1 ? Leaving::kFailed : Leaving::kAlone),
        IsOk());
    // The same key is free again.
    RunTest(Place(rank), "shard");
  });
}

// Both users of one file, which neither may take from the other.
TEST_F(CommsTest, GroupAndRemoteAccessMayShareAFile) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/comms_shared_file");
  RunRanks([&](int rank) {
    for (const char* test : {"first", "second"}) {
      CommsPlace place = Place(rank);
      place.init_method = absl::StrCat("file://", path);
      place.store = std::make_shared<FileStore>(path);
      RunTest(place, test);
    }
  });
}

TEST_F(CommsTest, AGroupThatCannotBeMadeTakesRemoteAccessWithIt) {
  RunRanks([this](int rank) {
    CommsPlace place = Place(rank);
    place.init_method = "carrier-pigeon://";
    EXPECT_THAT(Comms::SetUp({.init_rpc = true}, place),
                StatusIs(absl::StatusCode::kInvalidArgument, "carrier-pigeon"));
    EXPECT_THAT(events,
                ElementsAre("phase remote access", "start, without a group",
                            "phase Init", "phase end of remote access",
                            "prompt shutdown, without a group",
                            "remote access destroyed"));
    RunTest(Place(rank), "afterwards");
  });
}

TEST_F(CommsTest, RemoteAccessThatCannotStartLeavesNoGroup) {
  RegisterRemoteAccess([](const RemoteAccessOptions& options) {
    return WithRank(absl::UnavailableError("no port"), options.rank);
  });
  RunRanks([this](int rank) {
    EXPECT_THAT(Comms::SetUp({.init_rpc = true}, Place(rank)),
                StatusIs(absl::StatusCode::kUnavailable, "no port"));
    EXPECT_THAT(events, ElementsAre("phase remote access"));
  });
  RegisterRemoteAccess(StartTold);
  RunRanks([this](int rank) { RunTest(Place(rank), "afterwards"); });
}

TEST_F(CommsTest, AShutdownThatFailsIsReportedAndTheGroupGoesNevertheless) {
  RunRanks([this](int rank) {
    const auto comms = Comms::SetUp(
        {.init_rpc = true, .timeout = absl::Milliseconds(500)}, Place(rank));
    ASSERT_THAT(comms, IsOk());
    // The others do not come.
    const Leaving leaving = rank == 3 ? Leaving::kTogether : Leaving::kAlone;
    const absl::Status status = (*comms)->TearDown(leaving);
    if (rank == 3) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   "end of remote access"));
    } else {
      EXPECT_THAT(status, IsOk());
    }
    EXPECT_FALSE(DefaultGroup().ok());
  });
}

TEST_F(CommsTest, TheDeviceIsLookedAtFirst) {
  events.clear();
  EXPECT_THAT(Comms::SetUp({.init_rpc = true, .device = "cuda"}, Place(0)),
              StatusIs(absl::StatusCode::kNotFound, "libsherd_device_cuda.so"));
  EXPECT_THAT(events, IsEmpty());
}

TEST_F(CommsTest, RemoteAccessNeedsAStoreAndAnImplementation) {
  CommsPlace place = Place(0);
  place.store = nullptr;
  EXPECT_THAT(Comms::SetUp({.init_rpc = true}, place),
              StatusIs(absl::StatusCode::kInvalidArgument, "needs a store"));
  RegisterRemoteAccess(nullptr);
  EXPECT_THAT(Comms::SetUp({.init_rpc = true}, Place(0)),
              StatusIs(absl::StatusCode::kUnimplemented, "@sherd//rpc"));
}

TEST_F(CommsTest, TheTimeoutLeavesTheTestTimeToReport) {
  CommsPlace place = Place(0);
  place.world_size = 1;
  place.timeout = absl::Seconds(40);
  const auto shortened = Comms::SetUp({.timeout = absl::Seconds(50)}, place);
  ASSERT_THAT(shortened, IsOk());
  EXPECT_EQ((*shortened)->group()->timeout(), absl::Seconds(30));
  ASSERT_THAT((*shortened)->TearDown(Leaving::kTogether), IsOk());
  const auto kept = Comms::SetUp({.timeout = absl::Seconds(29)}, place);
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ((*kept)->group()->timeout(), absl::Seconds(29));
}

TEST_F(CommsTest, ServesOnlyWhatItIs) {
  CommsPlace place = Place(0);
  place.world_size = 1;
  const auto comms = Comms::SetUp({}, place);
  ASSERT_THAT(comms, IsOk());
  EXPECT_TRUE((*comms)->Serves({}));
  EXPECT_TRUE((*comms)->Serves({.backend = "local", .device = "cpu"}));
  EXPECT_FALSE((*comms)->Serves({.backend = "shm"}));
  EXPECT_FALSE((*comms)->Serves({.init_rpc = true}));
  EXPECT_FALSE((*comms)->Serves({.timeout = absl::Seconds(61)}));
  EXPECT_FALSE((*comms)->Serves({.device = "cuda"}));
  (*comms)->group()->Abort(absl::AbortedError("broken"));
  EXPECT_FALSE((*comms)->Serves({}));
  ASSERT_THAT((*comms)->TearDown(Leaving::kFailed), IsOk());
  EXPECT_FALSE((*comms)->Serves({}));

  const auto remote = Comms::SetUp({.init_rpc = true}, place);
  ASSERT_THAT(remote, IsOk());
  EXPECT_FALSE((*remote)->Serves({}));
  EXPECT_FALSE((*remote)->Serves({.init_rpc = true}));
}

// What the parent finds out.

constexpr RanksAre kProcesses = RanksAre::kProcesses;
constexpr RanksAre kThreads = RanksAre::kThreads;

class CommsPlanTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    AddBackend({.name = "gloo"});
    AddBackend({.name = "yarn", .ranks_are_threads = true});
    AddBackend({.name = "sulks"}, absl::UnavailableError("no link is up"));
    AddBackend({.name = "launched", .needs_launcher = true},
               absl::FailedPreconditionError("not started by its launcher"));
  }

  CommsPlanTest() {
    for (const char* variable :
         {"SHERD_TEST_BACKEND", "SHERD_TEST_GPUS", "SHERD_TEST_LAUNCHER"}) {
      unsetenv(variable);
    }
    RegisterRemoteAccess(nullptr);
  }

  ~CommsPlanTest() override {
    for (const std::string& directory : directories_) {
      std::filesystem::remove_all(directory);
    }
  }

  // GPUs are looked for where there are none.
  static absl::StatusOr<CommsPlan> Plan(const std::optional<WithComms>& wanted,
                                        RanksAre ranks = kProcesses,
                                        const GpuHost& host = {
                                            .devices = "/nonexistent"}) {
    return PlanComms(wanted, /*world_size=*/4, ranks, host);
  }

  static SkipReason ReasonOf(const absl::StatusOr<CommsPlan>& plan) {
    if (plan.ok() && plan->skip) return plan->skip->reason;
    ADD_FAILURE() << "no skip: " << plan.status();
    return SkipReason::kRocm;
  }

  // A host with `n` GPUs.
  GpuHost WithGpus(int n) {
    std::string directory = absl::StrCat(::testing::TempDir(), "/gpus_XXXXXX");
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    for (int i = 0; i < n; ++i) {
      std::ofstream(absl::StrCat(directory, "/nvidia", i)).put('\n');
    }
    directories_.push_back(directory);
    return {.devices = directory};
  }

 private:
  std::vector<std::string> directories_;
};

TEST_F(CommsPlanTest, TheBackendOfTheTargetIsTheDefault) {
  EXPECT_EQ(Complete({}, kProcesses).backend, "gloo");
  EXPECT_EQ(Complete({}, kThreads).backend, "local");
  EXPECT_EQ(Complete({}, kProcesses).device, "cpu");
  ASSERT_EQ(setenv("SHERD_TEST_BACKEND", "shm", 1), 0);
  EXPECT_EQ(Complete({}, kProcesses).backend, "shm");
  EXPECT_EQ(Complete({}, kThreads).backend, "local");
  EXPECT_EQ(Complete({.backend = "mpi"}, kProcesses).backend, "mpi");
  ASSERT_EQ(setenv("SHERD_TEST_BACKEND", "sulks", 1), 0);
  EXPECT_EQ(ReasonOf(Plan(WithComms())), SkipReason::kBackendUnavailable);
}

TEST_F(CommsPlanTest, NothingStandsInTheWayOfABackendThatWorks) {
  for (const auto& [wanted, ranks] :
       std::vector<std::pair<WithComms, RanksAre>>{
           {{}, kProcesses},
           {{.backend = "GLOO", .device = "cpu"}, kProcesses},
           {{.backend = "cpu:gloo"}, kProcesses},
           // shm is not there, and gloo is.
           {{.backend = "auto"}, kProcesses},
           {{}, kThreads},
           {{.backend = "yarn"}, kThreads}}) {
    const absl::StatusOr<CommsPlan> plan = Plan(wanted, ranks);
    ASSERT_THAT(plan, IsOk()) << wanted.backend;
    EXPECT_FALSE(plan->skip) << wanted.backend << plan->skip->detail;
    EXPECT_FALSE(plan->needs_launcher);
    EXPECT_EQ(plan->gpus, 0);
  }
}

TEST_F(CommsPlanTest, WhatNobodyKnowsIsNotSupported) {
  for (const char* backend : {"hccl", "no_such_backend", "shm"}) {
    const absl::Status status = Plan(WithComms{.backend = backend}).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kNotFound,
                         absl::StrCat("Backend ", backend, " not supported!")));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("libsherd_backend_", backend, ".so")));
  }
  EXPECT_THAT(Plan(WithComms{.backend = "no/where"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "Backend no/where not supported!"));
}

TEST_F(CommsPlanTest, ContradictionsAreErrorsOfTheAuthor) {
  for (const auto& [wanted, ranks, expected] :
       std::vector<std::tuple<WithComms, RanksAre, const char*>>{
           {{.backend = "local"}, kProcesses, "ThreadedDistributedTest"},
           {{.backend = "yarn"}, kProcesses, "ThreadedDistributedTest"},
           {{.backend = "gloo"}, kThreads, "sherd::testing::DistributedTest"},
           {{.backend = "auto"}, kThreads, "use local"},
           {{.device = "tpu"}, kProcesses, "device \"tpu\""},
           {{.backend = "nccl", .device = "cpu"}, kProcesses, "needs GPUs"},
           {{.backend = "cpu:gloo,cuda:nccl", .device = "cpu"},
            kProcesses,
            "needs GPUs"},
           {{.timeout = absl::ZeroDuration()}, kProcesses, "timeout 0"},
           {{.backend = "cuda:nccl"}, kProcesses, "no backend for cpu"},
           {{.backend = "cpu:gloo,tpu:gloo"}, kProcesses, "pairing"}}) {
    EXPECT_THAT(Plan(wanted, ranks),
                StatusIs(absl::StatusCode::kInvalidArgument, expected));
  }
}

TEST_F(CommsPlanTest, FewerGpusThanRanksComeBeforeEverythingElse) {
  for (const WithComms& wanted : std::vector<WithComms>{
           {.backend = "nccl"},
           {.backend = "gloo", .device = "cuda"},
           {.backend = "cpu:gloo,cuda:nccl", .init_rpc = true}}) {
    const absl::StatusOr<CommsPlan> plan =
        Plan(wanted, kProcesses, WithGpus(3));
    EXPECT_EQ(ReasonOf(plan), SkipReason::kMultiGpu4) << wanted.backend;
    EXPECT_EQ(plan->skip->detail, "(needs 4, and 3 are visible)");
  }
  EXPECT_EQ(ReasonOf(PlanComms(WithComms{.backend = "nccl"}, 9, kProcesses,
                               WithGpus(8))),
            SkipReason::kGeneric);
}

TEST_F(CommsPlanTest, NcclIsSkippedWhereItIsNotBuilt) {
  const absl::StatusOr<CommsPlan> plan =
      Plan(WithComms{.backend = "nccl"}, kProcesses, WithGpus(4));
  EXPECT_EQ(ReasonOf(plan), SkipReason::kNoNccl);
  EXPECT_THAT(plan->skip->detail, HasSubstr("Backend nccl not supported!"));
  EXPECT_EQ(plan->gpus, 4);
}

TEST_F(CommsPlanTest, CudaIsSkippedWithoutADevicePlugin) {
  const absl::StatusOr<CommsPlan> plan = Plan(
      WithComms{.backend = "gloo", .device = "cuda"}, kProcesses, WithGpus(4));
  EXPECT_EQ(ReasonOf(plan), SkipReason::kNoCuda);
  EXPECT_THAT(plan->skip->detail, HasSubstr("libsherd_device_cuda.so"));
}

TEST_F(CommsPlanTest, AMissingLibraryIsASkipAndABrokenPluginIsNot) {
  {
    const WithLoader loader(absl::FailedPreconditionError(
        "x.so cannot be loaded: libmpi.so.40: cannot open shared object "
        "file: No such file or directory"));
    EXPECT_EQ(ReasonOf(Plan(WithComms{.backend = "mpi"})),
              SkipReason::kBackendUnavailable);
    EXPECT_EQ(
        ReasonOf(Plan(WithComms{.backend = "nccl"}, kProcesses, WithGpus(4))),
        SkipReason::kNoNccl);
    // Its author has to bring what it needs.
    EXPECT_THAT(Plan(WithComms{.backend = "theirs"}),
                StatusIs(absl::StatusCode::kFailedPrecondition, "libmpi"));
  }
  const WithLoader loader(
      absl::FailedPreconditionError("x.so is truncated: 100 bytes"));
  EXPECT_THAT(Plan(WithComms{.backend = "mpi"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "truncated"));
}

TEST_F(CommsPlanTest, ABackendThatCannotWorkHereIsASkip) {
  const absl::StatusOr<CommsPlan> plan = Plan(WithComms{.backend = "sulks"});
  EXPECT_EQ(ReasonOf(plan), SkipReason::kBackendUnavailable);
  EXPECT_EQ(plan->skip->detail, "(no link is up)");
}

TEST_F(CommsPlanTest, ALauncherIsAskedForAndMustBeThere) {
  ASSERT_EQ(setenv("SHERD_TEST_LAUNCHER", "/bin/sh", 1), 0);
  const absl::StatusOr<CommsPlan> plan = Plan(WithComms{.backend = "launched"});
  ASSERT_THAT(plan, IsOk());
  EXPECT_FALSE(plan->skip);
  EXPECT_TRUE(plan->needs_launcher);
  ASSERT_EQ(setenv("SHERD_TEST_LAUNCHER", "/nonexistent/mpirun", 1), 0);
  EXPECT_EQ(ReasonOf(Plan(WithComms{.backend = "launched"})),
            SkipReason::kBackendUnavailable);
}

TEST_F(CommsPlanTest, WithoutRpcATestOfItIsSkipped) {
  const absl::StatusOr<CommsPlan> plan = Plan(WithComms{.init_rpc = true});
  EXPECT_EQ(ReasonOf(plan), SkipReason::kMissingDependency);
  EXPECT_THAT(plan->skip->detail, HasSubstr("@sherd//rpc"));
  RegisterRemoteAccess(StartStoreRemoteAccess);
  EXPECT_FALSE(Plan(WithComms{.init_rpc = true})->skip);
}

TEST_F(CommsPlanTest, TheTargetsGpusCountForAllItsTests) {
  ASSERT_EQ(setenv("SHERD_TEST_GPUS", "2", 1), 0);
  EXPECT_EQ(ReasonOf(Plan(std::nullopt)), SkipReason::kMultiGpu2);
  EXPECT_EQ(ReasonOf(Plan(WithComms())), SkipReason::kMultiGpu2);
  const absl::StatusOr<CommsPlan> plan =
      Plan(std::nullopt, kProcesses, WithGpus(3));
  ASSERT_THAT(plan, IsOk());
  EXPECT_FALSE(plan->skip);
  EXPECT_EQ(plan->gpus, 2);
  EXPECT_EQ(Plan(WithComms{.device = "cuda"}, kProcesses, WithGpus(4))->gpus,
            4);
  ASSERT_EQ(setenv("SHERD_TEST_GPUS", "6", 1), 0);
  EXPECT_EQ(Plan(WithComms{.device = "cuda"}, kProcesses, WithGpus(6))->gpus,
            6);
  ASSERT_EQ(setenv("SHERD_TEST_GPUS", "many", 1), 0);
  EXPECT_THAT(Plan(std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument, "SHERD_TEST_GPUS"));
}

}  // namespace
}  // namespace sherd::testing::internal
