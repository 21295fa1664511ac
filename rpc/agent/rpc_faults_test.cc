// One worker of three fails at a named point: the others get errors that name
// it and the call, in time, and continue without it; nothing of it is left.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::DropAt;
using ::sherd::testing::FailAt;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::KillRankAt;
using ::sherd::testing::SlowRankAt;
using ::sherd::testing::StatusIs;
using ::sherd::testing::StopRankAt;
using ::sherd::testing::TensorEq;

constexpr int kWorkers = 3;
// Half of it is sent before the system's buffer is full.
constexpr int64_t kElements = int64_t{1} << 21;
// A worker that is silent for so long is lost.
constexpr absl::Duration kPatience = absl::Seconds(3);
// How much later an error may come, on a machine that is busy.
constexpr absl::Duration kSlack = absl::Seconds(20);

struct Echo {
  static constexpr absl::string_view kName = "echo";
  using Signature = absl::StatusOr<Tensor>(const Tensor&);
};

void RegisterEcho() {
  RegisterHandler<Echo>(
      [](const Tensor& x) -> absl::StatusOr<Tensor> { return x; });
}

// The phase in which the worker fails.
enum class Phase { kStart, kCalls, kShutdown };

// Of the start, if a worker never arrives.
constexpr absl::Duration kStart = absl::Seconds(5);

struct RpcFault {
  absl::string_view point;
  Phase phase;
  int rank;
  bool stops = false;
  // Only the failing worker connects with worker 2, or only that one with it.
  enum class Connects { kBoth, kIt, kOther } connects = Connects::kBoth;
};

std::string NameOf(const RpcFault& fault) {
  static constexpr absl::string_view kPhases[] = {"start", "calls", "shutdown"};
  return absl::StrCat(absl::StrReplaceAll(fault.point, {{"/", "_"}}), "_",
                      kPhases[static_cast<int>(fault.phase)], "_rank",
                      fault.rank, fault.stops ? "_stop" : "_kill");
}

void PrintTo(const RpcFault& fault, std::ostream* out) {
  *out << NameOf(fault);
}

std::vector<RpcFault> FaultsOf(Phase phase) {
  using Connects = RpcFault::Connects;
  std::vector<RpcFault> faults;
  for (const bool stops : {false, true}) {
    if (phase == Phase::kStart) {
      faults.push_back({"rpc/before_connecting", phase, 1, stops});
      faults.push_back({"rpc/before_hello", phase, 1, stops});
      faults.push_back({"rpc/before_hello_reply", phase, 0, stops});
      continue;
    }
    if (phase == Phase::kCalls) {
      faults.push_back(
          {"rpc/before_connecting", phase, 1, stops, Connects::kIt});
      faults.push_back({"rpc/before_hello", phase, 1, stops, Connects::kIt});
      faults.push_back(
          {"rpc/before_hello_reply", phase, 1, stops, Connects::kOther});
    }
    const std::vector<absl::string_view> points =
        phase == Phase::kShutdown
            ? std::vector<absl::string_view>{"rpc/before_drain",
                                             "rpc/after_drain"}
            : std::vector<absl::string_view>{
                  "rpc/before_request", "rpc/after_request", "net/part_sent",
                  "rpc/before_handler", "rpc/before_reply",  "rpc/after_reply"};
    for (const int rank : {0, 1}) {
      for (const absl::string_view point : points) {
        faults.push_back({point, phase, rank, stops});
      }
    }
  }
  return faults;
}

class RpcFaultsTest : public testing::DistributedTest {
 protected:
  int world_size() const override { return kWorkers; }

  static RpcOptions Options(absl::Duration timeout = absl::Seconds(60)) {
    RpcOptions options;
    options.timeout = timeout;
    options.heartbeat_interval = absl::Milliseconds(100);
    options.heartbeat_timeout = kPatience;
    return options;
  }

  std::string NameOfWorker(int rank) const {
    return absl::StrCat("worker", rank, " (rank ", rank, ")");
  }

  // Returns once all but `missing` have recorded `what`.
  void Meet(absl::string_view what, int missing = -1) {
    ASSERT_THAT(store().Set(absl::StrCat(what, rank()), absl::StrCat(getpid())),
                IsOk());
    for (int r = 0; r < kWorkers; ++r) {
      if (r == missing) continue;
      ASSERT_THAT(
          store().Get(absl::StrCat(what, r), Deadline::After(timeout() / 2)),
          IsOk());
    }
  }
};

size_t CountDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open)));
}

template <typename Condition>
bool HoldsSoon(const Condition& condition) {
  const Deadline deadline = Deadline::After(kSlack);
  while (!condition()) {
    if (deadline.HasPassed()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

class OneWorkerFails : public RpcFaultsTest,
                       public ::testing::WithParamInterface<RpcFault> {
 protected:
  bool fails() const { return rank() == GetParam().rank; }
  // The other survivor.
  int survivor() const { return kWorkers - GetParam().rank - rank(); }

  void Arm() {
    const RpcFault& fault = GetParam();
    if (fault.stops) {
      stop_.emplace(fault.point, fault.rank);
    } else {
      kill_.emplace(fault.point, fault.rank);
    }
  }

  // Calls as the failing worker, until it fails.
  void CallUntilItFails(RpcAgent& agent) {
    const Deadline deadline = Deadline::After(kSlack);
    while (!deadline.HasPassed()) {
      if (GetParam().connects == RpcFault::Connects::kOther) {
        absl::SleepFor(absl::Milliseconds(1));
        continue;
      }
      for (int r = kWorkers - 1; r >= 0; --r) {
        if (r != rank()) agent.Call<Echo>(r, x_).status().IgnoreError();
      }
    }
    ADD_FAILURE() << "the fault did not happen";
  }

  void ExpectLoss(const absl::Status& status, int lost) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable,
                         absl::StrCat("of echo on ", NameOfWorker(lost), ": ",
                                      NameOfWorker(lost), " is lost: ")));
    EXPECT_EQ(FailedRank(status), lost) << status;
    EXPECT_EQ(ErrorRank(status), lost) << status;
  }

  // Calls the failing worker until that one fails.
  void ExpectCallsToFail(RpcAgent& agent, int failing) {
    if (GetParam().connects == RpcFault::Connects::kIt && rank() == 2) {
      // Reported by worker 0.
      const auto lost = std::make_shared<absl::Notification>();
      agent.OnWorkerLost([lost, failing](int rank, const absl::Status&) {
        if (rank == failing) lost->Notify();
      });
      EXPECT_TRUE(lost->WaitForNotificationWithTimeout(kPatience + kSlack));
    }
    const Deadline deadline = Deadline::After(kPatience + kSlack);
    for (;;) {
      const absl::Status status =
          agent
              .Call<Echo>(To{.worker = failing, .timeout = kPatience + kSlack},
                          x_)
              .status();
      if (!status.ok()) {
        ExpectLoss(status, failing);
        EXPECT_TRUE(HoldsSoon([&] {
          return agent.Statistics()[static_cast<size_t>(failing)].lost;
        }));
        EXPECT_FALSE(agent.Statistics()[static_cast<size_t>(rank())].lost);
        return;
      }
      if (deadline.HasPassed()) break;
    }
    ADD_FAILURE() << "no call failed, although worker " << failing << " did";
  }

  void ExpectSurvivorsGoOn(RpcAgent& agent) {
    EXPECT_THAT(agent.Call<Echo>(survivor(), x_), IsOkAndHolds(TensorEq(x_)));
    EXPECT_THAT(agent.Call<Echo>(rank(), x_), IsOkAndHolds(TensorEq(x_)));
  }

  void ExpectShutdownNamesIt(RpcAgent& agent) {
    for (const WorkerStatistics& worker : agent.Statistics()) {
      EXPECT_EQ(worker.outstanding, 0) << worker.name;
    }
    const absl::Status status = agent.Shutdown();
    // It agreed that no call is left, so its death may go unnoticed.
    const bool drained = GetParam().point == "rpc/after_drain";
    if (status.ok() && drained) return;
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(NameOfWorker(GetParam().rank)));
    EXPECT_EQ(FailedRank(status), GetParam().rank) << status;
    // Worker 0 knows the reason, and reports it to the others before the drain
    // continues.
    if (GetParam().rank == 0 || GetParam().stops || drained) return;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("has ended"));
  }

  // Ends a stopped worker once all have seen what they had to.
  void EndStopped() {
    const RpcFault& fault = GetParam();
    if (!fault.stops) return;
    Meet("done", fault.rank);
    if (rank() > survivor()) return;
    const absl::StatusOr<std::string> process = store().Get(
        absl::StrCat("alive", fault.rank), Deadline::After(timeout() / 2));
    ASSERT_THAT(process, IsOk());
    int pid = 0;
    ASSERT_TRUE(absl::SimpleAtoi(*process, &pid));
    EXPECT_EQ(kill(pid, SIGKILL), 0);
  }

  const Tensor x_ = *Tensor::Full({kElements}, 2.5, {});

 private:
  std::optional<KillRankAt> kill_;
  std::optional<StopRankAt> stop_;
};

SHERD_DIST_TEST_P(OneWorkerFails, TheOthersLearnTheFailedWorkerAndContinue,
                  WithoutComms{}) {
  const RpcFault& fault = GetParam();
  RegisterEcho();
  ExpectRankDies(fault.rank, SIGKILL);
  Meet("alive");
  const size_t descriptors = CountDescriptors();
  auto agent = InitRpc(Options());
  ASSERT_THAT(agent, IsOk());
  Meet("started");
  Arm();
  if (fault.phase == Phase::kCalls) {
    if (fails()) CallUntilItFails(**agent);
    const Deadline deadline = Deadline::After(kPatience + kSlack);
    ExpectCallsToFail(**agent, fault.rank);
    EXPECT_FALSE(deadline.HasPassed());
  }
  if (!fails()) ExpectSurvivorsGoOn(**agent);
  ExpectShutdownNamesIt(**agent);
  *agent = nullptr;
  EXPECT_TRUE(HoldsSoon([&] { return x_.storage().use_count() == 1; }));
  EXPECT_TRUE(HoldsSoon([&] { return CountDescriptors() <= descriptors; }))
      << CountDescriptors() << " descriptors, " << descriptors << " before";
  EndStopped();
}

INSTANTIATE_TEST_SUITE_P(Points, OneWorkerFails,
                         ::testing::ValuesIn(FaultsOf(Phase::kCalls)),
                         [](const auto& info) { return NameOf(info.param); });
INSTANTIATE_TEST_SUITE_P(Shutdown, OneWorkerFails,
                         ::testing::ValuesIn(FaultsOf(Phase::kShutdown)),
                         [](const auto& info) { return NameOf(info.param); });

class OneWorkerNeverStarts : public OneWorkerFails {};

SHERD_DIST_TEST_P(OneWorkerNeverStarts, TheOthersLearnTheFailedWorker,
                  WithoutComms{}) {
  const RpcFault& fault = GetParam();
  RegisterEcho();
  ExpectRankDies(fault.rank, SIGKILL);
  Meet("alive");
  Arm();
  const Deadline deadline = Deadline::After(kStart + kPatience + kSlack);
  const auto agent = InitRpc(Options(kStart));
  EXPECT_FALSE(deadline.HasPassed());
  if (fault.rank == 0 || (fault.stops && rank() == 0)) {
    EXPECT_THAT(agent, ::testing::Not(IsOk()));
    EXPECT_THAT(std::string(agent.status().message()),
                ::testing::HasSubstr(NameOfWorker(fault.rank)));
    EXPECT_EQ(FailedRank(agent.status()), fault.rank) << agent.status();
  } else {
    // Worker 0 continues without one that died, and gives up with one that does
    // not arrive.
    ASSERT_THAT(agent, IsOk());
    ExpectCallsToFail(**agent, fault.stops ? 0 : fault.rank);
    EXPECT_THAT((*agent)->Shutdown(), ::testing::Not(IsOk()));
  }
  EndStopped();
}

INSTANTIATE_TEST_SUITE_P(Start, OneWorkerNeverStarts,
                         ::testing::ValuesIn(FaultsOf(Phase::kStart)),
                         [](const auto& info) { return NameOf(info.param); });

// One message, and the outcome of its call.
enum class Mishap { kLost, kLate, kError, kNoMemory };

struct MessageFault {
  absl::string_view point;
  Mishap mishap;
  // Worker 0 calls worker 1.
  int rank;
};

std::string NameOf(const MessageFault& fault) {
  static constexpr absl::string_view kMishaps[] = {"lost", "late", "error",
                                                   "no_memory"};
  return absl::StrCat(absl::StrReplaceAll(fault.point, {{"/", "_"}}), "_",
                      kMishaps[static_cast<int>(fault.mishap)]);
}

void PrintTo(const MessageFault& fault, std::ostream* out) {
  *out << NameOf(fault);
}

class OneMessageFails : public RpcFaultsTest,
                        public ::testing::WithParamInterface<MessageFault> {
 protected:
  static constexpr absl::Duration kTimeout = absl::Milliseconds(500);

  // The error that worker 0 gets.
  absl::StatusCode code() const {
    switch (GetParam().mishap) {
      case Mishap::kLost:
      case Mishap::kLate:
        return absl::StatusCode::kDeadlineExceeded;
      case Mishap::kError:
        return absl::StatusCode::kDataLoss;
      case Mishap::kNoMemory:
        return absl::StatusCode::kResourceExhausted;
    }
    return absl::StatusCode::kUnknown;
  }

  absl::Status CallWithFault(RpcAgent& agent, const Tensor& x) {
    const auto [point, mishap, at] = GetParam();
    std::optional<DropAt> lost;
    std::optional<SlowRankAt> late;
    std::optional<FailAt> error;
    switch (mishap) {
      case Mishap::kLost:
        lost.emplace(point, testing::FaultOptions{.rank = at});
        break;
      case Mishap::kLate:
        late.emplace(point, at, 2 * kTimeout);
        break;
      case Mishap::kError:
        error.emplace(point, absl::DataLossError("injected"),
                      testing::FaultOptions{.rank = at});
        break;
      case Mishap::kNoMemory:
        error.emplace(
            point, absl::ResourceExhaustedError("injected"),
            testing::FaultOptions{
                .rank = at, .min_bytes = static_cast<uint64_t>(x.nbytes())});
        break;
    }
    Meet("armed");
    absl::Status status;
    if (rank() == 0) {
      const bool ends_late = code() == absl::StatusCode::kDeadlineExceeded;
      status =
          agent
              .Call<Echo>(
                  To{.worker = 1, .timeout = ends_late ? kTimeout : kSlack}, x)
              .status();
    }
    // The fault may come after the call has ended.
    if (rank() == at) {
      EXPECT_TRUE(HoldsSoon([&] {
        return (!lost || lost->happened()) && (!late || late->happened()) &&
               (!error || error->happened());
      }));
    }
    Meet("called");
    return status;
  }
};

SHERD_DIST_TEST_P(OneMessageFails, OnlyItsCallFails, WithoutComms{}) {
  RegisterEcho();
  const auto agent = InitRpc(Options());
  ASSERT_THAT(agent, IsOk());
  const Tensor x = *Tensor::Full({kElements}, 2.5, {});
  const absl::Status status = CallWithFault(**agent, x);
  if (rank() == 0) {
    EXPECT_THAT(status, StatusIs(code(), "of echo on worker1 (rank 1): "));
    EXPECT_EQ(ErrorRank(status), 1) << status;
  }
  for (int r = 0; r < kWorkers; ++r) {
    EXPECT_THAT((*agent)->Call<Echo>(r, x), IsOkAndHolds(TensorEq(x)));
  }
  for (const WorkerStatistics& worker : (*agent)->Statistics()) {
    EXPECT_EQ(worker.outstanding, 0) << worker.name;
    EXPECT_EQ(worker.errors, rank() == 0 && worker.rank == 1 ? 1 : 0);
  }
  EXPECT_TRUE(HoldsSoon([&] { return x.storage().use_count() == 1; }));
  EXPECT_THAT((*agent)->Shutdown(), IsOk());
}

INSTANTIATE_TEST_SUITE_P(
    Points, OneMessageFails,
    ::testing::Values(MessageFault{"rpc/before_request", Mishap::kLost, 0},
                      MessageFault{"rpc/before_request", Mishap::kLate, 0},
                      MessageFault{"rpc/before_request", Mishap::kError, 0},
                      MessageFault{"tensor/allocate", Mishap::kNoMemory, 1},
                      MessageFault{"rpc/before_handler", Mishap::kLate, 1},
                      MessageFault{"rpc/before_handler", Mishap::kError, 1},
                      MessageFault{"rpc/before_reply", Mishap::kLost, 1},
                      MessageFault{"rpc/before_reply", Mishap::kLate, 1},
                      MessageFault{"rpc/before_reply", Mishap::kError, 1}),
    [](const auto& info) { return NameOf(info.param); });

// A worker is not lost for lack of resources: the next call connects.
SHERD_DIST_TEST_F(RpcFaultsTest, WithoutMeansToConnectTheNextCallTriesAgain,
                  WithoutComms{}) {
  RegisterEcho();
  const auto agent = InitRpc(Options());
  ASSERT_THAT(agent, IsOk());
  const Tensor x = *Tensor::Full({3}, 2.5, {});
  if (rank() == 1) {
    const FailAt error("rpc/before_connecting",
                       absl::ResourceExhaustedError("no descriptors"),
                       {.rank = 1});
    const absl::Status status = (*agent)->Call<Echo>(2, x).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kResourceExhausted,
                         "of echo on worker2 (rank 2): worker2 (rank 2): "
                         "no descriptors"));
    EXPECT_EQ(ErrorRank(status), 2);
  }
  for (int r = 0; r < kWorkers; ++r) {
    EXPECT_THAT((*agent)->Call<Echo>(r, x), IsOkAndHolds(TensorEq(x)));
  }
  EXPECT_THAT((*agent)->Shutdown(), IsOk());
}

}  // namespace
}  // namespace sherd
