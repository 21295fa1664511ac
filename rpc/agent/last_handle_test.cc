// The last handle of an agent may be dropped by any function, on any thread.

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FailAt;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;

// Beyond which a test has failed; nothing waits for it otherwise.
constexpr absl::Duration kLong = absl::Seconds(60);

struct Pause {
  static constexpr absl::string_view kName = "pause";
  using Signature = absl::Status();
};

class LastHandleTest : public ::testing::Test {
 protected:
  // A handle that functions can drop, of an agent that notifies when it has
  // been destroyed.
  struct Watched {
    void Drop() { handle.reset(); }

    std::shared_ptr<RpcAgent> handle;
    absl::Notification gone;
  };

  // Its shutdown waits for a handler, and for a goodbye, longer than the test.
  absl::StatusOr<std::shared_ptr<RpcAgent>> Start(int rank, int size,
                                                  Watched* watched) {
    RpcOptions options;
    options.rank = rank;
    options.world_size = size;
    options.store = store_;
    options.workers_are_threads = size > 1;
    options.transports = {"unix"};
    if (watched != nullptr) {
      options.parting_timeout = absl::Hours(1);
      // The agent keeps the store that it was given.
      options.store = std::shared_ptr<Store>(
          store_.get(),
          [watched, keep = store_](Store*) { watched->gone.Notify(); });
    }
    return InitRpc(options);
  }

  // Runs workers of which worker 1 has `watched_`, and executes `body`, in
  // which a function drops it. The others continue until it is destroyed.
  void RunWorkers(int size, const std::function<void()>& body) {
    RunRankThreads(size, [&](int rank) {
      absl::StatusOr<std::shared_ptr<RpcAgent>> agent =
          Start(rank, size, rank == 1 ? &watched_ : nullptr);
      ASSERT_THAT(agent, IsOk());
      if (rank == 1) {
        watched_.handle = std::move(*agent);
        body();
      }
      EXPECT_TRUE(watched_.gone.WaitForNotificationWithTimeout(kLong));
      go_on_.WaitForNotification();
      if (rank == 1) return;
      EXPECT_THAT((*agent)->Shutdown({.graceful = false}), IsOk());
    });
  }

  // A method whose handlers return once `go_on_` was notified.
  void RegisterPause() {
    RegisterHandler<Pause>([this] {
      go_on_.WaitForNotification();
      return absl::OkStatus();
    });
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  Watched watched_;
  absl::Notification go_on_;
};

TEST_F(LastHandleTest, MayGoWhenACallIsReady) {
  RegisterPause();
  RunWorkers(2, [&] {
    watched_.handle->CallAsync<Pause>(0).OnReady([&](const absl::Status& end) {
      EXPECT_THAT(end, IsOk());
      watched_.Drop();
    });
    go_on_.Notify();
  });
}

TEST_F(LastHandleTest, MayGoWhenTheThreadThatWaitsRunsTheFunction) {
  RegisterPause();
  RunWorkers(2, [&] {
    const Future<void> call = watched_.handle->CallAsync<Pause>(0);
    call.OnReady([&](const absl::Status&) { watched_.Drop(); });
    go_on_.Notify();
    EXPECT_THAT(call.Wait(), IsOk());
  });
}

TEST_F(LastHandleTest, MayGoWhenACallIsLate) {
  RegisterPause();
  RunWorkers(2, [&] {
    watched_.handle
        ->CallAsync<Pause>(To{.worker = 0, .timeout = absl::Milliseconds(200)})
        .OnReady([&](const absl::Status& end) {
          EXPECT_THAT(end, StatusIs(absl::StatusCode::kDeadlineExceeded));
          watched_.Drop();
        });
    EXPECT_TRUE(watched_.gone.WaitForNotificationWithTimeout(kLong));
    go_on_.Notify();
  });
}

TEST_F(LastHandleTest, MayGoWhenAWorkerIsLost) {
  RegisterPause();
  go_on_.Notify();
  const FailAt fault("rpc/before_connecting",
                     absl::UnavailableError("no connection"),
                     {.subject = "worker2"});
  RunWorkers(3, [&] {
    watched_.handle->OnWorkerLost([&](int lost, const absl::Status&) {
      EXPECT_EQ(lost, 2);
      watched_.Drop();
    });
    const Future<void> call = watched_.handle->CallAsync<Pause>(2);
    EXPECT_THAT(call.Wait(), StatusIs(absl::StatusCode::kUnavailable));
  });
}

// The handler's own handle, which DefaultRpcAgent returned, is then the last.
TEST_F(LastHandleTest, MayGoInAHandler) {
  absl::Notification has_handle;
  absl::Notification is_last;
  RegisterHandler<Pause>([&] {
    const auto agent = DefaultRpcAgent();
    EXPECT_THAT(agent, IsOk());
    has_handle.Notify();
    is_last.WaitForNotification();
    return absl::OkStatus();
  });
  absl::StatusOr<std::shared_ptr<RpcAgent>> agent = Start(0, 1, &watched_);
  ASSERT_THAT(agent, IsOk());
  const Future<void> call = (*agent)->CallAsync<Pause>(0);
  has_handle.WaitForNotification();
  agent->reset();
  is_last.Notify();
  EXPECT_TRUE(watched_.gone.WaitForNotificationWithTimeout(kLong));
  // With either outcome.
  call.Wait().IgnoreError();
}

TEST_F(LastHandleTest, MayGoInAFunctionThatTheShutdownRuns) {
  RegisterPause();
  RunWorkers(2, [&] {
    watched_.handle->CallAsync<Pause>(0).OnReady([&](const absl::Status& end) {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kFailedPrecondition));
      watched_.Drop();
    });
    EXPECT_THAT(watched_.handle->Shutdown({.graceful = false}), IsOk());
    EXPECT_TRUE(watched_.gone.HasBeenNotified());
    go_on_.Notify();
  });
}

TEST_F(LastHandleTest, IsGoneWithTheAgentOnAThreadOfTheProgram) {
  go_on_.Notify();
  RunWorkers(2, [&] {
    watched_.Drop();
    EXPECT_TRUE(watched_.gone.HasBeenNotified());
  });
}

}  // namespace
}  // namespace sherd
